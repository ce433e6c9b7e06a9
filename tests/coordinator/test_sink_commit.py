"""Batches of a sink, committed by a coordinator between doubles: all of the winners, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.group_records import (
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
)
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefusal
from fairlog_types import Offset, Placement

from .conftest import CountingIds, MemoryGroupJournal, MemoryParticipants, World
from .sinks import ask, commit, decide_as_many_as_may_be, join, kinds, lane, recovered, refused, settle, write_batch

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
    assert kinds(running, SinkPrepareCommitRecord, SinkCommittedRecord) == [
        "SinkPrepareCommitRecord",
        "SinkCommittedRecord",
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
    assert running.participants.prepared_together == [20]
    assert sum(place.count for place in answer.placements) == 20


async def test_commit_is_answered_when_its_records_are_visible_and_is_recorded(running, logs, nursery, autojump_clock):
    """Until then nobody can read them, and a loss of power may have them placed elsewhere."""
    running.participants.copying = trio.Event()
    answers = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await trio.sleep(100)
    assert answers == []
    (sink,) = running.coordinator.sinks()
    assert (sink.batch, sink.placements) == (0, ()), "decided, and not to be said where"
    assert kinds(running, SinkCommittedRecord) == []
    (shown,) = running.coordinator.under_way(10)
    assert (shown.records, set(shown.logs)) == (5, {logs[0], logs[1]})
    assert running.coordinator.statistics().copying == 1
    with capture_logs() as told:
        running.participants.copying.set()
        await settle()
    (answer,) = answers
    assert isinstance(answer, BatchCommitted)
    assert not answer.already
    (line,) = [entry for entry in told if entry["event"] == "transaction"]
    assert (line["sink"], line["batch"], line["lanes"], line["records"]) == ("s", 0, 2, 5)
    assert kinds(running, SinkCommittedRecord) == ["SinkCommittedRecord"]
    assert running.coordinator.under_way(10) == []
    ended = running.coordinator.ended()[0]
    assert (ended.cause, ended.records, ended.placements) == (None, 5, answer.placements)
    assert running.coordinator.statistics().committed == 2


async def test_commit_waits_for_one_copy_however_many_lanes(running, logs, autojump_clock):
    """In a topic of marker mode, to which others write, each wait would be for more than the one before it."""
    for partition in range(20):
        writer = await join(running, lane(partition))
        await writer.write(logs[partition % 4], 1)
    running.participants.apply_s = 1.0
    started = trio.current_time()
    await running.coordinator.commit_batch(commit(*((partition, 0, 1) for partition in range(20))))
    assert trio.current_time() - started == 1.0


async def test_commit_repeated_is_answered_with_the_same_places(running, logs, nursery, autojump_clock):
    """Also while it is copied: when it is visible. A batch before that one is no repetition."""
    running.participants.copying = trio.Event()
    firsts = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await settle()
    again = ask(nursery, running.coordinator.commit_batch(commit((0, 0, 2), (1, 1, 3))))
    seconds = ask(
        nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch=1), batch=1))
    )
    await settle()
    assert (firsts, again, seconds) == ([], [], [])
    running.participants.copying.set()
    await settle()
    (first,), (second,) = firsts, seconds
    assert again == [replace(first, already=True)]
    assert second.placements[0] == Placement(logs[0], Offset(3), 3)
    assert await running.coordinator.commit_batch(commit(batch=1)) == replace(second, already=True)
    refused(await running.coordinator.commit_batch(commit()), SinkRefusal.SET_BACK)
    assert len(running.participants.together) == 2


async def test_sink_is_free_while_a_batch_is_copied(running, logs, nursery, autojump_clock):
    """The next one is joined, written, decided, aborted; nobody hangs for it but who wants to hear of that batch."""
    running.participants.copying = trio.Event()
    first = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await settle()
    joined = ask(nursery, running.coordinator.join_batch(lane(5)))
    with trio.fail_after(1):
        winners = await write_batch(running, logs, batch=1)
        second = ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=1)))
        await settle()
        assert [it.batch for it in running.coordinator.sinks()] == [1]
        await write_batch(running, logs, batch=2)
        assert await running.coordinator.abort_batch("s", "q", "r1", 2) is None
        refused(await running.coordinator.abort_batch("s", "q", "r1", 1), SinkRefusal.COMMITTED)
        assert "2 batches" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.IN_USE)
        refused(await running.coordinator.join_batch(lane(query="other")), SinkRefusal.ANOTHER_QUERY)
    assert (first, joined, second) == ([], [], [])
    running.participants.copying.set()
    await settle()
    (place,) = [it for it in second[0].placements if it.log == logs[0]]
    assert (joined, place.base_offset) == ([replace(first[0], already=True)], 3)


async def test_commit_given_up_while_it_is_copied_is_committed(running, logs, autojump_clock):
    """A driver bounds its own wait; whoever asks again is told."""
    running.participants.copying = trio.Event()
    winners = await write_batch(running, logs)
    with trio.move_on_after(5) as patience:
        await running.coordinator.commit_batch(commit(*winners))
    assert patience.cancelled_caught
    running.participants.copying.set()
    answer = await running.coordinator.commit_batch(commit(*winners))
    assert (answer.already, sum(it.count for it in answer.placements)) == (True, 5)


async def test_batch_without_records_is_answered_behind_the_one_before_it(running, logs, nursery, autojump_clock):
    """Who hears of a batch may count on all of the sink up to it."""
    running.participants.copying = trio.Event()
    first = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await settle()
    second = ask(nursery, running.coordinator.commit_batch(commit(batch=1)))
    await settle()
    assert (first, second) == ([], [])
    running.participants.copying.set()
    await settle()
    assert (len(first), second) == (1, [BatchCommitted(1, (), already=False)])


async def test_join_of_a_committed_batch_is_told_so(running, logs, autojump_clock):
    """There is nothing to write."""
    answer = await running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch=3), batch=3))
    assert await running.coordinator.join_batch(lane(batch=3)) == replace(answer, already=True)
    assert isinstance(await running.coordinator.join_batch(lane(batch=4)), LaneGranted)


@pytest.mark.parametrize("run", ["r1", "r2"], ids=["the same run", "another one"])
async def test_batch_before_the_last_one_is_refused_and_changes_nothing(running, logs, autojump_clock, run):
    """It comes from a checkpoint that was set back: other records are in it than the sink has."""
    for batch in (2, 3):
        await running.coordinator.commit_batch(commit(*await write_batch(running, logs, batch), batch=batch))
    last = await running.coordinator.commit_batch(commit(batch=3))
    await join(running, lane(batch=4))
    before = running.coordinator.sinks()
    why = refused(await running.coordinator.join_batch(lane(batch=2, run=run)), SinkRefusal.SET_BACK)
    assert "sink 's' has batch 3, and this is batch 2" in why
    refused(await running.coordinator.commit_batch(commit(batch=2, run=run)), SinkRefusal.SET_BACK)
    assert running.coordinator.sinks() == before
    assert await running.coordinator.commit_batch(commit(batch=3, run=run)) == last


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_last_batch_is_refused_if_it_was_planned_anew(running, logs, nursery, autojump_clock, restarted):
    """Each replay has the plan of the first time, as far as it is known to both sides."""
    winners = await write_batch(running, logs)
    first = await running.coordinator.commit_batch(commit(*winners, planned_ms=1_763_632_800_000))
    await settle()
    world = await recovered(running.restarted(), nursery) if restarted else running
    again = replace(first, already=True)
    assert await world.coordinator.commit_batch(commit(run="r2", planned_ms=1_763_632_800_000)) == again
    assert await world.coordinator.commit_batch(commit(run="r2")) == again
    why = refused(
        await world.coordinator.commit_batch(commit(run="r3", planned_ms=1_763_632_860_500)), SinkRefusal.SET_BACK
    )
    assert "planned at 1763632800000, and this one was planned at 1763632860500" in why
    assert await world.coordinator.commit_batch(commit(run="r2", planned_ms=1_763_632_800_000)) == again


async def test_batch_whose_plan_was_not_told_is_repeated_with_any(running, logs, autojump_clock):
    """An older driver, or a checkpoint that could not be read: nothing says that it is another one."""
    first = await running.coordinator.commit_batch(commit(*await write_batch(running, logs)))
    assert await running.coordinator.commit_batch(commit(planned_ms=7)) == replace(first, already=True)


async def test_plan_on_its_way_is_known_and_outlives_a_crash(running, logs, nursery, autojump_clock):
    """As the batch does: it is decided, and not visible yet."""
    running.participants.copying = trio.Event()
    ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs), planned_ms=7)))
    await settle()
    with trio.fail_after(1):
        refused(await running.coordinator.commit_batch(commit(planned_ms=8)), SinkRefusal.SET_BACK)
    after = await recovered(running.imaged(), nursery)
    refused(await after.coordinator.commit_batch(commit(planned_ms=8)), SinkRefusal.SET_BACK)
    assert (await after.coordinator.commit_batch(commit(planned_ms=7))).already


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


async def test_sink_that_a_refused_request_has_named_is_not_kept(running, logs, nursery, autojump_clock):
    """Else whoever names many fills the memory for the longest time-out. What others wait for is carried out."""
    answers = [
        ask(nursery, running.coordinator.commit_batch(commit((0, 0, 1), sink=f"s{number % 3}"))) for number in range(9)
    ]
    joined = ask(nursery, running.coordinator.join_batch(lane(1, sink="s0")))
    await settle()
    for (answer,) in answers:
        refused(answer, SinkRefusal.UNKNOWN_LANE)
    assert isinstance(joined[0], LaneGranted)
    assert [entry.sink.name for entry in running.coordinator._sinks.entries()] == ["s0"]
    assert await running.coordinator.abort_batch("s0", "q", "r1", 0) is None
    assert len(running.coordinator._sinks.entries()) == 1, "of a sink that had a run the replaced ones are remembered"


async def test_commit_that_waits_for_room_holds_nobody(running, logs, nursery, autojump_clock):
    """Its lanes may be ended meanwhile; then it is refused when there is room, and nothing of it is seen."""
    await decide_as_many_as_may_be(running, logs, nursery)
    winners = await write_batch(running, logs, DECIDED_MAX)
    one_more = ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=DECIDED_MAX)))
    await settle()
    with trio.fail_after(1):
        assert await running.coordinator.abort_batch("s", "q", "r1", DECIDED_MAX) is None
        refused(await running.coordinator.commit_batch(commit(run="r0", query="other")), SinkRefusal.ANOTHER_QUERY)
    assert one_more == []
    running.participants.copying.set()
    await settle()
    refused(one_more[0], SinkRefusal.UNKNOWN_LANE)
    assert len(running.participants.together) == DECIDED_MAX


async def test_too_many_batches_on_their_way_are_waited_for(running, logs, nursery, autojump_clock):
    """The leaders' windows remember so many; COMMITTED goes in the order of the batches."""
    answers = await decide_as_many_as_may_be(running, logs, nursery)
    winners = await write_batch(running, logs, DECIDED_MAX)
    one_more = ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=DECIDED_MAX)))
    await trio.sleep(1)
    assert (answers, one_more) == ([[]] * DECIDED_MAX, [])
    assert len(running.participants.together) == DECIDED_MAX
    running.participants.copying.set()
    await trio.sleep(1)
    assert all(isinstance(it, BatchCommitted) for (it,) in [*answers, one_more])
    batches = [it.batch for it in running.journal.records if isinstance(it, SinkCommittedRecord)]
    assert batches == list(range(DECIDED_MAX + 1))


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
    assert kinds(running, SinkPrepareCommitRecord) == []
    (sink,) = running.coordinator.sinks() or [None]
    assert sink is None or sink.open_lanes == ()
    assert isinstance(await running.coordinator.commit_batch(commit(*await write_batch(running, logs))), BatchCommitted)


async def test_commit_that_a_participant_refuses_is_aborted_durably_as_a_whole(running, logs, nursery, autojump_clock):
    """One log of one lane: nobody's records become visible, also not after a restart with more luck."""
    winners = await write_batch(running, logs)
    running.participants.refusing = {logs[1]: "lost its tail"}
    why = refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.LANE_ABORTED)
    assert "lost its tail" in why
    assert (running.participants.placings, len(running.participants.discarded)) == ([], 3)
    records = running.journal.records[: running.journal.durable]
    assert any(isinstance(record, SinkAbortedRecord) for record in records), "on disk before the refusal"
    running.participants.refusing = {}
    for power_lost in (False, True):
        after = await recovered(running.restarted(power_lost=power_lost), nursery, tail_kept=not power_lost)
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


async def test_run_that_asks_for_a_committed_batch_replaces_nobody(running, logs, autojump_clock):
    """A zombie learns that it has nothing to do; a new run that replays takes over with its next batch."""
    await running.coordinator.commit_batch(commit(*await write_batch(running, logs)))
    writer = await join(running, lane(batch=1))
    await writer.write(logs[0], 1)
    assert isinstance(await running.coordinator.join_batch(lane(run="r2")), BatchCommitted)
    assert isinstance(await running.coordinator.commit_batch(commit(run="r2")), BatchCommitted)
    assert running.coordinator.sinks()[0].run == "r1"
    assert await writer.add(logs[1]) == {logs[1]: None}
    assert isinstance(await running.coordinator.join_batch(lane(batch=1, run="r2")), LaneGranted)
    assert await writer.add(logs[2]) is Refusal.FENCED
    refused(await running.coordinator.join_batch(lane(batch=0)), SinkRefusal.OLD_RUN)


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


async def test_forget_is_refused_while_the_sink_is_written_to(running, logs, nursery, autojump_clock):
    """Lanes that are open, or a batch that is being copied; and there is nothing to forget of a name."""
    assert "no sink 's'" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.UNKNOWN_SINK)
    running.participants.copying = trio.Event()
    winners = await write_batch(running, logs)
    assert "3 open lanes" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.IN_USE)
    answers = ask(nursery, running.coordinator.commit_batch(commit(*winners)))
    await settle()
    assert "1 batches" in refused(await running.coordinator.forget_sink("s"), SinkRefusal.IN_USE)
    running.participants.copying.set()
    await settle()
    assert isinstance(answers[0], BatchCommitted)
    assert await running.coordinator.forget_sink("s") is None
    after = running.restarted(power_lost=True)
    await after.coordinator.recover(tail_kept=False)
    assert after.coordinator.sinks() == [], "forgotten is forgotten on the disk"


# ------------------------------------------------------------------------------------- several journals


async def test_sink_and_its_lanes_are_in_one_journal(logs, nursery, autojump_clock):
    """So a replay finds the lanes of a sink commit before it, whatever the sink is called."""
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
        sinks = {it.sink for it in journal.records if isinstance(it, SinkPrepareCommitRecord)}
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
    nursery.start_soon(running.coordinator.commit_batch, commit(*winners, planned_ms=7))
    for stage in ("prepared", "decided", "visible"):
        await trio.sleep(1.5)
        if stage == "visible":
            running.participants.copying.set()
            await settle()
        image = running.imaged()
        records = await snapshot_of(image, running)
        assert [type(it) for it in records if isinstance(it, SinkRecord | SinkPrepareCommitRecord)] == [
            SinkRecord if stage == "visible" else SinkPrepareCommitRecord
        ]
        image.journal.records = records
        await image.coordinator.recover(tail_kept=True)
        assert image.coordinator.sinks()[0].batch == 0
        assert len(image.participants.placings) == 2
        refused(image.coordinator._sinks.entries()[0].sink.repeated(0, 8), SinkRefusal.SET_BACK)


async def snapshot_of(image: World, running: World) -> list:
    """What a snapshot of that moment would hold."""
    from coordinator.housekeeping import _state

    coordinator = running.coordinator
    return list(_state(coordinator._executor, coordinator._sinks, 0))
