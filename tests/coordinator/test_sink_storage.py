"""Sink commits when the disk refuses, or files are wanting: what is answered, and what a restart makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.group_records import (
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
)
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefusal
from fairlog_types import Offset, Placement

from .sinks import ask, commit, decide_as_many_as_may_be, join, kinds, lane, recovered, refused, settle, write_batch


async def test_commit_whose_group_journal_fails_is_of_unknown_effect_until_a_restart(
    running, logs, nursery, autojump_clock
):
    """SINK_PREPARE_COMMIT may be on the disk. Everything else about the sink is refused, and changes nothing."""
    winners = await write_batch(running, logs)
    running.journal.flush_fails = True
    for _ in range(2):
        why = refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.EFFECT_UNKNOWN)
        assert "restart the node" in why
    refused(await running.coordinator.commit_batch(commit(batch=1)), SinkRefusal.STORAGE)
    refused(await running.coordinator.join_batch(lane(3)), SinkRefusal.EFFECT_UNKNOWN)
    refused(await running.coordinator.join_batch(lane(3, batch=1)), SinkRefusal.STORAGE)
    refused(await running.coordinator.abort_batch("s", "q", "r1", 0), SinkRefusal.STORAGE)
    refused(await running.coordinator.forget_sink("s"), SinkRefusal.STORAGE)
    assert running.participants.placings == []
    written = await recovered(running.restarted(), nursery)
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
    assert (running.participants.sealed, kinds(running, SinkPrepareCommitRecord)) == (set(), [])


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


async def test_lane_that_could_not_be_dropped_for_want_of_files_is_dropped_later(world, logs, nursery, autojump_clock):
    """It is said, and tried again at each look, until the slot has another lane."""
    world.settings = CoordinatorSettings(check_interval_ms=1_000)
    world.start()
    await recovered(world, nursery)
    writers = [await join(world, lane(number)) for number in range(2)]
    for writer in writers:
        await writer.write(logs[0], 2)
    world.journal.room, world.journal.files_are_out = 0, True
    with capture_logs() as told:
        assert await world.coordinator.abort_batch("s", "q", "r1", 0) is None
    assert [entry["event"] for entry in told].count("lane is discarded later") == 2
    with capture_logs() as told:
        await trio.sleep(3.5)
    assert [entry["event"] for entry in told].count("lane is discarded later") == 3, "one try at each look, not two"
    world.journal.files_are_out = False
    again = await join(world, lane(attempt=1))
    assert again.name == writers[0].name
    await again.write(logs[1], 1)
    assert world.coordinator.statistics().open == 2
    await trio.sleep(1.5)
    assert world.coordinator.describe(writers[1].name).state == "EMPTY"
    assert world.coordinator.describe(again.name).state == "OPEN", "it is another lane's"
    assert len(world.participants.discarded) == 2
    assert isinstance(await world.coordinator.commit_batch(commit((0, 1, 1))), BatchCommitted)


async def test_commit_recorded_late_for_want_of_files_is_recorded(running, logs, nursery, autojump_clock):
    """SINK_COMMITTED waits for a file; nothing else waits for it."""
    running.participants.copying = trio.Event()
    answers = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await settle()
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    await trio.sleep(3)
    assert kinds(running, SinkCommittedRecord) == []
    assert isinstance(answers[0], BatchCommitted)
    running.journal.files_are_out = False
    await trio.sleep(3)
    assert kinds(running, SinkCommittedRecord) == ["SinkCommittedRecord"]


@pytest.mark.parametrize("fails", ["placing", "copying"])
async def test_commit_whose_disk_fails_behind_the_decision_is_visible_after_a_restart(
    running, logs, nursery, fails, autojump_clock
):
    """It is decided, and nobody can read it: its driver hears neither "committed" nor "not"."""
    winners = await write_batch(running, logs)
    running.participants.place_fails, running.participants.apply_fails = fails == "placing", fails == "copying"
    for _ in range(2):
        why = refused(await running.coordinator.commit_batch(commit(*winners)), SinkRefusal.EFFECT_UNKNOWN)
        assert "batch 0 of sink 's' is decided" in why
        assert "restart the node" in why
        assert "is decided" in refused(await running.coordinator.join_batch(lane()), SinkRefusal.EFFECT_UNKNOWN)
    refused(await running.coordinator.abort_batch("s", "q", "r1", 0), SinkRefusal.COMMITTED)
    refused(await running.coordinator.commit_batch(commit(batch=1)), SinkRefusal.STORAGE)
    assert running.coordinator.sinks()[0].placements == ()
    assert running.coordinator.lacks_commits(logs[0]) == (fails == "placing")
    running.participants.place_fails = running.participants.apply_fails = False
    after = await recovered(running.restarted(power_lost=True), nursery, tail_kept=False)
    assert after.participants.together[-1] == tuple(after.participants.placings)
    assert len(after.participants.placings) == 2
    places = (Placement(logs[0], Offset(0), 3), Placement(logs[1], Offset(0), 2))
    assert await after.coordinator.commit_batch(commit(*winners)) == BatchCommitted(0, places, already=True)
    assert after.coordinator.sinks()[0].placements == places


async def test_batch_that_is_copied_though_its_group_journal_has_failed_is_committed(
    running, logs, nursery, autojump_clock
):
    """The decision was on disk before, and the records can be read: that SINK_COMMITTED is missing changes nothing."""
    running.participants.copying = trio.Event()
    answers = ask(nursery, running.coordinator.commit_batch(commit(*await write_batch(running, logs))))
    await settle()
    running.journal.flush_fails = True
    refused(await running.coordinator.commit_batch(commit(batch=1)), SinkRefusal.EFFECT_UNKNOWN)
    assert answers == []
    running.participants.copying.set()
    await settle()
    (answer,) = answers
    assert sum(it.count for it in answer.placements) == 5
    assert await running.coordinator.commit_batch(commit()) == replace(answer, already=True)
    assert kinds(running, SinkCommittedRecord) == []


@pytest.mark.parametrize("whose", ["its own", "somebody else's"])
async def test_failure_wakes_who_waits_for_a_copy(running, logs, nursery, whose, autojump_clock):
    """Those on their way are decided; one that waits for room among them hears that nothing is written any more."""
    on_their_way = await decide_as_many_as_may_be(running, logs, nursery)
    winners = await write_batch(running, logs, DECIDED_MAX)
    answers = ask(nursery, running.coordinator.commit_batch(commit(*winners, batch=DECIDED_MAX)))
    await trio.sleep(1)
    if whose == "its own":
        running.participants.apply_fails = True
        running.participants.copying.set()
    else:
        running.participants.place_fails = True
        await running.transaction(await running.init(), logs[3])
    await trio.sleep(1)
    refused(answers[0], SinkRefusal.STORAGE)
    for (answer,) in on_their_way:
        refused(answer, SinkRefusal.EFFECT_UNKNOWN)


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

    def boom(messages: object) -> None:
        raise RuntimeError("boom")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="boom"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            await (await join(world, lane())).write(logs[0], 1)
            monkeypatch.setattr(world.participants, "prepare", boom)
            with pytest.raises(RuntimeError, match="boom"):
                await world.coordinator.commit_batch(commit((0, 0, 1)))
            await trio.sleep_forever()
