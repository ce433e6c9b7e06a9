"""Committed offsets where there are several shards: the logs of this one, and transactions that another coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from coordinator.answers import Refusal
from coordinator.messages import ApplyCommit, Prepare, Stopped
from fairlog.groups import committed
from fairlog.groups.offset_producers import FOREIGN_CONNECTIONS_KEPT_MS
from fairlog.groups.offset_values import OffsetRefusal
from fairlog_types import LeaderEpoch, LogId, ShardNumber, StorageFailure
from partition.answers import RefusedAppend
from tests.groups.desk import Desk, new
from tests.groups.test_committed import until
from tests.shard.runs import transaction

T0, T1 = transaction(7), transaction(7, 1)
OWN = [LogId.of_offsets(number) for number in (1, 3)]


@dataclass
class Elsewhere:
    """Other shards. An `OtherCoordinators`."""

    has_all: bool = True
    """Every transactional id, or none."""
    heard: trio.Event = field(default_factory=trio.Event)
    """Until it is set, none of them has said what goes on."""

    def coordinates(self, _transactional_id: str) -> bool:
        return self.has_all

    async def hear(self, _transactional_id: str) -> None:
        await self.heard.wait()


@pytest.fixture
def others() -> Elsewhere:
    others = Elsewhere()
    others.heard.set()
    return others


@pytest.fixture
def shard(others: Elsewhere) -> dict[str, Any]:
    """How the offsets of one shard of several are set up; no transactional id is coordinated here."""
    return {"own_logs": OWN, "others": others}


def own_group(desk: Desk) -> str:
    return next(name for name in map("g{}".format, range(99)) if desk.offsets.log_of(name) in OWN)


async def test_offsets_logs_are_those_that_are_led_here(open_desk, shard) -> None:
    """Others have journals and tables in their own shard."""
    async with open_desk(**shard) as desk:
        assert list(desk.offsets.logs()) == OWN
        assert {log for log in desk.run.data_logs.logs() if log.kind == OWN[0].kind} == set(OWN)


@pytest.mark.parametrize("group", ["", "g" * 1025, "g" * 1026, "g" * 1027])
async def test_what_cannot_be_a_group_has_no_offsets(open_desk, shard, group: str) -> None:
    """Regression, found by the fuzzer: whoever asked for all of them was asking for a log of another shard."""
    async with open_desk(**shard) as desk:
        assert await desk.offsets.fetch(group, None, require_stable=True) == {}
        place = new(1).partition
        (fetched,) = (await desk.offsets.fetch(group, [place], require_stable=False) or {}).values()
        assert (fetched.value, fetched.pending) == (None, False)


async def test_offsets_of_another_shards_transaction_are_taken_and_follow_its_outcome(open_desk, shard) -> None:
    """The coordinator here does not know the id; the log knows the transaction."""
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        desk.ids.gone.add(7)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        assert await desk.of_t(group) is None
        await desk.end(T0, group)
        assert await desk.of_t(group) == 1
        await desk.begin(T1, group)
        assert await desk.commit_in(T1, group, new(2)) is None
        await desk.end(T1, group, commit=False)
        assert await desk.of_t(group) == 1


async def test_offsets_of_another_shards_producer_are_refused_by_what_the_log_knows(open_desk, shard) -> None:
    """Without a transaction, and in an epoch that is older than that of the open one."""
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        desk.ids.gone.add(7)
        assert await desk.commit_in(T0, group, new(1)) is RefusedAppend.NOT_IN_TRANSACTION
        later = transaction(7, epoch=1)
        await desk.begin(later, group)
        assert await desk.commit_in(T0, group, new(1)) is RefusedAppend.FENCED
        assert await desk.commit_in(later, group, new(2)) is None
        await desk.end(later, group)


async def test_offsets_wait_until_their_coordinator_has_said_what_goes_on(open_desk, shard, others) -> None:
    """After a restart the log does not know yet that the transaction is open."""
    heard = others.heard = trio.Event()
    async with open_desk(**shard) as desk, trio.open_nursery() as nursery:
        group = own_group(desk)
        desk.ids.gone.add(7)
        answers: list[object] = []

        async def commit() -> None:
            answers.append(await desk.commit_in(T0, group, new(1)))

        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert answers == []
        await desk.begin(T0, group)
        heard.set()
        with trio.fail_after(10):
            while not answers:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert answers == [None]
        await desk.end(T0, group)


async def test_offsets_whose_coordinator_says_nothing_in_time_are_to_be_sent_again(
    open_desk, shard, others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written."""
    monkeypatch.setattr(committed, "PATIENCE_S", 0.05)
    others.heard = trio.Event()
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is OffsetRefusal.TIMED_OUT
        await desk.end(T0, group)
        assert await desk.of_t(group) is None


async def test_offsets_of_an_unknown_id_that_is_coordinated_here_are_refused(open_desk, shard, others) -> None:
    """It has expired, or there never was one."""
    others.has_all = False
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        desk.ids.gone.add(7)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
        await desk.end(T0, group, commit=False)


async def test_late_offsets_of_another_shards_producer_are_refused(open_desk, shard) -> None:
    """Also when a sweep has looked for producers that are forgotten, and the transaction is the next one."""
    async with open_desk(**shard) as desk, trio.open_nursery() as nursery:
        group = own_group(desk)
        desk.ids.gone.add(7)
        nursery.start_soon(desk.offsets.run)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1), connection=5) is None
        await desk.end(T0, group)
        await several_looks(desk)
        await desk.begin(T1, group)
        assert await desk.commit_in(T1, group, new(0), connection=4) is Refusal.LATE
        await desk.end(T1, group)
        nursery.cancel_scope.cancel()


async def test_connections_of_other_shards_producers_are_forgotten_in_time(open_desk, shard) -> None:
    """When nothing that was sent on them can arrive any more."""
    async with (
        open_desk(**shard, retention_ms=10 * FOREIGN_CONNECTIONS_KEPT_MS) as desk,
        trio.open_nursery() as nursery,
    ):
        group = own_group(desk)
        desk.ids.gone.add(7)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        await desk.end(T0, group)
        nursery.start_soon(desk.offsets.run)
        desk.run.clock.ms += FOREIGN_CONNECTIONS_KEPT_MS - 1
        await several_looks(desk)
        assert desk.producers.remembered == 1
        desk.run.clock.ms += 1
        await until(lambda: not desk.producers.remembered)
        nursery.cancel_scope.cancel()


async def several_looks(desk: Desk) -> None:
    """Wait until every group was looked at again and again."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    desk.members.on_ask = look
    await until(lambda: looks > 20)
    desk.members.on_ask = None


async def test_offsets_asked_after_an_answered_commit_wait_until_it_is_heard_of(open_desk, shard) -> None:
    """The coordinator is in another shard, and may have answered; a transaction that is only open is not waited for."""
    async with open_desk(**shard) as desk, trio.open_nursery() as nursery:
        group = own_group(desk)
        log = desk.offsets.log_of(group)
        desk.ids.gone.add(7)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        assert await desk.of_t(group) is None
        prepare = Prepare(T0, {log: LeaderEpoch(1)})
        desk.run.participant.note_coordinator(ShardNumber(1), T0)
        assert not (await desk.run.participant.prepare_for(ShardNumber(1), [prepare])).refused
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await desk.of_t(group))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        desk.run.participant.apply([ApplyCommit(T0, (log,), 0, "t")])
        await until(lambda: bool(answers))
        assert answers == [1]


async def test_offsets_asked_after_a_commit_that_waits_in_its_group_wait_for_its_place(open_desk, shard) -> None:
    """Its transaction is committed, and was answered; an earlier one of its transactional group is being decided."""
    async with open_desk(**shard) as desk, trio.open_nursery() as nursery:
        group = own_group(desk)
        log = desk.offsets.log_of(group)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        desk.ids.waiting[log] = (T0,)
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await desk.of_t(group))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        desk.ids.waiting.clear()
        await desk.end(T0, group)
        await until(lambda: bool(answers))
        assert answers == [1]


async def test_offsets_of_a_commit_that_is_placed_after_a_restart_are_not_told(open_desk, shard) -> None:
    """The disk failed between the answer and the place."""
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        log = desk.offsets.log_of(group)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        desk.ids.lacking.add(log)
        assert await desk.offsets.fetch(group, None, require_stable=False) is None
        desk.ids.lacking.clear()
        await desk.end(T0, group)


async def test_offsets_are_to_be_sent_again_if_this_shard_stops_before_the_coordinator_is_heard(
    open_desk, shard, others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's process is down."""

    async def hear(_transactional_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise Stopped("this shard has stopped")

    monkeypatch.setattr(others, "hear", hear)
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is OffsetRefusal.TIMED_OUT
        await desk.end(T0, group)


async def test_offsets_that_an_answered_commit_may_have_changed_are_not_told_after_a_failure(open_desk, shard) -> None:
    """The decision cannot be written any more: what the group had before would be out of date."""
    async with open_desk(**shard) as desk:
        group = own_group(desk)
        log = desk.offsets.log_of(group)
        desk.ids.gone.add(7)
        await desk.begin(T0, group)
        assert await desk.commit_in(T0, group, new(1)) is None
        desk.run.participant.note_coordinator(ShardNumber(1), T0)
        assert not (
            await desk.run.participant.prepare_for(ShardNumber(1), [Prepare(T0, {log: LeaderEpoch(1)})])
        ).refused
        desk.run.partitions.fail(StorageFailure("the disk has failed"))
        assert await desk.offsets.fetch(group, None, require_stable=False) is None
