"""Room ahead of a journal's end: when it is made, how much, of what, and in which file.

A journal has an *active* segment, which takes frames, and at times a *spare*, which becomes the next one.
Growth goes: extend the active segment (by as much again as it has, 64 KiB to 4 MiB at a time) until
its limit, then make a spare. It is begun in the background while there is still half a step of room, so that appends
seldom meet its end. At most one growth is under way for a journal; it runs in a flusher's thread.

Room is zeros that are written, for small frames: their fdatasync changes no metadata. For large ones it is blocks that
are allocated: with them writing each byte once more costs more than the metadata does. The frame that asks for room, or
by which the last one ran short, stands for those that follow; one that is of the other size is taken as well
(docs/decisions/0034-large-frames.md).

`plan_growth` decides, without I/O; `Preallocation` runs what it decided. A full disk is not the journal's failure, and
neither is a process that may open no more files: it is told to whoever asked for room (invariant 12 is about bytes
that were written, not about bytes that were refused). Any other error in growing is the disk's,
and is handed to the journal.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Event as ThreadEvent

import trio

from fairlog_types import StorageFailure
from journal.failpoints import reach
from journal.flush import Flusher
from journal.frame import LARGE_FRAME_BYTES
from journal.segment import NEW_SUFFIX, SEGMENT_HEADER_BYTES
from journal.segment_file import SegmentFile, Sync

STEP_BYTES_MIN = 64 * 1024
STEP_BYTES_MAX = 4 * 2**20
RESERVE_BYTES = 16 * 1024
"""Kept free for frames that decide transactions: some 200 of them."""
_BLOCK_BYTES = 4096
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILES_OUT = (errno.EMFILE, errno.ENFILE)


class NoRoom(StorageFailure):
    """The frame does not fit into the preallocated room, or the disk is full. Nothing was written."""


class NoFiles(NoRoom):
    """No file can be opened: the process, or the system, has as many open as it may. It passes when some are closed."""


def refused_to_open(directory: Path, error: OSError) -> NoFiles | None:
    """The refusal that `error` stands for if it is for want of file descriptors; None if it is the disk's."""
    if error.errno not in _FILES_OUT:
        return None
    return NoFiles(
        f"{directory}: no file can be opened: {error}. Raise the limit of open files (ulimit -n), or serve fewer "
        "connections."
    )


class Target(Enum):
    """Which file grows."""

    ACTIVE = "active"
    SPARE = "spare"
    NEW_SPARE = "new spare"


@dataclass(frozen=True, slots=True)
class Space:
    """A segment's file: how long it is, and how much of it is still free, in bytes."""

    file_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Make `more_bytes` of room behind the target, or a new spare of that size."""

    target: Target
    more_bytes: int
    allocated: bool = False
    """Allocate blocks; otherwise write zeros."""


def plan_growth(
    active: Space | None, spare: Space | None, *, needed_bytes: int, limit_bytes: int, frame_bytes: int = 0
) -> Growth | None:
    """What to do so that a frame of `needed_bytes` fits somewhere; None if it would fit into the spare already.

    `limit_bytes` bounds a segment's file; only a frame that is larger than a whole segment gets a larger one.
    `frame_bytes` is the size of the frames to come, as far as that can be told.
    """
    allocated = frame_bytes >= LARGE_FRAME_BYTES

    def blocks(count: int) -> int:
        return math.ceil(count / _BLOCK_BYTES) * _BLOCK_BYTES

    if spare is not None:
        missing = needed_bytes - spare.free_bytes
        return Growth(Target.SPARE, blocks(missing), allocated) if missing > 0 else None
    step = _step_bytes(active, limit_bytes)
    if active is not None:
        allowed = limit_bytes - active.file_bytes
        more = min(max(step, blocks(needed_bytes - active.free_bytes)), allowed)
        if more > 0 and needed_bytes <= active.free_bytes + more:
            return Growth(Target.ACTIVE, more, allocated)
    return Growth(Target.NEW_SPARE, max(step, blocks(SEGMENT_HEADER_BYTES + needed_bytes)), allocated)


def _step_bytes(active: Space | None, limit_bytes: int) -> int:
    return min(max(STEP_BYTES_MIN, active.file_bytes if active else 0), STEP_BYTES_MAX, limit_bytes)


class _GrowthUnderWay:
    """One growth, run in a thread, or on the loop if a decision cannot wait."""

    def __init__(self, plan: Growth, work: Callable[[], SegmentFile]) -> None:
        self.plan = plan
        self._work = work
        self.returned = ThreadEvent()
        self.outcome: SegmentFile | OSError | None = None

    def run(self) -> None:
        try:
            reach("journal.make_room.before")
            self.outcome = self._work()
            reach("journal.make_room.after")
        except OSError as error:
            self.outcome = error
        finally:
            self.returned.set()


class Preallocation:
    """The active segment and the spare of one journal. For the loop's thread."""

    def __init__(
        self,
        directory: Path,
        *,
        active: SegmentFile | None,
        limit_bytes: int,
        flusher: Flusher,
        sync: Sync,
        failed: Callable[[OSError], object],
    ) -> None:
        self.active = active
        self.spare: SegmentFile | None = None
        self.refill_at: float = math.inf
        """The position from which on `refill` is worth calling."""
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._reserve_bytes = min(RESERVE_BYTES, limit_bytes // 8)
        self._flusher = flusher
        self._sync = sync
        self._failed = failed
        self._under_way: _GrowthUnderWay | None = None
        self._stopped = False
        self._spares_made = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._refused: OSError | None = None
        self._set_refill()

    def has(self, needed_bytes: int) -> bool:
        """Whether a frame of so many bytes fits and leaves the reserve."""
        needed = needed_bytes + self._reserve_bytes
        return needed <= _free(self.active) or needed <= _free(self.spare)

    async def make(self, needed_bytes: int) -> None:
        """Wait until `has(needed_bytes)`, or `stop`. Raises NoRoom if the disk is full. Cancelled: growth goes on."""
        while not self.has(needed_bytes) and not self._stopped:
            self._grow(needed_bytes + self._reserve_bytes, frame_bytes=needed_bytes)
            await self._growth()

    async def make_spare(self) -> None:
        """Wait until there is a spare, or `stop`. Raises NoRoom if the disk is full."""
        while self.spare is None and not self._stopped:
            if self._under_way is None:
                self._run_in_background(self._begin(Growth(Target.NEW_SPARE, self._step_bytes())))
            await self._growth()

    def make_now(self, needed_bytes: int) -> None:
        """Make room without leaving the loop's thread, for a small frame that must not be refused. Raises NoRoom."""
        while needed_bytes > max(_free(self.active), _free(self.spare)):
            growth = self._under_way
            if growth is None:
                plan = self._plan(needed_bytes, needed_bytes)
                assert plan is not None
                growth = self._begin(plan)
                growth.run()
            growth.returned.wait()
            self._finish(growth)
            if self._refused is not None:
                raise self._no_room(self._refused)

    def refill(self, frame_bytes: int) -> None:
        """Begin the next growth in the background; `frame_bytes` is the size of the frame that was appended last."""
        self.refill_at = math.inf
        self._grow(_free(self.active) + 1, frame_bytes=frame_bytes)

    def take_spare(self) -> SegmentFile:
        """Make the spare the active segment; the caller writes its header."""
        assert self.spare is not None
        self.active, self.spare = self.spare, None
        return self.active

    def began(self) -> None:
        """The active segment has its header, so its positions mean something."""
        self._set_refill()

    async def settle(self) -> None:
        """Wait for the growth that is under way."""
        while self._under_way is not None:
            await self._changed.park()

    def stop(self) -> None:
        """Grow no more, and have everyone who waits return (the journal has failed, or is being closed)."""
        self._stopped = True
        self._changed.unpark_all()

    async def _growth(self) -> None:
        await self._changed.park()
        if self._refused is not None:
            raise self._no_room(self._refused)

    def _step_bytes(self) -> int:
        return _step_bytes(_space(self.active), self._limit_bytes)

    def _plan(self, needed_bytes: int, frame_bytes: int) -> Growth | None:
        return plan_growth(
            _space(self.active),
            _space(self.spare),
            needed_bytes=needed_bytes,
            limit_bytes=self._limit_bytes,
            frame_bytes=frame_bytes,
        )

    def _grow(self, needed_bytes: int, *, frame_bytes: int) -> None:
        if self._under_way is None and not self._stopped:
            plan = self._plan(needed_bytes, frame_bytes)
            if plan is not None:
                self._run_in_background(self._begin(plan))

    def _run_in_background(self, growth: _GrowthUnderWay) -> None:
        def returned(_: OSError | None) -> None:
            self._finish(growth)

        self._flusher.submit(growth.run, returned)

    def _begin(self, plan: Growth) -> _GrowthUnderWay:
        sync = self._sync
        if plan.target is Target.NEW_SPARE:
            self._spares_made += 1
            name = f"spare-{self._spares_made}{NEW_SUFFIX}"

            def create() -> SegmentFile:
                return SegmentFile.create(self._directory, name, plan.more_bytes, sync, allocated=plan.allocated)

            self._under_way = _GrowthUnderWay(plan, create)
        else:
            grown = self.active if plan.target is Target.ACTIVE else self.spare
            assert grown is not None

            def extend() -> SegmentFile:
                grown.extend(plan.more_bytes, sync, allocated=plan.allocated)
                return grown

            self._under_way = _GrowthUnderWay(plan, extend)
        return self._under_way

    def _finish(self, growth: _GrowthUnderWay) -> None:
        if self._under_way is not growth:
            return  # taken in by `make_now` before the flusher's word of it came
        self._under_way = None
        outcome = growth.outcome
        assert outcome is not None
        if isinstance(outcome, OSError):
            self._refused = outcome
            self.refill_at = math.inf  # whoever needs room next tries again; not every append
            if outcome.errno not in (*_DISK_FULL, *_FILES_OUT):
                self._failed(outcome)
        else:
            self._refused = None
            if growth.plan.target is Target.NEW_SPARE:
                self.spare = outcome
            else:
                outcome.file_bytes += growth.plan.more_bytes
            self._set_refill()
        self._changed.unpark_all()

    def _set_refill(self) -> None:
        self.refill_at = math.inf
        if self.active is not None and self.spare is None:
            self.refill_at = self.active.room_end - self._step_bytes() // 2

    def _no_room(self, error: OSError) -> NoRoom:
        return refused_to_open(self._directory, error) or NoRoom(
            f"{self._directory}: no room for more frames: {error}. Free some space on the disk."
        )


def _free(segment: SegmentFile | None) -> int:
    return -1 if segment is None else segment.room_end - segment.end


def _space(segment: SegmentFile | None) -> Space | None:
    return None if segment is None else Space(segment.file_bytes, _free(segment))
