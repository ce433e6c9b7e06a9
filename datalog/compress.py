"""Compresses a batch again after compaction has removed records, so that every consumer of the batch can still read it.

The codec is the batch's own; the level is the codec's default, because the producer's level is not known. Snappy keeps
its framing (raw, or Java's blocks). LZ4 blocks are independent of each other: Java's client cannot read others.

Pure: no I/O. The counterpart is `datalog.decompress`, which also says which packages the codecs come from.

Source: https://kafka.apache.org/documentation/#recordbatch; KIP-57 for Kafka's LZ4 frames
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import cast

from datalog.batch import Compression
from datalog.decompress import CodecMissing

_GZIP_WBITS = 31
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""Magic, version, oldest version that can read it."""
_XERIAL_BLOCK_BYTES = 32 << 10
"""Java's default block."""
_LENGTH = struct.Struct(">i")


def compress(compression: Compression, data: bytes, *, like: bytes | memoryview) -> bytes:
    """`data` as the payload of a batch with that codec. `like` is the batch's previous payload.

    Raises CodecMissing.
    """
    if compression is Compression.NONE:
        return data
    if compression is Compression.GZIP:
        compressor = zlib.compressobj(wbits=_GZIP_WBITS)
        return compressor.compress(data) + compressor.flush()
    try:
        cramjam = import_module("cramjam")
    except ImportError as error:
        raise CodecMissing(f"{compression.name.lower()}: the package cramjam is not installed") from error
    if compression is Compression.SNAPPY:
        return _snappy(cast("Callable[[bytes], bytes]", cramjam.snappy.compress_raw), data, like)
    if compression is Compression.ZSTD:
        return bytes(cast("bytes", cramjam.zstd.compress(data)))
    compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(cast("bytes", compressor.finish()))


def _snappy(compress_raw: Callable[[bytes], bytes], data: bytes, like: bytes | memoryview) -> bytes:
    if bytes(like[: len(_XERIAL_HEADER)])[:8] != _XERIAL_HEADER[:8]:
        return bytes(compress_raw(data))
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        out += _LENGTH.pack(len(block)) + block
    return bytes(out)
