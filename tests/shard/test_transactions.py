"""A transaction's life at the partition leaders, as the coordinator leads them through it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Event

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.messages import ApplyCommit, Begin, Expected, Prepare
from fairlog_types import LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ShardNumber, StorageFailure
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, MARKERS, TransactionMode
from tests.shard.runs import A, B, C, Run, is_waiting, read_all, transaction

T0 = transaction(7)


async def test_transaction_becomes_visible_when_it_is_placed_and_not_before(open_run) -> None:
    """Batches are answered without an offset; the commit gives them one block per log, in produce order."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"before")
        await run.begin(T0, A, B)
        assert await run.write(T0, A, b"a0", b"a1") == Appended(None, None)
        await run.plain(A, b"between")
        assert await run.write(T0, A, b"a2", sequence=2) == Appended(None, None)
        assert await run.write(T0, B, b"b0") == Appended(None, None)
        expected = await run.prepare(T0, A, B)
        assert {log: (it.leader_epoch, it.records) for log, it in expected.items()} == {A: (1, 3), B: (1, 1)}
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [b"before", b"between"], B: []}
        run.place(T0, A, B)
        assert await run.applied(T0) == (Placement(A, Offset(2), 3), Placement(B, Offset(0), 1))
        assert await run.snapshot(A, B) == {A: [b"before", b"between", b"a0", b"a1", b"a2"], B: [b"b0"]}


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_log_without_records_has_applied_when_that_is_on_disk(
    open_run, mode: TransactionMode, repeated: bool
) -> None:
    """It is PREPARED on disk. Its coordinator, once told, does not ask again: a loss of power would leave it so."""
    async with open_run() as run:
        await run.start(A, mode=mode)
        await run.begin(T0, A)
        coordinator = ShardNumber(1)
        run.participant.note_coordinator(coordinator, T0)
        prepared = await run.participant.prepare_for(coordinator, [Prepare(T0, {A: LeaderEpoch(1)})])
        assert prepared.counts == {T0: {A: Expected(LeaderEpoch(1), 0)}}
        run.disk.hold()
        run.place(T0, A)
        if repeated:
            run.place(T0, A)
        assert await is_waiting(lambda: run.applied(T0))
        run.disk.let_go()
        assert await run.applied(T0) == ()
        assert run[A].journal.durable == run[A].journal.end


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_transaction_takes_no_batch_that_has_waited_since_the_one_before_it(
    open_run, mode: TransactionMode
) -> None:
    """It came in with a transaction that was aborted meanwhile; in the next one it would be committed after all."""
    async with open_run() as run:
        await run.start(A, mode=mode)
        await run.begin(T0, A)
        await run.write(T0, A, b"v")
        outcomes: list[object] = []

        async def produce() -> None:
            outcomes.append(await run.write(T0, A, bytes(500_000), sequence=1))

        run.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.discard(T0, A)
            await run.begin(transaction(7, 1), A)
            run.disk.let_go()
        assert outcomes == [RefusedAppend.MUST_ABORT]
        assert isinstance(await run.write(transaction(7, 1), A, b"w", sequence=1), Appended)


@pytest.mark.parametrize("newer", [False, True], ids=["same epoch", "newer epoch"])
async def test_transaction_that_is_aborted_while_its_batch_waits_is_told_so(open_run, newer: bool) -> None:
    """Its producer may abort and go on. "Not in a transaction" would be fatal to it, and it had done nothing wrong."""
    async with open_run() as run:
        await run.start(A)
        run.partitions.current_epoch_of = lambda _: ProducerEpoch(1 if newer else 0)
        await run.begin(T0, A)
        await run.write(T0, A, b"v")
        outcomes: list[object] = []

        async def produce() -> None:
            outcomes.append(await run.write(T0, A, bytes(500_000), sequence=1))

        run.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.discard(T0, A)
            run.disk.let_go()
        assert outcomes == [RefusedAppend.FENCED if newer else RefusedAppend.MUST_ABORT]


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_transaction_repeated_batch_of_an_aborted_one_is_answered_as_before(
    open_run, mode: TransactionMode
) -> None:
    """Its sequences are used. Java takes those of a refused batch back, and would be out of order from then on."""
    async with open_run() as run:
        await run.start(A, mode=mode)
        await run.begin(T0, A)
        first = await run.write(T0, A, b"v")
        assert isinstance(first, Appended)
        run.discard(T0, A)
        repeated = await run.write(T0, A, b"v")
        assert isinstance(repeated, DuplicateOf)
        assert repeated.base_offset == first.base_offset
        assert await run.write(T0, A, b"w", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
        assert await run.write(T0, A, b"v", b"w") is RefusedAppend.NOT_IN_TRANSACTION
        assert await run.write(transaction(7, epoch=1), A, b"v") is RefusedAppend.NOT_IN_TRANSACTION
        await run.begin(transaction(7, 1), A)
        assert isinstance(await run.write(transaction(7, 1), A, b"next", sequence=1), Appended)
        assert (await run.prepare(transaction(7, 1), A))[A].records == 1


async def test_transaction_repeated_batch_of_long_ago_is_known_as_one_after_the_abort(open_run) -> None:
    """Clients take it as success, too, and it was written."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        for sequence in range(7):
            await run.write(T0, A, b"v", sequence=sequence)
        run.discard(T0, A)
        assert await run.write(T0, A, b"v") is RefusedAppend.DUPLICATE_FORGOTTEN


async def test_transaction_is_seen_whole_by_every_reader(open_run) -> None:
    """Invariant 7: whoever reads two logs in one go sees as many transactions in the one as in the other."""
    async with open_run() as run:
        await run.start(A, B)
        done, seen = Event(), list[int]()

        def read_on() -> None:
            while not done.is_set():
                found = read_all(run.data_logs, (A, B))
                assert found[A] == found[B]
                seen.append(len(found[A]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read_on)
            try:
                # The reader's thread may get little time: they go on until it has seen some of them.
                for number in itertools.takewhile(lambda number: number < 40 or len(set(seen)) <= 2, itertools.count()):
                    value = b"%d" % number
                    await run.commit(transaction(7, number), {A: value, B: value}, sequence=number)
            finally:
                done.set()


async def test_transaction_whose_logs_are_not_durable_together_becomes_visible_together(open_run) -> None:
    """Invariant 7 where it is hardest: the APPLY of one log is on disk long before the other's."""
    async with open_run() as run:
        await run.start(A, B)
        await run.commit(T0, {A: b"0", B: b"0"})
        txid = transaction(7, 1)
        await run.begin(txid, A, B)
        for log in (A, B):
            await run.write(txid, log, b"1", sequence=1)
        await run.prepare(txid, A, B)
        run.disk.hold(str(B))
        run.place(txid, A, B)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await run.snapshot(A, B) == {A: [b"0"], B: [b"0"]}
        run.disk.let_go()
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [b"0", b"1"], B: [b"0", b"1"]}


async def test_transactions_are_seen_in_the_order_of_their_placing(open_run) -> None:
    """Invariant 6: in every log alike, whoever began or wrote first."""
    async with open_run() as run:
        await run.start(A, B)
        first, second = transaction(7), transaction(8)
        for txid in (first, second):
            await run.begin(txid, A, B)
        for txid, log in ((first, A), (second, A), (second, B), (first, B)):
            await run.write(txid, log, b"%d" % txid.producer_id)
        for txid in (first, second):
            await run.prepare(txid, A, B)
        run.place(second, A, B)
        run.place(first, A, B)
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [b"8", b"7"], B: [b"8", b"7"]}


async def test_transaction_discarded_leaves_nothing_to_see(open_run) -> None:
    """Its batches are never copied, its sequences count on, and discarding again changes nothing."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        await run.write(T0, A, b"never")
        for _ in range(2):
            run.discard(T0, A)
        assert await run.write(T0, A, b"too late", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
        await run.commit(transaction(7, 1), {A: b"next"}, sequence=1)
        assert await run.values(A) == [b"next"]


async def test_transaction_whose_abort_cannot_be_written_is_open_until_it_is_discarded_again(open_run) -> None:
    """Its coordinator is told so, and must not take it for aborted: a restart discards it once more."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        run.discard(T0, A)
        run.partitions.refuse_writes("the disk has failed")
        with pytest.raises(StorageFailure, match="the disk has failed"):
            run.discard(T0, A, B)
        assert [run[log].state.held(T0) is None for log in (A, B)] == [True, False]
    async with open_run() as again:
        await again.lead((A, B))
        again.discard(T0, A, B)
        assert [again[log].state.held(T0) for log in (A, B)] == [None, None]
        await again.serve()
        assert await again.snapshot(A, B) == {A: [], B: []}


async def test_transaction_batch_outside_of_an_open_transaction_is_refused(open_run) -> None:
    """Nothing open, another partition's transaction, an epoch that has not begun, one that is over."""
    async with open_run() as run:
        await run.start(A, B)
        assert await run.write(T0, A, b"v") is RefusedAppend.NOT_IN_TRANSACTION
        await run.begin(transaction(7, epoch=1), A)
        newer = transaction(7, epoch=1)
        assert await run.write(newer, B, b"v") is RefusedAppend.NOT_IN_TRANSACTION
        assert await run.write(transaction(7, epoch=2), A, b"v") is RefusedAppend.NOT_IN_TRANSACTION
        assert await run.write(transaction(7, epoch=0), A, b"v") is RefusedAppend.FENCED
        assert await run.write(newer, A, b"v") == Appended(None, None)


async def test_transaction_begun_fences_older_epochs_in_its_logs(open_run) -> None:
    """Invariant 9, in the partition itself: neither a transaction nor a plain batch of an older epoch gets in."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(transaction(7, epoch=3), A)
        begun = await run.participant.begin(Begin(transaction(7, epoch=2), (A,)))
        assert list(begun.refused) == [A]
        assert await run.plain(A, b"v", producer_id=7, epoch=2, sequence=0) is RefusedAppend.FENCED


async def test_transaction_open_refuses_its_producers_plain_batches(open_run) -> None:
    """What is meant for the transaction must not slip out before the commit."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        assert await run.plain(A, b"v", producer_id=7, epoch=0, sequence=0) is RefusedAppend.IN_TRANSACTION
        assert isinstance(await run.plain(A, b"v", producer_id=8, epoch=0, sequence=0), Appended)


async def test_transaction_repeated_batch_is_counted_once(open_run) -> None:
    """A batch whose answer was lost is sent again: one record, in the log and in what the commit expects."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        for outcome in (Appended(None, None), DuplicateOf(None, None)):
            assert await run.write(T0, A, b"v") == outcome
        assert await run.write(T0, A, b"gap", sequence=2) is RefusedAppend.OUT_OF_ORDER
        assert (await run.prepare(T0, A))[A].records == 1


async def test_transaction_sealed_takes_no_more_batches(open_run) -> None:
    """From EndTxn on the count is fixed; the producer's next transaction may begin before the last one is copied."""
    async with open_run() as run:
        await run.start(A, copying=False)
        await run.begin(T0, A)
        await run.write(T0, A, b"first")
        await run.prepare(T0, A)
        assert await run.write(T0, A, b"late", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
        run.place(T0, A)
        await run.begin(transaction(7, 1), A)
        assert await run.write(transaction(7, 1), A, b"second", sequence=1) == Appended(None, None)
        await run.prepare(transaction(7, 1), A)
        run.place(transaction(7, 1), A)
        run.nursery.start_soon(run.partitions.run)
        await run.partitions.drain()
        assert await run.values(A) == [b"first", b"second"]


async def test_transaction_discarded_late_does_not_end_the_next_one(open_run) -> None:
    """What the coordinator says of an older transaction touches no newer one of the same producer."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        run.seal(T0, A)
        newer = transaction(7, 1)
        await run.begin(newer, A)
        run.discard(T0, A)
        assert run.seal(T0, A) == {}
        assert await run.write(newer, A, b"v") == Appended(None, None)


async def test_transaction_that_is_not_as_expected_cannot_be_prepared(open_run) -> None:
    """Another count, another leader epoch, or nothing at all where records are expected: refused, with the reason."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        await run.write(T0, A, b"v")
        run.seal(T0, A)
        for txid, expected in (
            (T0, Expected(LeaderEpoch(1), 2)),
            (T0, Expected(LeaderEpoch(9), 1)),
            (transaction(8), Expected(LeaderEpoch(1), 1)),
        ):
            refused = (await run.prepare_again({A: expected}, txid)).refused
            assert refused[A], expected
        assert not (await run.prepare_again({A: Expected(LeaderEpoch(1), 1)}, T0)).refused


async def test_transaction_prepares_all_its_logs_in_one_flush_delay(open_run) -> None:
    """No log's flush waits for another's: all are under way before the first is waited for."""
    async with open_run() as run:
        logs = (A, B, C)
        await run.start(*logs)
        await run.begin(T0, *logs)
        for log in logs:
            await run.plain(log, b"so that the journal has its first segment")
        await run.partitions.drain()
        for log in logs:
            await run.write(T0, log, b"v")
        run.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.prepare, T0, *logs)
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert run.disk.waiting == len(logs)
            run.disk.let_go()


async def test_transaction_whose_log_does_not_flush_is_refused(open_run) -> None:
    """The others are durable, yet it cannot commit; the node refuses writes from then on (invariant 12)."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        run.disk.failing = str(B)
        preparation = run.participant.prepare([Prepare(T0, dict.fromkeys((A, B), LeaderEpoch(1)))])
        assert list(preparation.expected[T0]) == [A, B]
        refused = (await preparation.outcome()).refused
        assert list(refused) == [B]
        with pytest.raises(StorageFailure):
            run.place(T0, A, B)
        with pytest.raises(StorageFailure):
            await run.prepare(T0, A, B)
        assert await run.snapshot(A, B) == {A: [], B: []}


async def test_transaction_placed_in_some_logs_only_is_copied_to_none_in_this_run(
    open_run, arm: Callable[[str], None]
) -> None:
    """If the disk fails between two APPLYs nothing is copied past the first; a restart places the rest."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        expected = await run.prepare(T0, A, B)
        arm("coordinator.place.between_logs:fail:1")
        with pytest.raises(OSError, match="failpoint"):
            run.place(T0, A, B)
        assert await run.plain(A, b"behind it") is RefusedAppend.STORAGE
        with pytest.raises(StorageFailure):
            await run.begin(transaction(8), A)
        with pytest.raises(StorageFailure):
            run.discard(T0, A, B)
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [], B: []}
    async with open_run() as again:
        await again.lead((A, B))
        assert not (await again.prepare_again(expected, T0)).refused
        again.place(T0, A, B)
        await again.serve()
        assert await again.snapshot(A, B) == {A: [b"v"], B: [b"v"]}


# --- participants that are deleted -----------------------------------------------------------------


async def commit_without_b(run: Run) -> None:
    """A deleted log counts as prepared and placed; the other's records become visible."""
    expected = {A: Expected(LeaderEpoch(1), 1), B: Expected(LeaderEpoch(1), 1)}
    assert not (await run.prepare_again(expected, T0)).refused
    run.place(T0, A, B)


async def test_transaction_with_a_log_deleted_before_its_end_commits_the_rest(open_run) -> None:
    """docs/decisions, "deleted topics": the deleted log is not expected to hold anything."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        await run.partitions.drop([B])
        with capture_logs() as lines:
            assert list(await run.prepare(T0, A, B)) == [A]
        assert [line["log"] for line in lines if "deleted" in line["event"]] == [str(B)]
        run.place(T0, A, B)
        assert await run.applied(T0) == (Placement(A, Offset(0), 1),)


async def test_transaction_with_a_log_deleted_after_prepare_commit_commits_the_rest(open_run) -> None:
    """The same behind PREPARE_COMMIT, where there is no way back."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        run.seal(T0, A, B)
        await run.partitions.drop([B])
        await commit_without_b(run)
        assert await run.applied(T0) == (Placement(A, Offset(0), 1),)


async def test_transaction_answered_and_then_a_log_deleted_survives_a_crash_in_the_rest(open_run, tmp_path) -> None:
    """Invariant 5: a restart that finds the commit undecided does not take it back for the sake of a deleted topic."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        await run.prepare(T0, A, B)
        await run.partitions.drop([B])
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.lead([A])
        await commit_without_b(again)
        await again.serve()
        assert await again.values(A) == [b"v"]


async def test_transaction_whose_log_is_deleted_while_it_waits_for_the_copy_goes_on(open_run) -> None:
    """`visible` returns, and leaves the deleted log out."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        await run.begin(T0, A, B)
        for log in (A, B):
            await run.write(T0, log, b"v")
        await run.prepare(T0, A, B)
        run.place(T0, A, B)
        assert await is_waiting(lambda: run.applied(T0))
        placements: list[Placement] = []

        async def wait() -> None:
            placements.extend(await run.applied(T0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.02)
            await run.partitions.drop([B])
            run.nursery.start_soon(run.partitions.run)
        assert placements == [Placement(A, Offset(0), 1)]


# --- what an operator sees --------------------------------------------------------------------------


async def test_describe_producers_tells_who_writes_in_a_transaction(open_run) -> None:
    """Epoch, last sequence and time of every producer; in a transaction from the first batch to the decision."""
    async with open_run() as run:
        await run.start(A, copying=False)
        await run.plain(A, b"a", b"b", producer_id=3, epoch=2, sequence=0)
        run.clock.ms += 5
        await run.begin(T0, A)

        def described() -> list[tuple[int, int, int, int, bool]]:
            return [
                (it.producer_id, it.producer_epoch, it.last_sequence, it.last_timestamp_ms, it.in_transaction)
                for it in run[A].describe_producers()
            ]

        plain = (3, 2, 1, 1_000_000, False)
        assert described() == [plain, (7, 0, -1, 1_000_005, False)]
        await run.write(T0, A, b"v")
        assert described() == [plain, (7, 0, 0, 1_000_005, True)]
        await run.prepare(T0, A)
        assert described() == [plain, (7, 0, 0, 1_000_005, True)]
        run.place(T0, A)
        assert described() == [plain, (7, 0, 0, 1_000_005, False)]


async def test_commit_is_forgotten_where_nothing_was_written(open_run) -> None:
    """The log has nothing to place; its producer has nothing open there any more, and begins the next one."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        await run.write(T0, A, b"v")
        run.place(T0, *await run.prepare(T0, A, B))
        assert not run.seal(T0, A, B)
        assert await run.applied(T0) == (Placement(A, Offset(0), 1),)
        assert await run.apply_number(T0, B) is None
        await run.partitions.drain()
        assert await run.values(B) == []


async def test_transaction_messages_for_unknown_logs_change_nothing(open_run) -> None:
    """A log that is not led is refused at the beginning, and passed over afterwards."""
    async with open_run() as run:
        await run.start(A)
        stranger = LogId.parse(f"t-{'f' * 32}-0")
        begun = await run.participant.begin(Begin(T0, (A, stranger)))
        assert list(begun.refused) == [stranger]
        await run.write(T0, A, b"v")
        await run.prepare(T0, A, stranger)
        run.participant.apply([ApplyCommit(T0, (A, stranger), 0, "g")])
        run.discard(T0, stranger)
        await run.partitions.drain()
        assert await run.values(A) == [b"v"]
