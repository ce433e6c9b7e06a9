"""Whole records inside a batch. For programs that read data logs directly; the node never decodes a record.

    record := length varint | attributes i8 | timestamp delta varint | offset delta varint |
              key length varint | key | value length varint | value | count of headers varint | headers …
    header := name length varint | name | value length varint | value

A length of -1 means null. The batch's header was checked when it was produced, and its CRC too; the rest is what the
producer wrote, and may be malformed.

Pure: no I/O. Varints are zigzag, as in Protocol Buffers.

Source: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import NamedTuple

from datalog.batch import HEADER_BYTES, BatchHeader, Buffer
from datalog.decompress import UnreadableRecords, decompress
from fairlog_types import Offset

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Limit for one batch. A producer may compress a gigabyte of zeros into a batch that any topic accepts."""

RECORDS_MAX = 1_000_000
"""Limit for one batch: the maximum of librdkafka (`batch.num.messages`). 256 MiB can hold 38 million records of seven
bytes, which take eight gigabytes when they are decoded.
"""

_VARINT_BITS_MAX = 70


class Record(NamedTuple):
    """One record, as its producer sent it.

    A tuple and not a dataclass: hundreds of thousands are created per second.
    """

    offset: Offset
    timestamp_ms: int
    """Unix time in ms, as the producer set it; -1 if it set none."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    """Name and value, in order; a name may occur twice."""


def decode_records_untrusted(header: BatchHeader, batch: Buffer) -> list[Record]:
    """All records of one batch, in order; none for a control batch, whose record is not for readers.

    Raises UnreadableRecords if the codec is missing, the records exceed `DECOMPRESSED_BYTES_MAX` or `RECORDS_MAX`, or
    they contradict the header.
    """
    if header.control:
        return []
    if header.record_count > RECORDS_MAX:
        raise UnreadableRecords(f"{header.record_count} records, more than {RECORDS_MAX}")
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    data = bytes(decompress(header.compression, body, DECOMPRESSED_BYTES_MAX))
    try:
        return _decode(header, data)
    except IndexError:
        raise UnreadableRecords("the records end before the count in the header is reached") from None


def _decode(header: BatchHeader, data: bytes) -> list[Record]:
    records: list[Record] = []
    at = 0
    for _ in range(header.record_count):
        length, at = read_varint(data, at)
        end = at + length
        if length < 1 or end > len(data):
            raise UnreadableRecords(f"a record of {length} bytes, {len(data) - at} are left")
        timestamp_delta, at = read_varint(data, at + 1)
        offset_delta, at = read_varint(data, at)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise UnreadableRecords(f"an offset delta of {offset_delta}, the last one is {header.last_offset_delta}")
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        count, at = read_varint(data, at)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if count:
            headers, at = _headers(data, at, end, count)
        if at != end:
            raise UnreadableRecords(f"a record's fields end at byte {at}, it ends at {end}")
        timestamp_ms = header.max_timestamp if header.log_append_time else header.first_timestamp + timestamp_delta
        records.append(Record(Offset(header.base_offset + offset_delta), timestamp_ms, key, value, headers))
    return records


def _headers(data: bytes, at: int, end: int, count: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count <= end - at:
        raise UnreadableRecords(f"{count} headers in {end - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _field(data, at, end)
        if name is None:
            raise UnreadableRecords("a header without a name")
        value, at = _field(data, at, end)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), at


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise UnreadableRecords(f"a field of {length} bytes, {end - at} are left in its record")
    return data[at : at + length], at + length


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The zigzag number at `at`, and where the next field begins. IndexError after the end."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise UnreadableRecords("a varint of more than ten bytes")
