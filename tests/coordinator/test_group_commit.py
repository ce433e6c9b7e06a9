"""Batches of a sink, committed by a coordinator between doubles: all of the winners, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Granted, Refusal
from coordinator.machine import DECIDED_MAX, EPOCH_MAX
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefusal
from fairlog_types import Offset, Placement, ProducerEpoch
from journal.group_records import (
    GroupAbortedRecord,
    GroupCommittedRecord,
    GroupPrepareCommitRecord,
    ProducerRecord,
    SinkRecord,
)

from .conftest import CountingIds, MemoryGroupJournal, MemoryParticipants, World
from .sinks import commit, join, lane, refused, write_batch


async def settle() -> None:
    """Let what runs in the background come to rest."""
    await trio.testing.wait_all_tasks_blocked()


def kinds(world: World, *types: type) -> list[str]:
    return [type(record).__name__ for record in world.journal.records if isinstance(record, types)]


# ------------------------------------------------------------------------------------------- one commit


async def test_commit_publishes_the_winners_as_one_and_discards_the_others(running, logs, autojump_clock):
    """One record, one placing, one fence; the answer says where all is."""
    winners = await write_batch(running, logs)
    answer = await running.coordinator.commit_batch(commit(*winners))
    places = (Placement(logs[0], Offset(0), 3), Placement(logs[1], Offset(0), 2))
    assert answer == BatchCommitted(0, places, already=False)
    (together,) = running.participants.together
    assert len(together) == 2
    assert len(running.participants.discarded) == 1
    assert not set(together) & set(running.participants.discarded)
    (sink,) = running.coordinator.sinks()
    assert (sink.sink, sink.query, sink.run) == ("s", "q", "r1")
    assert (sink.batch, sink.placements, sink.open_lanes) == (0, places, ())
    await settle()
    assert kinds(running, GroupPrepareCommitRecord, GroupCommittedRecord) == [
        "GroupPrepareCommitRecord",
        "GroupCommittedRecord",
    ]


async def test_commit_costs_one_flush_delay_whatever_the_number_of_lanes(running, logs, autojump_clock):
    """The group journal and all participants of all lanes flush side by side."""
    for partition in range(20):
        await (await join(running, lane(partition))).write(logs[partition % 4], 1)
    running.journal.flush_s = 1.0
    running.participants.prepare_s = 1.5
    started = trio.current_time()
    answer = await running.coordinator.commit_batch(commit(*((partition, 0, 1) for partition in range(20))))
    assert trio.current_time() - started == 1.5
    assert sum(place.count for place in answer.placements) == 20


async def test_commit_is_answered_before_the_copy_and_recorded_behind_it(running, logs, autojump_clock):
    """As EndTxn is: on disk everywhere, and visible soon."""
    running.participants.copying = trio.Event()
    winners = await write_batch(running, logs)
    answer = await running.coordinator.commit_batch(commit(*winners))
    assert isinstance(answer, BatchCommitted)
    assert kinds(running, GroupCommittedRecord) == []
    (shown,) = running.coordinator.under_way(10)
    assert (shown.records, set(shown.logs)) == (5, {logs[0], logs[1]})
    assert running.coordinator.statistics().copying == 1
    with capture_logs() as told:
        running.participants.copying.set()
        await settle()
    (line,) = [entry for entry in told if entry["event"] == "transaction"]
    assert (line["sink"], line["batch"], line["lanes"], line["records"]) == ("s", 0, 2, 5)
    assert kinds(running, GroupCommittedRecord) == ["GroupCommittedRecord"]
    assert running.coordinator.under_way(10) == []
    ended = running.coordinator.ended()[0]
    assert (ended.cause, ended.records, ended.placements) == (None, 5, answer.placements)
    assert running.coordinator.statistics().committed == 2


async def test_commit_repeated_is_answered_with_the_same_places(running, logs, autojump_clock):
    """Also before the copy. A batch before that one is known to be committed, and no more."""
    running.participants.copying = trio.Event()
    first = await running.coordinator.commit_batch(commit(*await write_batch(running, logs)))
    again = await running.coordinator.commit_batch(commit((0, 0, 2), (1, 1, 3)))
    assert again == replace(first, already=True)
    second = await running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch=1), batch=1))
    assert second.placements[0] == Placement(logs[0], Offset(3), 3)
    running.participants.copying.set()
    await settle()
    assert await running.coordinator.commit_batch(commit(batch=1)) == replace(second, already=True)
    assert await running.coordinator.commit_batch(commit()) == BatchCommitted(0, (), already=True)
    assert len(running.participants.together) == 2


async def test_join_of_a_committed_batch_is_told_so(running, logs, autojump_clock):
    """There is nothing to write."""
    answer = await running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch=3), batch=3))
    assert await running.coordinator.join_batch(lane(batch=3)) == replace(answer, already=True)
    assert await running.coordinator.join_batch(lane(batch=2)) == BatchCommitted(2, (), already=True)
    assert isinstance(await running.coordinator.join_batch(lane(batch=4)), LaneGranted)


async def test_slots_are_used_again(running, logs, autojump_clock):
    """Many batches need no more ids than one; each lane has an epoch of its own."""
    seen = set()
    for batch in range(10):
        assert isinstance(
            await running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch), batch=batch)),
            BatchCommitted,
        )
        await settle()
        seen |= {it.transactional_id for it in running.coordinator.describe_all()}
    assert seen == {"fairlog.lane.0.s", "fairlog.lane.1.s", "fairlog.lane.2.s"}
    assert len(set(running.participants.placings)) == 20


async def test_winner_without_records_needs_no_transaction_and_no_lane(running, logs, autojump_clock):
    """A task may have had no rows; a batch may have had no tasks."""
    await join(running, lane(0))
    writer = await join(running, lane(1))
    assert await writer.add(logs[0]) == {logs[0]: None}
    answer = await running.coordinator.commit_batch(commit((0, 0, 0), (1, 0, 0), (2, 0, 0)))
    assert answer == BatchCommitted(0, (), already=False)
    assert [len(together) for together in running.participants.together] == [1], "the open one ends, for its markers"
    assert await running.coordinator.commit_batch(commit(batch=1)) == BatchCommitted(1, (), already=False)
    await settle()
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.coordinator.sinks()[0].batch == 1


async def test_commit_for_a_sink_nobody_has_joined_may_be_empty(running, autojump_clock):
    """Else the lanes are unknown."""
    why = refused(await running.coordinator.commit_batch(commit((0, 0, 1))), SinkRefusal.UNKNOWN_LANE)
    assert "batch 0 of sink 's'" in why
    assert running.coordinator.sinks() == []
    assert await running.coordinator.commit_batch(commit()) == BatchCommitted(0, (), already=False)


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("told", [(0, 0, 1), (0, 0, 3)], ids=["fewer", "more"])
async def test_commit_with_another_count_is_refused_and_the_batch_can_be_written_again(
    running, logs, told, autojump_clock
):
    """Nothing is visible, all lanes of the batch have ended, and no record of a commit is written."""
    await write_batch(running, logs)
    why = refused(await running.coordinator.commit_batch(commit(told, (1, 1, 3))), SinkRefusal.WRONG_COUNT)
    assert "partition 0, attempt 0, of batch 0 of sink 's' holds 2 records" in why
    assert (running.participants.placings, len(running.participants.discarded)) == ([], 3)
    assert kinds(running, GroupPrepareCommitRecord) == []
    (sink,) = running.coordinator.sinks() or [None]
    assert sink is None or sink.open_lanes == ()
    assert isinstance(await running.coordinator.commit_batch(commit(*await write_batch(running, logs))), BatchCommitted)


async def test_commit_that_a_participant_refuses_is_aborted_durably_as_a_whole(running, logs, autojump_clock):
    """One log of one lane: nobody's records become visible, also not after a restart with more luck."""
    winners = await write_batch(running, logs)
    running.participants.refusing = {logs[1]: "lost its tail"}
    why = refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.LANE_ABORTED)
    assert "lost its tail" in why
    assert (running.participants.placings, len(running.participants.discarded)) == ([], 3)
    records = running.journal.records[: running.journal.durable]
    assert any(isinstance(record, GroupAbortedRecord) for record in records), "on disk before the refusal"
    running.participants.refusing = {}
    for power_lost in (False, True):
        after = running.restarted(power_lost=power_lost)
        await after.coordinator.recover(tail_kept=not power_lost)
        assert after.participants.placings == []
        again = await after.coordinator.commit_batch(commit(*await write_batch(after, logs, run="r2"), run="r2"))
        assert isinstance(again, BatchCommitted)


async def test_commit_whose_participant_fails_is_aborted(running, logs, autojump_clock):
    """A disk that fails at the flush has not prepared."""
    winners = await write_batch(running, logs)
    running.participants.prepare_fails = True
    refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.LANE_ABORTED)
    assert running.participants.placings == []


@pytest.mark.parametrize("how", ["timed out", "forced", "aborted"])
async def test_winner_whose_transaction_is_gone_is_refused(running, logs, how, autojump_clock):
    """What the task has written is not there any more, whoever has ended it."""
    writer = await join(running, lane(), timeout_ms=1_000)
    await writer.write(logs[0], 2)
    if how == "timed out":
        await trio.sleep(15)
    elif how == "forced":
        assert await running.coordinator.abort_open(writer.name) is None
    else:
        assert await writer.end(commit=False) is None
    answer = await running.coordinator.commit_batch(commit((0, 0, 2)))
    refused(answer, SinkRefusal.UNKNOWN_LANE if how == "timed out" else SinkRefusal.LANE_ABORTED)
    assert running.participants.placings == []


async def test_winner_that_was_aborted_and_began_again_counts_what_it_has_since(running, logs, autojump_clock):
    """EndTxn(abort) is the writer's own affair, as long as the counts agree."""
    writer = await join(running, lane())
    await writer.write(logs[0], 2)
    assert await writer.end(commit=False) is None
    await writer.write(logs[1], 3)
    answer = await running.coordinator.commit_batch(commit((0, 0, 3)))
    assert answer.placements == (Placement(logs[1], Offset(0), 3),)


async def test_commit_goes_without_a_deleted_log(running, logs, autojump_clock):
    """Nobody will read it, and the others must not suffer; more than the rest can hold is refused all the same."""
    writer = await join(running, lane())
    await writer.write(logs[0], 2)
    await writer.write(logs[1], 3)
    running.participants.logs.discard(logs[1])
    answer = await running.coordinator.commit_batch(commit((0, 0, 5)))
    assert answer.placements == (Placement(logs[0], Offset(0), 2),)


async def test_winner_named_twice_is_a_bad_request(running, logs, autojump_clock):
    """Two attempts at one partition would publish its rows twice."""
    await write_batch(running, logs)
    why = refused(await running.coordinator.commit_batch(commit((1, 0, 5), (1, 1, 3))), SinkRefusal.BAD_REQUEST)
    assert "two winners" in why
    assert len(running.coordinator.sinks()[0].open_lanes) == 3, "nothing was changed"


@pytest.mark.parametrize(
    "bad",
    [
        lane(sink=""), lane(sink="s" * 1001), lane(sink="a\nb"), lane(query=""), lane(run="\ud800"), lane(batch=-1),
        lane(batch=2**63), lane(partition=-2), lane(attempt=-1),
    ],
)  # fmt: skip
async def test_lane_that_cannot_be_is_a_bad_request(running, bad, autojump_clock):
    """Names and numbers have bounds, and nothing is remembered of who is beyond them."""
    refused(await running.coordinator.join_batch(bad), SinkRefusal.BAD_REQUEST)
    message = replace(
        commit((bad.partition, bad.attempt, 1)), sink=bad.sink, query=bad.query, run=bad.run, batch=bad.batch
    )
    refused(await running.coordinator.commit_batch(message), SinkRefusal.BAD_REQUEST)
    assert running.coordinator.sinks() == []


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


async def test_lane_at_the_last_epoch_gets_another_producer_id(running, logs, autojump_clock):
    """A slot that is used tens of thousands of times."""
    writer = await join(running, lane())
    await writer.write(logs[0], 1)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1))), BatchCommitted)
    await settle()
    known = next(it for it in running.journal.records if isinstance(it, ProducerRecord))
    running.journal.records.append(replace(known, epoch=ProducerEpoch(EPOCH_MAX - 1)))
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
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


async def test_winner_is_left_alone_while_its_group_is_decided(running, logs, nursery, autojump_clock):
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
    assert isinstance(answers.pop(0), BatchCommitted)
    assert sorted(map(str, answers)) == sorted(map(str, [Refusal.FENCED, Refusal.FENCED, None, Refusal.NOT_JOINED]))
    assert running.participants.discarded == []


# ---------------------------------------------------------------------------------------- runs and queries


async def test_new_run_fences_the_old_one_and_its_lanes(running, logs, autojump_clock):
    """The zombie can neither write nor join nor commit nor abort."""
    old = await join(running, lane(0, run="r1"))
    await old.write(logs[0], 5)
    new = await join(running, lane(0, run="r2"), connection=200)
    assert len(running.participants.discarded) == 1
    assert await old.add(logs[1]) is Refusal.FENCED
    for answer in (
        await running.coordinator.join_batch(lane(1, run="r1")),
        await running.coordinator.commit_batch(commit((0, 0, 5), run="r1")),
        await running.coordinator.abort_batch("s", "q", "r1", 0),
    ):
        assert "'r1' of sink 's' was replaced by run 'r2'" in refused(answer, SinkRefusal.OLD_RUN)
    await new.write(logs[0], 5)
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 5), run="r2")), BatchCommitted)


async def test_new_run_waits_for_the_commit_of_the_old_one(running, logs, nursery, autojump_clock):
    """What has begun is decided; the replay hears of it."""
    winners = await write_batch(running, logs, run="r1")
    running.journal.flush_s = 2.0
    nursery.start_soon(running.coordinator.commit_batch, commit(*winners))
    await trio.sleep(1)
    joined = await running.coordinator.join_batch(lane(run="r2"))
    assert isinstance(joined, BatchCommitted)
    assert joined.already


async def test_another_query_is_refused_by_name(running, logs, nursery, autojump_clock):
    """A deleted checkpoint must not skip batches in silence: also not after a restart."""
    await write_batch(running, logs)
    after = None
    for world in (running, None):
        if world is None:
            assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 2), (1, 1, 3))), BatchCommitted)
            await settle()
            after = world = running.restarted()
            await world.coordinator.recover(tail_kept=True)
        for answer in (
            await world.coordinator.join_batch(lane(query="other", run="x")),
            await world.coordinator.commit_batch(commit(query="other", run="x")),
            await world.coordinator.abort_batch("s", "other", "x", 0),
        ):
            assert "belongs to query 'q', and this is query 'other'" in refused(answer, SinkRefusal.ANOTHER_QUERY)
    assert await after.coordinator.forget_sink("s") is None
    assert isinstance(await after.coordinator.join_batch(lane(query="other", run="x")), LaneGranted)
    again = after.restarted()
    await again.coordinator.recover(tail_kept=True)
    assert again.coordinator.sinks() == []


async def test_sink_that_has_never_had_a_batch_is_free_when_its_lanes_have_ended(running, logs, autojump_clock):
    """The first attempt failed and its checkpoint was deleted: nothing can be skipped."""
    await write_batch(running, logs)
    refused(await running.coordinator.join_batch(lane(query="other")), SinkRefusal.ANOTHER_QUERY)
    assert await running.coordinator.abort_batch("s", "q", "r1", 0) is None
    assert isinstance(await running.coordinator.join_batch(lane(query="other", run="x")), LaneGranted)


async def test_sinks_of_other_names_know_nothing_of_each_other(running, logs, autojump_clock):
    """Neither do transactional ids that are named alike."""
    await (await join(running, lane(sink="a"))).write(logs[0], 1)
    await (await join(running, lane(sink="a.b", query="w"), connection=2)).write(logs[0], 2)
    granted = await running.init(connection=3, name="a")
    assert await running.transaction(granted, logs[1], connection=3, name="a") is None
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1), sink="a")), BatchCommitted)
    answer = await running.coordinator.commit_batch(commit((0, 0, 2), sink="a.b", query="w"))
    assert isinstance(answer, BatchCommitted)
    assert [(it.sink, it.batch) for it in running.coordinator.sinks()] == [("a", 0), ("a.b", 0)]


# ------------------------------------------------------------------------------------- aborting, forgetting


async def test_abort_discards_the_batch_and_spares_others(running, logs, autojump_clock):
    """Nothing of it is open; it can be written again."""
    await write_batch(running, logs, batch=0)
    await (await join(running, lane(batch=1), connection=300)).write(logs[2], 1)
    assert await running.coordinator.abort_batch("s", "q", "r1", 0) is None
    assert len(running.participants.discarded) == 3
    assert len(running.coordinator.sinks()[0].open_lanes) == 1
    assert await running.coordinator.abort_batch("s", "q", "r1", 0) is None
    assert await running.coordinator.abort_batch("nobody", "q", "r1", 0) is None


async def test_abort_of_a_committed_batch_is_refused(running, logs, autojump_clock):
    """Spark calls it when its commit raised, though the batch is committed."""
    assert isinstance(await running.coordinator.commit_batch(commit(*await write_batch(running, logs))), BatchCommitted)
    assert "stays so" in refused(await running.coordinator.abort_batch("s", "q", "r1", 0), SinkRefusal.COMMITTED)


async def test_forget_is_refused_while_the_sink_is_written_to(running, logs, autojump_clock):
    """Lanes that are open, or a batch that is being copied; and there is nothing to forget of a name."""
    assert "no sink 's'" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.UNKNOWN_SINK)
    running.participants.copying = trio.Event()
    winners = await write_batch(running, logs)
    assert "3 open lanes" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.IN_USE)
    assert isinstance(await running.coordinator.commit_batch(commit(*winners)), BatchCommitted)
    assert "1 batches" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.IN_USE)
    running.participants.copying.set()
    await settle()
    assert await running.coordinator.forget_sink("s") is None
    after = running.restarted(power_lost=True)
    await after.coordinator.recover(tail_kept=False)
    assert after.coordinator.sinks() == [], "forgotten is forgotten on the disk"


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
    answer = await world.coordinator.commit_batch(commit(*await write_batch(world, logs)))
    await trio.sleep(200)
    assert world.coordinator.describe_all() == []
    after = world.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.coordinator.sinks()[0].placements == answer.placements
    assert after.participants.together[-1] == tuple(after.participants.placings)


async def test_too_many_batches_on_their_way_are_waited_for(running, logs, nursery, autojump_clock):
    """The leaders' windows remember so many; COMMITTED goes in the order of the batches."""
    running.participants.copying = trio.Event()
    for batch in range(DECIDED_MAX):
        winners = await write_batch(running, logs, batch)
        assert isinstance(await running.coordinator.commit_batch(commit(*winners, batch=batch)), BatchCommitted)
    winners = await write_batch(running, logs, DECIDED_MAX)
    answers = []

    async def one_more():
        answers.append(await running.coordinator.commit_batch(commit(*winners, batch=DECIDED_MAX)))

    nursery.start_soon(one_more)
    await trio.sleep(1)
    assert answers == []
    running.participants.copying.set()
    await trio.sleep(1)
    assert isinstance(answers[0], BatchCommitted)
    batches = [it.batch for it in running.journal.records if isinstance(it, GroupCommittedRecord)]
    assert batches == list(range(DECIDED_MAX + 1))


# --------------------------------------------------------------------------------------------- the disk


async def test_commit_whose_group_journal_fails_is_of_unknown_effect_until_a_restart(running, logs, autojump_clock):
    """GROUP_PREPARE_COMMIT may be on the disk. Everything else about the sink is refused, and changes nothing."""
    winners = await write_batch(running, logs)
    running.journal.flush_fails = True
    for _ in range(2):
        why = refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.EFFECT_UNKNOWN)
        assert "restart the node" in why
    refused(await running.coordinator.commit_batch(commit(batch=1)), SinkRefusal.STORAGE)
    refused(await running.coordinator.join_batch(lane(3)), SinkRefusal.STORAGE)
    refused(await running.coordinator.abort_batch("s", "q", "r1", 0), SinkRefusal.STORAGE)
    refused(await running.coordinator.forget_sink("s"), SinkRefusal.STORAGE)
    assert running.participants.placings == []
    written = running.restarted()
    await written.coordinator.recover(tail_kept=True)
    assert isinstance(await written.coordinator.join_batch(lane(run="r2")), BatchCommitted)
    lost = running.restarted(power_lost=True)
    await lost.coordinator.recover(tail_kept=False)
    assert isinstance(await lost.coordinator.join_batch(lane(run="r2")), LaneGranted)


async def test_forget_whose_record_may_be_on_the_disk_is_of_unknown_effect(running, logs, autojump_clock):
    """Taken for a refusal, the query would go on, without the fence behind which its last batch is."""
    await running.coordinator.commit_batch(commit(*await write_batch(running, logs)))
    await settle()
    running.journal.flush_fails = True
    why = refused(await running.coordinator.forget_sink("s"), SinkRefusal.EFFECT_UNKNOWN)
    assert "restart the node" in why
    refused(await running.coordinator.forget_sink("s"), SinkRefusal.STORAGE)
    written = running.restarted()
    await written.coordinator.recover(tail_kept=True)
    assert written.coordinator.sinks() == []
    lost = running.restarted(power_lost=True)
    await lost.coordinator.recover(tail_kept=False)
    assert [it.batch for it in lost.coordinator.sinks()] == [0]


async def test_commit_without_room_for_its_record_changes_nothing(running, logs, autojump_clock):
    """A full disk is found before anything is sealed."""
    winners = await write_batch(running, logs)
    running.journal.room, running.journal.disk_is_full = 0, True
    refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.STORAGE)
    assert (running.participants.sealed, kinds(running, GroupPrepareCommitRecord)) == (set(), [])


async def test_commit_for_want_of_files_may_be_asked_again(running, logs, autojump_clock):
    """It passes when some are closed."""
    winners = await write_batch(running, logs)
    running.journal.room, running.journal.files_are_out = 0, True
    assert "ask again" in refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.IN_USE)
    running.journal.files_are_out = False
    assert isinstance(await running.coordinator.commit_batch(commit(*winners)), BatchCommitted)


async def test_lane_that_could_not_be_dropped_for_want_of_files_leaves_nothing_to_the_next_one(
    running, logs, autojump_clock
):
    """Its transaction is open until the slot's next grant, or its time-out. What it holds is nobody else's."""
    writer = await join(running, lane())
    await writer.write(logs[0], 2)
    running.journal.room, running.journal.files_are_out = 0, True
    assert await running.coordinator.abort_batch("s", "q", "r1", 0) is None
    running.journal.files_are_out = False
    assert running.coordinator.describe(writer.name).state == "OPEN"
    assert await writer.add(logs[1]) is Refusal.FENCED
    joined = await running.coordinator.join_batch(lane(attempt=1))
    assert joined == LaneGranted(writer.name)
    refused(await running.coordinator.commit_batch(commit((0, 1, 2))), SinkRefusal.LANE_ABORTED)
    again = await join(running, lane(attempt=2))
    assert again.name == writer.name
    assert len(running.participants.discarded) == 1
    assert running.participants.placings == []


async def test_commit_recorded_late_for_want_of_files_is_recorded(running, logs, autojump_clock):
    """GROUP_COMMITTED waits for a file; nothing else waits for it."""
    running.participants.copying = trio.Event()
    assert isinstance(await running.coordinator.commit_batch(commit(*await write_batch(running, logs))), BatchCommitted)
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    await trio.sleep(3)
    assert kinds(running, GroupCommittedRecord) == []
    running.journal.files_are_out = False
    await trio.sleep(3)
    assert kinds(running, GroupCommittedRecord) == ["GroupCommittedRecord"]


async def test_commit_whose_placing_fails_is_committed_and_placed_after_a_restart(running, logs, autojump_clock):
    """It was decided; only where it is cannot be told."""
    winners = await write_batch(running, logs)
    running.participants.place_fails = True
    answer = await running.coordinator.commit_batch(commit(*winners))
    assert answer == BatchCommitted(0, (), already=False)
    assert await running.coordinator.join_batch(lane()) == BatchCommitted(0, (), already=True)
    refused(await running.coordinator.commit_batch(commit(batch=1)), SinkRefusal.STORAGE)
    running.participants.place_fails = False
    after = running.restarted(power_lost=True)
    await after.coordinator.recover(tail_kept=False)
    assert after.participants.together[-1] == tuple(after.participants.placings)
    assert len(after.participants.placings) == 2
    assert after.coordinator.sinks()[0].placements == (
        Placement(logs[0], Offset(0), 3),
        Placement(logs[1], Offset(0), 2),
    )


@pytest.mark.parametrize("whose", ["its own", "somebody else's"])
async def test_failure_wakes_who_waits_for_a_copy(running, logs, nursery, whose, autojump_clock):
    """A commit that waits for room among those on their way hears that nothing is written any more."""
    running.participants.copying = trio.Event()
    for batch in range(DECIDED_MAX):
        winners = await write_batch(running, logs, batch)
        await running.coordinator.commit_batch(commit(*winners, batch=batch))
    winners = await write_batch(running, logs, DECIDED_MAX)
    answers = []

    async def one_more():
        answers.append(await running.coordinator.commit_batch(commit(*winners, batch=DECIDED_MAX)))

    nursery.start_soon(one_more)
    await trio.sleep(1)
    if whose == "its own":
        running.participants.apply_fails = True
        running.participants.copying.set()
    else:
        running.participants.place_fails = True
        await running.transaction(await running.init(), logs[3])
    await trio.sleep(1)
    refused(answers[0], SinkRefusal.STORAGE)


async def test_commit_whose_driver_hangs_up_is_decided_all_the_same(running, logs, autojump_clock):
    """From the seal on nobody cancels; the losers are dropped, too."""
    winners = await write_batch(running, logs)
    running.journal.flush_s = 2.0
    with trio.move_on_after(1):
        await running.coordinator.commit_batch(commit(*winners))
    await settle()
    (sink,) = running.coordinator.sinks()
    assert (sink.batch, sink.open_lanes) == (0, ())
    assert len(running.participants.discarded) == 1
    assert running.coordinator.statistics().open == 0


async def test_commit_cancelled_while_it_waits_for_a_winner_changes_nothing(running, logs, nursery, autojump_clock):
    """And holds nobody: the winner goes on, and the commit may be asked for again."""
    first, second = await join(running, lane(0)), await join(running, lane(1))
    await first.write(logs[0], 1)
    await second.write(logs[0], 1)
    running.participants.begin_s = 5.0
    nursery.start_soon(second.add, logs[1])
    await trio.sleep(1)
    with trio.move_on_after(1) as scope:
        await running.coordinator.commit_batch(commit((0, 0, 1), (1, 0, 1)))
    assert scope.cancelled_caught
    running.participants.begin_s = 0.0
    assert await first.add(logs[2]) == {logs[2]: None}
    assert isinstance(await running.coordinator.commit_batch(commit((0, 0, 1), (1, 0, 1))), BatchCommitted)


async def test_fault_in_a_commit_stops_the_node(world, logs, monkeypatch, autojump_clock):
    """What is no matter of the disk is our bug, and memory is ahead of the journal then."""
    await world.coordinator.recover(tail_kept=True)

    async def boom(message: object) -> None:
        raise RuntimeError("boom")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="boom"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            await (await join(world, lane())).write(logs[0], 1)
            monkeypatch.setattr(world.participants, "prepare", boom)
            with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="boom")):
                await world.coordinator.commit_batch(commit((0, 0, 1)))
            await trio.sleep_forever()


# ------------------------------------------------------------------------------------- several journals


async def test_sink_and_its_lanes_are_in_one_journal(logs, nursery, autojump_clock):
    """So a replay finds the lanes of a group commit before it, whatever the sink is called."""
    world = World([MemoryGroupJournal() for _ in range(7)], MemoryParticipants(set(logs)), CountingIds())
    await world.coordinator.recover(tail_kept=True)
    await nursery.start(world.run)
    for number in range(12):
        sink = f"sink-{number}"
        await (await join(world, lane(0, sink=sink), connection=number)).write(logs[0], 1)
        await (await join(world, lane(1, sink=sink), connection=number)).write(logs[1], 1)
        answer = await world.coordinator.commit_batch(commit((0, 0, 1), (1, 0, 1), sink=sink))
        assert isinstance(answer, BatchCommitted)
    await settle()
    assert sum(bool(journal.records) for journal in world.journals) > 3
    for journal in world.journals:
        owners = {it.transactional_id for it in journal.records if isinstance(it, ProducerRecord)}
        sinks = {it.sink for it in journal.records if isinstance(it, GroupPrepareCommitRecord)}
        assert {name.split(".", 3)[3] for name in owners} == sinks
    after = world.restarted(power_lost=True)
    await after.coordinator.recover(tail_kept=False)
    assert [it.batch for it in after.coordinator.sinks()] == [0] * 12


async def test_slot_whose_id_was_somebodys_own_is_passed_over(logs, nursery, autojump_clock):
    """An id from before the prefix was reserved may have its records in another journal."""
    journals = [MemoryGroupJournal() for _ in range(7)]
    first = World(journals, MemoryParticipants(set(logs)), CountingIds())
    home = None
    await first.coordinator.recover(tail_kept=True)
    await nursery.start(first.run)
    await join(first, lane())
    home = next(index for index, journal in enumerate(first.journals) if journal.records)
    record = first.journals[home].records.pop()
    first.journals[(home + 1) % 7].records.append(record)
    after = first.restarted()
    await after.coordinator.recover(tail_kept=True)
    joined = await after.coordinator.join_batch(lane())
    assert joined == LaneGranted("fairlog.lane.1.s")


# ------------------------------------------------------------------------------------------- snapshots


async def test_snapshot_in_the_middle_of_a_commit_keeps_it_in_doubt(running, logs, nursery, autojump_clock):
    """Prepared and not decided, then decided and not visible, then visible: each replays to the same end."""
    winners = await write_batch(running, logs)
    running.journal.flush_s = 2.0
    running.participants.copying = trio.Event()
    nursery.start_soon(running.coordinator.commit_batch, commit(*winners))
    for stage in ("prepared", "decided", "visible"):
        await trio.sleep(1.5)
        if stage == "visible":
            running.participants.copying.set()
            await settle()
        image = running.imaged()
        records = await snapshot_of(image, running)
        assert [type(it) for it in records if isinstance(it, SinkRecord | GroupPrepareCommitRecord)] == [
            SinkRecord if stage == "visible" else GroupPrepareCommitRecord
        ]
        image.journal.records = records
        await image.coordinator.recover(tail_kept=True)
        assert image.coordinator.sinks()[0].batch == 0
        assert len(image.participants.placings) == 2


async def snapshot_of(image: World, running: World) -> list:
    """What a snapshot of that moment would hold."""
    from coordinator.housekeeping import _state

    coordinator = running.coordinator
    return list(_state(coordinator._turns, coordinator._sinks, 0))
