"""What a producer has compressed, decompressed, with a bound on what it may swell to.

Uncompressed and gzip batches are read with the standard library alone; snappy, lz4 and zstd if the package
`cramjam` is installed, which Fairlog does not ask for (the extra `client` brings it).

Pure: no I/O.

Source: https://kafka.apache.org/documentation/#recordbatch; snappy's framing by Java clients:
https://github.com/xerial/snappy-java#compatibility-notes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import cast

from datalog.batch import Compression

_FIRST_ROOM_BYTES = 256 << 10
_GZIP_WBITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")


class UnreadableRecords(Exception):
    """The records cannot be told apart: no codec, too large, too many, or not what the header says."""


class CodecMissing(UnreadableRecords):
    """The package that brings the codec is not installed: nothing is known of the records."""


def decompress(compression: Compression, data: memoryview, bytes_max: int) -> bytes | bytearray | memoryview:
    """The records behind a batch's header. Raises UnreadableRecords, also if they are more than `bytes_max`."""
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        try:
            decompressor = zlib.decompressobj(_GZIP_WBITS)
            out = decompressor.decompress(data, bytes_max)
        except zlib.error as error:
            raise UnreadableRecords(f"gzip: {error}") from error
        if decompressor.unconsumed_tail:
            raise UnreadableRecords(f"gzip: more than {bytes_max} bytes")
        return out
    return _decompress_with_cramjam(compression, data, bytes_max)


def _decompress_with_cramjam(
    compression: Compression, data: memoryview, bytes_max: int
) -> bytes | bytearray | memoryview:
    try:
        cramjam = import_module("cramjam")
    except ImportError as error:
        raise CodecMissing(f"{compression.name.lower()}: the package cramjam is not installed") from error
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
        out += _decompress_block(into, failure, block, bytes_max - len(out))
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
