"""The holds of one coordinator: what waits for them, what they wait for, and how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.abc import Clock

from fairlog_types import ProducerEpoch, ProducerId, ShardNumber, TxId
from shard.holding import DRAIN_S, HOLD_S, Commits

TAKER, OTHER_TAKER = ShardNumber(0), ShardNumber(2)
ONE, TWO = (TxId(ProducerId(7), ProducerEpoch(0), number) for number in (1, 2))


@pytest.fixture
def commits() -> Commits:
    """Of a coordinator that has recovered."""
    commits = Commits()
    commits.recovered()
    return commits


class Waiting:
    """A call that is under way in a task of its own; `after_s` is how long it took."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[object]]) -> None:
        self.answer: object = ...
        self.after_s: float | None = None
        self._call = call
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        began_s = trio.current_time()
        self.answer = await self._call()
        self.after_s = trio.current_time() - began_s


async def seconds_to_admit(commits: Commits) -> float:
    began_s = trio.current_time()
    await commits.admit()
    return trio.current_time() - began_s


async def test_hold_is_refused_before_the_coordinator_has_recovered(autojump_clock: Clock) -> None:
    """It does not know yet what it has decided, and stops nobody."""
    commits = Commits()
    assert not await commits.hold(TAKER, 1)()
    assert await seconds_to_admit(commits) == 0
    assert not commits.release(TAKER, 1)
    commits.recovered()
    assert await commits.hold(TAKER, 2)()


async def test_hold_is_refused_beside_a_commit_that_cannot_be_waited_for(
    commits: Commits, autojump_clock: Clock
) -> None:
    """Its shard may be down for long: no other commit is stopped for it, until it has ended."""
    commits.began([ONE])
    await trio.sleep(DRAIN_S * 1.1)
    began_s = trio.current_time()
    assert not await commits.hold(TAKER, 1)()
    assert trio.current_time() == began_s
    assert await seconds_to_admit(commits) == 0
    commits.ended([ONE])
    assert await commits.hold(TAKER, 2)()


async def test_commit_that_is_said_again_has_not_begun_anew(commits: Commits, autojump_clock: Clock) -> None:
    """It is prepared and then applied: both are one commit, of the age of the first."""
    commits.began([ONE])
    await trio.sleep(DRAIN_S * 0.9)
    commits.began([ONE])
    await trio.sleep(DRAIN_S * 0.2)
    began_s = trio.current_time()
    assert not await commits.hold(TAKER, 1)()
    assert trio.current_time() == began_s


async def test_hold_waits_until_all_that_is_under_way_has_ended(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """It holds from the step of the call on, and what others have is of no matter."""
    commits.began([ONE, TWO])
    hold = Waiting(nursery, commits.hold(TAKER, 1))
    await trio.testing.wait_all_tasks_blocked()
    admitted = Waiting(nursery, commits.admit)
    await trio.sleep(DRAIN_S * 0.2)
    commits.ended([ONE, ONE])
    await trio.sleep(DRAIN_S * 0.2)
    assert hold.answer is ..., "the second one is under way"
    commits.ended([TWO])
    await trio.testing.wait_all_tasks_blocked()
    assert hold.answer is True
    assert admitted.after_s is None
    assert commits.release(TAKER, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s == pytest.approx(DRAIN_S * 0.4)


async def test_hold_that_has_waited_in_vain_answers_so_and_is_over(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Whoever it has stopped goes on with its answer."""
    commits.began([ONE])
    hold = Waiting(nursery, commits.hold(TAKER, 1))
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(DRAIN_S * 1.1)
    assert hold.answer is False
    assert hold.after_s == pytest.approx(DRAIN_S)
    assert not commits.release(TAKER, 1)


async def test_commit_is_admitted_with_the_release(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """All that wait go on, and no sooner."""
    assert await commits.hold(TAKER, 1)()
    waiting = [Waiting(nursery, commits.admit) for _ in range(2)]
    await trio.sleep(HOLD_S * 0.5)
    assert [each.after_s for each in waiting] == [None, None]
    assert commits.release(TAKER, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert [each.after_s for each in waiting] == [pytest.approx(HOLD_S * 0.5)] * 2
    assert await seconds_to_admit(commits) == 0


async def test_hold_nobody_releases_ends_with_its_time_and_its_release_says_so(
    commits: Commits, autojump_clock: Clock
) -> None:
    """The taker may be gone; if it is only slow, it hears that a commit may have begun."""
    assert await commits.hold(TAKER, 1)()
    assert await seconds_to_admit(commits) == pytest.approx(DRAIN_S + HOLD_S)
    assert not commits.release(TAKER, 1)


async def test_hold_is_in_force_while_no_commit_was_admitted(commits: Commits, autojump_clock: Clock) -> None:
    """A slow taker whom nobody needed to wait for has its cut: nothing rests on a clock."""
    assert await commits.hold(TAKER, 1)()
    await trio.sleep(5 * (DRAIN_S + HOLD_S))
    assert commits.release(TAKER, 1)


async def test_release_of_an_older_hold_ends_no_later_one(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """It may arrive late."""
    assert await commits.hold(TAKER, 1)()
    assert await commits.hold(TAKER, 2)()
    admitted = Waiting(nursery, commits.admit)
    await trio.sleep(HOLD_S * 0.1)
    assert not commits.release(TAKER, 1)
    assert not commits.release(OTHER_TAKER, 2)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s is None
    assert commits.release(TAKER, 2)
    assert not commits.release(TAKER, 2), "it is over"


async def test_later_hold_takes_the_place_of_an_earlier_one(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """It holds for its own time, also those whom the earlier one has stopped."""
    assert await commits.hold(TAKER, 1)()
    admitted = Waiting(nursery, commits.admit)
    await trio.sleep(HOLD_S * 0.8)
    assert await commits.hold(TAKER, 2)()
    await trio.sleep(HOLD_S * 0.5)
    assert admitted.after_s is None
    assert commits.release(TAKER, 2)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s == pytest.approx(HOLD_S * 1.3)


async def test_earlier_hold_that_waits_in_vain_ends_no_later_one(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Both wait for the same commit, and the later one gets to its end."""
    commits.began([ONE])
    earlier = Waiting(nursery, commits.hold(TAKER, 1))
    await trio.sleep(DRAIN_S * 0.8)
    later = Waiting(nursery, commits.hold(TAKER, 2))
    await trio.sleep(DRAIN_S * 0.4)
    assert earlier.answer is False
    commits.ended([ONE])
    await trio.testing.wait_all_tasks_blocked()
    assert later.answer is True
    assert commits.release(TAKER, 2)


async def test_commit_waits_for_the_holds_of_two_takers(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """Each ends its own."""
    assert await commits.hold(TAKER, 1)()
    assert await commits.hold(OTHER_TAKER, 1)()
    admitted = Waiting(nursery, commits.admit)
    await trio.sleep(HOLD_S * 0.1)
    assert commits.release(TAKER, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s is None
    assert commits.release(OTHER_TAKER, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s is not None


async def test_commit_waits_for_the_later_of_two_holds_nobody_releases(commits: Commits, autojump_clock: Clock) -> None:
    """Both takers are gone, and both their holds are over with the first commit."""
    assert await commits.hold(TAKER, 1)()
    await trio.sleep(HOLD_S * 0.5)
    assert await commits.hold(OTHER_TAKER, 1)()
    assert await seconds_to_admit(commits) == pytest.approx(DRAIN_S + HOLD_S)
    assert not commits.release(TAKER, 1)
    assert not commits.release(OTHER_TAKER, 1)


async def test_hold_lasts_until_the_slowest_coordinator_has_drained_and_the_cut_is_taken(
    commits: Commits, autojump_clock: Clock
) -> None:
    """This one had nothing under way."""
    assert await commits.hold(TAKER, 1)()
    with trio.move_on_after(DRAIN_S + HOLD_S * 0.9) as waiting:
        await commits.admit()
    assert waiting.cancelled_caught
    assert commits.release(TAKER, 1)


async def test_taker_that_has_started_again_holds_nobody(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """It does not know of the hold. Another taker's is of no matter."""
    assert await commits.hold(TAKER, 1)()
    admitted = Waiting(nursery, commits.admit)
    await trio.testing.wait_all_tasks_blocked()
    commits.forget(OTHER_TAKER)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s is None
    commits.forget(TAKER)
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s == 0
    assert not commits.release(TAKER, 1)


async def test_shard_that_stops_holds_for_nobody(
    commits: Commits, nursery: trio.Nursery, autojump_clock: Clock
) -> None:
    """What waits goes on, and the stop does not take as long as a hold."""
    assert await commits.hold(TAKER, 1)()
    admitted = Waiting(nursery, commits.admit)
    await trio.testing.wait_all_tasks_blocked()
    commits.close()
    await trio.testing.wait_all_tasks_blocked()
    assert admitted.after_s == 0
    assert not commits.release(TAKER, 1)
    assert not await commits.hold(OTHER_TAKER, 1)()
    assert await seconds_to_admit(commits) == 0
