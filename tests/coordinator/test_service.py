from __future__ import annotations

import dataclasses

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Granted, Refusal
from coordinator.machine import DECIDED_MAX
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    LogId,
    Placement,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
)

SAME_PRODUCER = ProducerId(1000)


def txid(number: int, epoch: int = 0) -> TxId:
    return TxId(SAME_PRODUCER, ProducerEpoch(epoch), number)


def kinds(journal) -> list[type]:
    return [type(record) for record in journal.records]


async def settle() -> None:
    """Let what runs in the background come to rest."""
    await trio.testing.wait_all_tasks_blocked()


# ------------------------------------------------------------------------------------------------ commits


async def test_commit_is_placed_and_recorded_with_its_placements(running, logs, autojump_clock):
    """A committed transaction is placed before the answer, and COMMITTED keeps where its records are."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    assert running.participants.placings == [txid(0)]
    await settle()
    assert kinds(running.journal) == [ProducerRecord, BeginRecord, PrepareCommitRecord, CommittedRecord]
    (done,) = running.coordinator.describe("t").committed
    assert (done.txid, done.placements) == (txid(0), (Placement(logs[0], 0, 1),))


async def test_commit_costs_one_flush_delay(running, logs, autojump_clock):
    """The group journal and the participants go to disk in parallel."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.flush_s = running.participants.prepare_s = 1.0
    before = trio.current_time()
    assert await running.end(granted) is None
    assert trio.current_time() - before == pytest.approx(1.0)
    assert running.journal.durable == 3


async def test_commit_costs_one_flush_delay_also_if_an_earlier_one_is_recorded_meanwhile(running, logs, autojump_clock):
    """COMMITTED of the last transaction, appended while this one's flush is under way, is not waited for."""
    gate = running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    await running.add(granted, logs[1])
    running.produce(logs[1])
    running.journal.flush_s = running.participants.prepare_s = 1.0
    flushes, before = running.journal.flushes, trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.end, granted)
        await trio.sleep(0.5)
        gate.set()
    assert trio.current_time() - before == pytest.approx(1.0)
    assert running.journal.flushes - flushes == 1
    await settle()
    assert kinds(running.journal)[-3:] == [PrepareCommitRecord, CommittedRecord, CommittedRecord]


async def test_commit_does_not_wait_for_the_copy(running, logs, autojump_clock):
    """The next transaction begins, and commits, while the last one is being copied."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    assert await running.transaction(granted, logs[1]) is None
    assert running.coordinator.describe("t").being_copied == (txid(0), txid(1))
    running.participants.copying.set()
    await settle()
    assert running.coordinator.describe("t").being_copied == ()


async def test_fifth_uncopied_commit_waits_for_room_and_is_not_refused(running, logs, nursery, autojump_clock):
    """At most four committed transactions of an id are uncopied; the fifth EndTxn waits."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    for _ in range(4):
        assert await running.transaction(granted, logs[0]) is None
    await running.add(granted, logs[0])
    answers = []

    async def fifth():
        answers.append(await running.end(granted))

    nursery.start_soon(fifth)
    await trio.sleep(30)
    assert answers == []
    running.participants.copying.set()
    await settle()
    assert answers == [None]


async def test_log_without_records_takes_part_with_none(running, logs, autojump_clock):
    """The leader of a partition that was added and not written to is told of the commit; nobody else hears of it."""
    granted = await running.init()
    await running.add(granted, logs[0], logs[1])
    running.produce(logs[0])
    assert await running.end(granted) is None
    await settle()
    (prepared,) = running.participants.prepared
    assert {log: it.records for log, it in prepared.expected.items()} == {logs[0]: 1, logs[1]: 0}
    assert running.participants.discarded == []
    (ended,) = running.coordinator.describe("t").committed
    assert [placement.log for placement in ended.placements] == [logs[0]]


async def test_commit_without_any_records_succeeds(running, logs, autojump_clock):
    """A begun and empty transaction commits."""
    granted = await running.init()
    await running.add(granted, logs[0])
    assert await running.end(granted) is None
    await settle()
    assert running.participants.placings == [txid(0)]
    assert running.coordinator.describe("t").state == "EMPTY"


async def test_commit_after_topic_deletion_commits_the_rest(running, logs, autojump_clock):
    """A transaction that wrote to a topic that is gone commits in its other partitions."""
    granted = await running.init()
    await running.add(granted, logs[0], logs[1])
    running.produce(logs[0])
    running.produce(logs[1])
    running.participants.logs.discard(logs[1])
    with capture_logs() as lines:
        assert await running.end(granted) is None
    assert [line["logs"] for line in lines if "deleted" in line["event"]] == [[str(logs[1])]]
    assert list(running.participants.prepared[0].expected) == [logs[0]]


async def test_commit_that_a_participant_refuses_is_aborted_durably(running, logs, autojump_clock):
    """The producer hears an abortable error only when PREPARE_ABORT is on disk; EndTxn(abort) clears it."""
    granted = await running.init()
    running.participants.refusing[logs[0]] = "lost"
    assert await running.transaction(granted, logs[0]) is Refusal.MUST_ABORT
    records = running.journal.records[: running.journal.durable]
    assert any(isinstance(record, PrepareAbortRecord) for record in records)
    assert running.participants.placings == []
    assert running.participants.discarded == [txid(0)]
    running.participants.refusing.clear()
    assert await running.end(granted) is Refusal.MUST_ABORT
    assert await running.end(granted, commit=False) is None
    assert await running.transaction(granted, logs[0]) is None


async def test_commit_whose_participant_fails_is_aborted(running, logs, autojump_clock):
    """A local journal that cannot be flushed turns the commit into an abort: certainly no effect."""
    granted = await running.init()
    running.participants.prepare_fails = True
    assert await running.transaction(granted, logs[0]) is Refusal.MUST_ABORT
    assert kinds(running.journal)[-3:] == [PrepareAbortRecord, ProducerRecord, AbortedRecord]


async def test_commit_whose_group_journal_fails_is_of_unknown_effect(running, logs, autojump_clock):
    """After a failed flush of PREPARE_COMMIT nobody can tell; the group is refused from then on."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.flush_fails = True
    assert await running.end(granted) is Refusal.STORAGE_EFFECT_UNKNOWN
    assert running.participants.placings == []
    assert await running.init(connection=2) is Refusal.STORAGE
    assert await running.end(granted, commit=False) is Refusal.STORAGE


async def test_repeated_commit_of_unknown_effect_never_hears_that_it_had_none(running, logs, nursery, autojump_clock):
    """Invariant 5: a restart commits it, so whoever repeats it, or waits for the decision, hears "effect unknown"."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.flush_fails, running.journal.flush_s = True, 1.0
    answers = []

    async def end(connection):
        answers.append(await running.end(granted, connection=connection))

    nursery.start_soon(end, 1)
    await settle()
    nursery.start_soon(end, 2)
    await trio.sleep(2)
    assert answers == [Refusal.STORAGE_EFFECT_UNKNOWN] * 2
    assert await running.end(granted, connection=3) is Refusal.STORAGE_EFFECT_UNKNOWN
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.placings == [txid(0)]


async def test_repeated_commit_whose_abort_could_not_be_written_is_of_unknown_effect(running, logs, autojump_clock):
    """A restart might prepare it with more luck: "no effect" waits for PREPARE_ABORT to be on disk."""
    granted = await running.init()
    running.participants.refusing[logs[0]] = "lost"
    running.journal.flush_fails = True
    assert await running.transaction(granted, logs[0]) is Refusal.STORAGE_EFFECT_UNKNOWN
    assert await running.end(granted, connection=2) is Refusal.STORAGE_EFFECT_UNKNOWN


async def test_first_commit_of_an_open_transaction_on_a_failed_journal_has_no_effect(running, logs, autojump_clock):
    """Nothing of it was prepared: a restart aborts it."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.journal.failed = StorageFailure("fdatasync failed")
    assert await running.add(granted, logs[1]) is Refusal.STORAGE
    assert await running.end(granted) is Refusal.STORAGE
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.placings == []


async def test_commit_whose_placing_fails_is_committed_and_stops_all_placing(running, logs, autojump_clock):
    """The decision stands; it is placed after a restart, and nothing overtakes it."""
    granted, other = await running.init(), await running.init(name="u", connection=2)
    await running.add(other, logs[1], name="u", connection=2)
    running.participants.place_fails = True
    assert await running.transaction(granted, logs[0]) is None
    running.participants.place_fails = False
    assert await running.end(granted, connection=3) is None, "the repetition hears what the first one heard"
    assert await running.end(other, name="u", connection=2) is Refusal.STORAGE
    assert running.participants.placings == []

    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.placings == [txid(0)]


async def test_fault_in_the_middle_of_a_turn_stops_the_node(world, logs, monkeypatch, autojump_clock):
    """Memory is ahead of the journal then: nothing more is served or written, and `run` raises."""
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            granted = await world.init()
            written = list(world.journal.records)
            with monkeypatch.context() as patch:
                patch.setattr(world.journal, "append", _raise_assertion)
                with pytest.raises(AssertionError):
                    await world.add(granted, logs[0])
            assert await world.add(granted, logs[0]) is Refusal.STORAGE
            assert world.journal.records == written
            await trio.sleep_forever()


def _raise_assertion(record):
    raise AssertionError(f"{record} is too long")


async def test_repeated_commit_waits_for_the_first_and_hears_the_same(running, logs, nursery, autojump_clock):
    """EndTxn sent twice is decided once."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.participants.prepare_s = 1.0
    answers = []

    async def end(connection):
        answers.append(await running.end(granted, connection=connection))

    nursery.start_soon(end, 1)
    await settle()
    nursery.start_soon(end, 2)
    await trio.sleep(2)
    assert answers == [None, None]
    assert len(running.participants.prepared) == 1


async def test_requests_while_a_commit_is_decided_hear_concurrent_or_wait(running, logs, nursery, autojump_clock):
    """AddPartitions is told at once; InitProducerId waits for the decision, and is told after a while."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.participants.prepare_s = 60.0
    nursery.start_soon(running.end, granted)
    await settle()
    before = trio.current_time()
    assert await running.add(granted, logs[1]) is Refusal.CONCURRENT
    assert await running.end(granted, commit=False) is Refusal.WRONG_STATE
    assert await running.coordinator.abort_open("t") is Refusal.CONCURRENT
    assert trio.current_time() == before
    assert await running.init(connection=2) is Refusal.CONCURRENT
    assert trio.current_time() - before == pytest.approx(5.0)
    running.participants.prepare_s = 0.0
    await trio.sleep(60)
    assert await running.init(connection=2) == Granted(SAME_PRODUCER, ProducerEpoch(1))


async def test_commit_whose_client_hangs_up_is_decided_all_the_same(running, logs, autojump_clock):
    """Cancelling the request leaves no transaction undecided."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.participants.prepare_s = 1.0
    with trio.move_on_after(0.5):
        await running.end(granted)
    await settle()
    assert running.participants.placings == [txid(0)]


async def test_journal_without_room_is_given_room_in_the_middle_of_a_turn(running, logs, autojump_clock):
    """Records wait for room; nothing fails because a segment is full."""
    granted = await running.init()
    for _ in range(3):
        running.journal.room = 1
        assert await running.transaction(granted, logs[0]) is None


async def test_full_disk_refuses_without_effect_until_the_commit_is_written(running, logs, autojump_clock):
    """A disk that is full when a transaction begins leaves nothing behind."""
    granted = await running.init()
    running.journal.room, running.journal.disk_is_full = 0, True
    assert await running.add(granted, logs[0]) is Refusal.STORAGE


async def test_full_disk_before_the_commit_is_written_is_without_effect(running, logs, autojump_clock):
    """Nothing of the commit stands anywhere, so nothing is left in doubt."""
    granted = await running.init()
    await running.add(granted, logs[0])
    running.journal.room, running.journal.disk_is_full = 0, True
    assert await running.end(granted) is Refusal.STORAGE


async def test_want_of_file_descriptors_refuses_without_effect_and_passes(running, logs, autojump_clock):
    """Every request is refused before anything has changed; it succeeds when a file can be opened again."""
    running.journal.room, running.journal.files_are_out = 0, True
    assert await running.init() is Refusal.STORAGE
    running.journal.files_are_out = False
    granted = await running.init()
    running.journal.room, running.journal.files_are_out = 0, True
    assert await running.add(granted, logs[0]) is Refusal.STORAGE
    running.journal.files_are_out = False
    await running.add(granted, logs[0])
    running.produce(logs[0])
    running.journal.room, running.journal.files_are_out = 0, True
    for commit in (True, False):
        assert await running.end(granted, commit=commit) is Refusal.STORAGE
    running.journal.files_are_out = False
    assert await running.end(granted) is None
    assert running.participants.placings == [txid(0)]


async def test_want_of_file_descriptors_behind_a_commit_takes_nothing_back(running, logs, autojump_clock):
    """What is committed is said again; COMMITTED is written when it can be."""
    granted = await running.init()
    running.participants.copying = trio.Event()
    assert await running.transaction(granted, logs[0]) is None
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    assert await running.end(granted) is None
    await trio.sleep(60)
    assert not any(isinstance(record, CommittedRecord) for record in running.journal.records)
    running.journal.files_are_out = False
    await trio.sleep(1)
    assert any(isinstance(record, CommittedRecord) for record in running.journal.records)


async def test_commit_waits_for_an_older_one_that_cannot_be_recorded(running, logs, autojump_clock):
    """A restart prepares it again, and the leaders remember the last five of an id: not more than those may follow."""
    granted = await running.init()
    running.participants.copying = trio.Event()
    assert await running.transaction(granted, logs[0]) is None
    running.journal.room, running.journal.files_are_out = 0, True
    running.participants.copying.set()
    await settle()  # COMMITTED of the first one is tried again in a while
    running.journal.files_are_out = False
    answers = []

    with trio.move_on_after(0.4):
        while len(answers) < DECIDED_MAX + 4:
            answers.append(await running.transaction(granted, logs[0]))
    assert answers == [None] * (DECIDED_MAX - 1)
    assert running.coordinator.describe("t").being_copied[0] == txid(0)
    await trio.sleep(0.2)
    assert running.coordinator.describe("t").being_copied == ()
    assert await running.end(granted) is None


# ----------------------------------------------------------------------------------- aborts and repetitions


async def test_abort_discards_and_begins_anew(running, logs, autojump_clock):
    """An aborted transaction is discarded, and the next one is another."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0], commit=False) is None
    assert running.participants.discarded == [txid(0)]
    assert await running.end(granted, commit=False) is None
    assert await running.end(granted) is Refusal.WRONG_STATE
    assert await running.transaction(granted, logs[0]) is None
    assert running.participants.placings == [txid(1)]


async def test_abort_whose_discard_fails_is_not_acknowledged(running, logs, autojump_clock):
    """PREPARE_ABORT stands in the journal, and a restart says DISCARD again."""
    granted = await running.init()
    running.participants.discard_fails = True
    assert await running.transaction(granted, logs[0], commit=False) is Refusal.STORAGE
    after = running.restarted()
    after.participants.discard_fails = False
    await after.coordinator.recover(tail_kept=True)
    assert after.participants.discarded == [txid(0)]
    assert AbortedRecord in kinds(after.journal)


async def test_end_on_an_older_connection_does_not_end_a_later_transaction(running, logs, autojump_clock):
    """Invariant 10: a delayed EndTxn comes on a connection that a later one has replaced."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0], connection=2) is None
    await running.add(granted, logs[0], connection=2)
    running.produce(logs[0])
    for commit in (True, False):
        assert await running.end(granted, commit, connection=1) is Refusal.LATE
    assert await running.add(granted, logs[1], connection=1) is Refusal.LATE
    assert running.coordinator.describe("t").txid == txid(1)


async def test_init_on_a_later_connection_than_the_rest_is_no_obstacle(running, logs, autojump_clock):
    """aiokafka sends InitProducerId on a connection of its own, which may be the later one."""
    granted = await running.init(connection=9)
    assert await running.transaction(granted, logs[0], connection=4) is None


@pytest.mark.parametrize("asked_for", ["a deleted log", "nothing that exists"])
async def test_abort_after_a_commit_succeeds_if_partitions_were_refused_since(running, logs, asked_for, autojump_clock):
    """A client that aborts an empty transaction can go on, and a repetition of its abort succeeds as well."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    unknown = [LogId("t", "cd" * 16, 0)] if asked_for == "a deleted log" else []
    assert await running.add(granted, *unknown) == dict.fromkeys(unknown, Refusal.UNKNOWN_LOG)
    assert await running.end(granted, commit=False) is None
    assert await running.end(granted, commit=False, connection=2) is None
    assert await running.transaction(granted, logs[0], connection=2) is None
    assert running.participants.placings == [txid(0), txid(2)]
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert await after.end(granted) is None, "the last outcome is the second commit"


async def test_abort_right_after_a_commit_is_refused(running, logs, autojump_clock):
    """Whoever heard "done" would believe that the last transaction was aborted, on whatever connection it asks."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0], connection=2) is None
    assert await running.end(granted, commit=False, connection=2) is Refusal.WRONG_STATE
    assert await running.end(granted, commit=False, connection=3) is Refusal.WRONG_STATE
    await running.add(granted, connection=3)
    assert await running.end(granted, commit=False, connection=2) is Refusal.LATE


async def test_abort_of_an_empty_transaction_survives_a_kill(running, logs, autojump_clock):
    """ABORTED is in the journal, so the repetition of the abort after a restart is answered alike."""
    granted = await running.init()
    await running.transaction(granted, logs[0])
    await running.add(granted)
    assert await running.end(granted, commit=False) is None
    await settle()
    after = running.restarted()
    await after.coordinator.recover(tail_kept=True)
    assert await after.end(granted, commit=False) is None


async def test_commit_without_partitions_succeeds_and_so_does_abort(running, autojump_clock):
    """A client that began and wrote nothing may end as it likes."""
    granted = await running.init()
    assert await running.end(granted) is None
    assert await running.end(granted, commit=False) is None


# -------------------------------------------------------------------------------------------- producer ids


async def test_init_fences_the_last_instance_and_aborts_what_it_left(running, logs, autojump_clock):
    """A new instance gets the next epoch; the old one is fenced everywhere, its transaction gone."""
    old = await running.init()
    await running.add(old, logs[0])
    running.produce(logs[0])
    new = await running.init(connection=2)
    assert new == Granted(old.producer_id, ProducerEpoch(1))
    assert running.participants.discarded == [txid(0)]
    assert await running.end(old) is Refusal.FENCED
    assert await running.add(old, logs[1]) is Refusal.FENCED
    assert running.coordinator.epoch_of(old.producer_id) == 1


async def test_init_waits_until_the_last_instances_commit_is_visible(running, logs, nursery, autojump_clock):
    """Whoever takes over must be able to read what was committed, and hears no CONCURRENT for a mere copy."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    answers = []

    async def take_over():
        answers.append(await running.init(connection=2))

    nursery.start_soon(take_over)
    await trio.sleep(60)
    assert answers == []
    running.participants.copying.set()
    await settle()
    assert answers == [Granted(SAME_PRODUCER, ProducerEpoch(1))]


async def test_init_repeated_on_the_same_connection_is_answered_alike(running, logs, autojump_clock):
    """A retry does not fence its own sender; once something has been done, it is a new instance."""
    granted = await running.init()
    assert await running.init() == granted
    await running.add(granted, logs[0])
    assert (await running.init()).epoch == 1


async def test_init_naming_the_last_epoch_is_a_retry_and_an_older_one_is_fenced(running, logs, autojump_clock):
    """KIP-360: the client says which epoch it had, so a lost answer can be told from a zombie."""
    first = await running.init()
    second = await running.init(connection=2, known=(first.producer_id, first.epoch))
    assert second.epoch == 1
    assert await running.init(connection=3, known=(first.producer_id, first.epoch)) == second
    third = await running.init(connection=4, known=(second.producer_id, second.epoch))
    assert third.epoch == 2
    assert await running.init(connection=5, known=(first.producer_id, first.epoch)) is Refusal.FENCED
    assert await running.init(connection=5, known=(ProducerId(77), ProducerEpoch(0))) is Refusal.FENCED


async def test_init_is_durable_before_it_is_answered(running, autojump_clock):
    """An epoch that was granted is never granted again."""
    await running.init()
    assert running.journal.durable == len(running.journal.records) == 1


async def test_init_whose_first_attempt_was_cancelled_is_durable_on_retry(running, nursery, autojump_clock):
    """The retry flushes what the first attempt only appended."""
    running.journal.flush_s = 1.0
    with trio.move_on_after(0.5):
        await running.init()
    assert await running.init() == Granted(SAME_PRODUCER, ProducerEpoch(0))
    assert running.journal.durable == 1


async def test_init_after_the_last_epoch_gets_a_new_producer_id(running, autojump_clock):
    """int16 is finite."""
    granted = await running.init()
    slot = running.coordinator._turns.slots["t"]
    slot.producer = dataclasses.replace(slot.producer, epoch=ProducerEpoch(32_766))
    fresh = await running.init(connection=2)
    assert fresh == Granted(ProducerId(granted.producer_id + 1), ProducerEpoch(0))
    assert running.coordinator.epoch_of(granted.producer_id) is None
    assert running.coordinator.epoch_of(fresh.producer_id) == 0


@pytest.mark.parametrize(
    ("timeout_ms", "stored"), [(1, 1_000), (60_000, 60_000), (900_001, 900_000), (0, None), (-1, None)]
)
async def test_init_clamps_the_timeout_and_refuses_what_is_none(running, timeout_ms, stored, autojump_clock):
    """A time-out is clamped to the operator's bounds; zero and less is an error."""
    answer = await running.init(timeout_ms=timeout_ms)
    if stored is None:
        assert answer is Refusal.BAD_TIMEOUT
        assert running.coordinator.describe("t") is None
        assert running.coordinator._turns.slots == {}
    else:
        assert running.coordinator.describe("t").timeout_ms == stored


async def test_init_that_contradicts_itself_is_refused(running, autojump_clock):
    """A producer id without an epoch, or an empty transactional id."""
    assert await running.init(known=(ProducerId(5), NO_PRODUCER_EPOCH)) is Refusal.BAD_REQUEST
    assert await running.init(known=(NO_PRODUCER_ID, ProducerEpoch(5))) is Refusal.BAD_REQUEST
    assert await running.init(name="") is Refusal.BAD_REQUEST


@pytest.mark.parametrize(("name", "taken"), [("é" * 512, True), ("é" * 512 + "x", False), ("x" * 40_000, False)])
async def test_init_takes_a_name_of_1024_bytes_and_remembers_no_longer_one(running, name, taken, autojump_clock):
    """The bound counts bytes of UTF-8, and is checked before anything is kept or written."""
    answer = await running.init(name=name)
    assert isinstance(answer, Granted) if taken else answer is Refusal.BAD_REQUEST
    assert (
        list(running.coordinator._turns.slots)
        == list(running.coordinator._turns.owners.values())
        == ([name] if taken else [])
    )
    assert len(running.journal.records) == int(taken)


async def test_init_without_transactional_id_gives_a_fresh_producer(running, autojump_clock):
    """An idempotent producer needs an id and nothing else."""
    args = (None, 0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 1)
    first = await running.coordinator.init_producer_id(*args)
    second = await running.coordinator.init_producer_id(*args)
    assert (first, second) == (Granted(ProducerId(1000), 0), Granted(ProducerId(1001), 0))
    assert running.coordinator.epoch_of(ProducerId(1000)) is None


async def test_init_without_producer_ids_is_refused_and_leaves_nothing(running, autojump_clock):
    """The cluster store fails: the id stays unknown."""
    running.ids.fails = True
    assert await running.init() is Refusal.STORAGE
    assert running.coordinator._turns.slots == {}
    running.ids.fails = False
    assert isinstance(await running.init(), Granted)


async def test_two_first_inits_at_once_get_two_epochs(running, nursery, autojump_clock):
    """One transactional id has one producer id, however many ask at once."""
    running.journal.flush_s = 1.0
    answers = []

    async def ask(connection):
        answers.append(await running.init(connection=connection))

    nursery.start_soon(ask, 1)
    nursery.start_soon(ask, 2)
    await trio.sleep(5)
    assert {answer.producer_id for answer in answers} == {SAME_PRODUCER}
    assert sorted(answer.epoch for answer in answers) == [0, 1]


async def test_requests_of_strangers_are_refused(running, logs, autojump_clock):
    """Unknown ids and foreign producer ids have no transaction here."""
    stranger = Granted(ProducerId(5), ProducerEpoch(0))
    assert await running.add(stranger, logs[0]) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    assert await running.end(stranger) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    await running.init()
    assert await running.end(stranger) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    assert await running.coordinator.abort_open("nobody") is Refusal.UNKNOWN_PRODUCER_ID_MAPPING


async def test_add_of_a_log_that_does_not_exist_leaves_the_others(running, logs, autojump_clock):
    """Each log has its own answer; repeating what is begun is answered without asking anybody."""
    granted = await running.init()
    unknown = LogId("t", "cd" * 16, 0)
    assert await running.add(granted, unknown) == {unknown: Refusal.UNKNOWN_LOG}
    assert running.coordinator.describe("t").state == "EMPTY"
    answers = {logs[0]: None, unknown: Refusal.UNKNOWN_LOG}
    assert await running.add(granted, logs[0], unknown) == answers
    before = len(running.journal.records)
    assert await running.add(granted, logs[0]) == {logs[0]: None}
    assert len(running.journal.records) == before


# ------------------------------------------------------------------------------------------------ copies


async def test_copy_that_fails_refuses_further_requests_and_wakes_who_waits(running, logs, nursery, autojump_clock):
    """Nobody waits for a copy that will not come."""
    gate = running.participants.copying = trio.Event()
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    answers = []

    async def take_over():
        answers.append(await running.init(connection=2))

    nursery.start_soon(take_over)
    await settle()
    running.participants.apply_fails = True
    gate.set()
    await settle()
    assert answers == [Refusal.STORAGE]
    assert await running.add(granted, logs[0]) is Refusal.STORAGE


# -------------------------------------------------------------------------------------------------- lines


async def test_each_transaction_has_one_line_in_the_log(running, logs, autojump_clock):
    """One canonical line, when the transaction is visible or discarded."""
    with capture_logs() as lines:
        granted = await running.init()
        await running.transaction(granted, logs[0])
        await running.transaction(granted, logs[0], commit=False)
        await settle()
    said = [line for line in lines if line["event"] == "transaction"]
    assert sorted((line["txid"], line["outcome"]) for line in said) == [
        ("1000.0.0", "committed"),
        ("1000.0.1", "aborted"),
    ]
    (committed,) = (line for line in said if line["outcome"] == "committed")
    assert set(committed) >= {"transactional_id", "partitions", "records", "open_ms", "prepare_ms", "apply_ms"}
    assert committed["log_level"] == "info"
