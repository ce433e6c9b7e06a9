"""What leaders say after a crash at each stage of a transaction: the same as before it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from coordinator.messages import Expected
from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, LeaderEpoch, LogId, Offset, Placement
from journal.journal import Fsync, JournalKind
from journal.segment import SEGMENT_HEADER_BYTES
from journal.segment_file import begin_at
from partition.answers import Appended, RefusedAppend
from tests.shard.runs import DATA_LOGS, JOURNALS, A, B, Run, base_of_repeated, transaction

T0, T1 = transaction(7), transaction(8)
EXPECTED = {A: Expected(LeaderEpoch(1), 1), B: Expected(LeaderEpoch(1), 1)}
"""What PREPARE_COMMIT says of a transaction of the first run with one record in each log."""


async def write(run: Run, txid=T0, value: bytes = b"v") -> None:
    """One record in each log, nothing decided."""
    await run.begin(txid, A, B)
    for log in (A, B):
        assert await run.write(txid, log, value) == Appended(None, None)


async def say_again(run: Run, *txids) -> None:
    """What a coordinator does that finds PREPARE_COMMIT without COMMITTED."""
    for txid in txids:
        assert not (await run.prepare_again(EXPECTED, txid)).refused
    for txid in txids:
        run.place(txid, A, B)


async def test_restart_keeps_plain_batches_and_what_their_producers_did(open_run, tmp_path: Path) -> None:
    """Copied or not: the records are there, a repetition is known as one, the next sequence is the next one."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"copied", producer_id=3, epoch=0, sequence=0)
        await run.partitions.drain()
        run.disk.hold()
        await run.plain(A, b"not copied", producer_id=3, epoch=0, sequence=1)
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.start(A)
        assert await again.values(A) == [b"copied", b"not copied"]
        for sequence in (0, 1):
            repeated = await again.plain(A, b"again", producer_id=3, epoch=0, sequence=sequence)
            assert base_of_repeated(repeated) == Offset(sequence)
        assert isinstance(await again.plain(A, b"next", producer_id=3, epoch=0, sequence=2), Appended)


async def test_restart_gives_the_producers_windows_that_were_live(open_run, tmp_path: Path) -> None:
    """To the last use of each: a replay goes by the frames' times, and asks no clock."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"copied", producer_id=3, epoch=0, sequence=0)
        await run.partitions.drain()
        run.disk.hold()
        for sequence in (1, 2):
            run.clock.ms += 700
            await run.plain(A, b"not copied", producer_id=sequence, epoch=0, sequence=0)
        windows = dict(run[A].state.windows)
        crashed = run.crash(tmp_path / "crashed")
    assert {producer: window.last_use_ms - 1_000_000 for producer, window in windows.items()} == {3: 0, 1: 700, 2: 1400}
    async with open_run(crashed) as again:
        again.clock.ms += 1_000_000
        await again.start(A)
        assert again[A].state.windows == windows


async def test_restart_keeps_fences(open_run, tmp_path: Path) -> None:
    """Invariant 9 survives: an epoch that was fenced stays fenced, although nothing was ever written in the new one."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(transaction(7, epoch=4), A)
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.start(A)
        assert await again.plain(A, b"v", producer_id=7, epoch=3, sequence=0) is RefusedAppend.FENCED


async def test_restart_discards_what_nobody_had_decided(open_run, tmp_path: Path) -> None:
    """An open transaction is over; it can neither go on nor be seen, and the log says which it was."""
    async with open_run() as run:
        await run.start(A, B)
        await write(run)
        crashed = run.crash(tmp_path / "crashed")
    with capture_logs() as logs:
        async with open_run(crashed) as again:
            await again.start(A, B)
            assert await again.write(T0, A, b"second half", sequence=1) is RefusedAppend.NOT_IN_TRANSACTION
            assert again.seal(T0, A, B) == {}
            assert await again.snapshot(A, B) == {A: [], B: []}
    assert {(it["log"], it["txid"]) for it in logs if it["event"] == "orphan discarded"} == {
        (str(A), str(T0)),
        (str(B), str(T0)),
    }


async def test_restart_takes_a_discard_said_again(open_run, tmp_path: Path) -> None:
    """PREPARE_ABORT without ABORTED: DISCARD is said once more, before or after it has survived."""
    async with open_run() as run:
        await run.start(A, B)
        await write(run)
        run.discard(T0, A)
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.lead((A, B))
        again.discard(T0, A, B)
        await again.serve()
        await again.commit(transaction(7, 1), {A: b"next", B: b"next"}, sequence=1)
        assert await again.snapshot(A, B) == {A: [b"next"], B: [b"next"]}


async def sealed(run: Run) -> None:
    run.seal(T0, A, B)


async def prepared(run: Run) -> None:
    await run.prepare(T0, A, B)


async def placed(run: Run) -> None:
    await prepared(run)
    run.place(T0, A, B)


@pytest.mark.parametrize("stage", [sealed, prepared, placed])
@pytest.mark.parametrize("copying", [False, True])
async def test_restart_at_any_stage_of_a_commit_gives_the_same_places(
    open_run, tmp_path: Path, stage: Callable[[Run], Awaitable[None]], copying: bool
) -> None:
    """Prepared, placed, copied or none of it: said again, the transaction is in every log once, at the same offsets.

    And so it is after a second crash in the middle of this recovery, and after a third one behind it.
    """
    async with open_run() as run:
        await run.start(A, B, copying=copying)
        await run.plain(B, b"first")
        await write(run)
        await stage(run)
        if copying:
            await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    places = (Placement(A, Offset(0), 1), Placement(B, Offset(1), 1))
    async with open_run(crashed) as second:
        await second.lead((A, B))
        await say_again(second, T0)
        crashed = second.crash(tmp_path / "crashed again")
    async with open_run(crashed) as third:
        await third.lead((A, B))
        await say_again(third, T0)
        await third.serve()
        assert await third.applied(T0) == places
        assert await third.snapshot(A, B) == {A: [b"v"], B: [b"first", b"v"]}
        crashed = third.crash(tmp_path / "and again")
    async with open_run(crashed) as fourth:
        await fourth.lead((A, B))
        await say_again(fourth, T0)
        await fourth.serve()
        assert await fourth.applied(T0) == places
        assert await fourth.snapshot(A, B) == {A: [b"v"], B: [b"first", b"v"]}


async def test_restart_of_a_transaction_whose_batches_were_lost_cannot_prepare_it(open_run, tmp_path: Path) -> None:
    """A log that lost its part with the power says so; nobody was answered, since the flush never returned."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        await run.plain(B, b"kept")
        await run.begin(T0, A, B)
        before = run.crash(tmp_path / "before")
        for log in (A, B):
            await run.write(T0, log, b"v")
        crashed = run.crash(tmp_path / "crashed", losing={B: before})
    async with open_run(crashed) as again:
        await again.lead((A, B))
        assert list((await again.prepare_again(EXPECTED, T0)).refused) == [B]
        again.discard(T0, A, B)
        await again.serve()
        assert await again.snapshot(A, B) == {A: [], B: [b"kept"]}


@pytest.mark.parametrize("first", [0, 1])
async def test_restart_with_some_applies_lost_keeps_the_order_of_those_that_survived(
    open_run, tmp_path: Path, first: int
) -> None:
    """Invariants 6 and 7: what A has in one order B does not get in another, whoever speaks first after the crash."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        for txid, value in ((T0, b"T0"), (T1, b"T1")):
            await write(run, txid, value)
            await run.prepare(txid, A, B)
        before = run.crash(tmp_path / "before")
        run.place(T1, A, B)
        run.place(T0, A, B)
        crashed = run.crash(tmp_path / "crashed", losing={B: before})
    async with open_run(crashed) as again:
        await again.lead((A, B))
        numbers = [await again.apply_number(txid, A, B) for txid in (T0, T1)]
        assert numbers == [ApplyNumber(1), ApplyNumber(0)]
        await say_again(again, (T0, T1)[first], (T1, T0)[first])
        await again.serve()
        assert await again.snapshot(A, B) == {A: [b"T1", b"T0"], B: [b"T1", b"T0"]}


async def test_restart_numbers_applies_behind_those_that_survived(open_run, tmp_path: Path) -> None:
    """Apply numbers are never given twice, also if what bore the largest one is copied and not replayed."""
    async with open_run() as run:
        await run.start(A, B)
        await run.commit(T0, {A: b"v", B: b"v"})
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.start(A, B)
        await again.commit(T1, {A: b"w", B: b"w"})
        assert await again.apply_number(T0, A) == 0
        assert await again.apply_number(T1, A) == 1


async def test_restart_places_nothing_twice_whose_participant_wrote_nothing(open_run, tmp_path: Path) -> None:
    """A log that was begun and never written to is prepared with 0 records also by leaders that forgot about it."""
    async with open_run() as run:
        await run.start(A, B)
        await run.begin(T0, A, B)
        await run.write(T0, A, b"v")
        assert (await run.prepare(T0, A, B))[B].records == 0
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed) as again:
        await again.lead((A, B))
        expected = {A: EXPECTED[A], B: Expected(LeaderEpoch(1), 0)}
        assert not (await again.prepare_again(expected, T0)).refused
        again.place(T0, A, B)
        await again.serve()
        assert await again.applied(T0) == (Placement(A, Offset(0), 1),)


# --- the journal and the data log disagree ---------------------------------------------------------


def cut(directory: Path, log: LogId, to_bytes: int = 64) -> None:
    """Leave the first bytes of the log's only segment, by default its header, and zeros: a loss of power."""
    (segment,) = (directory / JOURNALS / str(log)).glob("*.journal")
    content = segment.read_bytes()
    segment.write_bytes(content[:to_bytes].ljust(len(content), b"\0"))


async def segment_named(directory: Path, log: LogId) -> None:
    """Wait until a thread has given the log's first segment its name: with fsync=interval no answer waits for that."""
    with trio.fail_after(10):
        while not list((directory / JOURNALS / str(log)).glob("*.journal")):  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_restart_without_the_journals_durable_tail_is_refused(open_run, tmp_path: Path) -> None:
    """With fsync=commit nothing that was copied can be missing in the journal: something took it away."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    cut(crashed, A)
    async with open_run(crashed, fsync=Fsync.NEVER) as again:
        with pytest.raises(CorruptStorage, match=rf"the journal of {A} ends at 0.*missing or cut"):
            await again.lead([A])


@pytest.mark.parametrize("fsync", [Fsync.INTERVAL, Fsync.NEVER])
@pytest.mark.parametrize("lost", ["tail", "everything"])
async def test_restart_without_the_journals_undurable_tail_goes_on_at_the_mark(
    open_run, tmp_path: Path, fsync: Fsync, lost: str
) -> None:
    """Where durability was not promised, a loss of power costs a warning: what was copied is there, positions go on."""
    async with open_run(fsync=fsync) as run:
        await run.start(A)
        await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        await run.begin(T0, A)
        await run.write(T0, A, b"open")
        await run.partitions.drain()
        await run.plain(A, b"w", producer_id=3, epoch=0, sequence=1)
        await run.partitions.drain()
        await segment_named(run.directory, A)
        crashed = run.crash(tmp_path / "crashed")
    if lost == "tail":
        cut(crashed, A)
    else:
        (segment,) = (crashed / JOURNALS / str(A)).glob("*.journal")
        segment.unlink()
    with capture_logs() as logs:
        async with open_run(crashed, fsync=fsync) as again:
            await again.lead([A])
            crashed = again.crash(tmp_path / "crashed at once")
    (warning,) = [it for it in logs if it["event"].startswith("journal lost its tail")]
    assert (warning["log_level"], warning["log"]) == ("warning", str(A))
    for expected in ([b"v", b"w"], [b"v", b"w", b"next"]):
        async with open_run(crashed, fsync=fsync) as again:
            await again.start(A)
            assert await again.values(A) == expected
            repeated = await again.plain(A, b"w", producer_id=3, epoch=0, sequence=1)
            assert base_of_repeated(repeated) == Offset(1)
            await again.plain(A, b"next", producer_id=3, epoch=0, sequence=len(expected))
            crashed = again.crash(tmp_path / f"crashed behind {len(expected)}")


@pytest.mark.parametrize("empty", [False, True])
async def test_restart_after_a_change_of_fsync_asks_for_no_more_than_the_present_one_promised(
    open_run, tmp_path: Path, empty: bool
) -> None:
    """What a segment was begun under holds for all its frames: under another setting the journal begins a new one.

    One without frames says the new setting from then on, and keeps its name.
    """
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    if empty:
        shutil.rmtree(crashed)
        begin_at(crashed / JOURNALS / str(A), JournalKind.LOCAL, Fsync.COMMIT, JournalPosition(0))
    async with open_run(crashed, fsync=Fsync.NEVER) as run:
        await run.start(A)
        assert len(list((run.directory / JOURNALS / str(A)).glob("*.journal"))) == (1 if empty else 2)
        await run.plain(A, b"w")
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed again")
    last = max((crashed / JOURNALS / str(A)).glob("*.journal"))
    last.write_bytes(last.read_bytes()[:SEGMENT_HEADER_BYTES].ljust(last.stat().st_size, b"\0"))
    async with open_run(crashed, fsync=Fsync.NEVER) as again:
        await again.start(A)
        assert await again.values(A) == ([b"w"] if empty else [b"v", b"w"])


async def test_restart_without_the_data_logs_rebuilds_them_from_whole_journals(open_run, tmp_path: Path) -> None:
    """Whoever replays a journal from its first frame gets the same data log."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"plain")
        await run.commit(T0, {A: b"v", B: b"v"})
        crashed = run.crash(tmp_path / "crashed")
    for file in (crashed / DATA_LOGS).iterdir():
        file.unlink()
    async with open_run(crashed) as again:
        await again.start(A, B)
        assert await again.snapshot(A, B) == {A: [b"plain", b"v"], B: [b"v"]}


async def test_restart_without_the_data_logs_and_the_journals_beginning_is_refused(open_run) -> None:
    """Once a journal has given space back, the data log is the only copy of what stood there."""
    async with open_run() as run:
        await run.start(A)
        while len(segments(run)) < 3:
            await run.plain(A, bytes(300_000))
        await run.partitions.drain()
    for path in segments(run)[:1]:
        path.unlink()
    for file in (run.directory / DATA_LOGS).iterdir():
        file.unlink()
    async with open_run() as again:
        with pytest.raises(CorruptStorage, match="frames from position 0 on are needed"):
            await again.lead([A])


async def test_restart_without_a_segment_that_is_still_needed_is_refused(open_run, tmp_path: Path) -> None:
    """A hole in a journal, or a beginning that an open transaction lies in, is named and not stepped over."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        await run.write(T0, A, b"pins the first segment")
        while len(segments(run)) < 3:
            await run.plain(A, bytes(300_000))
        await run.partitions.drain()
        paths = segments(run)
    for missing, message in ((paths[0], "are needed"), (paths[1], "segment missing or short")):
        content = missing.read_bytes()
        missing.unlink()
        async with open_run() as again:
            with pytest.raises(CorruptStorage, match=message):
                await again.lead([A])
        missing.write_bytes(content)
    async with open_run() as again:
        await again.start(A)


def segments(run: Run) -> list[Path]:
    return sorted((run.directory / JOURNALS / str(A)).glob("*.journal"))
