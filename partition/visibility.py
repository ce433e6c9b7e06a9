"""How far one log can be read, and who waits for it to move: the only place where that is kept.

    copier ─┬─▶ advance ─┬─▶ high watermark, last stable offset ─▶ Fetch, ListOffsets, cuts
            │            ├─▶ `reach`: tasks that wait for an offset, a heap by offset
            │            └─▶ watchers: long polls and fetch sessions, told of every move until they have enough
            └─▶ read_ahead ─▶ `newest`: what Fetch reads before the data log has it ─▶ watchers, who are told once

Waiting costs one heap entry per task, so a move wakes exactly the tasks whose offset it has reached.

Used on the event loop only. No I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

import trio

from datalog.interface import Batch, Bounds, ReadResult
from fairlog_types import LogId, Offset, StorageFailure
from partition.answers import Watcher
from partition.newest import Newest

_arrivals = count()
"""Tells apart two that wait for the same offset; events cannot be compared."""


class Visibility:
    """The readable range of one log."""

    __slots__ = (
        "_failure",
        "_gone",
        "_newest",
        "_waiting",
        "_watchers",
        "high_watermark",
        "last_stable",
        "log",
        "log_start",
    )

    def __init__(self, log: LogId, bounds: Bounds) -> None:
        self.log = log
        self.log_start = bounds.log_start
        """The first offset that can be read."""
        self.high_watermark = bounds.next_offset
        """The first offset that is not in the data log yet, or cannot be read there."""
        self.last_stable: Offset = bounds.last_stable_offset
        """The first offset that a reader of committed records cannot read there, as the data log has it."""
        self._newest = Newest()
        self._waiting: list[tuple[Offset, int, trio.Event]] = []
        self._watchers: set[Watcher] = set()
        self._gone = False
        self._failure: StorageFailure | None = None

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset that a reader of committed records cannot read in the data log yet.

        The high watermark, unless a transaction is open in a log of marker mode: then where that one begins, or the
        log's start, if DeleteRecords has taken the beginning of that transaction.
        """
        return max(self.last_stable, self.log_start)

    def readable_end(self, *, committed_only: bool) -> Offset:
        """The first offset that a reader cannot read yet, neither in the data log nor ahead of it."""
        return self._newest.end or (self.last_stable if committed_only else self.high_watermark)

    @property
    def has_failed(self) -> bool:
        """Whether nothing becomes visible any more."""
        return self._failure is not None

    # --- ahead of the data log ----------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for the log to move."""
        return bool(self._watchers)

    def read_ahead(self, base_offset: Offset, batches: Sequence[tuple[Offset, Batch]]) -> None:
        """Let these be read before they are in the data log; each comes with the offset behind it.

        They begin where what can be read ends. In logs without markers only. The watchers are not told: see `wake`.
        """
        end = self.readable_end(committed_only=False)
        assert base_offset == end, f"{self.log}: batches from {base_offset} on are to be read behind {end}"
        self._newest.add(batches)

    def is_ahead(self, offset: int) -> bool:
        """Whether the record at `offset` can be read, though it is not in the data log."""
        end = self._newest.end
        return end is not None and self.high_watermark <= offset < end

    def newest(self, offset: int, *, bytes_max: int) -> ReadResult:
        """The batches from that offset on, which `is_ahead`, as the data log will answer: at least one."""
        batches = self._newest.read(offset, bytes_max=bytes_max)
        end = self.readable_end(committed_only=False)
        return ReadResult(self.log, batches, end, self.log_start, end)

    # --- what moves it ------------------------------------------------------------------------

    def advance(self, high_watermark: Offset, last_stable: Offset) -> None:
        """The data log can be read up to here."""
        stable = last_stable != self.last_stable
        if stable or high_watermark != self.high_watermark:
            told = self._newest.end
            self.high_watermark = high_watermark
            self.last_stable = last_stable
            self._newest.drop_before(high_watermark)
            waiting = self._waiting
            while waiting and waiting[0][0] <= high_watermark:
                heapq.heappop(waiting)[2].set()
            if told is None or told < high_watermark:
                self._tell(stable=stable)

    def begin_at(self, log_start: Offset) -> None:
        """What lies before `log_start` was deleted. It never goes back."""
        if log_start > self.log_start:
            self.log_start = log_start
            self._tell(stable=True)

    def close(self) -> None:
        """The log is deleted: all who wait return, now and later."""
        self._gone = True
        self._newest.clear()
        self._wake_all()

    def fail(self, failure: StorageFailure) -> None:
        """Nothing becomes visible any more: all who wait for an offset get `failure`, now and later."""
        self._failure = failure
        self._wake_all()

    def wake(self) -> None:
        """Let the watchers look again, though the data log has not moved."""
        self._tell(stable=True)

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, event in waiting:
            event.set()
        self.wake()

    def _tell(self, *, stable: bool) -> None:
        if self._watchers:
            enough = [watcher for watcher in self._watchers if watcher.moved(stable=stable)]
            self._watchers.difference_update(enough)

    # --- who waits ----------------------------------------------------------------------------

    async def reach(self, offset: Offset) -> None:
        """Return once the high watermark is at least `offset`, or the log is deleted.

        Raises StorageFailure if copying has stopped before. Cancelling leaves nothing but an entry that the log's next
        records remove.
        """
        if self.high_watermark >= offset:
            # Not a whole checkpoint: a commit's tail waits for its logs one after the other, and they come together.
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        if not self._gone and self._failure is None:
            event = trio.Event()
            heapq.heappush(self._waiting, (offset, next(_arrivals), event))
            await event.wait()
        if self.high_watermark < offset and not self._gone and self._failure is not None:
            raise StorageFailure(str(self._failure)) from self._failure

    def watch(self, watcher: Watcher, *, beyond: Offset, committed_only: bool) -> bool:
        """Tell `watcher` of every move, and when the log is deleted, until it has heard enough.

        What could be read ahead of the data log is no news when it is there. False, and it is not told, if records
        beyond that offset can be read already. With `committed_only` only records below the last stable offset count.
        """
        if self.readable_end(committed_only=committed_only) > beyond:
            return False
        self._watchers.add(watcher)
        return True

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        self._watchers.discard(watcher)
