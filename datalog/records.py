"""Finds which record of a batch has a timestamp. For ListOffsets only, never on the hot path.

If the records cannot be read (no codec: `datalog.decompress`; more than `DECOMPRESSED_BYTES_MAX` or `RECORDS_MAX`; or
malformed records after a good header, including timestamps beyond 64 bits), the batch answers as a whole: its first
offset with its max timestamp. A consumer that starts there misses nothing.

    record := length varint | attributes i8 | timestamp delta varint | offset delta varint | key, value, headers …

Pure: no I/O. Varints are zigzag, as in Protocol Buffers. `datalog.decoding` reads whole records.

Source: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from collections.abc import Iterator

from datalog.batch import HEADER_BYTES, BatchHeader, parse_stored_header
from datalog.decoding import read_varint
from datalog.decompress import UnreadableRecords, decompress
from datalog.interface import TimestampOffset
from fairlog_types import Offset

DECOMPRESSED_BYTES_MAX = 16 << 20
"""A batch that decompresses to more is not worth the memory: it answers as a whole."""

RECORDS_MAX = 100_000
"""A batch with more records is not worth the time (1.7 µs per record, in Python): 24 KB of gzip can hold millions of
records.
"""

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def first_at_or_after(batch: bytes, timestamp_ms: int, offset_min: Offset) -> TimestampOffset | None:
    """The batch's first record at or after `offset_min` with that timestamp or a later one, None if there is none.

    `batch` is a stored batch whose max timestamp is at least `timestamp_ms`.
    """
    header = parse_stored_header(batch)
    whole = TimestampOffset(max(header.base_offset, offset_min), header.max_timestamp)
    if header.log_append_time:
        return whole
    found_before = False
    try:
        for offset, timestamp in record_timestamps(header, batch):
            if timestamp >= timestamp_ms:
                if offset >= offset_min:
                    return TimestampOffset(offset, timestamp)
                found_before = True
    except UnreadableRecords:
        return whole
    return None if found_before else whole


def record_timestamps(header: BatchHeader, batch: bytes) -> Iterator[tuple[Offset, int]]:
    """Each record's offset and timestamp (ms), in order, as the client set them. Raises UnreadableRecords."""
    if header.record_count > RECORDS_MAX:
        raise UnreadableRecords(f"{header.record_count} records, more than {RECORDS_MAX}")
    records = decompress(
        header.compression, memoryview(batch)[HEADER_BYTES : header.size_bytes], DECOMPRESSED_BYTES_MAX
    )
    at = 0
    for _ in range(header.record_count):
        try:
            length, at = read_varint(records, at)
            timestamp_delta, fields_at = read_varint(records, at + 1)
            offset_delta, _ = read_varint(records, fields_at)
        except IndexError:
            raise UnreadableRecords("the records end before the count in the header is reached") from None
        if length < 1 or not 0 <= offset_delta <= header.last_offset_delta:
            raise UnreadableRecords(f"a record of {length} bytes with the offset delta {offset_delta}")
        at += length
        timestamp = header.first_timestamp + timestamp_delta
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise UnreadableRecords(f"a timestamp of {timestamp}, which no answer can hold")
        yield Offset(header.base_offset + offset_delta), timestamp
