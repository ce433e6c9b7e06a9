"""Decompresses what a producer has compressed, with a limit on the decompressed size.

Uncompressed and gzip batches are read with the standard library alone; snappy, lz4 and zstd with the package
`cramjam`, which Fairlog depends on. It is loaded at first use; if it cannot be loaded, batches of these codecs are
`CodecMissing`, and kept as they are.

Pure: no I/O.

Source: https://kafka.apache.org/documentation/#recordbatch; snappy's framing by Java clients:
https://github.com/xerial/snappy-java#compatibility-notes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TypeAlias, cast

from datalog.batch import Compression

_Decompressor: TypeAlias = "Callable[[bytes, bytearray], int]"
"""Decompresses the first buffer into the second, which is large enough; returns the number of bytes used."""

_NO_ROOM = ("failed to write whole buffer", "Destination buffer is too small")
"""cramjam's message if the output buffer is too small. Any other message means damage, which a larger buffer does not
solve.
"""

_FIRST_ROOM_BYTES = 256 << 10
_GZIP_WBITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")


class UnreadableRecords(Exception):
    """The records cannot be decoded: no codec, too large, too many, or they contradict the header."""


class CodecMissing(UnreadableRecords):
    """The package that contains the codec is not installed: nothing is known about the records."""


def decompress(compression: Compression, data: memoryview, bytes_max: int) -> bytes | bytearray | memoryview:
    """The records after a batch's header. Raises UnreadableRecords, also if they are larger than `bytes_max`."""
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
    failure = cast("type[Exception]", cramjam.DecompressionError)
    if compression is Compression.SNAPPY:
        length_of = cast("Callable[[bytes], int]", cramjam.snappy.decompress_raw_len)
        into = cast("_Decompressor", cramjam.snappy.decompress_raw_into)
        return _decompress_snappy(length_of, into, failure, _snappy_blocks(data), bytes_max)
    codec = cramjam.lz4 if compression is Compression.LZ4 else cramjam.zstd
    return _decompress_whole(cast("_Decompressor", codec.decompress_into), failure, bytes(data), bytes_max)


def _decompress_snappy(
    length_of: Callable[[bytes], int],
    into: _Decompressor,
    failure: type[Exception],
    blocks: Sequence[bytes],
    bytes_max: int,
) -> bytearray:
    """Each block states its length, which is trusted up to the limit: there may be a block in every five bytes."""
    out = bytearray()
    for block in blocks:
        try:
            length = length_of(block)
            if length > bytes_max - len(out):
                raise UnreadableRecords(f"snappy: more than {bytes_max} bytes")
            room = bytearray(length)
            out += memoryview(room)[: into(block, room)]
        except failure as error:
            raise UnreadableRecords(f"snappy: {error}") from error
    return out


def _decompress_whole(into: _Decompressor, failure: type[Exception], data: bytes, bytes_max: int) -> memoryview:
    """Try with larger and larger buffers: the codecs do not say in advance how much they need, or the input lies about
    it.
    """
    room_bytes = min(_FIRST_ROOM_BYTES, bytes_max)
    while True:
        room = bytearray(room_bytes)
        try:
            return memoryview(room)[: into(data, room)]
        except failure as error:
            if str(error) not in _NO_ROOM:
                raise UnreadableRecords(f"damaged: {error}") from error
            if room_bytes >= bytes_max:
                raise UnreadableRecords(f"damaged, or more than {bytes_max} bytes: {error}") from error
        del room  # before there is a larger one
        room_bytes = min(8 * room_bytes, bytes_max)


def _snappy_blocks(data: memoryview) -> list[bytes]:
    """Java frames snappy blocks (xerial's format); others send one raw block. Kafka's consumers accept both."""
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
