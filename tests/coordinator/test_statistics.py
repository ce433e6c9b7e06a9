"""What the coordinator shows of transactions: live ones, ended ones, counts; and the abort of one that was seen."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from coordinator.answers import Refusal
from coordinator.statistics import ENDED_KEPT, PLACES_KEPT, Ended, History, Step
from fairlog_types import LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId

TXID = TxId(ProducerId(1), ProducerEpoch(0), 0)


def steps_of(shown) -> list[tuple[str, float]]:
    return [(step.name, round(seconds, 3)) for step, seconds in shown.steps]


async def test_open_transaction_is_shown_from_its_begin_on(running, logs, autojump_clock):
    """With its age, its silence, and the partitions that it may write to."""
    granted = await running.init()
    await running.add(granted, logs[0])
    await trio.sleep(3)
    await running.add(granted, logs[1])
    await trio.sleep(2)
    (shown,) = running.coordinator.under_way(10)
    assert (shown.transactional_id, shown.txid) == ("t", running.coordinator.describe("t").txid)
    assert steps_of(shown) == [("BEGIN", 5.0)]
    assert round(shown.silent_s, 3) == 2.0
    assert shown.logs == (logs[0], logs[1])
    assert shown.timeout_ms == 60_000
    await running.end(granted, commit=False)
    assert running.coordinator.under_way(10) == []


async def test_commit_is_shown_on_its_way(running, logs, autojump_clock):
    """BEGIN, PREPARE_COMMIT, decided, copied, COMMITTED: each with the time spent in it."""
    running.participants.prepare_s = 2.0
    running.participants.copying = trio.Event()
    granted = await running.init()
    await running.add(granted, logs[0])
    assert running.produce(logs[0], 3)
    await trio.sleep(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.end, granted)
        await trio.sleep(1)
        assert steps_of(running.coordinator.under_way(10)[0]) == [("BEGIN", 2.0), ("PREPARE_COMMIT", 1.0)]
        assert running.coordinator.statistics().preparing == 1
    (shown,) = running.coordinator.under_way(10)
    assert steps_of(shown) == [("BEGIN", 3.0), ("PREPARE_COMMIT", 2.0), ("DECIDED", 0.0)]
    assert (shown.records, shown.logs) == (3, (logs[0],))
    await trio.sleep(4)
    running.participants.copying.set()
    await trio.testing.wait_all_tasks_blocked()
    assert running.coordinator.under_way(10) == []
    (ended,) = running.coordinator.ended()
    assert steps_of(ended) == [
        ("BEGIN", 0.0), ("PREPARE_COMMIT", 1.0), ("DECIDED", 3.0), ("COPIED", 7.0), ("COMMITTED", 7.0),
    ]  # fmt: skip
    assert (ended.cause, ended.records) == (None, 3)
    assert ended.placements == (Placement(logs[0], Offset(0), 3),)
    durations = running.coordinator.statistics().durations
    assert (durations.prepare.sum_s, durations.flush.sum_s, durations.apply.sum_s) == pytest.approx((2.0, 0.0, 4.0))


async def test_next_transaction_is_shown_beside_the_one_that_is_copied(running, logs, autojump_clock):
    """Each with its own times, the older one first."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await trio.sleep(5)
    await running.add(granted, logs[1])
    await trio.sleep(1)
    copying, opened = running.coordinator.under_way(10)
    assert steps_of(copying)[0] == ("BEGIN", 6.0)
    assert steps_of(opened) == [("BEGIN", 1.0)]
    statistics = running.coordinator.statistics()
    assert (statistics.open, statistics.copying) == (1, 1)
    running.participants.copying.set()


async def test_abort_is_counted_by_its_cause(running, logs, autojump_clock):
    """By the producer, by time, by an operator, by a new instance."""
    granted = await running.init()
    await running.transaction(granted, logs[0], commit=False)
    await running.add(granted, logs[0])
    await trio.sleep(75)
    granted = await running.init(connection=2)
    await running.add(granted, logs[0], connection=2)
    await running.coordinator.abort_open("t")
    granted = await running.init(connection=3)
    await running.add(granted, logs[0], connection=3)
    await running.init(connection=4)
    statistics = running.coordinator.statistics()
    assert statistics.aborted == {"end_abort": 1, "timed_out": 1, "forced": 1, "init": 1}
    assert (statistics.begun, statistics.committed, statistics.open) == (4, 0, 0)
    assert [it.cause for it in running.coordinator.ended()] == ["init", "forced", "timed_out", "end_abort"]
    timed_out = running.coordinator.ended()[2]
    assert steps_of(timed_out)[0] == ("BEGIN", 0.0)
    assert steps_of(timed_out)[1][0] == "ABORTED"
    assert timed_out.logs == (logs[0],)


async def test_oldest_transactions_are_told_by_name(running, logs, autojump_clock):
    """The oldest first, and no more than asked for."""
    for number in range(5):
        granted = await running.init(name=f"t{number}", connection=number, timeout_ms=600_000)
        await running.add(granted, logs[0], name=f"t{number}", connection=number)
        await trio.sleep(1)
    statistics = running.coordinator.statistics(2)
    assert [(name, round(age_s, 3)) for name, age_s in statistics.oldest] == [("t0", 5.0), ("t1", 4.0)]
    assert [shown.transactional_id for shown in running.coordinator.under_way(3)] == ["t0", "t1", "t2"]


async def test_transaction_that_a_restart_aborts_has_no_times_of_the_earlier_run(running, logs):
    """The clock of the event loop does not reach over a restart."""
    granted = await running.init()
    await running.add(granted, logs[0])
    after = running.restarted()
    await after.coordinator.recover(tail_kept=False)
    (ended,) = after.coordinator.ended()
    assert (ended.cause, steps_of(ended)) == ("restarted", [("ABORTED", 0.0)])
    statistics = after.coordinator.statistics()
    assert (statistics.open, statistics.begun, statistics.aborted) == (0, 1, {"restarted": 1})


async def test_operator_who_means_another_transaction_ends_none(running, logs):
    """What was seen to hang is over; the next one of the same producer is not what was meant (invariant 10)."""
    granted = await running.init()
    await running.add(granted, logs[0])
    seen = running.coordinator.describe("t").txid
    await running.end(granted, commit=False)
    await running.add(granted, logs[0])
    assert await running.coordinator.abort_open("t", seen) is Refusal.WRONG_STATE
    assert running.coordinator.describe("t").state == "OPEN"
    assert await running.coordinator.abort_open("t", running.coordinator.describe("t").txid) is None
    assert running.coordinator.describe("t").txid is None


def ended(places: int) -> Ended:
    log = LogId("t", "ab" * 16, 0)
    return Ended("t", TXID, 0, 0, None, ((Step.BEGIN, 0.0),), (log,) * places, 0, ())


def test_history_is_bounded_in_transactions_and_in_partitions():
    """Many small ones, or a few over thousands of partitions: the memory is the same."""
    history = History()
    for _ in range(ENDED_KEPT * 2):
        history.add(ended(1))
    assert len(history.latest_first()) == ENDED_KEPT
    for _ in range(10):
        history.add(ended(PLACES_KEPT // 4))
    kept = history.latest_first()
    assert sum(len(it.logs) for it in kept) <= PLACES_KEPT
    history.add(ended(PLACES_KEPT * 2))
    assert len(history.latest_first()) == 1
