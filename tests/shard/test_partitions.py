"""What the partitions of a shard do with plain batches and with those who wait, and when a log is deleted or fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.messages import Begin
from copier import copier as copier_module
from copier.apply import Copied, apply
from copier.backlog import SMALL_BYTES
from fairlog_types import LogId, Offset, ProducerEpoch, StorageFailure
from journal.journal import Fsync, Journal, JournalKind, NoFiles
from journal.reopen import reopen
from partition import partition as partition_module
from partition.answers import Appended, RefusedAppend
from partition.partition import Partition
from partition.records import Start
from shard import partitions as partitions_module
from tests.shard.runs import JOURNALS, A, B, Run, base_of, base_of_repeated, is_waiting, transaction, wait_for_more


async def test_leader_plain_batch_becomes_visible_at_its_offset(open_run) -> None:
    """A batch gets the next offset; when the high watermark has passed it, a reader finds it there."""
    async with open_run() as run:
        await run.start(A)
        assert base_of(await run.plain(A, b"one", b"two")) == Offset(0)
        assert base_of(await run.plain(A, b"three")) == Offset(2)
        await run[A].visibility.reach(Offset(3))
        assert run[A].visibility.high_watermark == 3
        assert await run.values(A) == [b"one", b"two", b"three"]


async def test_leader_plain_batch_is_not_visible_before_it_is_durable(open_run) -> None:
    """Nobody reads what a crash could still take back."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"before")
        await run.partitions.drain()
        run.disk.hold()
        await run.plain(A, b"v")
        assert await is_waiting(lambda: run[A].visibility.reach(Offset(2)))
        assert await run.values(A) == [b"before"]
        run.disk.let_go()
        await run[A].visibility.reach(Offset(2))


def held_copies(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """From now on nothing is copied until that is set."""
    may_copy = threading.Event()

    def copy_later(*arguments: object) -> Copied:
        may_copy.wait(10)
        return apply(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copier_module, "apply", copy_later)
    return may_copy


async def test_plain_batch_is_durable_once_it_is_on_disk_and_does_not_wait_for_its_copy(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is when acks=all is answered; whoever wants to read the batch waits longer."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"so that the journal has its first segment")
        await run.partitions.drain()
        may_copy = held_copies(monkeypatch)
        try:
            run.disk.hold()
            appended = await run.plain(A, b"v")
            assert isinstance(appended, Appended)
            assert await is_waiting(lambda: run[A].durable(appended.durable_at))
            run.disk.let_go()
            await run[A].durable(appended.durable_at)
            assert run[A].visibility.high_watermark == 1
            assert await is_waiting(lambda: run[A].visibility.reach(Offset(2)))
        finally:
            may_copy.set()
        await run[A].visibility.reach(Offset(2))


@asynccontextmanager
async def uncopied(
    open_run: Callable[[], AbstractAsyncContextManager[Run]], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Run]:
    """A run that leads `A`, and copies nothing before the end."""
    may_copy = held_copies(monkeypatch)
    async with open_run() as run:
        await run.start(A)
        try:
            yield run
        finally:
            may_copy.set()


async def test_producer_waits_for_the_copy_while_the_copier_is_outrun(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a producer at full speed is no faster than the copy. A copy that fails keeps nobody waiting."""
    async with uncopied(open_run, monkeypatch) as run:
        await run.plain(A, b"v")
        await run[A].keep_pace(Offset(1), 100)
        monkeypatch.setattr(copier_module, "OUTRUN_BYTES", 0)
        assert await is_waiting(lambda: run[A].keep_pace(Offset(1), 100))
        run[A].visibility.fail(StorageFailure("the data logs' disk has failed"))
        await run[A].keep_pace(Offset(1), 100)


async def test_producer_of_small_batches_does_not_wait_for_the_copy_of_large_ones(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with uncopied(open_run, monkeypatch) as run:
        await run.plain(A, bytes(copier_module.OUTRUN_BYTES))
        await run.plain(A, b"v")
        assert await is_waiting(lambda: run[A].keep_pace(Offset(1), copier_module.OUTRUN_BYTES))
        assert not await is_waiting(lambda: run[A].keep_pace(Offset(2), SMALL_BYTES))
        for _ in range(copier_module.OUTRUN_BYTES // SMALL_BYTES):
            await run.plain(A, bytes(SMALL_BYTES - 100))  # with the batch's own head and its record's
        assert await is_waiting(lambda: run[A].keep_pace(Offset(3), SMALL_BYTES))


async def test_replica_begins_where_its_journal_says_and_sweeps_what_lies_before(
    open_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find the new start at once; what was before it is deleted in steps, also what an earlier run has left."""
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 2)

    async def stops_before(_: Partition) -> None:
        await trio.sleep_forever()

    async def is_swept(run: Run) -> int:
        while run[A].has_remains:  # noqa: ASYNC110
            await trio.sleep(0.001)
        return run.data_logs.bounds(A).size_bytes

    async with open_run() as run:
        await run.start(A, copying=False)
        run.nursery.start_soon(run.partitions.copy)
        for number in range(9):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        size_bytes = run.data_logs.bounds(A).size_bytes // 9
        run[A].write(Start(Offset(3)))  # as when it is read
        run.partitions.urge()
        await run.partitions.drain()
        assert run[A].visibility.log_start == 3
        assert await is_swept(run) == 6 * size_bytes
        monkeypatch.setattr(Partition, "sweep", stops_before)
        run[A].write(Start(Offset(7)))
        await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    monkeypatch.undo()
    async with open_run(crashed) as run:
        await run.start(A, copying=False)
        assert (run[A].visibility.log_start, run.data_logs.bounds(A).size_bytes) == (7, 6 * size_bytes)
        run.nursery.start_soon(run.partitions.copy)
        assert await is_swept(run) == 2 * size_bytes


async def test_replica_without_room_sweeps_later(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on copying; a line says that it waits."""
    monkeypatch.setattr(partitions_module, "SWEEP_AGAIN_S", 0.02)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with open_run() as run:
        await run.start(A, copying=False)
        run.nursery.start_soon(run.partitions.copy)
        for _ in range(3):
            await run.plain(A, b"v")
        await run.partitions.drain()
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(os, "posix_fallocate", full)
            run[A].write(Start(Offset(2)))
            await run.partitions.drain()
            while len(lines) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert run[A].visibility.log_start == 2
        assert run[A].has_remains
        assert run.failure is None
        assert {line["event"] for line in lines} == {"there is no room to sweep what was deleted"}
        while run[A].has_remains:  # noqa: ASYNC110
            await trio.sleep(0.001)
        assert base_of(await run.plain(A, b"w")) == Offset(3)


async def test_leader_repeated_batch_is_answered_as_the_first_time(open_run) -> None:
    """An idempotent producer's repetition gets the original's offset and writes nothing."""
    async with open_run() as run:
        await run.start(A)
        assert base_of(await run.plain(A, b"0", producer_id=7, epoch=0, sequence=0)) == Offset(0)
        assert base_of(await run.plain(A, b"1", producer_id=7, epoch=0, sequence=1)) == Offset(1)
        assert base_of_repeated(await run.plain(A, b"0", producer_id=7, epoch=0, sequence=0)) == Offset(0)
        await run.partitions.drain()
        assert await run.values(A) == [b"0", b"1"]


async def test_leader_batch_that_does_not_follow_is_refused(open_run) -> None:
    """A gap, an unknown producer that does not begin with 0, an older epoch, a batch that is long forgotten."""
    async with open_run() as run:
        await run.start(A)
        for sequence in range(8):
            await run.plain(A, b"v", producer_id=7, epoch=1, sequence=sequence)
        assert await run.plain(A, b"gap", producer_id=7, epoch=1, sequence=9) is RefusedAppend.OUT_OF_ORDER
        assert await run.plain(A, b"who", producer_id=8, epoch=0, sequence=3) is RefusedAppend.UNKNOWN_PRODUCER
        assert await run.plain(A, b"old", producer_id=7, epoch=0, sequence=8) is RefusedAppend.FENCED
        assert await run.plain(A, b"v", producer_id=7, epoch=1, sequence=0) is RefusedAppend.DUPLICATE_FORGOTTEN
        await run.partitions.drain()
        assert await run.values(A) == [b"v"] * 8


async def test_leader_plain_batch_of_another_epoch_is_fenced_where_the_current_one_never_wrote(open_run) -> None:
    """Invariant 9, for plain batches too: the coordinator knows the epoch, though this partition has never seen it."""
    async with open_run() as run:
        await run.start(A)
        run.partitions.current_epoch_of = lambda producer_id: ProducerEpoch(5) if producer_id == 3 else None
        for never_granted in (4, 6, 32767):
            refused = await run.plain(A, b"v", producer_id=3, epoch=never_granted, sequence=0)
            assert refused is RefusedAppend.FENCED
        assert isinstance(await run.plain(A, b"v", producer_id=3, epoch=5, sequence=0), Appended)
        assert isinstance(await run.plain(A, b"v", producer_id=4, epoch=0, sequence=0), Appended)


async def test_repeated_batch_waits_for_the_disk_as_its_first_try_does(open_run) -> None:
    """Until it is copied: then it is on disk, whatever has happened to the journal since."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        await run.partitions.drain()
        run.disk.hold()
        await run.plain(A, b"w", producer_id=3, epoch=0, sequence=1)
        repeated = await run.plain(A, b"w", producer_id=3, epoch=0, sequence=1)
        assert base_of_repeated(repeated) == Offset(1)
        assert await is_waiting(lambda: run[A].durable(repeated.durable_at))
        run.disk.failing = str(A)
        run.disk.let_go()
        with pytest.raises(StorageFailure):
            await run[A].durable(repeated.durable_at)
        copied = await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        assert base_of_repeated(copied) == Offset(0)
        await run[A].durable(copied.durable_at)


async def test_leader_repeated_batch_after_a_failure_is_not_denied(open_run) -> None:
    """Its first try is in the journal and may appear at a restart: "nothing was written" would be untrue of it."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        run.partitions.refuse_writes("another file has failed")
        again = await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        assert base_of_repeated(again) == Offset(0)
        assert await run.plain(A, b"w", producer_id=3, epoch=0, sequence=1) is RefusedAppend.STORAGE


async def test_leader_without_file_descriptors_says_so_and_says_it_seldom(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is refused; the log has a line at the first one, and later one with how many there were."""

    async def no_file(*_: object) -> None:
        raise NoFiles("Raise the limit of open files")

    async with open_run() as run:
        await run.start(A)
        monkeypatch.setattr(Journal, "make_room", no_file)
        with capture_logs() as lines:
            for _ in range(4):
                assert await run.plain(A, b"v") is RefusedAppend.STORAGE
            monkeypatch.setattr(partitions_module, "REFUSED_SAID_EVERY_S", 0)
            assert await run.plain(A, b"v") is RefusedAppend.STORAGE
        assert [(line["refused"], line["reason"]) for line in lines if "descriptors" in line["event"]] == [
            (1, "Raise the limit of open files"),
            (4, "Raise the limit of open files"),
        ]
        assert run.partitions.failure is None


async def test_leader_of_another_log_is_unknown(open_run) -> None:
    """A log that is not led takes nothing and has no high watermark; who waits for more of it is not held up."""
    async with open_run() as run:
        await run.start(A)
        assert await run.plain(B, b"v") is RefusedAppend.UNKNOWN_LOG
        assert run.partitions.get(B) is None
        await wait_for_more(run, {A: Offset(0), B: Offset(0)})


async def test_leader_wait_for_more_returns_with_the_first_new_record(open_run) -> None:
    """A consumer at the end of several partitions sleeps until one of them has more."""
    async with open_run() as run:
        await run.start(A, B)
        ends = {A: Offset(0), B: Offset(0)}
        assert await is_waiting(lambda: wait_for_more(run, ends))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_more, run, ends)
            await trio.testing.wait_all_tasks_blocked()
            await run.plain(B, b"v")
        await wait_for_more(run, ends)
        assert await is_waiting(lambda: wait_for_more(run, {A: Offset(0), B: Offset(1)}))


async def test_leader_with_a_full_backlog_makes_producers_wait(open_run) -> None:
    """What is written faster than it is copied is held up at the producer, not piled up in memory."""
    async with open_run(backlog_bytes_max=4000) as run:
        await run.start(A, copying=False)
        while not await is_waiting(lambda: run.plain(A, bytes(1000))):
            assert run[A].visibility.high_watermark == 0
        run.nursery.start_soon(run.partitions.run)
        assert isinstance(await run.plain(A, b"when there is room"), Appended)
        await run.partitions.drain()
        assert (await run.values(A))[-1] == b"when there is room"


async def test_leader_batch_larger_than_the_room_waits_for_room(open_run) -> None:
    """Two large batches that wait for the same new room both get theirs."""
    async with open_run() as run:
        await run.start(A)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(run.plain, A, bytes(200_000))
        await run.partitions.drain()
        assert run.partitions.failure is None
        assert len(await run.values(A)) == 4


# --- a log is dropped under those who use it ------------------------------------------------------


async def test_leader_dropped_lets_its_consumers_and_producers_go(open_run) -> None:
    """Who waits for more records, or for his own to become visible, is told when the log goes away."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"before")
        await run.partitions.drain()
        run.disk.hold()
        await run.plain(A, b"v")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_more, run, {A: Offset(1)})
            nursery.start_soon(run[A].visibility.reach, Offset(2))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(run.partitions.drop, [A])
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.disk.let_go()
        assert run.partitions.get(A) is None
        assert await run.plain(A, b"v") is RefusedAppend.UNKNOWN_LOG
        assert isinstance(await run.plain(B, b"v"), Appended)
        await run.partitions.drain()


async def test_leader_dropped_leaves_nothing_on_disk(open_run) -> None:
    """Journal and data log are gone, and dropping again what is gone does no harm."""
    async with open_run() as run:
        await run.start(A, B)
        for log in (A, B):
            await run.plain(log, b"v", producer_id=7, epoch=0, sequence=0)
        await run.partitions.drain()
        await run.partitions.drop([A])
        await run.partitions.drop([A])
        assert await trio.to_thread.run_sync(run.data_logs.logs) == [B]
        assert [path.name for path in (run.directory / "local").iterdir()] == [str(B)]


async def test_leader_dropped_while_a_batch_waits_for_room_refuses_that_batch_only(open_run) -> None:
    """The producer hears that the partition is gone; the node's other partitions take writes as before."""
    async with open_run() as run:
        await run.start(A, B)
        outcomes: list[object] = []

        async def produce() -> None:
            outcomes.append(await run.plain(A, bytes(500_000)))

        run.disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked(0.02)
            nursery.start_soon(run.partitions.drop, [A])
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.disk.let_go()
        assert outcomes == [RefusedAppend.UNKNOWN_LOG]
        assert run.partitions.failure is None
        assert isinstance(await run.plain(B, b"v"), Appended)


async def test_leader_dropped_while_a_transaction_begins_refuses_that_log_only(open_run) -> None:
    """The transaction begins in its other partition."""
    async with open_run() as run:
        await run.start(A, B)
        txid = transaction(7)
        run.disk.hold()
        async with trio.open_nursery() as nursery:

            async def begin() -> None:
                begun = await run.participant.begin(Begin(txid, (A, B)))
                assert list(begun.refused) == [A]
                assert list(begun.leader_epochs) == [B]

            nursery.start_soon(begin)
            await trio.testing.wait_all_tasks_blocked(0.02)
            nursery.start_soon(run.partitions.drop, [A])
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.disk.let_go()
        assert run.partitions.failure is None
        assert await run.write(txid, B, b"v") == Appended(None, None)


async def test_leader_dropped_while_it_is_copied_stops_nothing(open_run) -> None:
    """What is queued of the dropped log is skipped; what stands behind it is copied."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        for log in (A, B, A, B):
            await run.plain(log, bytes(1000))
        await run.partitions.drop([A])
        run.nursery.start_soon(run.partitions.run)
        await run.partitions.drain()
        assert len(await run.values(B)) == 2


async def test_leader_of_a_log_made_anew_begins_empty(open_run) -> None:
    """A topic deleted and made again under its name has another id, so nothing of the old one is met."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"old", producer_id=7, epoch=0, sequence=0)
        await run.partitions.drain()
        await run.partitions.drop([A])
        anew = LogId.of_topic(UUID(int=2), 0)
        await run.lead([anew])
        assert run[anew].visibility.high_watermark == 0
        refused = await run.plain(anew, b"goes on", producer_id=7, epoch=0, sequence=1)
        assert refused is RefusedAppend.UNKNOWN_PRODUCER
        assert base_of(await run.plain(anew, b"new", producer_id=7, epoch=0, sequence=0)) == Offset(0)
        await run.partitions.drain()
        assert await run.values(anew) == [b"new"]


# --- the disk fails -------------------------------------------------------------------------------


async def test_leader_after_a_failed_flush_refuses_writes_and_serves_reads(open_run) -> None:
    """Invariant 12: all partitions refuse, the reason is kept, what was visible is read on, and who waits is told."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"kept")
        await run.partitions.drain()
        run.disk.failing = str(A)
        outcome = await run.plain(A, b"lost")
        assert isinstance(outcome, Appended)
        with pytest.raises(StorageFailure, match="fdatasync"):
            await run[A].visibility.reach(Offset(2))
        assert run.partitions.failure is not None
        for log in (A, B):
            assert await run.plain(log, b"v") is RefusedAppend.STORAGE
        with pytest.raises(StorageFailure):
            await run.begin(transaction(7), B)
        assert await run.values(A) == [b"kept"]
        assert run[A].visibility.high_watermark == 1


async def test_leader_closed_after_a_failed_flush_still_closes_the_other_journals(open_run) -> None:
    """One broken journal does not keep the others from their clean end, and the failure is told."""
    async with open_run() as run:
        await run.start(A, B)
        for log in (A, B):
            await run.plain(log, b"kept")
        await run.partitions.drain()
        run.disk.failing = str(A)
        await run.plain(A, b"lost")
        with pytest.raises(StorageFailure):
            await run.partitions.drain()
        with pytest.raises(StorageFailure, match=str(A)):
            await run.partitions.close()
        copy = run.crash(run.directory.with_name("copy"))
    closed = reopen(copy / JOURNALS / str(B), kind=JournalKind.LOCAL, fsync=Fsync.COMMIT, sync=os.fsync).closed
    assert closed
    async with open_run() as again:
        await again.start(A, B)
        assert await again.values(B) == [b"kept"]
