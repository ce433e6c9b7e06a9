"""A journal read as its node would recover it, with nothing changed on disk: for tools.

What a restart would cut is left out, what it would refuse is refused, what it would adopt is adopted (`segment_scan`
judges for both). A `ReadOnlyJournal` offers what a replay asks of a `Journal`: `start`, `end`, `frames`,
`read_payload`. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fairlog_types import CorruptStorage, JournalPosition
from journal.reading import FrameAt, ReadableSegment, read_frames, read_payload
from journal.recovery import Verdict
from journal.segment import Fsync, JournalKind, SegmentHeader, segment_name
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
class TornTail:
    """What the next start will cut: `bytes_cut` from `position` on."""

    file: Path
    position: JournalPosition
    bytes_cut: int
    why: str


@dataclass(frozen=True, slots=True)
class ReadOnlyJournal:
    """A journal as it would be after a recovery."""

    directory: Path
    segments: Sequence[ReadableSegment]
    closed: bool
    """Whether it was closed in good order, and not appended to since."""
    torn: TornTail | None
    begun_with: Fsync | None
    """The setting under which the last segment was begun; None if there is none, or it had no header."""

    @property
    def start(self) -> JournalPosition:
        return self.segments[0].base if self.segments else JournalPosition(0)

    @property
    def end(self) -> JournalPosition:
        return self.segments[-1].end if self.segments else JournalPosition(0)

    @property
    def size_bytes(self) -> int:
        """Of all frames."""
        return sum(segment.end - segment.base for segment in self.segments)

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]:
        """As `Journal.frames`; OSError if the disk refuses."""
        if not self.start <= start <= self.end:
            raise CorruptStorage(
                f"{self.directory}: frames from position {start} on are needed, but the journal goes from "
                f"{self.start} to {self.end}"
            )
        for segment in self.segments:
            if segment.end > start:
                yield from read_frames(segment, max(start, segment.base))

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        """As `Journal.read_payload`; OSError if the disk refuses."""
        for segment in self.segments:
            if segment.base <= position < segment.end:
                return read_payload(segment, position, frame_bytes)
        raise CorruptStorage(f"{self.directory}: position {position} is not between {self.start} and {self.end}")


def open_read_only(directory: Path, *, kind: JournalKind) -> ReadOnlyJournal:
    """Look at the journal in `directory`, which need not exist.

    If it is in use, files may change names under the look, and what is written just now may pass for damage: who reads
    beside a node looks again. What had been appended before the look began is seen.

    Of sealed segments only headers and joints are looked at; their frames are checked as they are read. Raises
    CorruptStorage, naming file and byte, where a node would refuse it; OSError if the disk refuses.
    """
    files = list_files(directory)
    spares = files.spares
    witness = hear_spares(spares, kind)
    segments: list[ReadableSegment] = []
    closed, torn, begun_with = False, None, None
    found = [FoundSegment(directory / segment_name(base), base, kind, flags=os.O_RDONLY) for base in files.bases]
    for segment, successor in pairwise(found):
        sealed = judge_sealed(segment, successor)
        segments.append(ReadableSegment(sealed.path, segment.open_file, sealed.base, sealed.end, sealed.salt))
    if not found:
        require_segments(directory, witness)
    last = found[-1] if found else None
    while True:
        if last is not None:
            judged = judge_last(last, witness)
            if judged.row.verdict is Verdict.CUT and torn is None:
                cut = judged.tail.content_end - judged.tail.hole
                torn = TornTail(last.path, judged.tail.hole, cut, judged.row.why)
            closed = judged.tail.closed
            salt = 0  # of a segment whose header was never written, nor a frame
            if isinstance(last.header, SegmentHeader):
                salt, begun_with = last.header.salt, last.header.fsync
            segments.append(ReadableSegment(last.path, last.open_file, last.base, judged.tail.hole, salt))
        end = segments[-1].end if segments else JournalPosition(0)
        following = continuation(spares, end, kind)
        if following is None:
            return ReadOnlyJournal(directory, segments, closed, torn, begun_with)
        path, base = following
        spares.discard(path)
        witness = hear_spares(spares, kind)
        last = FoundSegment(path, base, kind, flags=os.O_RDONLY)
