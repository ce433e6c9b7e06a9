"""The keys of a batch's records, and the batch without some of its records. For compaction.

    open_batch ──▶ OpenedBatch: the header, the records uncompressed, and for each record its position,
                   its key, and whether it is a tombstone (a key without a value)
    without    ──▶ the same batch with the remaining records, byte for byte, compressed as before

A record's bytes need not change when its neighbours are removed: its offset and timestamp are differences to the
batch's base offset and first timestamp, and these stay. So values and headers are never decoded.

The strict checks here (deltas grow, the records end where the payload ends) define what a compacted topic accepts from
producers, `why_not_keyed_untrusted`; an older batch that does not pass is `UnreadableRecords`, and kept as it is.

    record := length varint | attributes i8 | timestamp delta varint | offset delta varint |
              key length varint | key | value length varint | value | headers …

Pure: no I/O.

Source: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from datalog.batch import HEADER_BYTES, BatchHeader, Buffer, parse_stored_header, with_other_records
from datalog.compress import compress
from datalog.decoding import read_varint
from datalog.decompress import CodecMissing, UnreadableRecords, decompress
from datalog.records import DECOMPRESSED_BYTES_MAX, RECORDS_MAX
from fairlog_types import Offset

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class KeyedRecord(NamedTuple):
    """What compaction needs to know about a record. A tuple: every record of a compacted log becomes one, each time."""

    offset: Offset
    timestamp_delta: int
    """In ms, from the batch's first timestamp."""
    key: bytes | None
    tombstone: bool
    """It has no value: the key is deleted."""
    start: int
    end: int
    """The record is `records[start:end]`."""


@dataclass(frozen=True, slots=True)
class OpenedBatch:
    """A batch whose records were decoded."""

    header: BatchHeader
    payload: memoryview
    """As stored, perhaps compressed."""
    data: bytes
    """The payload, uncompressed."""
    records: list[KeyedRecord]


_new = cast("Callable[[type[KeyedRecord], tuple[object, ...]], KeyedRecord]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""A named tuple from its fields, in less than half the time that its own constructor takes."""


def open_batch(batch: bytes) -> OpenedBatch:
    """The records of one stored batch. Raises UnreadableRecords, and BadBatch if it is not a batch."""
    header = parse_stored_header(batch)
    payload = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if header.record_count > RECORDS_MAX:
        raise UnreadableRecords(f"{header.record_count} records, more than {RECORDS_MAX}")
    data = bytes(decompress(header.compression, payload, DECOMPRESSED_BYTES_MAX))
    try:
        return OpenedBatch(header, payload, data, _records(header, data))
    except IndexError:
        raise UnreadableRecords("the records end before the count in the header is reached") from None


def without(batch: OpenedBatch, kept: Sequence[KeyedRecord]) -> bytearray:
    """The batch with only the records in `kept`: some of its own, in their order, at least one.

    Raises CodecMissing if what could be decompressed cannot be compressed.
    """
    header = batch.header
    records = b"".join([batch.data[record.start : record.end] for record in kept])
    max_timestamp_ms = header.max_timestamp
    if not header.log_append_time:
        max_timestamp_ms = header.first_timestamp + max(record.timestamp_delta for record in kept)
    payload = compress(header.compression, records, like=batch.payload)
    return with_other_records(header, payload, record_count=len(kept), max_timestamp_ms=max_timestamp_ms)


@dataclass(frozen=True, slots=True)
class NotKeyed:
    """Why a compacted topic refuses a batch."""

    reason: str
    records: tuple[int, ...] = ()
    """The records that caused the refusal, if it was single ones, counted from 0 in the batch: the first
    RECORDS_TOLD_MAX.
    """


RECORDS_TOLD_MAX = 1_000
"""Limit for one batch: it has up to 100,000 records, and each in the answer takes about seventy bytes."""


def why_not_keyed_untrusted(batch: Buffer) -> NotKeyed | None:
    """Why a compacted topic refuses this batch, whose header is checked; None if it accepts it.

    A batch whose codec is missing is accepted: it will be kept as it is.
    """
    try:
        opened = open_batch(bytes(batch))
    except CodecMissing:
        return None
    except UnreadableRecords as error:
        return NotKeyed(f"the records of a compacted topic must be readable: {error}")
    header = opened.header
    without_key = (index for index, record in enumerate(opened.records) if record.key is None)
    if records := tuple(itertools.islice(without_key, RECORDS_TOLD_MAX)):
        return NotKeyed("a compacted topic refuses records without a key", records)
    if opened.records[-1].offset - header.base_offset != header.record_count - 1:
        return NotKeyed("the records' offset deltas are not 0, 1, 2, …")
    return None


def _records(header: BatchHeader, data: bytes) -> list[KeyedRecord]:
    """All records, with their fields checked as far as the value's length. Raises UnreadableRecords, IndexError.

    This is compaction's inner loop: numbers of one or two bytes, which almost all are, are read without a call.
    """
    records: list[KeyedRecord] = []
    base_offset, last_delta, size = header.base_offset, header.last_offset_delta, len(data)
    earliest, latest = _INT64_MIN - header.first_timestamp, _INT64_MAX - header.first_timestamp
    at, delta_before = 0, -1
    for _ in range(header.record_count):
        start = at
        number = data[at]
        if number < 0x80:
            length, at = (number >> 1) ^ -(number & 1), at + 1
        elif (more := data[at + 1]) < 0x80:
            length, at = ((number & 0x7F | more << 7) >> 1) ^ -(number & 1), at + 2
        else:
            length, at = read_varint(data, at)
        end = at + length
        if length < 1 or end > size:
            raise UnreadableRecords(f"a record of {length} bytes, {size - at} are left")
        at += 1
        number = data[at]
        if number < 0x80:
            timestamp_delta, at = (number >> 1) ^ -(number & 1), at + 1
        elif (more := data[at + 1]) < 0x80:
            timestamp_delta, at = ((number & 0x7F | more << 7) >> 1) ^ -(number & 1), at + 2
        else:
            timestamp_delta, at = read_varint(data, at)
        number = data[at]
        if number < 0x80:
            offset_delta, at = (number >> 1) ^ -(number & 1), at + 1
        elif (more := data[at + 1]) < 0x80:
            offset_delta, at = ((number & 0x7F | more << 7) >> 1) ^ -(number & 1), at + 2
        else:
            offset_delta, at = read_varint(data, at)
        if not delta_before < offset_delta <= last_delta:
            raise UnreadableRecords(f"an offset delta of {offset_delta} after {delta_before}, the last is {last_delta}")
        if not earliest <= timestamp_delta <= latest:
            raise UnreadableRecords(f"a timestamp {timestamp_delta} ms from the first, which no header can hold")
        delta_before = offset_delta
        number = data[at]
        if number < 0x80:
            key_bytes, at = (number >> 1) ^ -(number & 1), at + 1
        elif (more := data[at + 1]) < 0x80:
            key_bytes, at = ((number & 0x7F | more << 7) >> 1) ^ -(number & 1), at + 2
        else:
            key_bytes, at = read_varint(data, at)
        key = None
        if key_bytes >= 0:
            key = data[at : at + key_bytes]
            at += key_bytes
        number = data[at]
        if number < 0x80:
            value_bytes, at = (number >> 1) ^ -(number & 1), at + 1
        elif (more := data[at + 1]) < 0x80:
            value_bytes, at = ((number & 0x7F | more << 7) >> 1) ^ -(number & 1), at + 2
        else:
            value_bytes, at = read_varint(data, at)
        if at + max(value_bytes, 0) > end:
            raise UnreadableRecords(f"a key of {key_bytes} and a value of {value_bytes} bytes exceed their record")
        fields = base_offset + offset_delta, timestamp_delta, key, value_bytes < 0, start, end
        records.append(_new(KeyedRecord, fields))
        at = end
    if at != size:
        raise UnreadableRecords(f"{size - at} bytes follow the last record")
    return records
