"""A journal's segments: how they are named, what their header and close mark say.

A journal is a directory of files `<base position, 20 digits>.journal`. Each begins with a 64-byte header and a 16-byte
close mark (docs/formats/journal-segment.md), then frames, of which the first is at the base position:

    magic 8 "FAIRJNL1" | version u16 | kind u8 | durability u8 | salt u32 | base u64 | previous_end u64
    | 28 zeros | crc32c u32 (of the 60 bytes before)
    durable u64 | 4 zeros | crc32c u32 (of the 12 bytes before, begun with the salt)

`previous_end` is where the segment before this one ends. It equals `base`, except where the journal was moved
on (`Journal.advance`), and it is how a segment that is missing in the middle is found out.
A segment is written under a name that ends in `.new` and gets its own name when its header is on disk and
all before it is sealed; so a file that has its name has a header.

The close mark is a witness, as the frames are: a clean close says in it through where the journal was on disk. It has a
place of its own, so that a close takes no position of the journal and no later append destroys what it says.

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
_MARK = struct.Struct("<QI")
_CRC = struct.Struct("<I")
CLOSE_MARK_OFFSET = 64
CLOSE_MARK_BYTES = 16
SEGMENT_HEADER_BYTES = CLOSE_MARK_OFFSET + CLOSE_MARK_BYTES
"""Header and close mark: where the first frame begins."""
assert _HEADER.size + _CRC.size == CLOSE_MARK_OFFSET
assert _MARK.size + _CRC.size == CLOSE_MARK_BYTES

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


VERSIONS = {JournalKind.LOCAL: 4, JournalKind.GROUP: 5}
"""The version of each kind of journal that is written."""

READ_FROM = {JournalKind.LOCAL: 3, JournalKind.GROUP: 5}
"""The first version of each kind that is read; earlier ones had frames of one part."""

_DURABILITY = {Fsync.COMMIT: 0, Fsync.INTERVAL: 1, Fsync.NEVER: 2}
_FSYNC_OF = {number: fsync for fsync, number in _DURABILITY.items()}


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the first 64 bytes of a segment say; the close mark is apart."""

    kind: JournalKind
    fsync: Fsync
    """The setting under which the segment was begun: what it promised of its frames."""
    salt: int
    """u32, random: where the checks of this segment's local envelopes begin."""
    base: JournalPosition
    previous_end: JournalPosition
    is_earlier: bool = False
    """Of an earlier version, which is read, and to which nothing is appended."""


class BadHeader(Enum):
    """Why bytes are not a segment's header."""

    UNREADABLE = "the magic or the checksum is wrong"
    EARLIER = "the journal is of an earlier format, which this Fairlog does not read: use the version that wrote it"
    VERSION = "the format's version is unknown (written by a newer Fairlog?)"
    FIELDS = "a field has an impossible value"


def encode_segment_header(header: SegmentHeader) -> bytes:
    """A segment's header, 64 bytes, for `decode_segment_header_untrusted`, and a close mark that says nothing."""
    assert not header.is_earlier, "what is written is of the present version"
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
    return body + _CRC.pack(crc32c(body)) + bytes(CLOSE_MARK_BYTES)


def decode_segment_header_untrusted(buffer: Buffer) -> SegmentHeader | BadHeader:
    """Decode a segment's first 64 bytes (more are ignored).

    Valid if and only if magic and checksum are right, kind and durability are known, the version is one of the kind's
    that are read, and base and `previous_end` are multiples of 8 with `previous_end` not beyond the base. Never raises.
    """
    if len(buffer) < CLOSE_MARK_OFFSET:
        return BadHeader.UNREADABLE
    magic, version, kind, durability, salt, base, previous_end, _ = _HEADER.unpack_from(buffer)
    (crc,) = _CRC.unpack_from(buffer, _HEADER.size)
    if magic != MAGIC or crc32c(memoryview(buffer)[: _HEADER.size]) != crc:
        return BadHeader.UNREADABLE
    try:
        journal_kind = JournalKind(kind)
    except ValueError:
        return BadHeader.FIELDS
    if not READ_FROM[journal_kind] <= version <= VERSIONS[journal_kind]:
        return BadHeader.EARLIER if 0 < version < READ_FROM[journal_kind] else BadHeader.VERSION
    if base % ALIGNMENT or previous_end % ALIGNMENT or previous_end > base or durability not in _FSYNC_OF:
        return BadHeader.FIELDS
    return SegmentHeader(
        journal_kind,
        _FSYNC_OF[durability],
        salt,
        JournalPosition(base),
        JournalPosition(previous_end),
        is_earlier=version < VERSIONS[journal_kind],
    )


def encode_close_mark(durable: JournalPosition, *, salt: int) -> bytes:
    """The 16 bytes that say that the journal was closed when all through `durable` was on disk."""
    said = _MARK.pack(durable, 0)
    return said + _CRC.pack(crc32c(said, salt))


def decode_close_mark_untrusted(buffer: Buffer, *, base: JournalPosition, salt: int) -> JournalPosition | None:
    """Through where the journal was on disk when it was last closed; None if the segment's mark says nothing.

    `buffer` is the segment from its first byte on. Never raises.
    """
    mark = memoryview(buffer)[CLOSE_MARK_OFFSET:SEGMENT_HEADER_BYTES]
    if len(mark) < CLOSE_MARK_BYTES:
        return None
    durable, zeros = _MARK.unpack_from(mark)
    (check,) = _CRC.unpack_from(mark, _MARK.size)
    if zeros or durable % ALIGNMENT or durable < base or crc32c(mark[: _MARK.size], salt) != check:
        return None
    return JournalPosition(durable)


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
