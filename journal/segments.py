"""The segments of one journal, from the oldest that is still there to the one that is written.

    sealed, on disk, never written again          writing: of these only the last takes frames
    ┌────────────┬────────────┬───────────────┐  ┌──────────────────────┬─────────────────────┐
    │ 0 … 4096   │ 4096 … 8192│ 8192 … 12288  │  │ full, to be sealed   │ the last, has room  │
    └────────────┴────────────┴───────────────┘  └──────────────────────┴─────────────────────┘
      `reclaim` deletes from here on                `began` adds one, `sealed` moves the full ones

A journal appends to the last and says how far the frames reach; here they are read, and whole segments are deleted.
The file that was read last stays open: the copier reads a journal in a row. Reading is for any thread: `_all` is one
tuple, which is replaced and never changed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import trio

from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal.failpoints import reach
from journal.preallocation import refused_to_open
from journal.reading import FrameAt, ReadableSegment, read_frames, read_payload
from journal.segment import SEGMENT_HEADER_BYTES, file_offset
from journal.segment_file import OpenFile, SealedSegment, SegmentFile, let_go_of_cache


class Segments:
    """What a journal holds. On the loop's thread, unless a method says else."""

    def __init__(self, directory: Path, sealed: Sequence[SealedSegment], last: SegmentFile | None) -> None:
        self.writing: list[SegmentFile] = [] if last is None else [last]
        """Those that are not sealed yet, oldest first; empty only as long as the journal has no segment."""
        self._directory = directory
        self._sealed = tuple(sealed)
        self._all: tuple[SealedSegment | SegmentFile, ...] = (*self._sealed, *self.writing)
        self._last_read: tuple[JournalPosition, OpenFile] | None = None

    def __bool__(self) -> bool:
        """Whether there is one, be it without frames. From then on there always is."""
        return bool(self._all)

    @property
    def start(self) -> JournalPosition | None:
        """Where the oldest one begins; None if there is none."""
        return self._all[0].base if self._all else None

    def named(self) -> Sequence[tuple[Path, int]]:
        """The files that have their own names, oldest first, and how many bytes of each are header and frames.

        None after one that has not: everything that is synced is in these. What is within these bytes never changes,
        except for the close mark.
        """
        found: list[tuple[Path, int]] = []
        for segment in self._all:
            if isinstance(segment, SegmentFile) and not segment.published:
                break
            found.append((segment.path, SEGMENT_HEADER_BYTES + segment.end - segment.base))
        return found

    def began(self, segment: SegmentFile) -> None:
        """From now on `segment` is the last one."""
        self.writing.append(segment)
        self._index()

    def sealed(self, full: Sequence[SegmentFile]) -> None:
        """The oldest of `writing`, `full`, are sealed, and their successor has its name.

        One that got no frame, because its first one was too large for it, is gone: its successor begins at the same
        position, and so has replaced its file.
        """
        for segment, successor in zip(full, self.writing[1:], strict=False):
            sealed = segment.as_sealed()
            if successor.base > segment.base:
                self._sealed += (sealed,)
        del self.writing[: len(full)]
        self._index()

    def let_go_of_files(self) -> None:
        """Nothing is written any more. Files that are read just now are closed when that is done."""
        for segment in self.writing:
            segment.open_file = None
        self._last_read = None

    async def reclaim(self, before: JournalPosition) -> None:
        """Delete those that end at or before `before`, as `Journal.reclaim` says."""
        gone = [segment for segment in self._sealed if segment.end <= before]
        if not gone:
            return
        self._sealed = self._sealed[len(gone) :]
        self._index()

        def work() -> None:
            directory = OpenFile(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            for segment in gone:
                reach("journal.reclaim.before_delete")
                segment.path.unlink()
                # Each deletion on its own, so that a crash cannot leave an older segment and lose a newer one.
                os.fsync(directory.fd)
                reach("journal.reclaim.after_delete")

        try:
            await trio.to_thread.run_sync(work)
        except OSError as error:
            no_files = refused_to_open(self._directory, error)
            if no_files is not None:
                self._sealed = (*gone, *self._sealed)
                self._index()
                raise no_files from error
            raise StorageFailure(f"{self._directory}: old segments cannot be deleted: {error}") from error

    def frames(self, start: JournalPosition, end: JournalPosition) -> Iterator[FrameAt]:
        """Yield the frames from `start` on, as `Journal.frames` says; `end` is where the last one ends."""
        first = end if self.start is None else self.start
        if not first <= start <= end:
            raise CorruptStorage(
                f"{self._directory}: frames from position {start} on are needed, but the journal goes from "
                f"{first} to {end}. Segments are missing, or it belongs to another data log."
            )
        for segment in self._all:
            if segment.end > start:
                try:
                    yield from read_frames(self._readable(segment), max(start, segment.base))
                except OSError as error:
                    raise self._unreadable(segment, error) from error

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        """The payload of the frame at `position`, as `Journal.read_payload` says. For any thread."""
        segments = self._all
        found = bisect_right(segments, position, key=attrgetter("base")) - 1
        if found < 0:
            raise CorruptStorage(f"{self._directory}: position {position} is before the journal's start, {self.start}")
        segment = segments[found]
        try:
            return read_payload(self._readable(segment), position, frame_bytes)
        except OSError as error:
            raise self._unreadable(segment, error) from error

    def drop_from_cache(self, position: JournalPosition, frame_bytes: int) -> None:
        """The frame there is on disk and will not be read again in this run. For any thread; never fails."""
        for segment in reversed(self._all):
            if segment.base <= position:
                opened = self._open_already(segment)
                if opened is not None:
                    let_go_of_cache(opened.fd, file_offset(position, segment.base), frame_bytes)
                return

    def _index(self) -> None:
        self._all = (*self._sealed, *self.writing)

    def _readable(self, segment: SealedSegment | SegmentFile) -> ReadableSegment:
        # The last file read stays open. Two threads may each open one; the one that is not kept closes by itself.
        open_file = self._open_already(segment)
        if open_file is None:
            open_file = OpenFile(segment.path, os.O_RDONLY)
            self._last_read = (segment.base, open_file)
        return ReadableSegment(segment.path, open_file, segment.base, segment.end, segment.salt)

    def _open_already(self, segment: SealedSegment | SegmentFile) -> OpenFile | None:
        open_file = segment.open_file if isinstance(segment, SegmentFile) else None
        kept = self._last_read
        if open_file is None and kept is not None and kept[0] == segment.base:
            return kept[1]
        return open_file

    def _unreadable(self, segment: SealedSegment | SegmentFile, error: OSError) -> StorageFailure:
        return refused_to_open(self._directory, error) or StorageFailure(f"{segment.path}: cannot be read: {error}")
