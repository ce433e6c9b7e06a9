"""The lanes of a sink between doubles: what their producers may do, and when they end by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from coordinator.answers import Granted, Refusal
from coordinator.group_records import (
    ProducerRecord,
)
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefusal
from coordinator.steps import EPOCH_MAX
from fairlog_types import Offset, Placement, ProducerEpoch

from .sinks import ask, commit, join, lane, recovered, refused, settle, write_batch

# ------------------------------------------------------------------------------- lanes and their producers


async def test_lane_is_granted_once(running, logs, autojump_clock):
    """Its writer may repeat itself before it does anything; nobody else gets in, and nobody who has not joined."""
    writer = await join(running, lane())
    assert await running.init(connection=writer.connection, name=writer.name) == writer.granted
    assert await running.init(connection=9, name=writer.name) is Refusal.FENCED
    named = (writer.granted.producer_id, writer.granted.epoch)
    assert await running.init(connection=writer.connection, name=writer.name, known=named) is Refusal.FENCED
    await writer.write(logs[0], 1)
    assert await running.init(connection=writer.connection, name=writer.name) is Refusal.FENCED
    for name in ("fairlog.lane.1.s", "fairlog.lane.0.other", "fairlog.lane.x.s", "fairlog.lane.", "fairlog.lane.00.s"):
        assert await running.init(connection=9, name=name) is Refusal.NOT_JOINED
    answer = await running.coordinator.commit_batch(commit((0, 0, 1)))
    assert isinstance(answer, BatchCommitted), "whoever tried has spoilt nothing"


async def test_lane_that_was_refused_its_grant_may_ask_again(running, autojump_clock):
    """A request that contradicts itself claims nothing."""
    joined = await running.coordinator.join_batch(lane())
    assert await running.init(connection=5, name=joined.transactional_id, timeout_ms=0) is Refusal.BAD_TIMEOUT
    assert isinstance(await running.init(connection=6, name=joined.transactional_id), Granted)


async def test_lane_does_not_commit_by_itself(running, logs, autojump_clock):
    """Its group does; an abort is its own affair."""
    writer = await join(running, lane())
    await writer.write(logs[0], 1)
    assert await writer.end(commit=True) is Refusal.LANE
    assert running.participants.placings == []
    assert await writer.end(commit=False) is None


async def test_lane_that_aborts_with_a_grant_goes_on_in_the_epoch_granted(running, logs, autojump_clock):
    """Transaction version 2: the abort is answered alike when it is said again, and the lane may win."""
    writer = await join(running, lane())
    await writer.write(logs[0], 5)
    first = writer.granted

    async def abort() -> object:
        return await running.coordinator.end_epoch(writer.name, first.producer_id, first.epoch, False)

    writer.granted = await abort()
    assert writer.granted == Granted(first.producer_id, ProducerEpoch(first.epoch + 1)) == await abort()
    await writer.write(logs[0], 1)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)


async def test_lane_that_has_ended_is_fenced(running, logs, autojump_clock):
    """The winner that writes on, the loser that does not know, and whoever ends again."""
    winner, loser = await join(running, lane(0)), await join(running, lane(0, 1))
    await winner.write(logs[0], 1)
    await loser.write(logs[0], 1)
    loser_txid = loser.open_txid
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)
    for writer in (winner, loser):
        assert await writer.add(logs[1]) is Refusal.FENCED
        assert await writer.end(commit=False) is Refusal.FENCED
        assert await writer.end(commit=True) is Refusal.FENCED
        assert await running.init(connection=writer.connection, name=writer.name) is Refusal.NOT_JOINED
    assert not running.participants.produce(loser_txid, logs[0], 1)
    assert running.coordinator.epoch_of(loser.granted.producer_id) == loser.granted.epoch + 1


async def test_lane_of_a_slot_that_was_used_before_lets_the_old_writer_do_nothing(running, logs, autojump_clock):
    """Neither before the new one has its grant nor behind it."""
    old = await join(running, lane())
    await old.write(logs[0], 1)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)
    joined = await running.coordinator.join_batch(lane(batch=1))
    assert joined.transactional_id == old.name
    assert await old.add(logs[1]) is Refusal.FENCED
    granted = await running.init(connection=77, name=joined.transactional_id)
    assert isinstance(granted, Granted)
    assert await old.add(logs[1]) is Refusal.FENCED
    assert await old.end(commit=False) is Refusal.FENCED
    assert await running.init(connection=old.connection, name=old.name) is Refusal.FENCED
    assert await running.add(granted, logs[1], connection=77, name=old.name) == {logs[1]: None}


async def test_join_again_is_answered_alike(running, logs, autojump_clock):
    """The first answer may have got lost. A lane that has timed out is not given again."""
    writer = await join(running, lane(), timeout_ms=1_000)
    assert await running.coordinator.join_batch(lane()) == LaneGranted(writer.name)
    await writer.write(logs[0], 1)
    assert await running.coordinator.abort_open(writer.name) is None
    second = await running.coordinator.join_batch(lane())
    assert isinstance(await running.init(connection=3, name=second.transactional_id), Granted)
    refused(await running.coordinator.commit_batch(commit((0, 0, 1))), SinkRefusal.LANE_ABORTED)


async def test_lane_at_the_last_epoch_gets_another_producer_id(running, logs, nursery, autojump_clock):
    """A slot that is used tens of thousands of times."""
    writer = await join(running, lane())
    await writer.write(logs[0], 1)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)
    await settle()
    known = next(it for it in running.journal.records if isinstance(it, ProducerRecord))
    running.journal.records.append(replace(known, epoch=ProducerEpoch(EPOCH_MAX - 1)))
    after = await recovered(running.restarted(), nursery)
    again = await join(after, lane(batch=1))
    assert (again.granted.producer_id != writer.granted.producer_id, again.granted.epoch) == (True, 0)
    await again.write(logs[0], 1)
    assert isinstance(await after.coordinator.commit_batch(commit((0, 0, 1), batch=1)), BatchCommitted)


async def test_loser_that_is_still_adding_partitions_is_dropped_behind_it(running, logs, nursery, autojump_clock):
    """Its turn ends first; the commit waits for it, and then nothing of it is left open."""
    winner, loser = await join(running, lane(0)), await join(running, lane(0, 1))
    await winner.write(logs[0], 1)
    running.participants.begin_s = 3.0
    nursery.start_soon(loser.add, logs[0])
    await trio.sleep(1)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)
    assert running.coordinator.statistics().open == 0
    assert len(running.participants.discarded) == 1


async def test_winner_that_is_still_adding_partitions_is_waited_for(running, logs, nursery, autojump_clock):
    """Counted is what it has when its turn is over."""
    winner = await join(running, lane())
    await winner.write(logs[0], 1)
    running.participants.begin_s = 3.0
    nursery.start_soon(winner.add, logs[1])
    await trio.sleep(1)
    answer = await running.coordinator.commit_batch(commit((0, 0, 1)))
    assert answer.placements == (Placement(logs[0], Offset(0), 1),)
    assert await winner.add(logs[2]) is Refusal.FENCED


async def test_winner_is_left_alone_while_its_sink_commit_is_decided(running, logs, nursery, autojump_clock):
    """Neither its client nor an operator nor time ends what is being committed; they are answered behind it."""
    writer = await join(running, lane(), timeout_ms=1_000)
    await writer.write(logs[0], 1)
    running.journal.flush_s = 30.0
    answers = []

    async def told(request) -> None:
        answers.append(await request)

    nursery.start_soon(told, running.coordinator.commit_batch(commit((0, 0, 1))))
    await trio.sleep(1)
    for request in (
        writer.end(commit=False),
        writer.add(logs[1]),
        running.coordinator.abort_open(writer.name),
        running.init(connection=9, name=writer.name),
    ):
        nursery.start_soon(told, request)
    await trio.sleep(25)
    assert answers == []
    await trio.sleep(10)
    assert sum(isinstance(it, BatchCommitted) for it in answers) == 1
    others = [str(it) for it in answers if not isinstance(it, BatchCommitted)]
    assert sorted(others) == sorted(map(str, [Refusal.FENCED, Refusal.FENCED, None, Refusal.NOT_JOINED]))
    assert running.participants.discarded == []


# ------------------------------------------------------------------------------------------------- time


async def test_lane_that_does_nothing_is_let_go(world, logs, nursery, autojump_clock):
    """Joined and never granted, or granted and never used, for the longest time-out; its slot is free then."""
    world.settings = CoordinatorSettings(check_interval_ms=1_000, max_timeout_ms=60_000)
    world.start()
    await nursery.start(world.run)
    await world.coordinator.join_batch(lane(0))
    await join(world, lane(1))
    busy = await join(world, lane(2))
    await trio.sleep(50)
    await busy.write(logs[0], 1)
    assert len(world.coordinator.sinks()[0].open_lanes) == 3
    await trio.sleep(12)
    assert world.coordinator.sinks()[0].open_lanes == (busy.name,)
    assert isinstance(await world.coordinator.commit_batch(commit((0, 0, 0), (1, 0, 0), (2, 0, 1))), BatchCommitted)


@pytest.mark.parametrize("fence_on_timeout", [True, False])
async def test_lane_that_times_out_is_fenced_whatever_the_setting(
    world, logs, nursery, fence_on_timeout, autojump_clock
):
    """Its batch is written by another attempt; and the lanes of a run that has died are reclaimed."""
    world.settings = CoordinatorSettings(check_interval_ms=1_000, fence_on_timeout=fence_on_timeout)
    world.start()
    await nursery.start(world.run)
    writer = await join(world, lane(), timeout_ms=5_000)
    await writer.write(logs[0], 1)
    await trio.sleep(7)
    assert await writer.add(logs[1]) is Refusal.FENCED
    assert world.coordinator.sinks() == []
    assert world.coordinator.describe(writer.name).state == "EMPTY"


async def test_sink_never_expires(world, logs, nursery, autojump_clock):
    """Its fence is what makes a replay harmless; its idle ids do expire, and are made again."""
    world.settings = CoordinatorSettings(
        check_interval_ms=1_000, max_timeout_ms=60_000, transactional_id_expiration_ms=100_000
    )
    world.start()
    await nursery.start(world.run)
    answer = await world.coordinator.commit_batch(commit(*await write_batch(world, logs)))
    await trio.sleep(1_000)
    assert world.coordinator.describe_all() == []
    assert await world.coordinator.commit_batch(commit()) == replace(answer, already=True)
    assert isinstance(
        await world.coordinator.commit_batch(commit(*await write_batch(world, logs, 1), batch=1)), BatchCommitted
    )


async def test_batch_on_its_way_outlives_the_ids_of_its_lanes(world, logs, nursery, autojump_clock):
    """The copy hangs, and they expire meanwhile; the restart places the batch without them."""
    world.settings = CoordinatorSettings(
        check_interval_ms=1_000, max_timeout_ms=60_000, transactional_id_expiration_ms=100_000
    )
    world.start()
    await nursery.start(world.run)
    world.participants.copying = trio.Event()
    ask(nursery, world.coordinator.commit_batch(commit(*await write_batch(world, logs))))
    await trio.sleep(200)
    assert world.coordinator.describe_all() == []
    after = await recovered(world.imaged(), nursery)
    assert after.participants.together[-1] == tuple(after.participants.placings)
    answer = await after.coordinator.commit_batch(commit())
    assert after.coordinator.sinks()[0].placements == answer.placements
    assert (answer.already, sum(it.count for it in answer.placements)) == (True, 5)
    world.participants.copying.set()
