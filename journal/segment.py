"""A journal's segments: how they are named, what their header says.

A journal is a directory of files `<base position, 20 digits>.journal`. Each begins with a 64-byte header
(docs/formats/journal-segment.md), then frames, of which the first is at the base position:

    magic 8 "FAIRJNL1" | version u16 | kind u8 | durability u8 | salt u32 | base u64 | previous_end u64
    | 28 zeros | crc32c u32 (of the 60 bytes before)

`previous_end` is where the segment before this one ends. It equals `base`, except where the journal was moved
on (`Journal.advance`), and it is how a segment that is missing in the middle is found out.
A segment is written under a name that ends in `.new` and gets its own name when its header is on disk and
all before it is sealed; so a file that has its name has a header.

Pure: no I/O (`segment_file` has that).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from crc32c import crc32c

from fairlog_types import JournalPosition
from journal.frame import ALIGNMENT, Buffer

MAGIC = b"FAIRJNL1"

_HEADER = struct.Struct("<8sHBBIQQ28s")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = 64
assert _HEADER.size + _CRC.size == SEGMENT_HEADER_BYTES

SUFFIX = ".journal"
NEW_SUFFIX = ".new"
_DIGITS = 20


class JournalKind(Enum):
    """Whose journal it is; the value stands in every segment's header."""

    LOCAL = 1
    GROUP = 2


class Fsync(Enum):
    """When appended frames go to disk: the setting `journal.fsync`."""

    COMMIT = "commit"
    """When somebody waits for it: what was answered is on disk."""
    INTERVAL = "interval"
    """Every `fsync_interval_ms`; a power failure takes what was answered since."""
    NEVER = "never"
    """When the operating system pleases, but for whole segments and at a clean close."""


VERSIONS = {JournalKind.LOCAL: 2, JournalKind.GROUP: 4}
"""What is written of each kind of journal; older ones are read. With 2 the records of local journals learned of
markers, those of group journals of sinks, and with 3 of the plans of their batches; a program that does not know these
refuses the segment, before it has looked into it."""

_DURABILITY = {Fsync.COMMIT: 0, Fsync.INTERVAL: 1, Fsync.NEVER: 2}
_FSYNC_OF = {number: fsync for fsync, number in _DURABILITY.items()}


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the first 64 bytes of a segment say."""

    kind: JournalKind
    fsync: Fsync
    """The setting under which the segment was begun: what it promised of its frames."""
    salt: int
    """u32, random: where the checksums of this segment's frames begin."""
    base: JournalPosition
    previous_end: JournalPosition


class BadHeader(Enum):
    """Why bytes are not a segment's header."""

    UNREADABLE = "the magic or the checksum is wrong"
    VERSION = "the format's version is unknown (written by a newer Fairlog?)"
    FIELDS = "a field has an impossible value"


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The 64 bytes that `decode_segment_header_untrusted` reads."""
    body = _HEADER.pack(
        MAGIC,
        VERSIONS[header.kind],
        header.kind.value,
        _DURABILITY[header.fsync],
        header.salt,
        header.base,
        header.previous_end,
        bytes(28),
    )
    return body + _CRC.pack(crc32c(body))


def decode_segment_header_untrusted(buffer: Buffer) -> SegmentHeader | BadHeader:
    """Decode a segment's first 64 bytes (more are ignored).

    Valid if and only if magic and checksum are right, kind and durability are known, the version is one of the kind's,
    and base and `previous_end` are multiples of 8 with `previous_end` not beyond the base. Never raises.
    """
    if len(buffer) < SEGMENT_HEADER_BYTES:
        return BadHeader.UNREADABLE
    magic, version, kind, durability, salt, base, previous_end, _ = _HEADER.unpack_from(buffer)
    (crc,) = _CRC.unpack_from(buffer, _HEADER.size)
    if magic != MAGIC or crc32c(memoryview(buffer)[: _HEADER.size]) != crc:
        return BadHeader.UNREADABLE
    try:
        journal_kind = JournalKind(kind)
    except ValueError:
        return BadHeader.FIELDS
    if not 1 <= version <= VERSIONS[journal_kind]:
        return BadHeader.VERSION
    if base % ALIGNMENT or previous_end % ALIGNMENT or previous_end > base or durability not in _FSYNC_OF:
        return BadHeader.FIELDS
    return SegmentHeader(
        journal_kind, _FSYNC_OF[durability], salt, JournalPosition(base), JournalPosition(previous_end)
    )


def segment_name(base: JournalPosition) -> str:
    """The file name of the segment that begins at `base`; names sort as positions do."""
    return f"{base:0{_DIGITS}}{SUFFIX}"


def base_of(name: str) -> JournalPosition | None:
    """The base position in a segment's file name; None if `name` is no such name."""
    digits = name.removesuffix(SUFFIX)
    if name == digits or len(digits) != _DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    return JournalPosition(int(digits))


def file_offset(position: JournalPosition, base: JournalPosition) -> int:
    """Where `position` lies in the file of the segment that begins at `base`, in bytes."""
    return SEGMENT_HEADER_BYTES + position - base
