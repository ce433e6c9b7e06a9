"""A journal's segments as they lie on disk, and what recovery's tables make of them. Nothing is changed here.

    list the files; hold each header, and each joint between two, against SEALED_TABLE
    read the last one whole, scan it, hear what nameless segments know of it, decide by TAIL_TABLE
    a nameless segment that continues exactly where the journal ends is its next one

`reopen` mends what is judged here; `read_only` only reads it. So a tool never judges a journal otherwise than its node.
Blocking. Raises CorruptStorage, naming file and byte, where something that was durable is damaged or missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairlog_types import CorruptStorage, JournalPosition
from journal.frame import HEADER_BYTES
from journal.recovery import (
    SEALED_TABLE,
    TAIL_TABLE,
    Head,
    Joint,
    Rest,
    Row,
    Tail,
    Verdict,
    Witness,
    content_bytes,
    heard,
    scan_tail,
    scan_witness,
)
from journal.segment import (
    NEW_SUFFIX,
    SEGMENT_HEADER_BYTES,
    BadHeader,
    JournalKind,
    SegmentHeader,
    base_of,
    decode_segment_header_untrusted,
    file_offset,
)
from journal.segment_file import OpenFile, SealedSegment, read_range


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """What a journal's directory holds."""

    bases: list[JournalPosition]
    """Of the segments, in order."""
    spares: set[Path]
    """Segments that have no name yet."""


def list_files(directory: Path) -> JournalFiles:
    """The journal's files; none if there is no such directory. Raises OSError."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        names = []
    bases = sorted(base for name in names if (base := base_of(name)) is not None)
    return JournalFiles(bases, {directory / name for name in names if name.endswith(NEW_SUFFIX)})


def require_segments(directory: Path, witness: Witness) -> None:
    """For a directory without a named segment: was there never one? Raises CorruptStorage."""
    if witness.through > 0:
        raise CorruptStorage(
            f"{directory}: all segments are missing, yet frames in a file that continues them say that all up to "
            f"position {witness.through} was on disk. Nothing was changed. Put back an intact copy of the directory."
        )


def continuation(
    spares: Iterable[Path], end: JournalPosition, kind: JournalKind
) -> tuple[Path, JournalPosition] | None:
    """The spare that took frames right behind the journal's end, with its base position."""
    for path in spares:
        opened = OpenFile(path, os.O_RDONLY)
        start = read_range(opened.fd, 0, SEGMENT_HEADER_BYTES + HEADER_BYTES)
        header = decode_segment_header_untrusted(start)
        if (
            isinstance(header, SegmentHeader)
            and header.kind is kind
            and header.previous_end == end
            and any(start[SEGMENT_HEADER_BYTES:])
        ):
            return path, header.base
    return None


def hear_spares(spares: Iterable[Path], kind: JournalKind) -> Witness:
    """What the frames in all spares together say of the journal before them."""
    frames, through = 0, JournalPosition(0)
    for path in spares:
        opened = OpenFile(path, os.O_RDONLY)
        header = decode_segment_header_untrusted(read_range(opened.fd, 0, SEGMENT_HEADER_BYTES))
        if isinstance(header, SegmentHeader) and header.kind is kind:
            content = read_range(opened.fd, 0, os.fstat(opened.fd).st_size)
            one = scan_witness(content, base=header.base, salt=header.salt)
            frames, through = frames + one.frames, max(through, one.through)
    return Witness(frames, through)


class FoundSegment:
    """A segment as it lies on disk: its header, held against its name."""

    def __init__(self, path: Path, base: JournalPosition, kind: JournalKind, *, flags: int) -> None:
        """`flags` are those of open(2): O_RDWR or O_RDONLY. Raises OSError."""
        self.path = path
        self.base = base
        self.open_file = OpenFile(path, flags)
        self.file_bytes = os.fstat(self.open_file.fd).st_size
        self.header = decode_segment_header_untrusted(read_range(self.open_file.fd, 0, SEGMENT_HEADER_BYTES))
        match self.header:
            case BadHeader.UNREADABLE:
                self.head = Head.UNREADABLE
            case SegmentHeader() as header if header.base == base and header.kind is kind:
                self.head = Head.WHOLE
            case _:
                self.head = Head.FOREIGN

    def refuse(self, row: Row, *, offset: int, detail: str) -> CorruptStorage:
        position = self.base + offset - SEGMENT_HEADER_BYTES
        where = f"byte {offset}" if offset < SEGMENT_HEADER_BYTES else f"byte {offset} (journal position {position})"
        return CorruptStorage(
            f"{self.path}: {where}: {row.label}: {row.why}; {detail}. Nothing was changed. Put back an intact copy of "
            "the file; starting without it would lose what was answered."
        )


def judge_sealed(segment: FoundSegment, successor: FoundSegment) -> SealedSegment:
    """The segment as one that has a successor. Raises CorruptStorage by SEALED_TABLE."""
    end = JournalPosition(segment.base + segment.file_bytes - SEGMENT_HEADER_BYTES)
    expected = successor.header.previous_end if isinstance(successor.header, SegmentHeader) else successor.base
    joint = Joint.MEETS if end == expected else Joint.SHORT if end < expected else Joint.LONG
    row = SEALED_TABLE[segment.head, joint]
    if row.verdict is Verdict.KEEP:
        assert isinstance(segment.header, SegmentHeader)
        return SealedSegment(segment.path, segment.base, end, segment.header.salt)
    if segment.head is Head.WHOLE:
        detail = f"it ends at position {end}, but {successor.path.name} continues from {expected}"
        raise segment.refuse(row, offset=segment.file_bytes, detail=detail)
    raise segment.refuse(row, offset=0, detail=_head_detail(segment))


@dataclass(frozen=True, slots=True)
class JudgedTail:
    """What the last segment holds, and what is to be done about it: KEEP, CUT or RENEW."""

    content: bytearray
    """The whole file."""
    tail: Tail
    row: Row


def judge_last(segment: FoundSegment, witness: Witness) -> JudgedTail:
    """The journal's last segment, with what nameless ones know of it. Raises CorruptStorage by TAIL_TABLE; OSError."""
    content = read_range(segment.open_file.fd, 0, segment.file_bytes)
    if isinstance(segment.header, SegmentHeader) and segment.head is Head.WHOLE:
        tail = scan_tail(content, base=segment.base, salt=segment.header.salt)
    else:
        tail = _headless_tail(content, segment.base)
    tail = heard(tail, witness)
    row = TAIL_TABLE[segment.head, tail.rest]
    if row.verdict is Verdict.REFUSE and segment.head is Head.WHOLE:
        detail = (
            f"the bytes there are no frame ({tail.bad.value if tail.bad else 'zeros'}), yet the close mark or one of "
            f"{tail.later_frames} later frames says that all up to position {tail.later_witness} was on disk"
        )
        raise segment.refuse(row, offset=file_offset(tail.hole, segment.base), detail=detail)
    if row.verdict is Verdict.REFUSE:
        raise segment.refuse(row, offset=0, detail=_head_detail(segment))
    return JudgedTail(content, tail, row)


def _headless_tail(content: bytearray, base: JournalPosition) -> Tail:
    content_end = JournalPosition(base + max(0, content_bytes(content) - SEGMENT_HEADER_BYTES))
    rest = Rest.GARBAGE if content_end > base else Rest.ZEROS
    return Tail(base, base, rest, None, content_end, 0, JournalPosition(0), closed=False)


def _head_detail(segment: FoundSegment) -> str:
    if isinstance(segment.header, BadHeader):
        return segment.header.value
    return f"it is the {segment.header.kind.name.lower()} journal segment of position {segment.header.base}"
