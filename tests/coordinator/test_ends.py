"""How transactions end when all goes well: commits, aborts, repetitions of either, and the line in the log."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.answers import Granted, Refusal
from coordinator.group_records import BeginRecord, CommittedRecord, PrepareCommitRecord, ProducerRecord
from fairlog_types import LogId, Placement, ProducerEpoch
from tests.coordinator.transactions import SAME_PRODUCER, kinds, settle, txid


async def test_commit_is_placed_and_recorded_with_its_placements(running, logs, autojump_clock):
    """A committed transaction is answered, then placed, and COMMITTED keeps where its records are."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    assert running.participants.placings == []
    assert set(running.coordinator.not_placed(logs[0])) == {txid(0)}, "whoever asks for the log's end waits for it"
    await settle()
    assert running.participants.placings == [txid(0)]
    assert not running.coordinator.not_placed(logs[0])
    assert kinds(running.journal) == [ProducerRecord, BeginRecord, PrepareCommitRecord, CommittedRecord]
    (done,) = running.coordinator.describe("t").committed
    assert (done.txid, done.placements) == (txid(0), (Placement(logs[0], 0, 1),))


async def test_commit_that_others_wait_for_is_placed_before_it_is_answered(running, logs, autojump_clock):
    """Readers at the end of one of its logs, or another shard: its requests ask nothing of this one."""
    running.participants.awaited.add(logs[0])
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    assert running.participants.placings == [txid(0)]
    assert await running.transaction(granted, logs[1]) is None
    assert running.participants.placings == [txid(0)], "nobody waits in this log"


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


async def test_repeated_commits_that_wait_for_room_do_not_wake_each_other(running, logs, nursery):
    """Seed s.6 of the simulation: two such requests took turns for ever, and each turn woke the other."""
    running.participants.copying = trio.Event()
    granted = await running.init()
    for _ in range(4):
        assert await running.transaction(granted, logs[0]) is None
    await running.add(granted, logs[0])
    answers = []

    async def fifth():
        answers.append(await running.end(granted))

    for _ in range(3):
        nursery.start_soon(fifth)
    with trio.fail_after(5):
        await trio.testing.wait_all_tasks_blocked()
    assert answers == []
    running.participants.copying.set()
    with trio.fail_after(5):
        while len(answers) < 3:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert answers == [None] * 3


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
    assert await running.end(granted) is None
    assert list(running.participants.prepared[0].expected) == [logs[0]]


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


async def test_next_transaction_of_a_producer_begins_behind_the_place_of_its_last_one(
    running, logs, monkeypatch, autojump_clock
):
    """Also if it comes before the loop's next turn: what is due is placed first."""
    placed_before = []
    begin = running.participants.begin

    async def noting(message):
        placed_before.append(list(running.participants.placings))
        return await begin(message)

    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    monkeypatch.setattr(running.participants, "begin", noting)
    assert await running.add(granted, logs[0]) == {logs[0]: None}
    assert placed_before == [[txid(0)]]


async def test_commit_that_is_answered_and_not_placed_is_placed_after_a_restart(running, logs, autojump_clock):
    """PREPARE_COMMIT was on disk before the answer."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0]) is None
    after = running.restarted(power_lost=True)
    assert after.participants.placings == []
    await after.coordinator.recover(tail_kept=False)
    assert after.participants.placings == [txid(0)]


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


async def test_abort_discards_and_begins_anew(running, logs, autojump_clock):
    """An aborted transaction is discarded, and the next one is another."""
    granted = await running.init()
    assert await running.transaction(granted, logs[0], commit=False) is None
    assert running.participants.discarded == [txid(0)]
    assert await running.end(granted, commit=False) is None
    assert await running.end(granted) is Refusal.WRONG_STATE
    assert await running.transaction(granted, logs[0]) is None
    await settle()
    assert running.participants.placings == [txid(1)]


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
    await settle()
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


@pytest.mark.parametrize("commit", [True, False])
async def test_end_of_an_epoch_that_asked_for_nothing_is_refused(running, commit, autojump_clock):
    """There is no transaction to end, and none whose end could be repeated: INVALID_TXN_STATE, as in Kafka."""
    granted = await running.init()
    assert await running.end(granted, commit) is Refusal.WRONG_STATE


@pytest.mark.parametrize("restarts", [False, True])
async def test_abort_of_a_first_transaction_that_no_partition_was_added_to_succeeds(
    running, restarts, nursery, autojump_clock
):
    """librdkafka aborts it; that it was asked for stands in the journal, so a restart knows what is meant."""
    granted = await running.init()
    await running.add(granted)
    if restarts:
        running = running.restarted()
        await running.coordinator.recover(tail_kept=True)
        await nursery.start(running.run)
    assert await running.end(granted) is Refusal.WRONG_STATE
    assert await running.end(granted, commit=False) is None
    assert await running.end(granted, commit=False) is None


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
