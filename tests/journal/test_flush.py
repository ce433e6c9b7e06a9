"""Group commit, parallel flushes, failures, and threads that end."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from threading import Barrier, Event

import pytest
import trio
import trio.testing

from fairlog_types import JournalPosition
from journal.flush import Flusher, open_flusher


class FakeJournal:
    """Counts its flushes; each can be held."""

    def __init__(self) -> None:
        self.end = 0
        self.synced = 0
        self.outcomes: list[JournalPosition | OSError] = []
        self.go = Event()
        self.go.set()
        self.running = Event()
        self.error: BaseException | None = None
        self.done = trio.Event()
        self.meet: Callable[[], object] = int

    def wants_flush(self) -> bool:
        return self.synced < self.end

    def flush_work(self) -> Callable[[], JournalPosition]:
        def work() -> JournalPosition:
            through = self.end
            self.running.set()
            assert self.go.wait(10)
            self.meet()
            if self.error is not None:
                raise self.error
            return JournalPosition(through)

        return work

    def flush_done(self, outcome: JournalPosition | OSError) -> None:
        self.outcomes.append(outcome)
        if not isinstance(outcome, OSError):
            self.synced = outcome
        self.done.set()

    async def flushed(self, times: int = 1) -> None:
        while len(self.outcomes) < times:
            self.done = trio.Event()
            await self.done.wait()


async def test_flusher_asked_many_times_during_a_flush_flushes_once_more(flusher: Flusher) -> None:
    """A hundred requests that meet a flush under way share the next one."""
    journal = FakeJournal()
    journal.go.clear()
    journal.end = 1
    flusher.start(journal)
    await trio.to_thread.run_sync(journal.running.wait)
    for journal.end in range(2, 102):
        flusher.start(journal)
    journal.go.set()
    await journal.flushed(2)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert journal.outcomes == [1, 101]
    assert not flusher._again


async def test_flusher_does_not_flush_again_what_the_first_flush_covered(flusher: Flusher) -> None:
    """A request that came before the fdatasync began is served by it."""
    journal = FakeJournal()
    journal.end = 5
    flusher.start(journal)
    flusher.start(journal)
    await journal.flushed()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert journal.outcomes == [5]


async def test_flusher_flushes_different_journals_side_by_side(flusher: Flusher) -> None:
    """Three flushes that each wait for the others all return: they run at the same time."""
    together = Barrier(3)
    journals = [FakeJournal() for _ in range(3)]
    for journal in journals:
        journal.end = 1
        journal.meet = lambda: together.wait(10)
        flusher.start(journal)
    for journal in journals:
        await journal.flushed()
    assert [journal.outcomes for journal in journals] == [[1], [1], [1]]


async def test_flusher_hands_a_failure_to_the_journal_and_does_not_retry(flusher: Flusher) -> None:
    """An OSError is the journal's to judge; even a noted request is not run after it."""
    journal = FakeJournal()
    journal.end = 1
    journal.error = OSError(errno.EIO, "broken")
    journal.go.clear()
    flusher.start(journal)
    await trio.to_thread.run_sync(journal.running.wait)
    flusher.start(journal)
    journal.go.set()
    await journal.flushed()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(journal.outcomes) == 1
    assert not flusher._again


async def test_flusher_timer_flushes_all_put_off_journals_together(
    flusher: Flusher, autojump_clock: trio.testing.MockClock
) -> None:
    """Put-off flushes happen when the first is due, once each; what needs none gets none."""
    first, second, clean = FakeJournal(), FakeJournal(), FakeJournal()
    first.end = second.end = 1
    began = trio.current_time()
    flusher.start_within(first, 0.2)
    flusher.start_within(first, 0.9)
    flusher.start_within(second, 0.5)
    flusher.start_within(clean, 0.1 + 0.4)
    await first.flushed()
    await second.flushed()
    assert 0.2 <= trio.current_time() - began < 0.5
    assert (first.outcomes, second.outcomes, clean.outcomes) == ([1], [1], [])


async def test_flusher_timer_with_an_earlier_date_wakes_earlier(
    flusher: Flusher, autojump_clock: trio.testing.MockClock
) -> None:
    """A later request with a shorter delay is not kept waiting by an earlier one with a longer delay."""
    slow, quick = FakeJournal(), FakeJournal()
    slow.end = quick.end = 1
    began = trio.current_time()
    flusher.start_within(slow, 100)
    await trio.testing.wait_all_tasks_blocked()
    flusher.start_within(quick, 1)
    await quick.flushed()
    assert trio.current_time() - began < 100


async def test_flusher_left_has_joined_its_threads_and_finished_what_was_queued() -> None:
    """No thread outlives the block, and nothing queued is lost."""
    ran: list[int] = []
    async with open_flusher(threads=2) as flusher:
        for number in range(10):
            flusher.submit(lambda number=number: ran.append(number), lambda _: None)
    assert sorted(ran) == list(range(10))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flusher-")]


async def test_flusher_with_a_bug_in_a_thread_raises_it() -> None:
    """What is not an OSError is our bug and is raised where the flusher was opened."""
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError)):
        async with open_flusher(threads=1) as flusher:
            flusher.submit(lambda: 1 / 0, lambda _: None)
            await trio.sleep_forever()


async def test_flusher_wakes_the_loop_once_for_flushes_that_end_together(
    flusher: Flusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop is busy, outcomes gather and are handed over in one go."""
    ends = [Event() for _ in range(4)]
    got: list[int] = []
    wakeups: list[int] = []
    drain = flusher._drain

    def counted() -> None:
        wakeups.append(len(flusher._finished))
        drain()

    monkeypatch.setattr(flusher, "_drain", counted)
    for number, end in enumerate(ends):

        def work(number: int = number, end: Event = end) -> int:
            end.set()
            return number

        flusher.submit(work, got.append)
    for end in ends:
        end.wait(10)
    while len(flusher._finished) < 4:  # the loop is kept busy on purpose: no checkpoint here
        pass
    while len(got) < 4:  # noqa: ASYNC110 (the flusher's doing)
        await trio.lowlevel.checkpoint()
    assert wakeups == [4]
