"""Transactions at the leaders of logs of marker mode: placed as they are written, ended by a marker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.messages import DiscardTransaction, Expected, Prepare, Undecided
from datalog.control_batch import decode_control_batch
from datalog.interface import AbortedTransaction, OpenInLog, ReadRequest, ReadResult
from fairlog_types import (
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    StorageFailure,
    TxId,
)
from partition.answers import AbortRefusal, ActiveProducer, Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, MARKERS
from tests.shard.runs import DATA_LOGS, A, B, C, Run, is_waiting, transaction

T0, T1 = transaction(7), transaction(8)
EXPECTED = {A: Expected(LeaderEpoch(1), 1), B: Expected(LeaderEpoch(1), 1)}


async def written(run: Run, txid: TxId, log: LogId, *values: bytes, sequence: int = 0) -> Offset:
    """A batch of the transaction, as far as an answered one is: on disk. Answers its offset."""
    appended = await run.write(txid, log, *values, sequence=sequence)
    assert isinstance(appended, Appended)
    assert appended.base_offset is not None
    assert appended.durable_at is not None
    await run[log].durable(appended.durable_at)
    return appended.base_offset


async def write(run: Run, txid: TxId = T0, value: bytes = b"v") -> None:
    """One record in A and in B, nothing decided."""
    await run.begin(txid, A, B)
    for log in (A, B):
        await written(run, txid, log, value)


async def commit(run: Run, txid: TxId, *logs: LogId) -> None:
    await run.prepare(txid, *logs)
    run.place(txid, *logs)


async def markers(run: Run, log: LogId) -> list[tuple[int, bool, int]]:
    """Offset, outcome and coordinator epoch of each control batch."""
    (answer,) = await trio.to_thread.run_sync(
        lambda: run.data_logs.read([ReadRequest(log, Offset(0), 1 << 30)], bytes_max=1 << 30)
    )
    assert isinstance(answer, ReadResult)
    found: list[tuple[int, bool, int]] = []
    for data in answer.batches:
        if data[22] & 0x20:
            record = decode_control_batch(data)
            offset = int.from_bytes(data[:8], "big")
            found.append((offset, record.committed, record.coordinator_epoch))
    return found


def aborted_from(run: Run, offset: Offset) -> list[AbortedTransaction]:
    """What a reader of committed records is told of A from `offset` on."""
    (answer,) = run.data_logs.read([ReadRequest(A, offset, 1 << 30, committed_only=True)], bytes_max=1 << 30)
    assert isinstance(answer, ReadResult)
    return list(answer.aborted)


# --- what readers see -------------------------------------------------------------------------------


async def test_marker_transaction_is_readable_at_once_and_stable_when_it_is_committed(open_run) -> None:
    """Its batches have offsets among the others; a reader of committed records waits for the marker behind them."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        assert await written(run, T0, A, b"a0", b"a1") == 0
        await run.plain(A, b"plain")
        assert await written(run, T0, A, b"a2", sequence=2) == 3
        await run.partitions.drain()
        assert await run.values(A) == [b"a0", b"a1", b"plain", b"a2"]
        assert (run[A].visibility.high_watermark, run[A].visibility.last_stable_offset) == (4, 0)
        assert await run.committed(A) == {A: []}
        await commit(run, T0, A)
        assert await run.applied(T0) == (Placement(A, Offset(0), 3),)
        assert (run[A].visibility.high_watermark, run[A].visibility.last_stable_offset) == (5, 5)
        assert await run.committed(A) == {A: [(0, b"a0"), (1, b"a1"), (2, b"plain"), (3, b"a2")]}
        assert await markers(run, A) == [(4, True, 1)]


async def test_marker_transaction_aborted_is_told_to_readers_and_kept(open_run) -> None:
    """Plain readers see it, readers of committed records are told what to leave out, and what goes on behind it."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"never")
        run.discard(T0, A)
        run.discard(T0, A)
        await run.begin(transaction(7, 1), A)
        assert await written(run, transaction(7, 1), A, b"next", sequence=1) == 2
        await commit(run, transaction(7, 1), A)
        await run.partitions.drain()
        assert await run.committed(A) == {A: [(2, b"next")]}
        assert await markers(run, A) == [(1, False, 1), (3, True, 1)]
        assert aborted_from(run, Offset(0)) == [AbortedTransaction(T0.producer_id, Offset(0), Offset(1), Offset(2))]


async def test_marker_transaction_hung_holds_back_the_stable_offset_until_it_ends(open_run) -> None:
    """What others commit behind it is not stable; with its end everything is."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"hung")
        await run.begin(T1, A)
        await written(run, T1, A, b"other")
        await commit(run, T1, A)
        await run.partitions.drain()
        assert run[A].visibility.last_stable_offset == 0
        run.discard(T0, A)
        await run.partitions.drain()
        assert (run[A].visibility.last_stable_offset, run[A].visibility.high_watermark) == (4, 4)
        assert await run.committed(A) == {A: [(1, b"other")]}


async def test_transaction_over_logs_of_both_modes_becomes_visible_in_one_step(open_run) -> None:
    """Invariant 7, for readers of committed records: of the two logs, one is not ahead of the other."""
    async with open_run() as run:
        await run.lead([A], MARKERS)
        await run.lead([B], JOURNAL)
        await run.serve()
        await run.begin(T0, A, B)
        await written(run, T0, A, b"marked")
        assert await run.write(T0, B, b"held") == Appended(None, None)
        await run.prepare(T0, A, B)
        await run.partitions.drain()
        run.disk.hold(str(B))
        run.place(T0, A, B)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await run.committed(A, B) == {A: [], B: []}
        run.disk.let_go()
        assert await run.applied(T0) == (Placement(A, Offset(0), 1), Placement(B, Offset(0), 1))
        assert await run.committed(A, B) == {A: [(0, b"marked")], B: [(0, b"held")]}


async def test_marker_goes_into_every_log_of_the_transaction(open_run) -> None:
    """As in Kafka, also into one that was added and not written to; and into no other."""
    async with open_run() as run:
        await run.start(A, B, C, mode=MARKERS)
        await run.begin(T0, A, B)
        await written(run, T0, A, b"v")
        expected = await run.prepare(T0, A, B)
        assert {log: it.records for log, it in expected.items()} == {A: 1, B: 0}
        run.place(T0, *expected)
        await run.partitions.drain()
        assert [await markers(run, log) for log in (A, B, C)] == [[(1, True, 1)], [(0, True, 1)], []]
        assert await run.applied(T0) == (Placement(A, Offset(0), 1),)


# --- what producers are answered ---------------------------------------------------------------------


async def test_marker_batch_is_answered_when_it_is_on_disk_and_not_before(open_run) -> None:
    """An answered batch survives a loss of power (fsync=commit); nobody waits for the copy."""
    async with open_run() as run:
        await run.start(A, copying=False, mode=MARKERS)
        await run.plain(A, b"so that the journal has its first segment")
        await run.begin(T0, A)
        run.disk.hold()
        appended = await run.write(T0, A, b"v")
        assert isinstance(appended, Appended)
        through = appended.durable_at
        assert through is not None
        assert await is_waiting(lambda: run[A].durable(through))
        repeated = await run.write(T0, A, b"v")
        assert repeated == DuplicateOf(appended.base_offset, through)
        run.disk.let_go()
        await run[A].durable(through)
        assert run[A].visibility.high_watermark == 0


async def test_marker_commit_asks_for_no_flush_of_what_was_answered(open_run) -> None:
    """KIP-98: durability was bought by each Produce; what others have written behind it is theirs to wait for."""
    async with open_run() as run:
        await run.start(A, copying=False, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"v")
        run.disk.hold()
        await run.plain(A, b"somebody else's")
        assert not await is_waiting(lambda: run.prepare(T0, A))
        run.disk.let_go()


async def test_marker_commit_flushes_what_was_not_waited_for(open_run) -> None:
    """acks=1 does not wait for the disk; the commit has to."""
    async with open_run() as run:
        await run.start(A, copying=False, mode=MARKERS)
        await run.plain(A, b"so that the journal has its first segment")
        await run.begin(T0, A)
        run.disk.hold()
        await run.write(T0, A, b"v")
        assert await is_waiting(lambda: run.prepare(T0, A))
        run.disk.let_go()


@pytest.mark.parametrize("fails", [False, True])
async def test_durable_of_a_log_that_is_deleted_meanwhile_returns(open_run, fails: bool) -> None:
    """Also if the journal cannot be flushed as it is closed: of a log that is gone that is no failure of the node."""
    deletion: list[StorageFailure] = []

    async def delete() -> None:
        try:
            await run.partitions.drop([A])
        except StorageFailure as failure:
            deletion.append(failure)

    async with open_run() as run:
        await run.start(A, copying=False, mode=MARKERS)
        await run.plain(A, b"so that the journal has its first segment")
        await run.begin(T0, A)
        run.disk.hold(str(A))
        appended = await run.write(T0, A, b"v")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run[A].durable, appended.durable_at)
            await trio.testing.wait_all_tasks_blocked(0.02)
            nursery.start_soon(delete)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert run.partitions.get(A) is None, "it is led until it is deleted"
            assert len(nursery.child_tasks) == 2, "one of them does not wait, so there is no race"
            if fails:
                run.disk.failing = str(A)
            run.disk.let_go()
        assert bool(deletion) is fails
        assert run.failure is None


async def test_marker_batch_whose_flush_fails_is_not_answered_and_the_node_refuses_writes(open_run) -> None:
    """Invariant 12; and a repetition is not told that nothing was written: it is in the journal."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.plain(A, b"so that the journal has its first segment")
        await run.partitions.drain()
        await run.begin(T0, A)
        run.disk.failing = str(A)
        appended = await run.write(T0, A, b"v")
        assert isinstance(appended, Appended)
        through = appended.durable_at
        assert through is not None
        with pytest.raises(StorageFailure):
            await run[A].durable(through)
        assert run.partitions.failure is not None
        repeated = await run.write(T0, A, b"v")
        assert isinstance(repeated, DuplicateOf)
        assert repeated.base_offset == 1
        assert await run.write(T0, A, b"next", sequence=1) is RefusedAppend.STORAGE


async def test_marker_written_to_some_logs_only_is_copied_to_none_in_this_run(
    open_run, arm: Callable[[str], None]
) -> None:
    """If the disk fails between two markers nobody sees the first; a restart writes the rest."""
    async with open_run() as run:
        await run.start(A, B, mode=MARKERS)
        await write(run)
        await run.prepare(T0, A, B)
        await run.partitions.drain()
        arm("coordinator.place.between_logs:fail:1")
        with pytest.raises(OSError, match="failpoint"):
            run.place(T0, A, B)
        with pytest.raises(StorageFailure):
            run.discard(T0, A, B)
        await run.partitions.drain()
        assert await run.committed(A, B) == {A: [], B: []}
    async with open_run() as again:
        await again.lead((A, B), MARKERS)
        assert not (await again.prepare_again(EXPECTED, T0)).refused
        again.place(T0, A, B)
        await again.serve()
        assert await again.committed(A, B) == {A: [(0, b"v")], B: [(0, b"v")]}
        assert [await markers(again, log) for log in (A, B)] == [[(1, True, 1)], [(1, True, 2)]]


async def test_records_deleted_from_under_an_open_transaction_leave_the_rest_to_its_marker(open_run) -> None:
    """DeleteRecords may take a transaction's beginning; what is left is not stable, and then aborted."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"deleted")
        await run.plain(A, b"deleted, too")
        await written(run, T0, A, b"left", sequence=1)
        await run.partitions.drain()
        assert await run[A].delete_before(Offset(2)) == 2
        assert run[A].visibility.last_stable_offset == 2
        run.discard(T0, A)
        await run.partitions.drain()
        assert (run[A].visibility.last_stable_offset, run[A].visibility.high_watermark) == (4, 4)
        assert aborted_from(run, Offset(2)) == [AbortedTransaction(T0.producer_id, Offset(0), Offset(3), Offset(4))]


# --- an administrator's abort -------------------------------------------------------------------------


def asked(run: Run, log: LogId, *, producer_id: int = 7, epoch: int = 0, coordinator_epoch: int = 0):
    return run[log].open_for_abort(ProducerId(producer_id), ProducerEpoch(epoch), coordinator_epoch)


async def test_open_for_abort_names_what_hangs_and_refuses_what_may_not_be(open_run) -> None:
    """Another epoch, an older coordinator, a transaction that is being decided, a log without markers."""
    async with open_run() as run:
        await run.lead([A], MARKERS)
        await run.lead([B], JOURNAL)
        await run.serve()
        await run.begin(T0, A)
        await written(run, T0, A, b"v")
        assert asked(run, A, coordinator_epoch=5) == T0
        await commit(run, T0, A)
        await run.begin(transaction(7, 1), A)
        await written(run, transaction(7, 1), A, b"w", sequence=1)
        for epoch in (-1, 1):
            assert asked(run, A, epoch=epoch, coordinator_epoch=1) is AbortRefusal.INVALID_PRODUCER_EPOCH
        assert asked(run, A, coordinator_epoch=0) is AbortRefusal.COORDINATOR_FENCED
        assert asked(run, B) is AbortRefusal.NO_MARKERS
        assert asked(run, A, producer_id=99) is None
        run.seal(transaction(7, 1), A)
        assert asked(run, A, coordinator_epoch=1) == transaction(7, 1), "the coordinator knows what it is sealed for"


async def test_open_for_abort_of_an_epoch_of_before_is_refused_though_nothing_is_open(open_run) -> None:
    """An epoch that the log has seen the end of is told so, as by Kafka; in the present one nothing is to be ended."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"v")
        await commit(run, T0, A)
        assert asked(run, A, epoch=-1, coordinator_epoch=1) is AbortRefusal.INVALID_PRODUCER_EPOCH
        assert asked(run, A, coordinator_epoch=0) is None
        assert asked(run, A, coordinator_epoch=1) is None


async def test_describe_producers_tells_where_a_transaction_began_and_who_ended_the_last_one(open_run) -> None:
    """What is asked for a hanging transaction: its first offset, and the epoch of the producer's last marker."""
    async with open_run() as run:
        await run.start(A, copying=False, mode=MARKERS)
        await run.plain(A, b"plain")
        await run.begin(T0, A)

        def described() -> list[tuple[bool, Offset | None, int]]:
            described: list[ActiveProducer] = list(run[A].describe_producers())
            return [(it.in_transaction, it.first_offset, it.coordinator_epoch) for it in described]

        assert described() == [(False, None, -1)]
        await written(run, T0, A, b"v")
        assert described() == [(True, Offset(1), -1)]
        await commit(run, T0, A)
        assert described() == [(False, None, 1)]


# --- crashes -----------------------------------------------------------------------------------------


async def sealed(run: Run) -> None:
    run.seal(T0, A, B)


async def prepared(run: Run) -> None:
    await run.prepare(T0, A, B)


async def placed(run: Run) -> None:
    await commit(run, T0, A, B)


@pytest.mark.parametrize("stage", [sealed, prepared, placed])
@pytest.mark.parametrize("copying", [False, True])
async def test_restart_at_any_stage_of_a_commit_by_markers_gives_the_same_places(
    open_run, tmp_path: Path, stage: Callable[[Run], Awaitable[None]], copying: bool
) -> None:
    """Said again, as a coordinator does that finds it decided, the transaction is committed in every log, once.

    Also if a second crash comes before the copy, and a third behind it.
    """
    async with open_run() as run:
        await run.lead([A, B], MARKERS)
        await run.serve(copying=copying)
        await run.plain(B, b"first")
        await write(run)
        await stage(run)
        if copying:
            await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    for life in range(3):
        async with open_run(crashed) as again:
            await again.lead([A, B], MARKERS)
            assert not (await again.prepare_again(EXPECTED, T0)).refused
            again.place(T0, A, B)
            await again.serve(copying=life > 0)
            if life > 0:
                assert await again.applied(T0) == (Placement(A, Offset(0), 1), Placement(B, Offset(1), 1))
                assert await again.committed(A, B) == {A: [(0, b"v")], B: [(0, b"first"), (1, b"v")]}
                assert [len(await markers(again, log)) for log in (A, B)] == [1, 1]
            crashed = again.crash(tmp_path / f"crashed {life}")


@pytest.mark.parametrize("copying", [False, True])
async def test_restart_aborts_by_markers_what_nobody_had_decided(open_run, tmp_path: Path, copying: bool) -> None:
    """An open transaction, in the data log or not, gets its abort marker; the producer's sequences count on."""
    async with open_run() as run:
        await run.start(A, B, copying=copying, mode=MARKERS)
        await write(run)
        if copying:
            await run.partitions.drain()
            assert run.data_logs.open_transactions(A) == [OpenInLog(T0, LeaderEpoch(1), Offset(0), 1)]
        crashed = run.crash(tmp_path / "crashed")
    with capture_logs() as logs:
        async with open_run(crashed) as again:
            await again.start(A, B, mode=MARKERS)
            assert await again.write(T0, A, b"second half", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
            assert [await markers(again, log) for log in (A, B)] == [[(1, False, 2)], [(1, False, 2)]]
            assert again[A].visibility.last_stable_offset == 2
            assert again.data_logs.open_transactions(A) == []
            await again.begin(transaction(7, 1), A)
            assert await written(again, transaction(7, 1), A, b"next", sequence=1) == 2
    assert {it["txid"] for it in logs if it["event"] == "orphan discarded"} == {str(T0)}


async def test_restart_knows_repetitions_of_batches_of_an_open_transaction(open_run, tmp_path: Path) -> None:
    """A batch whose answer was lost is answered with the offset that it has."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await written(run, T0, A, b"v")
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.lead([A], MARKERS)
        await again.begin(T0, A)
        repeated = await again.write(T0, A, b"v")
        assert isinstance(repeated, DuplicateOf)
        assert repeated.base_offset == 0
        assert (await again.prepare(T0, A))[A] == Expected(LeaderEpoch(1), 1)


@pytest.mark.parametrize("apart", [False, True], ids=["in one copy", "in several"])
async def test_restart_knows_how_many_records_an_open_transaction_has(open_run, tmp_path: Path, apart: bool) -> None:
    """Else it could not prepare what was answered: the data log has the count of all batches that are copied."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        run.disk.hold()
        for sequence in range(3):
            if apart:
                run.disk.let_go()
            await run.write(T0, A, b"v", sequence=sequence)
            if apart:
                await run.partitions.drain()
        run.disk.let_go()
        await run.partitions.drain()
        assert run.data_logs.open_transactions(A) == [OpenInLog(T0, LeaderEpoch(1), Offset(0), 3)]
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.lead([A], MARKERS)
        expected = {A: Expected(LeaderEpoch(1), 3)}
        assert not (await again.prepare_again(expected, T0)).refused


@pytest.mark.parametrize("first", [0, 1])
async def test_restart_with_some_markers_lost_places_the_others_under_their_number(
    open_run, tmp_path: Path, first: int
) -> None:
    """Invariants 6 and 7: what survived in A decides the order in which B gets what it has lost."""
    async with open_run() as run:
        await run.start(A, B, copying=False, mode=MARKERS)
        for txid in (T0, T1):
            await write(run, txid)
            await run.prepare(txid, A, B)
        before = run.crash(tmp_path / "before")
        run.place(T1, A, B)
        run.place(T0, A, B)
        crashed = run.crash(tmp_path / "crashed", losing={B: before})
    async with open_run(crashed) as again:
        await again.lead((A, B), MARKERS)
        numbers = [await again.apply_number(txid, A, B) for txid in (T0, T1)]
        assert numbers == [1, 0]
        for txid in (T0, T1)[first], (T1, T0)[first]:
            again.place(txid, A, B)
        await again.serve()
        assert [await markers(again, log) for log in (A, B)] == [
            [(2, True, 1), (3, True, 1)],
            [(2, True, 2), (3, True, 2)],
        ]
        assert await again.committed(A, B) == {log: [(0, b"v"), (1, b"v")] for log in (A, B)}


async def test_restart_without_the_data_logs_rebuilds_open_and_aborted_transactions(open_run, tmp_path: Path) -> None:
    """Whoever replays a journal from its first frame gets the same data log, with the same markers in it."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        for txid in (T0, T1):
            await run.begin(txid, A)
            await written(run, txid, A, b"%d" % txid.producer_id)
        run.discard(T0, A)
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    for file in (crashed / DATA_LOGS).iterdir():
        file.unlink()
    async with open_run(crashed) as again:
        await again.lead([A], MARKERS)
        assert not (await again.prepare_again({A: EXPECTED[A]}, T1)).refused
        again.place(T1, A)
        await again.serve()
        assert await again.committed(A) == {A: [(1, b"8")]}
        assert await markers(again, A) == [(2, False, 1), (3, True, 2)]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_markers_of_a_recovery_are_in_the_order_in_which_the_producer_began(
    open_run, tmp_path: Path, commits: bool
) -> None:
    """Regression, of seed sinks2.60: what was aborted first, and what began behind it, ended the other way round."""
    first, second, coordinator = transaction(7, 0), transaction(7, 1), ShardNumber(1)
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(first, A)
        await written(run, first, A, b"v")
        image = run.crash(tmp_path / "image")
    async with open_run(image) as run:
        await run.lead([A], MARKERS)
        run.participant.discard_for_other(DiscardTransaction(first, (A,)))
        run.participant.begins(coordinator, second)
        await run.begin(second, A)
        if commits:
            await run.participant.prepare_for(coordinator, [Prepare(second, {A: LeaderEpoch(2)})])
            run.place(second, A)
        else:
            run.participant.discard_for_other(DiscardTransaction(second, (A,)))
        await run.serve()
        assert run[A].state.open_transactions == {}
        assert await run.committed(A) == {A: []}
        assert await markers(run, A) == [(1, False, 2), (2, commits, 2)]


@pytest.mark.parametrize("is_said", [True, False], ids=["discarded", "not gone on with"])
async def test_marker_of_an_abort_waits_in_a_recovery_for_the_commit_before_it(
    open_run, tmp_path: Path, is_said: bool
) -> None:
    """Regression, of seed sinks2.211: it stood before the commit's marker, and ended what that was to commit.

    The shard recovers for as long as another one is away: meanwhile a coordinator has it apply the commit, and begin
    and end the producer's next transaction.
    """
    first, second, coordinator = transaction(7, 0), transaction(7, 1), ShardNumber(1)
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(first, A)
        run.participant.note_coordinator(coordinator, first)
        await written(run, first, A, b"v")
        await run.participant.prepare_for(coordinator, [Prepare(first, {A: LeaderEpoch(1)})])
        image = run.crash(tmp_path / "image")
    async with open_run(image) as run:
        await run.lead([A], MARKERS)
        run.place(first, A)
        run.participant.begins(coordinator, second)
        await run.begin(second, A)
        if is_said:
            run.participant.discard_for_other(DiscardTransaction(second, (A,)))
        else:
            run.participant.coordinator_restarted(coordinator)
            run.participant.said_all(coordinator, {first: Undecided({A: LeaderEpoch(1)}, is_closed=True)})
        await run.serve()
        assert run[A].state.open_transactions == {}
        assert await run.committed(A) == {A: [(0, b"v")]}
        assert await markers(run, A) == [(1, True, 2), (2, False, 2)]
