"""The flusher: journals' disk work beside the event loop, with group commit.

Waiting for one fdatasync takes ~140 µs, so what matters is how many waiters share one, how many run side by
side, and how little is spent on getting there and back:

    loop      start(journal) ──▶ io_uring: fdatasync ──────────────────▶ loop: journal.flush_done(…)
                    or       ──▶ queue ──▶ thread: flush_work ──▶ finished ──┘

- *Ring or thread*: a flush that is one fdatasync goes to the kernel through io_uring, if that is to be had: a thread
  would need the interpreter's lock to begin and to end it, and take it from the loop both times. Flushes with more to
  them (a full segment to seal), and all where the kernel or a sandbox refuses io_uring, go to threads
  (docs/decisions/0033-less-work-per-transaction.md).

- *Group commit*: a journal has at most one flush under way. Whoever asks meanwhile is noted, and one further flush,
  begun when the first returns, serves them all (none at all if the first turned out to cover them).
- *Side by side*: the threads (8) take flushes of different journals in parallel. They are started once;
  `trio.to_thread` would cost 60–160 µs for each hop, and three files in one hop one behind the other take
  500–600 µs, where the pool takes 322 µs.
- *Back*: a thread puts its outcome into a deque and wakes the loop once for all that lie there
  (`run_sync_soon(..., idempotent=True)`); the only tasks that are switched to are the journal's own waiters.

Other disk work of journals (making room) goes through the same threads with `submit`. A timer flushes
journals with fsync=interval, all that are dirty together. The flusher never retries and never decides what a
failure means: the journal does (invariant 12).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, TypeVar

import structlog
import trio

from fairlog_types import JournalPosition
from journal.failpoints import is_armed
from journal.ring_syncs import RingSyncs
from journal.segment_file import OpenFile
from journal.uring import open_ring

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Flushable(Protocol):
    """What the flusher needs of a journal. All are called on the loop."""

    def wants_flush(self) -> bool:
        """Whether anything is appended that is not known to be on disk."""
        ...

    def flush_file(self) -> tuple[OpenFile, JournalPosition] | None:
        """The file whose fdatasync is all that one flush is, and through where it puts what is appended on disk.

        None if there is more to do: `flush_work` does it.
        """
        ...

    def flush_work(self) -> Callable[[], JournalPosition]:
        """The blocking work of one flush, for a thread; it answers through which position all is on disk."""
        ...

    def flush_done(self, outcome: JournalPosition | OSError) -> None:
        """What came of it. Not called again after an error."""
        ...


class TailWatcher(Protocol):
    """Who wants to know that what was appended may be gone. Both are called in a thread, and may block."""

    def tail_cut(self, interrupted: bool) -> None:
        """A journal's torn tail is about to be cut. Raises OSError: then it is not, and the journal is not opened.

        `interrupted`: nothing is torn but the last write, as by a kill in the middle of it.
        """
        ...

    def failed(self) -> None:
        """A journal has failed: what it had in memory may never come to the disk. Does not raise."""
        ...


class Flusher:
    """Runs flushes and other disk work. Made by `open_flusher`; its methods are for the loop's thread."""

    def __init__(
        self, *, threads: int, sync: Callable[[int], None], ring: RingSyncs | None, watcher: TailWatcher | None
    ) -> None:
        self.sync = sync
        """fdatasync, or what a test puts in its place; called in the threads."""
        self._ring = ring
        self._watcher = watcher
        self._token = trio.lowlevel.current_trio_token()
        self._queue: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._finished: deque[Callable[[], None]] = deque()
        self._bug: BaseException | None = None
        self._again: dict[Flushable, bool] = {}
        self._dirty: set[Flushable] = set()
        self._due = math.inf
        self._timer_wakes = trio.Event()
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"flusher-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def start(self, journal: Flushable) -> None:
        """Have `journal` flushed: at once, or once more when the flush that is under way returns. Idempotent."""
        if journal in self._again:
            self._again[journal] = True
            return
        self._again[journal] = False
        if self._ring is not None and (flush := journal.flush_file()) is not None:
            file, through = flush
            if self._ring.start(file, lambda error: self._flush_finished(journal, error or through)):
                return
        self.submit(journal.flush_work(), lambda outcome: self._flush_finished(journal, outcome))

    def start_within(self, journal: Flushable, seconds: float) -> None:
        """Have `journal` flushed in `seconds` at the latest, along with all others that were put off. Idempotent."""
        self._dirty.add(journal)
        due = trio.current_time() + seconds
        if due < self._due:
            self._due = due
            self._timer_wakes.set()

    def submit(self, work: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        """Run the blocking `work` in a thread, then `done` with its result or its OSError on the loop."""
        assert not self._closed, "the flusher is closed; journals are to be closed before it"

        def run() -> Callable[[], None]:
            try:
                outcome: T | OSError = work()
            except OSError as error:
                outcome = error
            return lambda: done(outcome)

        self._queue.put(run)

    def tail_cut(self, interrupted: bool) -> None:
        """Tell the watcher, before it is done. In the thread that opens the journal. Raises OSError."""
        if self._watcher is not None:
            self._watcher.tail_cut(interrupted)

    def failed(self) -> None:
        """Have the watcher told that a journal has failed."""
        if self._watcher is None:
            return
        if self._closed:
            self._watcher.failed()  # the threads are gone, and so is everybody whom it could keep waiting
        else:
            self.submit(self._watcher.failed, lambda _: None)

    def _flush_finished(self, journal: Flushable, outcome: JournalPosition | OSError) -> None:
        again = self._again.pop(journal)
        journal.flush_done(outcome)
        # Closed means: left with an error, and nobody is there any more who could be told.
        if again and not self._closed and not isinstance(outcome, OSError) and journal.wants_flush():
            self.start(journal)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            try:
                self._finished.append(run())
            except BaseException as error:  # noqa: ASYNC103, BLE001 - a plain thread; our bug: raised in the timer's task
                self._bug = error
            self._token.run_sync_soon(self._drain, idempotent=True)

    def _drain(self) -> None:
        while self._finished:
            self._finished.popleft()()
        if self._bug is not None:
            self._timer_wakes.set()

    async def _run_timer(self) -> None:
        while True:
            with trio.move_on_at(self._due):
                await self._timer_wakes.wait()
            self._timer_wakes = trio.Event()
            self._raise_bug()
            if trio.current_time() >= self._due:
                dirty, self._dirty, self._due = self._dirty, set(), math.inf
                for journal in dirty:
                    if journal.wants_flush():
                        self.start(journal)

    async def _close(self) -> None:
        self._closed = True
        if self._ring is not None:
            await self._ring.close()
        for _ in self._threads:
            self._queue.put(None)
        await trio.to_thread.run_sync(self._join)
        self._drain()
        self._raise_bug()

    def _raise_bug(self) -> None:
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()


@asynccontextmanager
async def open_flusher(
    *, threads: int = 8, sync: Callable[[int], None] = os.fdatasync, watcher: TailWatcher | None = None
) -> AsyncGenerator[Flusher, None]:
    """Start a flusher; on leaving, what is queued is finished and the threads are joined.

    Close the journals before. `sync` is called with a file descriptor in one of the `threads`, and raises OSError.
    `watcher` hears of every journal that is opened or written with this flusher and loses, or may lose, its tail.
    An error in a thread that is not an OSError is our bug: it is raised here.
    """
    # What stands in fdatasync's place is to be called, and a point that is armed to be reached, so both want threads.
    wants_threads = sync is not os.fdatasync or is_armed("journal.flush.before", "journal.flush.after")
    ring = None if wants_threads else open_ring()
    _log.info("journal.flushed_through", way="threads" if ring is None else "io_uring")
    async with trio.open_nursery() as nursery:
        syncs = None if ring is None else RingSyncs(ring)
        flusher = Flusher(threads=threads, sync=sync, ring=syncs, watcher=watcher)
        if syncs is not None:
            nursery.start_soon(syncs.run)
        nursery.start_soon(flusher._run_timer)  # pyright: ignore[reportPrivateUsage]
        try:
            yield flusher
        finally:
            with trio.CancelScope(shield=True):
                await flusher._close()  # pyright: ignore[reportPrivateUsage]
            nursery.cancel_scope.cancel()
