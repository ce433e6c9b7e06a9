"""Inside a batch: which of its records has a timestamp. For ListOffsets only, never on the hot path.

Uncompressed and gzip batches are read with the standard library alone; snappy, lz4 and zstd if the package
`cramjam` is installed, which Fairlog does not ask for. Where the records cannot be read (no codec, more than
`DECOMPRESSED_BYTES_MAX` or `RECORDS_MAX`, or a client that wrote nonsense behind a good header, timestamps
beyond 64 bits among it), the batch answers as a whole: its first offset with its max timestamp. A consumer that
starts there misses nothing.

    record := length varint | attributes i8 | timestamp delta varint | offset delta varint | key, value, headers …

Pure: no I/O. Varints are zigzag, as in Protocol Buffers.

Source: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import cast

from datalog.batch import HEADER_BYTES, BatchHeader, Compression, parse_batch_header_untrusted
from datalog.interface import TimestampOffset
from fairlog_types import Offset

DECOMPRESSED_BYTES_MAX = 16 << 20
"""A batch that swells to more is not worth the memory: it answers as a whole."""

RECORDS_MAX = 100_000
"""A batch of more is not worth the time (1.7 µs a record, in Python): 24 KB of gzip can hold millions of records."""

_FIRST_ROOM_BYTES = 256 << 10
_GZIP_WBITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")
_VARINT_BITS_MAX = 70
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class UnreadableRecords(Exception):
    """The records cannot be told apart: no codec, too large, too many, or not what the header says."""


def first_at_or_after(batch: bytes, timestamp_ms: int, offset_min: Offset) -> TimestampOffset | None:
    """The batch's first record at or behind `offset_min` with that timestamp or a later one, None if it has none.

    `batch` is a stored batch whose max timestamp is at least `timestamp_ms`.
    """
    header = parse_batch_header_untrusted(batch)
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
    records = _decompress(header.compression, memoryview(batch)[HEADER_BYTES : header.size_bytes])
    at = 0
    for _ in range(header.record_count):
        try:
            length, at = _varint(records, at)
            timestamp_delta, fields_at = _varint(records, at + 1)
            offset_delta, _ = _varint(records, fields_at)
        except IndexError:
            raise UnreadableRecords("the records end before the count in the header is reached") from None
        if length < 1 or not 0 <= offset_delta < header.record_count:
            raise UnreadableRecords(f"a record of {length} bytes with the offset delta {offset_delta}")
        at += length
        timestamp = header.first_timestamp + timestamp_delta
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise UnreadableRecords(f"a timestamp of {timestamp}, which no answer can hold")
        yield Offset(header.base_offset + offset_delta), timestamp


def _varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The zigzag number at `at`, and where the next field begins. IndexError behind the end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise UnreadableRecords("a varint of more than ten bytes")


def _decompress(compression: Compression, data: memoryview) -> bytes | bytearray | memoryview:
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        try:
            return zlib.decompressobj(_GZIP_WBITS).decompress(data, DECOMPRESSED_BYTES_MAX)
        except zlib.error as error:
            raise UnreadableRecords(f"gzip: {error}") from error
    return _decompress_with_cramjam(compression, data)


def _decompress_with_cramjam(compression: Compression, data: memoryview) -> bytes | bytearray | memoryview:
    try:
        cramjam = import_module("cramjam")
    except ImportError as error:
        raise UnreadableRecords(f"{compression.name.lower()}: the package cramjam is not installed") from error
    if compression is Compression.SNAPPY:
        blocks = _snappy_blocks(data)
        into = cast("Callable[[bytes, bytearray], int]", cramjam.snappy.decompress_raw_into)
    else:
        blocks = [bytes(data)]
        codec = cramjam.lz4 if compression is Compression.LZ4 else cramjam.zstd
        into = cast("Callable[[bytes, bytearray], int]", codec.decompress_into)
    failure = cast("type[Exception]", cramjam.DecompressionError)
    out = bytearray()
    for block in blocks:
        out += _decompress_block(into, failure, block, DECOMPRESSED_BYTES_MAX - len(out))
    return out


def _decompress_block(
    into: Callable[[bytes, bytearray], int], failure: type[Exception], block: bytes, bytes_max: int
) -> memoryview:
    """Try with more and more room: the codecs do not say beforehand how much they need, or lie."""
    room_bytes = min(_FIRST_ROOM_BYTES, bytes_max)
    while True:
        room = bytearray(room_bytes)
        try:
            return memoryview(room)[: into(block, room)]
        except failure as error:
            if room_bytes >= bytes_max:
                raise UnreadableRecords(f"damaged, or more than {bytes_max} bytes: {error}") from error
        room_bytes = min(8 * room_bytes, bytes_max)


def _snappy_blocks(data: memoryview) -> list[bytes]:
    """Java frames snappy blocks (xerial's format); others send one raw block. Kafka's consumers take both."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [bytes(data)]
    blocks: list[bytes] = []
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        if at + _BLOCK_LENGTH.size > len(data):
            raise UnreadableRecords("snappy: a block's length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if length < 1 or at + length > len(data):
            raise UnreadableRecords(f"snappy: a block of {length} bytes, {len(data) - at} are left")
        blocks.append(bytes(data[at : at + length]))
        at += length
    return blocks
