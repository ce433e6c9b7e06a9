"""How far a log can be read: who waits for which offset, who watches, and what the end of a log or of a disk does."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from datalog.interface import Bounds
from fairlog_types import LogId, Offset, StorageFailure
from partition.visibility import Visibility

A = LogId("t", "ab" * 16, 0)


class Watching:
    """Takes note of each move; has enough after `enough` of them."""

    def __init__(self, enough: int = 1_000) -> None:
        self.moves: list[bool] = []
        self._enough = enough

    def moved(self, *, stable: bool) -> bool:
        self.moves.append(stable)
        return len(self.moves) >= self._enough


@pytest.fixture
def visibility() -> Visibility:
    return Visibility(A, Bounds(Offset(0), Offset(0), 0, Offset(0)))


async def test_waiters_wake_at_their_own_offsets(visibility: Visibility, nursery: trio.Nursery) -> None:
    """Each goes on exactly when its offset is visible, whatever the order of waiting."""
    awake: list[tuple[int, int]] = []

    async def wait_for(offset: int) -> None:
        await visibility.reach(Offset(offset))
        awake.append((offset, visibility.high_watermark))

    for offset in (3, 1, 2, 1):
        nursery.start_soon(wait_for, offset)
    for end in (1, 2, 3):
        await wait_all_tasks_blocked()
        visibility.advance(Offset(end), Offset(end))
    await wait_all_tasks_blocked()
    assert sorted(awake) == [(1, 1), (1, 1), (2, 2), (3, 3)]


async def test_offset_that_is_visible_is_not_waited_for(nursery: trio.Nursery) -> None:
    """Also right after a start, from what the data log had."""
    visibility = Visibility(A, Bounds(Offset(2), Offset(5), 100, Offset(5)))
    with trio.fail_after(1):
        await visibility.reach(Offset(5))
    assert (visibility.log_start, visibility.high_watermark, visibility.last_stable_offset) == (2, 5, 5)


async def test_deleted_log_lets_all_go(visibility: Visibility, nursery: trio.Nursery) -> None:
    """Those who wait, those who come later, and those who watch."""
    watching = Watching()
    assert visibility.watch(watching, beyond=Offset(0), committed_only=False)
    async with trio.open_nursery() as waiting:
        waiting.start_soon(visibility.reach, Offset(1))
        await wait_all_tasks_blocked()
        visibility.close()
    await visibility.reach(Offset(9))
    assert watching.moves == [True]


async def test_failure_reaches_those_whose_offset_does_not_come(visibility: Visibility, nursery: trio.Nursery) -> None:
    """An offset that was reached before is an answer all the same."""
    visibility.advance(Offset(1), Offset(1))
    outcomes: list[str] = []

    async def wait() -> None:
        with pytest.raises(StorageFailure, match="no space"):
            await visibility.reach(Offset(2))
        outcomes.append("failed")

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    visibility.fail(StorageFailure("no space left"))
    await wait_all_tasks_blocked()
    await wait()
    await visibility.reach(Offset(1))
    assert outcomes == ["failed", "failed"]


def test_watcher_is_told_of_each_move_until_it_has_enough(visibility: Visibility) -> None:
    """And whether the last stable offset moved; not of a move to where the log stands already."""
    watching = Watching(enough=2)
    assert visibility.watch(watching, beyond=Offset(0), committed_only=True)
    visibility.advance(Offset(0), Offset(0))
    visibility.advance(Offset(2), Offset(0))
    assert not visibility.watch(Watching(), beyond=Offset(1), committed_only=False)
    assert visibility.watch(Watching(), beyond=Offset(1), committed_only=True)
    visibility.advance(Offset(2), Offset(2))
    visibility.begin_at(Offset(1))
    assert watching.moves == [False, True]


def test_unwatched_is_told_nothing(visibility: Visibility) -> None:
    watching = Watching()
    visibility.watch(watching, beyond=Offset(0), committed_only=False)
    visibility.unwatch(watching)
    visibility.advance(Offset(1), Offset(1))
    assert watching.moves == []


def test_last_stable_offset_is_not_before_the_start(visibility: Visibility) -> None:
    """DeleteRecords may have taken the beginning of an open transaction."""
    visibility.advance(Offset(4), Offset(1))
    visibility.begin_at(Offset(3))
    assert visibility.last_stable_offset == 3


# --- ahead of the data log --------------------------------------------------------------------------


def ahead(*ends: int) -> list[tuple[Offset, bytes]]:
    return [(Offset(end), b"up to %d" % end) for end in ends]


async def test_read_ahead_is_told_of_once_and_reached_with_the_data_log(
    visibility: Visibility, nursery: trio.Nursery
) -> None:
    """Who reads hears of it when it can be read, and not again when it is copied; who waits for the copy waits."""
    watching, reached = Watching(), trio.Event()
    assert not visibility.is_watched
    assert visibility.watch(watching, beyond=Offset(0), committed_only=True)
    assert visibility.is_watched

    @nursery.start_soon
    async def wait_for_the_copy() -> None:
        await visibility.reach(Offset(2))
        reached.set()

    await wait_all_tasks_blocked()
    visibility.read_ahead(Offset(0), ahead(2, 4))
    visibility.wake()
    await wait_all_tasks_blocked()
    assert (watching.moves, reached.is_set(), visibility.high_watermark) == ([True], False, 0)
    assert visibility.readable_end(committed_only=True) == visibility.readable_end(committed_only=False) == 4
    visibility.advance(Offset(2), Offset(2))
    visibility.advance(Offset(4), Offset(4))
    await wait_all_tasks_blocked()
    assert (watching.moves, reached.is_set()) == ([True], True)
    visibility.advance(Offset(5), Offset(5))
    assert watching.moves == [True, True]


def test_who_could_read_ahead_does_not_watch(visibility: Visibility) -> None:
    visibility.read_ahead(Offset(0), ahead(2))
    assert not visibility.watch(Watching(), beyond=Offset(1), committed_only=True)
    assert visibility.watch(Watching(), beyond=Offset(2), committed_only=True)


def test_only_what_is_not_in_the_data_log_is_ahead(visibility: Visibility) -> None:
    assert not visibility.is_ahead(0)
    visibility.advance(Offset(2), Offset(2))
    visibility.read_ahead(Offset(2), ahead(4, 6))
    assert [visibility.is_ahead(offset) for offset in range(1, 8)] == [False, True, True, True, True, False, False]
    answer = visibility.newest(3, bytes_max=1)
    assert (answer.batches, answer.next_offset, answer.last_stable_offset) == ([b"up to 4"], 6, 6)
    assert visibility.newest(2, bytes_max=100).batches == [b"up to 4", b"up to 6"]
    assert visibility.newest(5, bytes_max=100).batches == [b"up to 6"]
    visibility.advance(Offset(4), Offset(4))
    assert [visibility.is_ahead(offset) for offset in (3, 4, 5, 6)] == [False, True, True, False]
    visibility.advance(Offset(8), Offset(8))
    visibility.read_ahead(Offset(8), ahead(9))
    assert visibility.newest(8, bytes_max=100).batches == [b"up to 9"]


def test_gap_is_refused(visibility: Visibility) -> None:
    with pytest.raises(AssertionError, match="batches from 2 on are to be read behind 0"):
        visibility.read_ahead(Offset(2), ahead(4))
    visibility.read_ahead(Offset(0), ahead(2))
    with pytest.raises(AssertionError, match="batches from 0 on are to be read behind 2"):
        visibility.read_ahead(Offset(0), ahead(2))


def test_nothing_of_a_deleted_log_is_ahead(visibility: Visibility) -> None:
    visibility.read_ahead(Offset(0), ahead(2))
    visibility.close()
    assert not visibility.is_ahead(0)


def test_what_is_ahead_stays_readable_after_the_copy_has_failed(visibility: Visibility) -> None:
    """It is on disk in the journal, and a restart copies it to the same place."""
    visibility.read_ahead(Offset(0), ahead(2))
    visibility.fail(StorageFailure("full"))
    assert visibility.is_ahead(0)
