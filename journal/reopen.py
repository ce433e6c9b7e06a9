"""Find a journal's segments on disk, decide by `recovery`'s tables, and leave them fit to go on with.

    list the segments; hold each header, and each joint between two, against SEALED_TABLE
    read the last one whole, scan it, hear what nameless segments know of it, decide by TAIL_TABLE
    mend it: zero what is cut, write again what nobody witnessed, sync
    adopt a segment that continues exactly there and had not got its name yet; delete other spares

What is cut is zeroed and synced before anything may be appended, else a valid frame of the cut tail could one
day stand behind a new one and be read as its successor. The frames that are kept but that no one knew to be
durable are *written again* before the sync: after a failed write-back Linux keeps the lost pages in memory, marked
clean, and a new process's fdatasync would bless what is not on disk (invariant 12 across a restart).
A segment without its own name holds nothing durable, but after a mere kill of the process its frames
are there, and with fsync=interval|never they were answered. And such a frame can know that bytes before it were
durable: so all nameless segments are asked as witnesses before anything is cut or deleted.

Blocking; for a worker thread.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from fairlog_types import CorruptStorage, JournalPosition
from journal.frame import CLOSE, HEADER_BYTES
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
    Fsync,
    JournalKind,
    SegmentHeader,
    base_of,
    decode_segment_header_untrusted,
    encode_segment_header,
    file_offset,
    segment_name,
)
from journal.segment_file import (
    OpenFile,
    SealedSegment,
    SegmentFile,
    Sync,
    read_range,
    sync_directory,
    write_all,
    write_zeros,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A torn tail that was cut: `bytes_cut` from `position` on, with `frames_cut` whole frames among them."""

    file: Path
    position: JournalPosition
    bytes_cut: int
    frames_cut: int
    why: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """A journal's segments, fit to go on with."""

    sealed: tuple[SealedSegment, ...]
    last: SegmentFile | None
    """None for a journal that has no segment yet."""
    closed: bool
    """Whether its last frame is CLOSE."""
    recovered: Recovered | None
    begun_with: Fsync | None = None
    """The setting under which the last segment was begun; None if there is none, or it had no header."""


def reopen(
    directory: Path, *, kind: JournalKind, fsync: Fsync, sync: Sync, on_cut: Callable[[], None] = lambda: None
) -> Reopened:
    """Recover the journal in `directory`, which need not exist. All that it holds afterwards is on disk.

    `on_cut` is called before anything that was appended is cut or deleted, so that a crash in between cannot hide it.
    Raises CorruptStorage, naming file and byte, if something that was durable is damaged or missing; OSError if the
    disk refuses.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return Reopened((), None, closed=False, recovered=None)
    bases = sorted(base for name in names if (base := base_of(name)) is not None)
    spares = {directory / name for name in names if name.endswith(NEW_SUFFIX)}
    reopened = Reopened((), None, closed=False, recovered=None)
    witness = _witness(spares, kind)
    if bases:
        found = [_Found(directory / segment_name(base), base, kind) for base in bases]
        sealed = tuple(_sealed(segment, successor) for segment, successor in pairwise(found))
        reopened = _reopen_last(found[-1], sealed, witness, kind=kind, fsync=fsync, sync=sync, on_cut=on_cut)
    elif witness.through > 0:
        raise CorruptStorage(
            f"{directory}: all segments are missing, yet frames in a file that continues them say that all up to "
            f"position {witness.through} was on disk. Nothing was changed. Put back an intact copy of the directory."
        )
    while (continuation := _continuation(spares, reopened, kind)) is not None:
        path, base = continuation
        spares.remove(path)
        sealed = reopened.sealed
        if reopened.last is not None:
            reopened.last.seal(sync)
            sealed += (reopened.last.as_sealed(),)
        opened = OpenFile(path, os.O_RDWR)
        sync(opened.fd)
        path.rename(directory / segment_name(base))
        sync_directory(directory)
        found = _Found(directory / segment_name(base), base, kind)
        adopted = _reopen_last(found, sealed, _witness(spares, kind), kind=kind, fsync=fsync, sync=sync, on_cut=on_cut)
        reopened = replace(adopted, recovered=adopted.recovered or reopened.recovered)
    if _witness(spares, kind).frames:
        on_cut()
    for path in spares:
        path.unlink()
    return reopened


def _continuation(spares: set[Path], reopened: Reopened, kind: JournalKind) -> tuple[Path, JournalPosition] | None:
    """The spare that took frames right behind the journal's end, with its base position."""
    end = reopened.last.end if reopened.last is not None else JournalPosition(0)
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


def _witness(spares: set[Path], kind: JournalKind) -> Witness:
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


class _Found:
    """A segment as it lies on disk: its header, held against its name."""

    def __init__(self, path: Path, base: JournalPosition, kind: JournalKind) -> None:
        self.path = path
        self.base = base
        self.open_file = OpenFile(path, os.O_RDWR)
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


def _sealed(segment: _Found, successor: _Found) -> SealedSegment:
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


def _reopen_last(
    segment: _Found,
    sealed: tuple[SealedSegment, ...],
    witness: Witness,
    *,
    kind: JournalKind,
    fsync: Fsync,
    sync: Sync,
    on_cut: Callable[[], None],
) -> Reopened:
    content = read_range(segment.open_file.fd, 0, segment.file_bytes)
    if segment.head is Head.WHOLE:
        assert isinstance(segment.header, SegmentHeader)
        salt = segment.header.salt
        tail = scan_tail(content, base=segment.base, salt=salt, close_kind=CLOSE)
    else:
        salt = secrets.randbits(32)
        tail = _headless_tail(content, segment.base)
    tail = heard(tail, witness)
    row = TAIL_TABLE[segment.head, tail.rest]
    fd = segment.open_file.fd
    recovered = None
    match row.verdict:
        case Verdict.REFUSE if segment.head is Head.WHOLE:
            detail = (
                f"the bytes there are no frame ({tail.bad.value if tail.bad else 'zeros'}), yet {tail.later_frames} "
                f"frames follow and say that all up to position {tail.later_witness} was on disk"
            )
            raise segment.refuse(row, offset=file_offset(tail.hole, segment.base), detail=detail)
        case Verdict.REFUSE:
            raise segment.refuse(row, offset=0, detail=_head_detail(segment))
        case Verdict.RENEW:
            previous_end = sealed[-1].end if sealed else segment.base
            header = SegmentHeader(kind, fsync, salt, segment.base, previous_end)
            write_all(fd, encode_segment_header(header), 0)
            sync(fd)
            sync_directory(segment.path.parent)
        case Verdict.CUT:
            on_cut()
            cut = tail.content_end - tail.hole
            write_zeros(fd, file_offset(tail.hole, segment.base), cut)
            recovered = Recovered(segment.path, tail.hole, cut, tail.later_frames, row.why)
        case Verdict.KEEP:
            pass
    if recovered is not None or tail.hole > segment.base:
        unwitnessed = file_offset(max(tail.witnessed, segment.base), segment.base)
        write_all(fd, memoryview(content)[unwitnessed : file_offset(tail.hole, segment.base)], unwitnessed)
        sync(fd)
    last = SegmentFile.reopened(
        segment.path.parent,
        base=segment.base,
        end=tail.hole,
        salt=salt,
        file_bytes=max(segment.file_bytes, SEGMENT_HEADER_BYTES),
    )
    begun_with = segment.header.fsync if isinstance(segment.header, SegmentHeader) else None
    return Reopened(sealed, last, tail.closed, recovered, begun_with)


def _headless_tail(content: bytearray, base: JournalPosition) -> Tail:
    content_end = JournalPosition(base + max(0, content_bytes(content) - SEGMENT_HEADER_BYTES))
    rest = Rest.GARBAGE if content_end > base else Rest.ZEROS
    return Tail(base, base, rest, None, content_end, 0, JournalPosition(0), closed=False)


def _head_detail(segment: _Found) -> str:
    if isinstance(segment.header, BadHeader):
        return segment.header.value
    return f"it is the {segment.header.kind.name.lower()} journal segment of position {segment.header.base}"
