"""The logs that a reader follows, and which of them may have something new.

    added, or moved ──▶ pending ──take──▶ looked at ──▶ read on, or watched (Visibility.watch)
                           ▲                                          │
                           └────── moved: its visibility calls ───────┘

A log is *pending* if it may have something to say. Only those are looked at, so a reader at the end of ten thousand
logs costs as much as one at the end of one. All others are watched: `WatchedLog.moved` is called when there is
something new, in the step in which it becomes visible. The order of `pending` is the order of reading.

A read of a watchlist is its *turn*. There is one at a time: a reader that begins another, or closes the list, ends the
one that is under way, and that one touches the list no more (`is_current`).

No I/O. Not here: waiting, and reading (`fairlog.reading.service`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

W = TypeVar("W", bound="WatchedLog")


class Watched(Protocol):
    """What calls `WatchedLog.moved`; `partition.visibility.Visibility` does."""

    def unwatch(self, watcher: Any, /) -> None: ...


class WatchedLog:
    """One log of a watchlist. Whoever reads it adds what is to be known of it."""

    __slots__ = ("_watchlist", "watched")

    def __init__(self, watchlist: Watchlist[Any]) -> None:
        self._watchlist = watchlist
        self.watched: Watched | None = None
        """Who is to call `moved`."""

    def moved(self, *, stable: bool) -> bool:
        """The log's offsets have changed, or it is gone. Whether this need not be called again.

        `stable` says whether the last stable offset is among them: readers of committed records are not woken by less.
        """
        watchlist = self._watchlist
        watchlist.pending[self] = None
        if watchlist.committed_only and not stable:
            return False
        self.watched = None
        watchlist.wake()
        return True


class Watchlist(Generic[W]):
    """The logs of one reader."""

    __slots__ = ("_turn", "committed_only", "pending", "size", "waiter")

    def __init__(self, *, committed_only: bool) -> None:
        """An empty list, in its first turn."""
        self.committed_only = committed_only
        self.size = 0
        self.pending: dict[W, None] = {}
        """A set in the order of reading."""
        self.waiter: Callable[[], None] | None = None
        """Called when there is something to look at, or the turn is over."""
        self._turn = 1

    def add(self, log: W) -> None:
        """Follow a log that is not in the list."""
        self.size += 1
        self.pending[log] = None

    def remove(self, log: W) -> None:
        """Follow it no more."""
        self.size -= 1
        self.pending.pop(log, None)
        self.unwatch(log)

    def unwatch(self, log: W) -> None:
        """`moved` is not to be called any more."""
        if log.watched is not None:
            log.watched.unwatch(log)
            log.watched = None

    # --- one turn ------------------------------------------------------------------------------

    @property
    def turn(self) -> int:
        """The present turn's number."""
        return self._turn

    def is_current(self, turn: int) -> bool:
        return turn == self._turn

    def end_turn(self) -> None:
        """The present turn is over, whether it has got its answer or not; the next one begins."""
        self._turn += 1
        self.wake()

    def take(self) -> list[W]:
        """Those that may have something to say. Each is to be watched, or made pending again, or told of."""
        taken = list(self.pending)
        self.pending.clear()
        return taken

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter()
