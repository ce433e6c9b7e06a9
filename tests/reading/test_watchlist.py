"""Which logs of a reader may have something new, and who wakes it."""

from __future__ import annotations

from uuid import UUID

import pytest

from fairlog.reading.watchlist import WatchedLog, Watchlist
from fairlog_types import LogId

LOG = LogId.of_topic(UUID(int=1), 0)


class Reader:
    """A watchlist of three logs, and what it does to those around it."""

    def __init__(self, *, committed_only: bool = False) -> None:
        self.unwatched: list[WatchedLog] = []
        self.woken = 0
        self.watchlist = Watchlist[WatchedLog](committed_only=committed_only)
        self.logs = [WatchedLog(self.watchlist) for _ in range(3)]
        for log in self.logs:
            self.watchlist.add(log)
        self.watchlist.waiter = self._wake

    def unwatch(self, log: WatchedLog) -> None:
        self.unwatched.append(log)

    def _wake(self) -> None:
        self.woken += 1


def test_logs_are_looked_at_once_until_they_move() -> None:
    """All that were added, in that order; then those that have moved, in the order in which they did."""
    reader = Reader()
    first, second, third = reader.logs
    assert reader.watchlist.take() == [first, second, third]
    assert reader.watchlist.take() == []
    for moved in (third, first, third):
        moved.moved(stable=True)
    assert reader.watchlist.take() == [third, first]


@pytest.mark.parametrize(
    ("committed_only", "stable", "wakes"),
    [(False, False, True), (False, True, True), (True, False, False), (True, True, True)],
)
def test_reader_of_committed_records_is_woken_by_the_last_stable_offset_alone(
    committed_only: bool, stable: bool, wakes: bool
) -> None:
    """Other news wait for the next look; the leader has to call again."""
    reader = Reader(committed_only=committed_only)
    log = reader.logs[0]
    reader.watchlist.take()
    log.watched = reader
    assert log.moved(stable=stable) == wakes
    assert reader.woken == wakes
    assert (log.watched is None) == wakes
    assert reader.watchlist.take() == [log]


def test_log_that_is_removed_is_neither_looked_at_nor_watched() -> None:
    """The watch is ended once; one that was not watched has none."""
    reader = Reader()
    first, second, third = reader.logs
    first.watched = reader
    reader.watchlist.remove(first)
    reader.watchlist.remove(second)
    reader.watchlist.unwatch(first)
    assert reader.unwatched == [first]
    assert (reader.watchlist.size, reader.watchlist.take()) == (1, [third])


def test_turn_that_is_over_stays_over_and_whoever_waits_in_it_hears_of_it() -> None:
    """A later turn is another one, however many there are."""
    reader = Reader()
    turn = reader.watchlist.turn
    assert reader.watchlist.is_current(turn)
    for _ in range(3):
        reader.watchlist.end_turn()
        assert not reader.watchlist.is_current(turn)
    assert reader.woken == 3
