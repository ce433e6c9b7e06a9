"""What a copy of a shard is sent as, from the node that has one to the node that joins: parts, and their bytes.

    CopyBegins ─▶ (FileBegins ─▶ FileBytes … ─▶ FileEnds) for each file ─▶ CopyEnds

The first byte of a part says what it is; the rest is CBOR, a text, or bytes of a file.

Format: docs/formats/shard-copy.md. Pure: no I/O.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, assert_never, cast

import cbor2

from stream.engine import StreamPosition

FILE_BYTES_MAX = 1 << 18
"""In one part. What sealing it takes keeps nobody waiting for long."""
PART_BYTES_MAX = FILE_BYTES_MAX + 1


class AskForCopy(NamedTuple):
    """The node that joins wants a copy."""

    stream: str
    """The name of the shard's stream, as the engine knows it."""


class CannotGive(NamedTuple):
    """There is no copy to be had there, or not now."""

    reason: str


class CopyBegins(NamedTuple):
    """What follows."""

    mark: StreamPosition
    """The position in the copy's mark: the node that joins will read the stream from there on."""
    total_bytes: int
    """An estimate: the data logs are sent without their unused pages."""


class FileBegins(NamedTuple):
    """A file follows."""

    name: str
    """Relative to the shard's directory."""


class FileBytes(NamedTuple):
    """Some of its bytes: at most FILE_BYTES_MAX."""

    data: bytes


class FileEnds(NamedTuple):
    """It is whole."""

    size: int
    crc: int
    """CRC-32C of all its bytes."""


class CopyEnds(NamedTuple):
    """Nothing is missing."""

    files: int
    """How many have been sent."""


Part = AskForCopy | CannotGive | CopyBegins | FileBegins | FileBytes | FileEnds | CopyEnds


class _Kind(IntEnum):
    ASK = 0
    CANNOT = 1
    BEGINS = 2
    FILE = 3
    BYTES = 4
    FILE_ENDS = 5
    ENDS = 6


def encode_part(part: Part) -> bytes:
    """The bytes of a part."""
    match part:
        case AskForCopy(stream):
            return _part(_Kind.ASK, stream.encode())
        case CannotGive(reason):
            return _part(_Kind.CANNOT, reason.encode())
        case CopyBegins(mark, total_bytes):
            return _part(_Kind.BEGINS, cbor2.dumps([mark, total_bytes]))
        case FileBegins(name):
            return _part(_Kind.FILE, name.encode())
        case FileBytes(data):
            return _part(_Kind.BYTES, data)
        case FileEnds(size, crc):
            return _part(_Kind.FILE_ENDS, cbor2.dumps([size, crc]))
        case CopyEnds(files):
            return _part(_Kind.ENDS, cbor2.dumps([files]))
        case _:
            assert_never(part)


def _part(kind: _Kind, body: bytes) -> bytes:
    return bytes((kind,)) + body


def decode_part_untrusted(data: bytes) -> Part | None:
    """Decode a part; None if it is none. Never raises."""
    if not data or data[0] not in _KINDS:
        return None
    kind, body = _Kind(data[0]), data[1:]
    if kind is _Kind.BYTES:
        return FileBytes(body) if len(body) <= FILE_BYTES_MAX else None
    if kind in (_Kind.ASK, _Kind.CANNOT, _Kind.FILE):
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return None
        return AskForCopy(text) if kind is _Kind.ASK else FileBegins(text) if kind is _Kind.FILE else CannotGive(text)
    match kind, _cbor(body):
        case _Kind.BEGINS, [int(mark), int(total_bytes)] if mark >= -1 and total_bytes >= 0:
            return CopyBegins(StreamPosition(mark), total_bytes)
        case _Kind.FILE_ENDS, [int(size), int(crc)] if size >= 0 and 0 <= crc < 1 << 32:
            return FileEnds(size, crc)
        case _Kind.ENDS, [int(files)] if files >= 0:
            return CopyEnds(files)
        case _:
            return None


_KINDS = frozenset(_Kind)


def _cbor(body: bytes) -> object:
    try:
        return cast("object", cbor2.loads(body))
    except (cbor2.CBORDecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return None
