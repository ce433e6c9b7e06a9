"""Transaction version 2 (KIP-890): each transaction has an epoch of its own, and its end grants the next one."""

from __future__ import annotations

import pytest
import trio

from coordinator.answers import Granted, Refusal
from coordinator.group_records import AbortedRecord, PrepareAbortRecord, PrepareCommitRecord, ProducerRecord
from coordinator.replay import replay, snapshot_records
from coordinator.states import IdState
from coordinator.steps import EPOCH_MAX
from fairlog_types import ProducerEpoch, StorageFailure
from tests.coordinator.test_time_and_restarts import restart
from tests.coordinator.transactions import SAME_PRODUCER, kinds, settle, txid


def after(granted: Granted, by: int = 1) -> Granted:
    return Granted(granted.producer_id, ProducerEpoch(granted.epoch + by))


async def write(world, granted: Granted, log) -> None:
    assert await world.add(granted, log, connection=None) == {log: None}
    assert world.produce(log)


async def end(world, granted: Granted, *, commit: bool = True) -> Granted | Refusal:
    return await world.coordinator.end_epoch("t", granted.producer_id, granted.epoch, commit)


async def test_end_grants_the_next_epoch_and_fences_the_one_before(running, logs, autojump_clock):
    """The next transaction is in the next epoch; a late request of the last one is refused."""
    first = await running.init()
    await write(running, first, logs[0])
    second = await end(running, first)
    assert second == after(first)
    assert await running.add(first, logs[0], connection=None) is Refusal.FENCED
    await write(running, second, logs[0])
    assert await end(running, second, commit=False) == after(first, 2)
    await settle()
    assert running.participants.placings == [txid(0)]
    assert running.participants.discarded == [txid(0, epoch=1)]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("restarts", "cut"), [(False, False), (True, False), (True, True)], ids=["at once", "restart", "snapshot, restart"]
)
async def test_end_repeated_in_its_epoch_is_answered_alike(
    running, logs, nursery, commit, restarts, cut, autojump_clock
):
    """Its answer was lost: asked again, on whatever connection, it gets the same epoch; the opposite is refused."""
    first = await running.init()
    await write(running, first, logs[0])
    second = await end(running, first, commit=commit)
    await settle()
    if cut:
        slots = running.coordinator._table.entries
        await running.journal.snapshot(lambda: snapshot_records([slots["t"].producer]))
    world = await restart(running, nursery) if restarts else running
    assert await end(world, first, commit=commit) == second == after(first)
    assert await end(world, first, commit=not commit) is Refusal.WRONG_STATE
    assert await end(world, first, commit=commit) == second
    named = (first.producer_id, first.epoch)
    assert await world.init(connection=7, known=named) == second, "the same of InitProducerId"
    await write(world, second, logs[1])
    assert await end(world, first, commit=commit) is Refusal.FENCED, "it has moved on"


async def test_granted_epoch_is_on_disk_when_it_is_answered(running, logs, nursery, autojump_clock):
    """Else it would be granted twice: for a commit in the flush of PREPARE_COMMIT, for an abort in one of its own."""
    first = await running.init()
    await write(running, first, logs[0])
    flushes = running.journal.flushes
    second = await end(running, first)
    assert running.journal.flushes == flushes + 1
    assert kinds(running.journal)[-2:] == [PrepareCommitRecord, ProducerRecord]
    await write(running, second, logs[0])
    third = await end(running, second, commit=False)
    lost = await restart(running, nursery, power_lost=True)
    assert lost.coordinator.epoch_of(SAME_PRODUCER) == third.epoch == 2


async def test_epoch_that_a_commit_grants_is_on_disk_though_commits_do_not_wait_for_it(
    running, logs, nursery, autojump_clock
):
    """With fsync=interval|never too: the data logs may have kept what was written in it."""
    running.journal.waits_for_disk = False
    first = await running.init()
    await write(running, first, logs[0])
    second = await end(running, first)
    lost = await restart(running, nursery, power_lost=True)
    assert lost.coordinator.epoch_of(SAME_PRODUCER) == second.epoch == 1


async def test_abort_of_nothing_grants_an_epoch_and_commit_of_nothing_is_refused(running, logs, autojump_clock):
    """Partitions are added on the way to them: a client that aborts cannot know whether one was."""
    first = await running.init()
    assert await end(running, first) is Refusal.WRONG_STATE
    second = await end(running, first, commit=False)
    assert second == after(first)
    assert await end(running, second) is Refusal.WRONG_STATE


async def test_last_epoch_is_followed_by_a_fresh_producer_id_and_its_end_may_be_repeated(
    running, logs, nursery, autojump_clock
):
    """Epochs are int16: a busy producer comes to their end within a minute."""
    granted = await running.init()
    slot = running.coordinator._table.entries["t"]
    for epoch in (EPOCH_MAX - 2, EPOCH_MAX - 1):
        slot.producer = slot.producer._replace(epoch=ProducerEpoch(epoch))
        before = Granted(granted.producer_id, ProducerEpoch(epoch))
        await write(running, before, logs[0])
        granted = await end(running, before, commit=epoch % 2 == 0)
        assert await end(running, before, commit=epoch % 2 == 0) == granted
    assert granted == Granted(SAME_PRODUCER + 1, ProducerEpoch(0))
    assert running.coordinator.owner_of(granted.producer_id) == "t"
    assert running.coordinator.owner_of(SAME_PRODUCER) is None
    again = await restart(running, nursery)
    assert await end(again, before) == granted
    await write(again, granted, logs[0])
    assert await end(again, granted) == after(granted)


async def test_commit_that_a_participant_refuses_is_aborted_in_its_epoch(running, logs, nursery, autojump_clock):
    """No epoch is granted; the client must abort, and that grants the next one."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.refusing = {logs[0]: "lost"}
    assert await end(running, first) is Refusal.MUST_ABORT
    running.participants.refusing = {}
    world = await restart(running, nursery)
    assert await end(world, first) is Refusal.MUST_ABORT
    assert await world.add(first, logs[0], connection=None) is Refusal.MUST_ABORT
    second = await end(world, first, commit=False)
    assert second == after(first)
    await write(world, second, logs[0])
    assert await end(world, second) == after(first, 2)


@pytest.mark.parametrize("records", [1, 2], ids=["PREPARE_COMMIT", "and its grant"])
async def test_restart_after_part_of_a_commits_records_commits_and_answers_its_repetition(
    running, logs, nursery, records, autojump_clock
):
    """The process may die between the two, or behind both; either way the transaction is committed, once."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(end, running, first)
    await settle()
    world = running.restarted()
    del world.journal.records[len(world.journal.records) - 2 + records :]
    world.participants.prepare_s = 0.0
    await world.coordinator.recover(tail_kept=True)
    await nursery.start(world.run)
    assert await end(world, first, commit=False) is Refusal.WRONG_STATE
    second = await end(world, first)
    assert second == await end(world, first) == after(first)
    assert world.participants.placings == [txid(0)]


@pytest.mark.parametrize("records", [0, 1, 2], ids=["nothing", "PREPARE_ABORT", "all"])
async def test_restart_in_the_midst_of_a_refused_commit_never_calls_it_committed(
    running, logs, nursery, records, autojump_clock
):
    """The record of the grant is in the journal before the refusal: PREPARE_ABORT takes it back."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.refusing = {logs[0]: "lost"}
    await end(running, first)
    world = running.restarted()
    at = kinds(world.journal).index(PrepareAbortRecord)
    del world.journal.records[at + records :]
    await world.coordinator.recover(tail_kept=True)
    await nursery.start(world.run)
    for _ in range(2):
        assert await end(world, first) is Refusal.MUST_ABORT
    assert world.participants.placings == []
    again = await restart(world, nursery)
    assert await end(again, first) is Refusal.MUST_ABORT
    assert isinstance(await end(again, first, commit=False), Granted)


async def test_end_on_any_connection_is_taken(running, logs, autojump_clock):
    """Partitions are added on connections to their leaders; which of them is older says nothing."""
    first = await running.init(connection=9)
    assert await running.add(first, logs[0], connection=9) == {logs[0]: None}
    await write(running, first, logs[1])
    second = await end(running, first)
    assert isinstance(second, Granted)


async def test_snapshot_while_a_commit_is_decided_keeps_its_grant(running, logs, nursery, autojump_clock):
    """What it replaces are PREPARE_COMMIT and the grant, which may be answered a moment later."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.prepare_s = 10.0
    answers = []

    async def commit() -> None:
        answers.append(await end(running, first))

    nursery.start_soon(commit)
    await settle()
    slots = running.coordinator._table.entries
    await running.journal.snapshot(lambda: snapshot_records([slots["t"].producer]))
    await trio.sleep(20)
    assert answers == [after(first)]
    world = await restart(running, nursery)
    assert world.coordinator.epoch_of(SAME_PRODUCER) == 1
    assert await end(world, first) == after(first)


async def test_end_on_a_failed_journal_says_only_what_is_certain(running, logs, autojump_clock):
    """A commit that was answered is so again; all else is refused until a restart."""
    first = await running.init()
    await write(running, first, logs[0])
    second = await end(running, first)
    running.journal.failed = StorageFailure("fdatasync failed")
    assert await running.init(name="u", connection=2) is Refusal.STORAGE
    assert await end(running, first) == second
    assert await end(running, second, commit=False) is Refusal.STORAGE


async def lost_grant(running, logs, nursery, *, power_lost: bool):
    """A commit whose grant is not in the journal: the end comes right after PREPARE_COMMIT. Answers the epoch, too."""
    first = await running.init()
    await write(running, first, logs[0])
    await end(running, first)
    await settle()
    at = kinds(running.journal).index(PrepareCommitRecord) + 1
    del running.journal.records[at:]
    running.journal.durable = at
    return await restart(running, nursery, power_lost=power_lost), first


async def test_abort_after_a_commit_whose_grant_was_lost_is_refused(running, logs, nursery, autojump_clock):
    """The epoch has one transaction, and that was committed: no later one can be meant."""
    world, first = await lost_grant(running, logs, nursery, power_lost=True)
    assert world.participants.placings == [txid(0)]
    assert await end(world, first, commit=False) is Refusal.WRONG_STATE
    assert await world.init(connection=2) == after(first), "the way on"


async def test_commit_whose_grant_was_lost_is_of_unknown_effect_on_a_failed_journal(
    running, logs, nursery, autojump_clock
):
    """It was committed, but no epoch can be granted for it."""
    world, first = await lost_grant(running, logs, nursery, power_lost=False)
    world.journal.failed = StorageFailure("fdatasync failed")
    assert await world.init(name="u", connection=2) is Refusal.STORAGE
    assert await end(world, first) is Refusal.STORAGE_EFFECT_UNKNOWN


@pytest.mark.parametrize("by_end", [True, False], ids=["by an end", "by InitProducerId"])
async def test_init_that_names_the_epoch_before_after_a_power_loss_is_granted_the_next(
    running, logs, nursery, by_end, autojump_clock
):
    """The answer to the grant was lost with the power: its producer is no stranger."""
    first = await running.init()
    await write(running, first, logs[0])
    named = (first.producer_id, first.epoch)
    second = await end(running, first) if by_end else await running.init(connection=2, known=named)
    assert second == after(first)
    await settle()
    world = await restart(running, nursery, power_lost=True)
    assert await world.init(connection=3, known=named) == after(first, 2)


async def test_restart_in_the_midst_of_an_abort_keeps_its_grant(running, logs, nursery, autojump_clock):
    """The process dies between the record of the grant and ABORTED: the client goes on in the epoch it was granted."""
    first = await running.init()
    await write(running, first, logs[0])
    second = await end(running, first, commit=False)
    killed = running.restarted()
    assert kinds(killed.journal)[-1] is AbortedRecord
    killed.journal.records.pop()
    await killed.coordinator.recover(tail_kept=True)
    await nursery.start(killed.run)
    assert await end(killed, first, commit=False) == second
    await write(killed, second, logs[0])
    assert await end(killed, second) == after(first, 2)


async def test_snapshot_after_a_withdrawn_commit_is_read_again(running, logs, nursery, autojump_clock):
    """The commit's data did not survive the power loss, though its grant did: nothing of the new epoch has ended."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(end, running, first)
    await settle()
    running.journal.durable = len(running.journal.records)
    world = running.restarted(power_lost=True)
    world.participants.prepare_s = 0.0
    world.participants.refusing = {logs[0]: "lost"}
    await world.coordinator.recover(tail_kept=False)
    records = list(snapshot_records([world.coordinator._table.entries["t"].producer]))
    assert replay(records).producers["t"].state is IdState.MUST_ABORT
    assert not any(isinstance(record, AbortedRecord) for record in records)


async def test_grant_that_could_not_be_written_is_not_answered_later(running, logs, nursery, autojump_clock):
    """Its flush has failed: the epoch may be granted once more after the restart."""
    first = await running.init()
    await write(running, first, logs[0])
    await end(running, first)
    await settle()
    at = kinds(running.journal).index(PrepareCommitRecord) + 1
    del running.journal.records[at:]
    world = await restart(running, nursery)
    await settle()
    world.journal.flush_fails = True
    for _ in range(2):
        assert await end(world, first) is Refusal.STORAGE_EFFECT_UNKNOWN


async def test_withdrawn_commit_stays_aborted_over_a_kill(running, logs, nursery, autojump_clock):
    """PREPARE_COMMIT survived the power loss, its grant and the data did not; then the process is killed."""
    first = await running.init()
    await write(running, first, logs[0])
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(end, running, first)
    await settle()
    running.journal.durable = len(running.journal.records) - 1
    world = running.restarted(power_lost=True)
    world.participants.prepare_s = 0.0
    world.participants.refusing = {logs[0]: "lost"}
    await world.coordinator.recover(tail_kept=False)
    await nursery.start(world.run)
    killed = await restart(world, nursery)
    assert await end(killed, first) is Refusal.MUST_ABORT
    assert await end(killed, first, commit=False) == after(first)
