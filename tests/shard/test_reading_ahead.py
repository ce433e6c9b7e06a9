"""What is on disk and not copied yet can be read by those who wait for it, as the data log will have it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio

from coordinator.messages import ApplyCommit
from copier import copier as copier_module
from copier.apply import Copied, apply
from datalog.batch import base_offset_of
from datalog.interface import Batch, ReadRequest, ReadResult
from fairlog_types import LogId, Offset, TxId
from journal import recent as recent_module
from journal.journal import Fsync
from partition.modes import MARKERS
from shard.reading_ahead import AHEAD_BATCHES_MAX
from tests.clients.raw_client import records_of
from tests.shard.runs import A, B, C, Run, is_waiting, transaction


class Waiting:
    """Watches a log from an offset on."""

    def __init__(self, run: Run, log: LogId, offset: int) -> None:
        self.told = trio.Event()
        self.visibility = run[log].visibility
        assert self.visibility.watch(self, beyond=Offset(offset), committed_only=True)

    def moved(self, *, stable: bool) -> bool:
        self.told.set()
        return True

    async def read(self, offset: int) -> list[bytes]:
        """The batches that can be read ahead of the data log from that offset on, once it has moved."""
        await self.told.wait()
        return [bytes(batch) for batch in self.visibility.newest(offset, bytes_max=1 << 20).batches]


async def stored(run: Run, log: LogId, offset: int) -> Sequence[Batch]:
    """What the data log has from that offset on."""
    request = ReadRequest(log, Offset(offset), 1 << 20)
    (answer,) = await trio.to_thread.run_sync(lambda: run.data_logs.read([request], bytes_max=1 << 20))
    assert isinstance(answer, ReadResult)
    return [bytes(batch) for batch in answer.batches]


def values(batches: Sequence[Batch]) -> list[tuple[int, bytes | None]]:
    return [record for batch in batches for record in records_of(batch)]


async def prepare(run: Run, txid: TxId, contents: Mapping[LogId, Sequence[bytes]]) -> None:
    """A transaction of one batch for each value; all that is placed before it is copied."""
    await run.begin(txid, *contents)
    for log, batches in contents.items():
        for sequence, value in enumerate(batches):
            await run.write(txid, log, value, sequence=sequence)
    await run.prepare(txid, *contents)
    await run.partitions.drain()


@pytest.fixture
def may_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is copied while this is not set. It is."""
    event = threading.Event()
    event.set()

    def apply_later(*arguments: object) -> Copied:
        assert event.wait(10)
        return apply(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copier_module, "apply", apply_later)
    yield event
    event.set()


async def test_logs_are_awaited_while_a_reader_waits_at_the_end_of_one(open_run) -> None:
    """So that a commit is placed before it is answered: the reader has it sooner."""
    async with open_run() as run:
        await run.start(A, B)
        assert not run.participant.are_awaited((A, B, C))
        waiting = Waiting(run, B, 0)
        assert [run.participant.are_awaited(logs) for logs in ((A, C), (A, B))] == [False, True]
        waiting.visibility.unwatch(waiting)
        assert not run.participant.are_awaited((A, B, C))


async def test_plain_batch_is_read_while_it_is_copied(open_run, may_copy: threading.Event) -> None:
    """From the moment that it is on disk, with its offset; the data log gets the same bytes."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"before")
        await run.partitions.drain()
        may_copy.clear()
        waiting = Waiting(run, A, 1)
        run.disk.hold()
        await run.plain(A, b"one", b"two")
        assert await is_waiting(waiting.told.wait)
        run.disk.let_go()
        ahead = await waiting.read(1)
        assert values(ahead) == [(1, b"one"), (2, b"two")]
        assert run[A].visibility.high_watermark == 1
        assert await is_waiting(lambda: run[A].visibility.reach(Offset(3)))
        may_copy.set()
        await run[A].visibility.reach(Offset(3))
        assert await stored(run, A, 1) == ahead
        assert not run[A].visibility.is_ahead(1)


async def test_transaction_is_read_whole_while_it_is_copied(open_run, may_copy: threading.Event) -> None:
    """In both of its logs from one moment on, also where it lay behind others in the journal."""
    async with open_run() as run:
        await run.start(A, B)
        txid = transaction(7)
        await run.begin(txid, A, B)
        await run.write(txid, A, b"a1")
        await run.plain(A, b"plain, in between")
        await run.write(txid, A, b"a2", sequence=1)
        await run.write(txid, B, b"b1")
        await run.partitions.drain()
        waiting = [Waiting(run, A, 1), Waiting(run, B, 0)]
        await run.prepare(txid, A, B)
        assert not any(each.told.is_set() for each in waiting)
        may_copy.clear()
        run.place(txid, A, B)
        assert values(await waiting[0].read(1)) == [(1, b"a1"), (2, b"a2")]
        assert values(await waiting[1].read(0)) == [(0, b"b1")]
        assert await run.snapshot(A, B) == {A: [b"plain, in between"], B: []}
        ahead = await waiting[0].read(1), await waiting[1].read(0)
        may_copy.set()
        await run.applied(txid)
        assert (await stored(run, A, 1), await stored(run, B, 0)) == ahead


async def test_one_decision_after_the_other_is_read_ahead(open_run, may_copy: threading.Event) -> None:
    """All that is copied at once is there at once."""
    async with open_run() as run:
        await run.start(A)
        may_copy.clear()
        first = Waiting(run, A, 0)
        await run.plain(A, b"0")
        assert values(await first.read(0)) == [(0, b"0")]
        second = Waiting(run, A, 1)
        await run.plain(A, b"1")
        await run.plain(A, b"2")
        may_copy.set()
        await second.told.wait()
        may_copy.clear()
        assert values(await second.read(1)) in ([(1, b"1")], [(1, b"1"), (2, b"2")])
        may_copy.set()
        await run.partitions.drain()
        assert await run.values(A) == [b"0", b"1", b"2"]


async def test_what_was_read_ahead_is_there_after_a_crash_at_the_same_place(
    open_run, may_copy: threading.Event, tmp_path: Path
) -> None:
    """It was on disk in the journals, so a restart copies it before anybody reads."""
    async with open_run() as run:
        await run.start(A, B)
        waiting = [Waiting(run, A, 0), Waiting(run, B, 0)]
        txid = transaction(7)
        await prepare(run, txid, {A: [b"a"], B: [b"b"]})
        may_copy.clear()
        run.place(txid, A, B)
        ahead = [await each.read(0) for each in waiting]
        crashed = run.crash(tmp_path / "crashed")
        may_copy.set()
    async with open_run(crashed) as again:
        await again.start(A, B)
        for log, batches in zip((A, B), ahead, strict=True):
            assert (await stored(again, log, 0))[: len(batches)] == batches


async def test_what_nobody_waits_for_is_not_read_ahead(open_run, may_copy: threading.Event) -> None:
    async with open_run() as run:
        await run.start(A)
        may_copy.clear()
        await run.plain(A, b"v")
        assert await is_waiting(run.partitions.drain)
        assert not run[A].visibility.is_ahead(0)
        may_copy.set()


async def test_in_logs_with_markers_nothing_is_read_ahead(open_run, may_copy: threading.Event) -> None:
    """There what is placed may be of a transaction that is aborted yet."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        may_copy.clear()
        waiting = Waiting(run, A, 0)
        await run.plain(A, b"v")
        assert await is_waiting(waiting.told.wait)
        may_copy.set()
        await waiting.told.wait()
        assert not run[A].visibility.is_ahead(0)


async def test_without_waiting_for_the_disk_nothing_is_read_ahead(open_run, may_copy: threading.Event) -> None:
    """What a loss of power can take from the journal is read when the data log has it."""
    async with open_run(fsync=Fsync.NEVER) as run:
        await run.start(A)
        may_copy.clear()
        waiting = Waiting(run, A, 0)
        await run.plain(A, b"v")
        assert await is_waiting(waiting.told.wait)
        may_copy.set()
        await waiting.told.wait()


async def test_transaction_that_is_not_all_in_memory_is_not_read_ahead(
    open_run, may_copy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the log that has all of it either, nor what comes behind it; all of it is read when it is copied."""
    monkeypatch.setattr(recent_module, "BYTES_MAX", 2500)
    async with open_run() as run:
        await run.start(A, B, C)
        await run.plain(C, b"so that its journal has its first segment")
        txid = transaction(7)
        await prepare(run, txid, {A: [b"long" * 100, b"long" * 200], B: [b"b"]})
        waiting = [Waiting(run, A, 0), Waiting(run, B, 0), Waiting(run, C, 1)]
        may_copy.clear()
        run.disk.hold()
        run.place(txid, A, B)
        await run.plain(C, b"v")
        run.disk.let_go()
        assert await is_waiting(run.partitions.drain)
        assert not any(each.told.is_set() for each in waiting)
        may_copy.set()
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [b"long" * 100, b"long" * 200], B: [b"b"]}
        assert (await run.values(C))[1:] == [b"v"]


async def test_transactions_that_are_placed_as_one_are_read_ahead_as_one(
    open_run, may_copy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink's batch of two lanes in one log: of the second the memory has nothing any more."""
    monkeypatch.setattr(recent_module, "BYTES_MAX", 2000)
    async with open_run() as run:
        await run.start(A)
        lanes = [transaction(7), transaction(8)]
        for lane, value in zip(reversed(lanes), (b"second" * 100, b"first" * 100), strict=True):
            await prepare(run, lane, {A: [value]})
        waiting = Waiting(run, A, 0)
        may_copy.clear()
        application = run.participant.apply([ApplyCommit(lane, [A], run.clock(), "sink") for lane in lanes])
        assert await is_waiting(waiting.told.wait)
        may_copy.set()
        await application.visible()
        assert await run.values(A) == [b"first" * 100, b"second" * 100]


@pytest.mark.parametrize(("batches", "is_ahead"), [(AHEAD_BATCHES_MAX, True), (AHEAD_BATCHES_MAX + 1, False)])
async def test_event_loop_does_not_do_more_than_its_share(
    open_run, may_copy: threading.Event, batches: int, is_ahead: bool
) -> None:
    """A transaction of many batches is read when it is copied."""
    async with open_run() as run:
        await run.start(A)
        txid = transaction(7)
        await prepare(run, txid, {A: [b"v"] * batches})
        waiting = Waiting(run, A, 0)
        may_copy.clear()
        run.place(txid, A)
        assert await is_waiting(run.partitions.drain)
        assert (waiting.told.is_set(), run[A].visibility.is_ahead(0)) == (is_ahead, is_ahead)
        may_copy.set()
        await run.applied(txid)


async def test_transaction_with_a_part_among_markers_is_not_read_ahead(open_run, may_copy: threading.Event) -> None:
    """Its marker is read when it is copied, and the part in the other log with it."""
    async with open_run() as run:
        await run.lead([A])
        await run.start(B, mode=MARKERS)
        txid = transaction(7)
        await prepare(run, txid, {A: [b"a"], B: [b"b"]})
        waiting = Waiting(run, A, 0)
        may_copy.clear()
        run.place(txid, A, B)
        assert await is_waiting(waiting.told.wait)
        may_copy.set()
        await run.applied(txid)


async def test_what_is_given_ahead_is_not_what_the_copier_changes(open_run, may_copy: threading.Event) -> None:
    """A reader sends its bytes while the copier's thread writes base offset and leader epoch into the journal's."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"before")
        await run.partitions.drain()
        waiting = Waiting(run, A, 1)
        may_copy.clear()
        position = run[A].journal.end
        await run.plain(A, b"v")
        await waiting.told.wait()
        (given,) = run[A].visibility.newest(1, bytes_max=1).batches
        kept = run[A].journal.recent_payload(position)
        assert kept is not None
        assert base_offset_of(kept) == 0
        assert base_offset_of(given) == 1
        with memoryview(given) as view:
            assert view.readonly
        may_copy.set()


async def test_deleted_log_is_not_read_ahead(open_run, may_copy: threading.Event) -> None:
    async with open_run() as run:
        await run.start(A, B)
        waiting = Waiting(run, A, 0)
        may_copy.clear()
        await run.plain(A, b"v")
        await waiting.told.wait()
        visibility = run[A].visibility
        assert visibility.is_ahead(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.drop, [A])
            await trio.testing.wait_all_tasks_blocked()
            assert not visibility.is_ahead(0)
            may_copy.set()
