"""Two-phase commit with another system (KIP-939): what is open outlives its producer, and its successor ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from coordinator.answers import Granted, GrantedToEnd, Refusal
from coordinator.group_records import AbortedRecord, PrepareAbortRecord, PrepareCommitRecord, ProducerRecord
from coordinator.producer import NO_TIMEOUT_MS
from coordinator.replay import replay, snapshot_records
from coordinator.settings import CoordinatorSettings
from coordinator.steps import EPOCH_MAX
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch
from tests.coordinator.test_time_and_restarts import restart
from tests.coordinator.transactions import SAME_PRODUCER, kinds, settle, txid

ALLOWED = CoordinatorSettings(two_phase_commit=True)


@pytest.fixture
async def running(world, nursery):
    world.settings = ALLOWED
    world.start()
    await nursery.start(world.run)
    return world


def at(epoch: int) -> Granted:
    return Granted(SAME_PRODUCER, ProducerEpoch(epoch))


async def init(
    world, *, connection: int = 1, two_phase: bool = True, keeps: bool = False, known: Granted | None = None
):
    named = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if known is None else (known.producer_id, known.epoch)
    return await world.coordinator.init_producer_id("t", 60_000, *named, connection, two_phase=two_phase, keeps=keeps)


async def end(world, granted: Granted, *, commit: bool = True):
    return await world.coordinator.end_epoch("t", granted.producer_id, granted.epoch, commit)


async def prepared(world, logs) -> Granted:
    """A producer that has written to a log, has told the other system of its epoch, and is gone."""
    first = await init(world)
    assert await world.add(first, logs[0], connection=None) == {logs[0]: None}
    assert world.produce(logs[0], 3)
    return first


@pytest.mark.parametrize("commit", [True, False])
async def test_successor_ends_what_was_prepared(running, logs, commit, autojump_clock):
    """The answer names the epoch that the other system knows; the end goes on in the epoch that it grants."""
    first = await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    assert kept == GrantedToEnd(at(1), first)
    assert await end(running, kept.granted, commit=commit) == at(2)
    assert await end(running, kept.granted, commit=commit) == at(2), "said again"
    await settle()
    assert running.participants.placings == ([txid(0)] if commit else [])
    assert running.participants.discarded == ([] if commit else [txid(0)])
    assert await running.add(at(2), logs[0], connection=None) == {logs[0]: None}
    assert running.produce(logs[0])
    assert await end(running, at(2)) == at(3)


async def test_what_was_prepared_takes_nothing_more(running, logs, autojump_clock):
    """Neither of its old producer, who is fenced, nor of the new one, who is there to end it."""
    first = await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    assert not running.participants.produce(txid(0), logs[0], 1), "it is sealed"
    assert await running.add(first, logs[1], connection=None) is Refusal.FENCED
    assert await end(running, first) is Refusal.FENCED
    assert await running.add(kept.granted, logs[1], connection=None) is Refusal.WRONG_STATE
    assert await running.add(kept.granted, logs[0], connection=None) is Refusal.WRONG_STATE
    assert not running.coordinator.has_added("t", *(kept.granted.producer_id, kept.granted.epoch), logs[0])
    assert await running.end(kept.granted, connection=9) is Refusal.WRONG_STATE, "an end that grants no epoch"
    assert await running.end(kept.granted, commit=False, connection=9) is Refusal.WRONG_STATE
    assert await end(running, kept.granted) == at(2)
    when_kept, at_the_end = running.participants.prepared
    assert (when_kept.only_closes, at_the_end.only_closes) == (True, False)
    assert replace(when_kept, only_closes=False) == at_the_end
    assert {log: it.records for log, it in at_the_end.expected.items()} == {logs[0]: 3}


async def test_successors_successor_ends_what_was_prepared(running, logs, autojump_clock):
    """It may die as well, and be asked again on its connection; one that does not want to keep it aborts it."""
    first = await prepared(running, logs)
    second = await init(running, connection=2, keeps=True)
    assert await init(running, connection=2, keeps=True) == second
    third = await init(running, connection=3, keeps=True)
    assert third == GrantedToEnd(at(2), first)
    assert await end(running, second.granted) is Refusal.FENCED
    assert await init(running, connection=3) == at(3)
    await settle()
    assert running.participants.discarded == [txid(0)]
    assert await end(running, third.granted) is Refusal.FENCED


async def test_nothing_open_keeps_nothing(running, logs, autojump_clock):
    """Before the first transaction, after an end, and after the broker has aborted: a plain grant."""
    assert await init(running, keeps=True) == at(0)
    await running.add(at(0), logs[0], connection=None)
    await end(running, at(0))
    assert await init(running, connection=2, keeps=True) == at(2)
    await running.add(at(2), logs[0], connection=None)
    await running.coordinator.abort_open("t")
    assert await init(running, connection=3, keeps=True) == at(4)


async def test_two_phase_commit_has_to_be_allowed(running, logs, autojump_clock):
    """A transaction without a time-out may keep journals for ever. What has one may be kept in any case."""
    running.coordinator._settings = replace(ALLOWED, two_phase_commit=False)
    assert await init(running) is Refusal.NO_TWO_PHASE_COMMIT
    assert running.coordinator.describe("t") is None
    first = await init(running, two_phase=False)
    await running.add(first, logs[0], connection=None)
    assert await init(running, connection=2, two_phase=False, keeps=True) == GrantedToEnd(at(1), first)


async def test_two_phase_commit_has_no_time_out(running, logs, autojump_clock):
    """Hours later it may still be committed, also by a successor whose own transactions have one."""
    first = await prepared(running, logs)
    await trio.sleep(3 * 3_600)
    kept = await init(running, connection=2, keeps=True)
    assert kept == GrantedToEnd(at(1), first)
    last = await init(running, connection=3, two_phase=False, keeps=True)
    assert last == GrantedToEnd(at(2), first)
    await trio.sleep(3_600)
    assert running.coordinator.describe("t").timeout_ms == NO_TIMEOUT_MS
    following = await end(running, last.granted)
    assert await running.add(following, logs[0], connection=None) == {logs[0]: None}
    await trio.sleep(75)
    assert await end(running, following) is Refusal.FENCED
    assert running.participants.discarded == [txid(0, epoch=3)]


@pytest.mark.parametrize("cut", [False, True], ids=["journal", "snapshot"])
@pytest.mark.parametrize("two_phase", [True, False])
async def test_restart_knows_whether_what_was_kept_has_a_time_out(
    running, logs, nursery, two_phase, cut, autojump_clock
):
    """By the epoch in which it was begun: that which keeps it has one here, either way."""
    first = await init(running, two_phase=two_phase)
    assert await running.add(first, logs[0], connection=None) == {logs[0]: None}
    last = await init(running, connection=2, two_phase=False, keeps=True)
    if cut:
        producer = running.coordinator._table.entries["t"].producer
        await running.journal.snapshot(lambda: snapshot_records([producer]))
    world = await restart(running, nursery)
    await trio.sleep(75)
    assert await end(world, last.granted) == (at(2) if two_phase else Refusal.FENCED)


@pytest.mark.parametrize("cut", [False, True], ids=["journal", "snapshot"])
@pytest.mark.parametrize("commit", [True, False])
async def test_restart_keeps_what_was_kept(running, logs, nursery, commit, cut, autojump_clock):
    """Also sealed, and for its last holder only; the clock of a transaction with a time-out goes on."""
    first = await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    if cut:
        producer = running.coordinator._table.entries["t"].producer
        await running.journal.snapshot(lambda: snapshot_records([producer]))
    world = await restart(running, nursery)
    assert world.coordinator.describe("t").txid == txid(0)
    assert not world.participants.produce(txid(0), logs[0], 1)
    assert await end(world, first) is Refusal.FENCED
    assert await end(world, kept.granted, commit=commit) == at(2)
    await settle()
    again = await restart(world, nursery)
    assert await end(again, kept.granted, commit=commit) == at(2)
    assert again.participants.placings == ([txid(0)] if commit else [])


async def test_power_loss_aborts_what_was_kept_and_says_so(running, logs, nursery, autojump_clock):
    """Its batches may be gone: who may end it has to say that it aborts, and the next one finds nothing open."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    world = await restart(running, nursery, power_lost=True)
    assert world.participants.discarded == [txid(0)]
    assert await end(world, kept.granted) is Refusal.MUST_ABORT
    assert await init(world, connection=3, two_phase=False, keeps=True) == at(2)


@pytest.mark.parametrize("records", [1, 2], ids=["PREPARE_COMMIT", "and its grant"])
async def test_restart_within_a_commit_of_what_was_kept_commits_it(running, logs, nursery, records, autojump_clock):
    """The process may die at each record; the end said again is answered as if it had not."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(end, running, kept.granted)
    await settle()
    killed = running.restarted()
    assert kinds(killed.journal)[-2:] == [PrepareCommitRecord, ProducerRecord]
    del killed.journal.records[len(killed.journal.records) - 2 + records :]
    killed.participants.prepare_s = 0.0
    await killed.coordinator.recover(tail_kept=True)
    await nursery.start(killed.run)
    assert await end(killed, kept.granted, commit=False) is Refusal.WRONG_STATE
    assert await end(killed, kept.granted) == at(2)
    assert killed.participants.placings == [txid(0)]


@pytest.mark.parametrize("records", [1, 2, 3], ids=["PREPARE_ABORT", "and its grant", "all"])
async def test_restart_within_an_abort_of_what_was_kept_aborts_it(running, logs, nursery, records, autojump_clock):
    """The same of an abort: nothing of it is ever committed, and the producer goes on."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    await end(running, kept.granted, commit=False)
    killed = running.restarted()
    assert kinds(killed.journal)[-3:] == [PrepareAbortRecord, ProducerRecord, AbortedRecord]
    del killed.journal.records[len(killed.journal.records) - 3 + records :]
    await killed.coordinator.recover(tail_kept=True)
    await nursery.start(killed.run)
    following = await end(killed, kept.granted, commit=False)
    assert following == at(2)
    assert await killed.add(following, logs[0], connection=None) == {logs[0]: None}
    assert killed.produce(logs[0])
    assert await end(killed, following) == at(3)
    await settle()
    assert killed.participants.placings == [txid(0, epoch=2)]


async def test_refused_commit_of_what_was_kept_is_aborted(running, logs, nursery, autojump_clock):
    """A participant cannot prepare it: the holder hears that it must abort, over a restart in between, too."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    running.participants.refusing = {logs[0]: "lost"}
    assert await end(running, kept.granted) is Refusal.MUST_ABORT
    at_abort = kinds(running.journal).index(PrepareAbortRecord)
    for records in (1, 2, 3):
        killed = running.restarted()
        del killed.journal.records[at_abort + records :]
        await killed.coordinator.recover(tail_kept=True)
        await nursery.start(killed.run)
        assert await end(killed, kept.granted) is Refusal.MUST_ABORT
        assert isinstance(await end(killed, kept.granted, commit=False), Granted)
        assert killed.participants.placings == []


async def test_last_epoch_is_followed_by_a_fresh_producer_id(running, logs, nursery, autojump_clock):
    """What is open stays of the old one."""
    first = await prepared(running, logs)
    slot = running.coordinator._table.entries["t"]
    running.coordinator._table.become(slot, slot.producer._replace(epoch=ProducerEpoch(EPOCH_MAX - 2)))
    slot.producer = slot.producer._replace(transaction=slot.producer.transaction._replace(kept=txid(0)))
    kept = await init(running, connection=2, keeps=True)
    assert kept == GrantedToEnd(at(EPOCH_MAX - 1), first)
    fresh = await init(running, connection=3, keeps=True)
    assert fresh.kept == first
    assert fresh.granted.producer_id != SAME_PRODUCER
    assert fresh.granted.epoch == 0
    assert running.coordinator.owner_of(SAME_PRODUCER) == "t"
    assert running.coordinator.epoch_of(SAME_PRODUCER) == EPOCH_MAX, "whoever still uses it is fenced"
    granted = await end(running, fresh.granted)
    assert granted == Granted(fresh.granted.producer_id, ProducerEpoch(1))
    assert running.coordinator.owner_of(SAME_PRODUCER) is None


async def test_administrators_marker_ends_what_was_kept(running, logs, autojump_clock):
    """In marker mode it holds back readers of committed records: it has to be possible to end it."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    assert await running.coordinator.abort_by_marker(txid(0)) is None
    assert running.participants.discarded == [txid(0)]
    assert await end(running, kept.granted) is Refusal.MUST_ABORT


async def test_records_repeated_give_the_same_state(running, logs, autojump_clock):
    """A snapshot may have taken a record into account that comes after it."""
    await prepared(running, logs)
    await init(running, connection=2, keeps=True)
    producer = replay(running.journal.records).producers["t"]
    for count in range(1, len(running.journal.records) + 1):
        assert replay([*running.journal.records, *running.journal.records[-count:]]).producers["t"].transaction == (
            producer.transaction
        ), count
    again = replay([*snapshot_records([producer]), running.journal.records[-1]]).producers["t"]
    assert again == producer._replace(used_ms=again.used_ms)


async def test_lane_takes_no_part_in_two_phase_commit(running, autojump_clock):
    """It is ended with its batch, and has to time out."""
    from tests.coordinator.sinks import lane

    joined = await running.coordinator.join_batch(lane())
    for words in ({"two_phase": True}, {"keeps": True}):
        answer = await running.coordinator.init_producer_id(
            joined.transactional_id, 60_000, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 4, **words
        )
        assert answer is Refusal.LANE


async def commit_is_cut_off(running, logs, nursery) -> Granted:
    """PREPARE_COMMIT of what was kept, and the grant, are the last records; nobody is answered."""
    await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True)
    running.participants.prepare_s = 1_000.0
    nursery.start_soon(end, running, kept.granted)
    await settle()
    return kept.granted


@pytest.mark.parametrize("commit", [True, False])
async def test_snapshot_keeps_a_commit_whose_grant_was_lost(running, logs, nursery, commit, autojump_clock):
    """The process died between the two records; later the journal was cut. An abort is not answered as done."""
    holder = await commit_is_cut_off(running, logs, nursery)
    killed = running.restarted()
    killed.journal.records.pop()
    killed.participants.prepare_s = 0.0
    await killed.coordinator.recover(tail_kept=True)
    await nursery.start(killed.run)
    await settle()
    assert killed.participants.placings == [txid(0)]
    producer = killed.coordinator._table.entries["t"].producer
    await killed.journal.snapshot(lambda: snapshot_records([producer]))
    again = await restart(killed, nursery)
    assert await end(again, holder, commit=commit) == (at(2) if commit else Refusal.WRONG_STATE)


@pytest.mark.parametrize("lost", [0, 1], ids=["nothing", "the grant"])
async def test_withdrawn_commit_of_what_was_kept_stays_aborted_over_a_kill(
    running, logs, nursery, lost, autojump_clock
):
    """The power loss took the data: the next start has to know that the commit was withdrawn."""
    holder = await commit_is_cut_off(running, logs, nursery)
    running.journal.durable = len(running.journal.records) - lost
    world = running.restarted(power_lost=True)
    world.participants.prepare_s = 0.0
    world.participants.refusing = {logs[0]: "lost"}
    await world.coordinator.recover(tail_kept=False)
    await nursery.start(world.run)
    killed = await restart(world, nursery)
    assert await end(killed, holder) is Refusal.MUST_ABORT
    assert await end(killed, holder, commit=False) == at(2)


async def test_init_that_names_itself_and_keeps_may_be_said_again(running, logs, autojump_clock):
    """Its answer was lost: on the same connection or another, it gets the same grant."""
    first = await prepared(running, logs)
    kept = await init(running, connection=2, keeps=True, known=first)
    assert kept == GrantedToEnd(at(1), first)
    for connection in (2, 3):
        assert await init(running, connection=connection, keeps=True, known=first) == kept
