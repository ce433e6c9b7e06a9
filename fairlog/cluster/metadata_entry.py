"""One entry of the metadata stream: its bytes, and when bytes are an entry.

    magic u32 | CRC u32 | version u8 | kind u8 | 0 u16 | base CRC u32 | base u64 | cluster 16 | proposer 16 |
    number u64 | body

| kind | body |
|---|---|
| CHANGE | CBOR: a list of `[key, value or null]`, ordered by key |
| PIECE | `index u32`, and some bytes of a snapshot |
| SNAPSHOT | `pieces u32`, `CRC u32` over all of the snapshot, and its last bytes |

A snapshot is all records, ordered by key: for each `key length u16 | value length u32 | key | value`.

Format: docs/formats/metadata-stream.md. Pure: no I/O. What is in a record is not known here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, cast
from uuid import UUID

import cbor2
from crc32c import crc32c

from fairlog.cluster.common_memory import Changes
from stream.engine import StreamPosition

MAGIC = 0x4D474C46
"""`FLGM` in the file's order of bytes."""
VERSION = 1

_HEADER = struct.Struct("<IIBBHIQ16s16sQ")
_COVERED = struct.Struct("<BBHIQ16s16sQ")
"""What the CRC covers of the header."""
_PIECE = struct.Struct("<I")
_SNAPSHOT = struct.Struct("<II")
_RECORD = struct.Struct("<HI")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 64
_COVERED_FROM = HEADER_BYTES - _COVERED.size
assert _COVERED_FROM == 8
_NO_BASE = (1 << 64) - 1
PROPOSER_BYTES = 16
KEY_BYTES_MAX = 511
"""LMDB's limit."""


class EntryKind(IntEnum):
    """What an entry is. See the module's head."""

    CHANGE = 1
    PIECE = 2
    SNAPSHOT = 3


class Base(NamedTuple):
    """An accepted entry, on which another one builds."""

    position: StreamPosition
    crc: int


class Origin(NamedTuple):
    """Who proposed an entry: copies of one entry have one origin, and so have the pieces of a snapshot."""

    proposer: bytes
    """16 random bytes for each run of a process."""
    number: int


class NotAnEntry(Enum):
    """Why bytes are not an entry; the value completes "the bytes at … are not an entry: …"."""

    FOREIGN = "they do not begin as one"
    DAMAGED = "their CRC is wrong, or there are too few of them"
    NEWER = "they have a version or a kind that this program does not know, so a newer one has written them"
    MALFORMED = "the body is not one of its kind, or a reserved bit is set"


@dataclass(frozen=True, slots=True)
class Change:
    """The body of a CHANGE."""

    changes: Changes


@dataclass(frozen=True, slots=True)
class Piece:
    """The body of a PIECE."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The body of a SNAPSHOT."""

    pieces: int
    """How many come before it."""
    crc: int
    data: bytes


Body = Change | Piece | Snapshot


class Entry(NamedTuple):
    """A valid entry."""

    base: Base | None
    cluster: UUID
    origin: Origin
    crc: int
    body: Body


def encode_change(base: Base | None, cluster: UUID, origin: Origin, changes: Changes) -> bytes:
    """A CHANGE of these records."""
    body = cbor2.dumps([[key, changes[key]] for key in sorted(changes)])
    return _encode(EntryKind.CHANGE, base, cluster, origin, body)


def encode_snapshot(
    base: Base, cluster: UUID, origin: Origin, content: bytes, entry_bytes_max: int
) -> tuple[Sequence[bytes], bytes]:
    """The PIECEs of a snapshot, and the SNAPSHOT that is to be appended after them. `content` is its bytes."""
    room = entry_bytes_max - HEADER_BYTES - _SNAPSHOT.size
    assert room > 0, entry_bytes_max
    slices = [content[at : at + room] for at in range(0, len(content), room)] or [b""]
    last = _SNAPSHOT.pack(len(slices) - 1, crc32c(content)) + slices[-1]
    pieces = [
        _encode(EntryKind.PIECE, base, cluster, origin, _PIECE.pack(index) + data)
        for index, data in enumerate(slices[:-1])
    ]
    return pieces, _encode(EntryKind.SNAPSHOT, base, cluster, origin, last)


def encode_records(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Some records of a snapshot, in the order of their keys; such bytes are joined."""
    return b"".join(_RECORD.pack(len(key), len(value)) + key + value for key, value in records)


def decode_records_untrusted(content: bytes) -> Mapping[bytes, bytes] | NotAnEntry:
    """The records of a whole snapshot. Never raises."""
    found: dict[bytes, bytes] = {}
    at, before = 0, b""
    while at < len(content):
        if at + _RECORD.size > len(content):
            return NotAnEntry.MALFORMED
        key_bytes, value_bytes = _RECORD.unpack_from(content, at)
        value_at = at + _RECORD.size + key_bytes
        key = content[at + _RECORD.size : value_at]
        at = value_at + value_bytes
        if at > len(content) or not _is_key(key) or key <= before:
            return NotAnEntry.MALFORMED
        found[key] = content[value_at:at]
        before = key
    return found


def _encode(kind: EntryKind, base: Base | None, cluster: UUID, origin: Origin, body: bytes) -> bytes:
    position, crc = (_NO_BASE, 0) if base is None else base
    covered = _COVERED.pack(VERSION, kind, 0, crc, position, cluster.bytes, origin.proposer, origin.number) + body
    return MAGIC.to_bytes(4, "little") + crc32c(covered).to_bytes(4, "little") + covered


def decode_entry_untrusted(data: bytes) -> Entry | NotAnEntry:
    """Decode an entry. Never raises."""
    if data[:4] != MAGIC.to_bytes(4, "little"):
        return NotAnEntry.FOREIGN
    if len(data) < HEADER_BYTES or crc32c(memoryview(data)[_COVERED_FROM:]) != int.from_bytes(data[4:8], "little"):
        return NotAnEntry.DAMAGED
    _, crc, version, kind, zero, base_crc, base, cluster, proposer, number = _HEADER.unpack_from(data)
    if version != VERSION or kind not in _KINDS:
        return NotAnEntry.NEWER
    body = _decode_body(kind, data[HEADER_BYTES:])
    if zero or body is None:
        return NotAnEntry.MALFORMED
    before = None if base == _NO_BASE else Base(StreamPosition(base), base_crc)
    return Entry(before, UUID(bytes=cluster), Origin(proposer, number), crc, body)


_KINDS = frozenset(EntryKind)


def _decode_body(kind: int, body: bytes) -> Body | None:
    if kind == EntryKind.CHANGE:
        return _decode_change(body)
    if kind == EntryKind.PIECE:
        if len(body) < _PIECE.size:
            return None
        return Piece(_PIECE.unpack_from(body)[0], body[_PIECE.size :])
    if len(body) < _SNAPSHOT.size:
        return None
    pieces, crc = _SNAPSHOT.unpack_from(body)
    return Snapshot(pieces, crc, body[_SNAPSHOT.size :])


def _decode_change(body: bytes) -> Change | None:
    try:
        rows = cast("object", cbor2.loads(body))
    except (cbor2.CBORDecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(rows, list) or not rows:
        return None
    changes: dict[bytes, bytes | None] = {}
    before = b""
    for row in cast("list[object]", rows):
        match row:
            case [bytes() as key, bytes() | None as value] if _is_key(key) and key > before:
                changes[key] = value
                before = key
            case _:
                return None
    return Change(changes)


def _is_key(key: bytes) -> bool:
    return 1 <= len(key) <= KEY_BYTES_MAX and key[0] != 0
