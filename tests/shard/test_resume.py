"""A transaction that was open when the process died goes on: what leaders know of it after each of several restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.messages import Expected, Resume
from fairlog_types import LeaderEpoch, LogId, Offset
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, MARKERS, TransactionMode
from tests.shard.runs import A, B, Run, transaction

T0, T1 = transaction(7), transaction(7, 1)
FIRST = LeaderEpoch(1)

BOTH_MODES = pytest.mark.parametrize("mode", [JOURNAL, MARKERS], ids=lambda mode: mode.name)


async def resume(run: Run, *logs: LogId, mode: TransactionMode, copying: bool = True) -> dict[LogId, LeaderEpoch]:
    """Start as a node does whose coordinator says that T0 is open in `logs`; what the leaders answer."""
    await run.lead((A, B), mode)
    resumed = await run.participant.resume(Resume(T0, dict.fromkeys(logs, FIRST)))
    assert not resumed.lost
    await run.serve(copying=copying)
    return dict(resumed.leader_epochs)


@BOTH_MODES
@pytest.mark.parametrize("copying", [False, True])
async def test_transaction_goes_on_over_restarts_and_is_committed_whole(
    open_run, tmp_path: Path, mode: TransactionMode, copying: bool
) -> None:
    """A batch of each of three runs, in one log or the other: the commit counts them all, after a fourth start too."""
    async with open_run() as run:
        await run.start(A, B, copying=copying, mode=mode)
        await run.begin(T0, A, B)
        assert isinstance(await run.write(T0, A, b"first"), Appended)
        if copying:
            await run.partitions.drain()
        crashed = run.crash(tmp_path / "1")
    async with open_run(crashed) as run:
        assert await resume(run, A, B, mode=mode, copying=copying) == {A: 1, B: 2}
        assert isinstance(await run.write(T0, B, b"second"), Appended)
        crashed = run.crash(tmp_path / "2")
    async with open_run(crashed) as run:
        assert await resume(run, A, B, mode=mode, copying=copying) == {A: 1, B: 2}
        assert isinstance(await run.write(T0, A, b"third", sequence=1), Appended)
        expected = await run.prepare(T0, A, B)
        assert expected == {A: Expected(LeaderEpoch(1), 2), B: Expected(LeaderEpoch(2), 1)}
        crashed = run.crash(tmp_path / "3")
    async with open_run(crashed) as run:
        await run.lead((A, B), mode)
        assert await run.prepare(T0, A, B) == expected
        run.place(T0, A, B)
        await run.serve()
        committed = {log: [value for _, value in found] for log, found in (await run.committed(A, B)).items()}
        assert committed == {A: [b"first", b"third"], B: [b"second"]}


@BOTH_MODES
async def test_batch_repeated_after_the_restart_is_answered_as_one(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """Its answer was lost with the process: the client sends it again, and it is there once."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A)
        first = await run.write(T0, A, b"once")
        assert isinstance(first, Appended)
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await resume(run, A, mode=mode)
        again = await run.write(T0, A, b"once")
        assert isinstance(again, DuplicateOf)
        assert again.base_offset == first.base_offset
        assert (await run.prepare(T0, A))[A].records == 1


@BOTH_MODES
async def test_batch_of_an_earlier_transaction_is_not_taken_for_one_of_the_resumed(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """librdkafka gives numbers of purged records to new ones: as before the restart, such a record is refused."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A)
        await run.write(T0, A, b"purged")
        run.discard(T0, A)
        await run.begin(T1, A)
        await run.write(T1, A, b"next", sequence=1)
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await run.lead((A, B), mode)
        assert not (await run.participant.resume(Resume(T1, {A: FIRST}))).lost
        await run.serve()
        assert await run.write(T1, A, b"renumbered", sequence=0) is RefusedAppend.OUT_OF_ORDER
        assert isinstance(await run.write(T1, A, b"next", sequence=1), DuplicateOf)


async def test_first_batch_that_was_deleted_makes_no_record_a_repetition(open_run, tmp_path: Path) -> None:
    """DeleteRecords may take the beginning of a marker transaction: then a repetition is refused, to be safe."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        for sequence in range(2):
            await run.write(T0, A, b"v", sequence=sequence)
        await run.partitions.drain()
        await run[A].delete_before(Offset(1))
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await resume(run, A, mode=MARKERS)
        assert await run.write(T0, A, b"v", sequence=1) is RefusedAppend.OUT_OF_ORDER
        assert isinstance(await run.write(T0, A, b"v", sequence=2), Appended)
        assert (await run.prepare(T0, A))[A].records == 3


@BOTH_MODES
async def test_log_that_holds_records_and_was_not_named_takes_part(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """It was being added when the process died: what was answered there is not left out of the commit."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A, B)
        await run.write(T0, B, b"v")
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        assert await resume(run, A, mode=mode) == {A: 2, B: 1}
        assert (await run.prepare(T0, A, B))[B].records == 1


@BOTH_MODES
async def test_log_that_was_begun_while_the_shard_recovers_and_was_not_named_takes_part(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """A coordinator elsewhere had it begin, and was killed before it wrote that down. Else nobody would end it."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A)
        await run.write(T0, A, b"v")
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await run.lead((A, B), mode)
        await run.begin(T0, B)
        for _ in range(2):
            resumed = await run.participant.resume(Resume(T0, {}))
            assert (resumed.leader_epochs, resumed.lost) == ({A: 1, B: 2}, {})
        await run.serve()
        assert await run.participant.resume(Resume(T0, {})) == resumed


async def test_transaction_that_is_not_resumed_is_discarded_beside_one_that_is(open_run, tmp_path: Path) -> None:
    """Only what a coordinator knows to be open goes on."""
    other = transaction(8)
    async with open_run() as run:
        await run.start(A, B)
        for txid in (T0, other):
            await run.begin(txid, A)
            await run.write(txid, A, b"v")
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await resume(run, A, mode=JOURNAL)
        assert await run.write(other, A, b"v", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
        assert isinstance(await run.write(T0, A, b"v", sequence=1), Appended)
        assert run.seal(other, A) == {}


@BOTH_MODES
async def test_log_that_does_not_know_the_epoch_says_that_its_part_is_lost(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """Begun there it was, with a fence: without one, something else than a crash has taken the journal."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A)
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await run.lead((A, B), mode)
        resumed = await run.participant.resume(Resume(T0, {A: FIRST, B: FIRST}))
        assert set(resumed.lost) == {B}
        await run.serve()
        assert await run.write(T0, A, b"v") is RefusedAppend.NOT_IN_TRANSACTION


@BOTH_MODES
async def test_resumed_transaction_pins_its_records_until_it_ends(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """Readers of committed records see it only when it is committed; nothing of it stays after an abort."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A)
        await run.write(T0, A, b"open")
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await resume(run, A, mode=mode)
        await run.plain(A, b"plain")
        await run.partitions.drain()
        plain_at = 1 if mode is MARKERS else 0
        assert await run.committed(A) == {A: [] if mode is MARKERS else [(plain_at, b"plain")]}
        run.discard(T0, A)
        await run.partitions.drain()
        assert await run.committed(A) == {A: [(plain_at, b"plain")]}


@BOTH_MODES
async def test_sealed_transaction_is_resumed_beside_what_a_later_epoch_has_written(
    open_run, tmp_path: Path, mode: TransactionMode
) -> None:
    """It was kept (KIP-939), and its successor writes outside of transactions, also where it has nothing."""
    async with open_run() as run:
        await run.start(A, B, mode=mode)
        await run.begin(T0, A, B)
        assert isinstance(await run.write(T0, A, b"kept"), Appended)
        run.seal(T0, A, B)
        for log in (A, B):
            outside = await run.plain(log, b"outside", producer_id=T0.producer_id, epoch=T0.epoch + 1, sequence=0)
            assert isinstance(outside, Appended)
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as run:
        await resume(run, A, B, mode=mode)
        run.seal(T0, A, B)
        expected = await run.prepare(T0, A, B)
        assert {log: it.records for log, it in expected.items()} == {A: 1, B: 0}
        run.place(T0, A, B)
        await run.partitions.drain()
        found = {log: {value for _, value in rows} for log, rows in (await run.committed(A, B)).items()}
        assert found == {A: {b"kept", b"outside"}, B: {b"outside"}}
