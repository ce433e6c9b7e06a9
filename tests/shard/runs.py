"""Leaders on real journals, a real flusher and a real LMDB environment; and what a crash leaves of them.

Fault model. `Run.crash` copies the files of a run as they lie there now: that is what a killed process leaves. With
`losing` the named journals are taken from an older copy instead: that is what a power cut may leave of what was not
flushed. A disk that fails, or that is slow, is `Disk`, in place of fdatasync.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any
from uuid import UUID

import trio
import trio.testing

from coordinator.messages import Application, ApplyCommit, Begin, DiscardTransaction, Expected, Prepare, Prepared
from datalog.batch import parse_batch_header_untrusted
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog.groups.offset_index import OffsetIndex
from fairlog_types import (
    ApplyNumber,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.flush import open_flusher
from journal.journal import Fsync, JournalKind, JournalSettings
from journal.on_files import JournalsOnFiles
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, TransactionMode
from partition.partition import Partition
from shard.participant import Participant
from shard.partitions import Partitions
from tests.clients.raw_client import batch, records_of

A, B, C = (LogId.of_topic(UUID(int=1), partition) for partition in range(3))
"""The logs of one topic."""

MAP_BYTES = 64 * 2**20
DATA_LOGS, JOURNALS = "datalog", "local"


class Disk:
    """Stands in for fdatasync: can be held back, and can fail."""

    def __init__(self) -> None:
        self.failing = ""
        """Part of the path of those files whose sync fails; empty: none."""
        self.waiting = 0
        self.syncs = 0
        """That have begun so far."""
        self._lock = Lock()
        self._held = ""
        self._go = Event()
        self._go.set()

    def __call__(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        with self._lock:
            self.syncs += 1
        if self._held in path:
            with self._lock:
                self.waiting += 1
            assert self._go.wait(10), "a test held the disk and never let go"
            with self._lock:
                self.waiting -= 1
        if self.failing and self.failing in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def hold(self, only: str = "") -> None:
        """Let every sync of a file whose path contains `only` wait from now on."""
        self._held = only
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()


class Clock:
    """The node's clock, in milliseconds since 1970."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def transaction(producer_id: int, number: int = 0, *, epoch: int = 0) -> TxId:
    return TxId(ProducerId(producer_id), ProducerEpoch(epoch), number)


@dataclass
class Run:
    """One run of a shard without a coordinator over a directory; to others it is a `shard.shard.Shard`."""

    directory: Path
    partitions: Partitions
    participant: Participant
    offset_index: OffsetIndex
    data_logs: LmdbDataLogs
    disk: Disk
    clock: Clock
    nursery: trio.Nursery
    _applications: dict[TxId, Application] = field(default_factory=dict)

    def __getitem__(self, log: LogId) -> Partition:
        return self.partitions.by_log[log]

    async def lead(self, logs: Sequence[LogId], mode: TransactionMode = JOURNAL) -> None:
        await self.partitions.lead(logs, mode, opened=self.participant.recall)

    async def drop(self, logs: Sequence[LogId]) -> None:
        await self.partitions.drop(logs)

    @property
    def failure(self) -> StorageFailure | None:
        return self.partitions.failure

    def finish_recovery(self) -> None:
        self.participant.finish_recovery()
        self.partitions.finish_recovery()

    async def start(self, *logs: LogId, copying: bool = True, mode: TransactionMode = JOURNAL) -> None:
        """Lead `logs` as a node does that has no coordinator to ask; without `copying` nothing becomes visible."""
        await self.lead(logs, mode)
        await self.serve(copying=copying)

    async def serve(self, *, copying: bool = True) -> None:
        """What follows when the coordinator has said again what it had decided."""
        self.finish_recovery()
        if copying:
            self.nursery.start_soon(self.partitions.run)
            await self.partitions.drain()

    def crash(self, into: Path, *, losing: Mapping[LogId, Path] | None = None) -> Path:
        """Copy the files as a crash leaves them; of the logs in `losing`, the journal of that older copy.

        A crash takes one moment, a copy takes a while, in which the flusher's threads may give a segment its name. So
        it is made again until nothing has changed meanwhile.
        """
        while True:
            before = _files(self.directory)
            try:
                shutil.copytree(self.directory, into, ignore=shutil.ignore_patterns("lock.mdb"))
            except shutil.Error:
                if before == _files(self.directory):
                    raise
            if before == _files(self.directory):
                break
            shutil.rmtree(into)
        for log, older in (losing or {}).items():
            shutil.rmtree(into / JOURNALS / str(log), ignore_errors=True)
            if (older / JOURNALS / str(log)).exists():
                shutil.copytree(older / JOURNALS / str(log), into / JOURNALS / str(log))
        return into

    async def plain(
        self, log: LogId, *values: bytes, producer_id: int = -1, epoch: int = -1, sequence: int = -1
    ) -> Appended | DuplicateOf | RefusedAppend:
        return await self._append(log, batch(values, producer_id=producer_id, epoch=epoch, sequence=sequence))

    async def write(
        self, txid: TxId, log: LogId, *values: bytes, sequence: int = 0
    ) -> Appended | DuplicateOf | RefusedAppend:
        """A batch of the transaction."""
        data = batch(values, producer_id=txid.producer_id, epoch=txid.epoch, sequence=sequence, transactional=True)
        return await self._append(log, data)

    async def _append(self, log: LogId, data: bytearray) -> Appended | DuplicateOf | RefusedAppend:
        header, partition = parse_batch_header_untrusted(data), self.partitions.get(log)
        if partition is None:
            return RefusedAppend.UNKNOWN_LOG
        return await partition.append(data, header, self.partitions.open_transaction_of(header.producer_id))

    async def begin(self, txid: TxId, *logs: LogId) -> None:
        begun = await self.participant.begin(Begin(txid, logs))
        assert not begun.refused, begun

    async def prepare(self, txid: TxId, *logs: LogId) -> Mapping[LogId, Expected]:
        """Have it prepared; what PREPARE_COMMIT would say of it."""
        preparation = self.participant.prepare([Prepare(txid, dict.fromkeys(logs, LeaderEpoch(1)))])
        prepared = await preparation.outcome()
        assert not prepared.refused, prepared
        return preparation.expected[txid]

    def seal(self, txid: TxId, *logs: LogId) -> Mapping[LogId, Expected]:
        """Have it prepared, and do not wait for the disk."""
        return self.participant.prepare([Prepare(txid, dict.fromkeys(logs, LeaderEpoch(1)))]).expected[txid]

    async def prepare_again(self, expected: Mapping[LogId, Expected], *txids: TxId) -> Prepared:
        """What a coordinator says that finds PREPARE_COMMIT of these with such counts."""
        messages = [Prepare(txid, {log: it.leader_epoch for log, it in expected.items()}, expected) for txid in txids]
        return await self.participant.prepare(messages).outcome()

    async def apply_number(self, txid: TxId, *logs: LogId) -> ApplyNumber | None:
        """The number under which the first of these logs that has placed it did so."""
        applied = (self[log].state.applied(txid) for log in logs)
        return next((it.apply_number for it in applied if it is not None), None)

    def place(self, txid: TxId, *logs: LogId) -> None:
        message = ApplyCommit(txid, logs, self.clock(), f"group of {txid.producer_id}")
        self._applications[txid] = self.participant.apply([message])

    async def applied(self, txid: TxId) -> Sequence[Placement]:
        """Wait until what was placed is visible."""
        (applied,) = await self._applications[txid].visible()
        return applied.placements

    def discard(self, txid: TxId, *logs: LogId) -> None:
        self.participant.discard(DiscardTransaction(txid, logs))

    async def commit(self, txid: TxId, contents: Mapping[LogId, bytes], *, sequence: int = 0) -> Sequence[Placement]:
        """A whole transaction of one record per log."""
        await self.begin(txid, *contents)
        for log, value in contents.items():
            assert await self.write(txid, log, value, sequence=sequence) == Appended(None, None)
        await self.prepare(txid, *contents)
        self.place(txid, *contents)
        return await self.applied(txid)

    async def values(self, log: LogId) -> list[bytes | None]:
        """What the data log holds, in order; asserts that its offsets are dense."""
        return (await self.snapshot(log))[log]

    async def snapshot(self, *logs: LogId) -> dict[LogId, list[bytes | None]]:
        """What these logs hold, as one reader sees them at once."""
        return await trio.to_thread.run_sync(read_all, self.data_logs, logs)

    async def committed(self, *logs: LogId) -> dict[LogId, list[tuple[Offset, bytes | None]]]:
        """What a reader of committed records sees of these logs at once, with the offsets."""
        return await trio.to_thread.run_sync(read_committed, self.data_logs, logs)


def base_of(outcome: Appended | DuplicateOf | RefusedAppend) -> Offset | None:
    """The offset at which a batch was appended."""
    assert isinstance(outcome, Appended), outcome
    return outcome.base_offset


def base_of_repeated(outcome: Appended | DuplicateOf | RefusedAppend) -> Offset | None:
    """The offset at which a batch that was repeated had been appended."""
    assert isinstance(outcome, DuplicateOf), outcome
    return outcome.base_offset


def _files(directory: Path) -> dict[Path, tuple[int, int, int]]:
    """What tells whether a file of `directory` was changed, renamed or made."""
    found: dict[Path, tuple[int, int, int]] = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            found[path] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def read_all(data_logs: LmdbDataLogs, logs: Sequence[LogId]) -> dict[LogId, list[bytes | None]]:
    """The values of `logs` in one read transaction. Blocking."""
    found: dict[LogId, list[bytes | None]] = {}
    for answer in data_logs.read([ReadRequest(log, Offset(0), 1 << 30) for log in logs], bytes_max=1 << 30):
        assert isinstance(answer, ReadResult)
        records = [record for data in answer.batches for record in records_of(data)]
        assert [offset for offset, _ in records] == list(range(answer.next_offset))
        found[answer.log] = [value for _, value in records]
    return found


def read_committed(data_logs: LmdbDataLogs, logs: Sequence[LogId]) -> dict[LogId, list[tuple[Offset, bytes | None]]]:
    """Offsets and values of the committed records of `logs`, in one read transaction, as a client filters them."""
    found: dict[LogId, list[tuple[Offset, bytes | None]]] = {}
    requests = [ReadRequest(log, Offset(0), 1 << 30, committed_only=True) for log in logs]
    for answer in data_logs.read(requests, bytes_max=1 << 30):
        assert isinstance(answer, ReadResult)
        records = found[answer.log] = []
        for data in answer.batches:
            header = parse_batch_header_untrusted(data)
            aborted = any(
                it.producer_id == header.producer_id and it.first_offset <= header.base_offset < it.last_offset
                for it in answer.aborted
            )
            if not header.control and not aborted:
                records += [(Offset(offset), value) for offset, value in records_of(data)]
    return found


@asynccontextmanager
async def open_run(
    directory: Path,
    *,
    leader_epoch: int,
    fsync: Fsync = Fsync.COMMIT,
    producer_expiration_ms: int = 86_400_000,
    clock: Clock | None = None,
    timeout_s: float = 20.0,
    **bounds: Any,
) -> AsyncGenerator[Run, None]:
    """Open leaders over `directory`; on leaving, all is closed in good order, unless a disk has failed.

    A test that waits for what does not come fails after `timeout_s`, by the clock of the event loop.
    """
    clock = clock or Clock()
    disk = Disk()
    data_logs = await trio.to_thread.run_sync(
        partial(LmdbDataLogs.open, directory / DATA_LOGS, map_bytes=MAP_BYTES, sync=False)
    )
    try:
        async with open_flusher(threads=4, sync=disk) as flusher, trio.open_nursery() as nursery:
            partitions = Partitions(
                directory / JOURNALS,
                data_logs=data_logs,
                journals=JournalsOnFiles(
                    flusher,
                    {JournalKind.LOCAL: JournalSettings(fsync=fsync, segment_bytes_max=2**20)},
                    LeaderEpoch(leader_epoch),
                ),
                leader_epoch=LeaderEpoch(leader_epoch),
                producer_expiration_ms=producer_expiration_ms,
                now_ms=clock,
                **bounds,
            )
            try:
                with trio.fail_after(timeout_s):  # noqa: ASYNC100 (the test waits where this yields)
                    index = OffsetIndex(clock)
                    participant = Participant(
                        partitions, whole_since=lambda: LeaderEpoch(0), offsets_decided=index.decided
                    )
                    yield Run(directory, partitions, participant, index, data_logs, disk, clock, nursery)
            finally:
                nursery.cancel_scope.cancel()
                disk.let_go()
                with trio.CancelScope(shield=True), suppress(StorageFailure):
                    await partitions.close()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(data_logs.close)


async def is_waiting(work: Callable[[], Awaitable[object]]) -> bool:
    """Whether `work` still waits when all else has come to rest; it is cancelled then."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await trio.testing.wait_all_tasks_blocked(0.02)
                scope.cancel()

            nursery.start_soon(give_up)
            await work()
            nursery.cancel_scope.cancel()
    return scope.cancelled_caught


class _Waiter:
    """Waits for any of several logs to have more, as a reader of committed records or of all."""

    def __init__(self, *, committed_only: bool) -> None:
        self._committed_only = committed_only
        self.told = trio.Event()

    def moved(self, *, stable: bool) -> bool:
        if self._committed_only and not stable:
            return False
        self.told.set()
        return True


async def wait_for_more(run: Run, ends: Mapping[LogId, Offset], *, committed_only: bool = False) -> None:
    """Return as soon as one of these logs moves, has more to read than up to the given offset, or is gone."""
    waiter = _Waiter(committed_only=committed_only)
    watched = [run[log].visibility for log in ends if run.partitions.get(log) is not None]
    if len(watched) == len(ends) and all(
        each.watch(waiter, beyond=ends[each.log], committed_only=committed_only) for each in watched
    ):
        await waiter.told.wait()
    for each in watched:
        each.unwatch(waiter)
    await trio.lowlevel.checkpoint()
