"""When many groups are due: who is called, when, and what is left of those that are gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest
import trio

from fairlog.groups.deadlines import STALE_MAX, Deadlines, clock_ms


@pytest.fixture
def running():
    """Runs deadlines, and answers who was called and when, in seconds from now."""

    @asynccontextmanager
    async def run(deadlines: Deadlines, then: Callable[[str], None] = lambda _group: None):
        start_ms, calls = clock_ms(), []

        def call(group_id: str, now_ms: int) -> None:
            calls.append((group_id, (now_ms - start_ms) / 1000))
            then(group_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run, call)
            yield calls
            nursery.cancel_scope.cancel()

    return run


def in_s(seconds: float) -> float:
    return clock_ms() + seconds * 1000


async def test_groups_are_called_when_they_are_due_once(autojump_clock, running):
    """The earliest first, also one that comes while the task sleeps; infinite is never."""
    deadlines = Deadlines()
    deadlines.bring_forward("b", in_s(20))
    deadlines.bring_forward("never", in_s(float("inf")))
    async with running(deadlines) as calls:
        await trio.sleep(5)
        deadlines.bring_forward("a", in_s(5))
        await trio.sleep(100)
    assert calls == [("a", 10.0), ("b", 20.0)]


async def test_deadline_moves_forward_and_never_back(autojump_clock, running):
    """A later one is passed over, and what was replaced by an earlier one is not heard of again."""
    deadlines = Deadlines()
    async with running(deadlines) as calls:
        for seconds in (20, 10, 30):
            deadlines.bring_forward("g", in_s(seconds))
        await trio.sleep(100)
    assert calls == [("g", 10.0)]


async def test_group_says_in_its_call_when_it_is_due_next(autojump_clock, running):
    deadlines = Deadlines()
    times = iter((10, 20))

    def again(group_id: str) -> None:
        deadlines.bring_forward(group_id, in_s(next(times, float("inf"))))

    deadlines.bring_forward("g", in_s(1))
    async with running(deadlines, again) as calls:
        await trio.sleep(100)
    assert calls == [("g", 1.0), ("g", 11.0), ("g", 31.0)]


async def test_groups_that_come_and_go_leave_nothing(autojump_clock, running):
    """They are not called, and what is stale does not grow for ever."""
    deadlines = Deadlines()
    async with running(deadlines) as calls:
        for number in range(5 * STALE_MAX):
            deadlines.bring_forward(f"g{number}", in_s(10))
            deadlines.forget(f"g{number}")
        assert len(deadlines._heap) <= STALE_MAX + 2
        await trio.sleep(100)
    assert calls == []
