"""Find a journal's segments on disk, and leave them fit to go on with.

    list the segments, and judge them (`segment_scan`, by `recovery`'s tables)
    mend the last one: zero what is cut, write again what nobody witnessed, sync; its name, too, if that may be new
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

from fairlog_types import JournalPosition
from journal.recovery import Verdict, Witness
from journal.segment import (
    SEGMENT_HEADER_BYTES,
    Fsync,
    JournalKind,
    SegmentHeader,
    encode_segment_header,
    file_offset,
    segment_name,
)
from journal.segment_file import (
    OpenFile,
    SealedSegment,
    SegmentFile,
    Sync,
    sync_directory,
    write_all,
    write_zeros,
)
from journal.segment_scan import (
    FoundSegment,
    continuation,
    hear_spares,
    judge_last,
    judge_sealed,
    list_files,
    require_segments,
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
    """Whether its close mark says that all of it was on disk."""
    recovered: Recovered | None
    begun_with: Fsync | None = None
    """The setting under which the last segment was begun; None if there is none, or it had no header."""
    is_earlier: bool = False
    """Whether the last segment is of an earlier version of the format."""


def reopen(
    directory: Path,
    *,
    kind: JournalKind,
    fsync: Fsync,
    sync: Sync,
    on_cut: Callable[[bool], None] = lambda _interrupted: None,
) -> Reopened:
    """Recover the journal in `directory`, which need not exist. All that it holds afterwards is on disk.

    `on_cut` is called before anything is cut or deleted, so that a crash in between cannot hide it. It is told whether
    that looks like one interrupted write, and nothing else.
    Raises CorruptStorage, naming file and byte, if something that was durable is damaged or missing; OSError if the
    disk refuses.
    """
    files = list_files(directory)
    spares = files.spares
    reopened = Reopened((), None, closed=False, recovered=None)
    witness = hear_spares(spares, kind)
    if files.bases:
        found = [FoundSegment(directory / segment_name(base), base, kind, flags=os.O_RDWR) for base in files.bases]
        sealed = tuple(judge_sealed(segment, successor) for segment, successor in pairwise(found))
        reopened = _reopen_last(found[-1], sealed, witness, kind=kind, fsync=fsync, sync=sync, on_cut=on_cut)
    else:
        require_segments(directory, witness)
    while (following := continuation(spares, _end(reopened), kind)) is not None:
        path, base = following
        spares.remove(path)
        sealed = reopened.sealed
        if reopened.last is not None:
            reopened.last.seal(sync)
            sealed += (reopened.last.as_sealed(),)
        opened = OpenFile(path, os.O_RDWR)
        sync(opened.fd)
        path.rename(directory / segment_name(base))
        sync_directory(directory)
        found = FoundSegment(directory / segment_name(base), base, kind, flags=os.O_RDWR)
        adopted = _reopen_last(
            found, sealed, hear_spares(spares, kind), kind=kind, fsync=fsync, sync=sync, on_cut=on_cut
        )
        reopened = replace(adopted, recovered=adopted.recovered or reopened.recovered)
    if hear_spares(spares, kind).frames:
        on_cut(False)
    for path in spares:
        path.unlink()
    return reopened


def _end(reopened: Reopened) -> JournalPosition:
    return reopened.last.end if reopened.last is not None else JournalPosition(0)


def _reopen_last(
    segment: FoundSegment,
    sealed: tuple[SealedSegment, ...],
    witness: Witness,
    *,
    kind: JournalKind,
    fsync: Fsync,
    sync: Sync,
    on_cut: Callable[[bool], None],
) -> Reopened:
    judged = judge_last(segment, witness)
    content, tail, row = judged.content, judged.tail, judged.row
    salt = segment.header.salt if isinstance(segment.header, SegmentHeader) else secrets.randbits(32)
    fd = segment.open_file.fd
    recovered = None
    match row.verdict:
        case Verdict.RENEW:
            previous_end = sealed[-1].end if sealed else segment.base
            header = SegmentHeader(kind, fsync, salt, segment.base, previous_end)
            write_all(fd, encode_segment_header(header), 0)
            sync(fd)
            sync_directory(segment.path.parent)
        case Verdict.CUT:
            on_cut(tail.interrupted)
            cut = tail.content_end - tail.hole
            write_zeros(fd, file_offset(tail.hole, segment.base), cut)
            recovered = Recovered(segment.path, tail.hole, cut, tail.later_frames, row.why)
        case Verdict.KEEP:
            pass
        case Verdict.REFUSE:
            raise AssertionError("a segment that is refused does not get here")
    if recovered is not None or tail.hole > segment.base:
        unwitnessed = file_offset(max(tail.witnessed, segment.base), segment.base)
        write_all(fd, memoryview(content)[unwitnessed : file_offset(tail.hole, segment.base)], unwitnessed)
        sync(fd)
    if tail.witnessed <= segment.base:
        # Nothing in it knows of a flush, and the first flush puts the name on disk: a kill may have come before that.
        sync_directory(segment.path.parent)
    last = SegmentFile.reopened(
        segment.path.parent,
        base=segment.base,
        end=tail.hole,
        salt=salt,
        file_bytes=max(segment.file_bytes, SEGMENT_HEADER_BYTES),
    )
    if not isinstance(segment.header, SegmentHeader):
        return Reopened(sealed, last, tail.closed, recovered)
    return Reopened(sealed, last, tail.closed, recovered, segment.header.fsync, segment.header.is_earlier)
