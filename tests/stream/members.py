"""Members of a small cluster in one process: a copy of one shard each, in real files, with its journals on an engine.

A member leads the logs that it is given, and serves nobody: a test asks the shard of the member that owns it. When a
member is killed its tasks are cancelled and nothing is handed over; what it had begun to append may still come.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from coordinator.settings import CoordinatorSettings
from datalog.interface import ReadRequest, ReadResult
from fairlog_types import LogId, Offset, TxId
from journal.journal import Fsync
from partition.modes import JOURNAL
from shard.directory import FIRST_SHARD, shard_directory
from shard.giving import Giver
from shard.owned import OwnedShard
from shard.partitions import Partitions
from shard.progress import CopyProgress, CopyReport, Role
from shard.replica import Replica, StreamTimes
from shard.roles import Copy, play_roles
from shard.shard import Shard, ShardSettings, open_storage
from stream.engine import Engine, EntryGone

SETTINGS = ShardSettings(
    fsync=Fsync.COMMIT,
    fsync_interval_ms=100,
    segment_bytes_max=2**20,
    group_journals=2,
    producer_expiration_ms=86_400_000,
    coordinator=CoordinatorSettings(),
)
TIMES = StreamTimes(failover_s=1.0, heartbeat_s=0.2, mark_every_s=0.5)
WAIT_S = 30.0


class ProducerIds:
    """What all members allot from."""

    def __init__(self) -> None:
        self._next = 1000

    async def allot_producer_ids(self, count: int) -> range:
        await trio.lowlevel.checkpoint()
        self._next += count
        return range(self._next - count, self._next)


class NobodyWatches:
    def tail_cut(self, interrupted: bool) -> None:
        """The stream has it."""

    def failed(self) -> None:
        """The test sees that."""


class Member:
    """One of them. Implements `shard.roles.Roles`."""

    def __init__(self, name: str, rank: int, directory: Path, logs: Sequence[LogId], ids: ProducerIds) -> None:
        self.name = name
        self.epochs: list[int] = []
        """Those in which it has owned the shard."""
        self.shard: Shard | None = None
        """While it owns it, and has recovered."""
        self.ended = trio.Event()
        """Set when nothing of it runs any more."""
        self.progress = CopyProgress()
        self.giver = Giver()
        self.left_behind: EntryGone | None = None
        """The stream was trimmed further than its copy had read."""
        self._partitions: Partitions | None = None
        self._rank = rank
        self._directory = shard_directory(directory, FIRST_SHARD)
        self._logs = logs
        self._ids = ids
        self._life = trio.CancelScope()
        self._stop = trio.Event()

    async def run(self, opening: AbstractAsyncContextManager[Engine]) -> None:
        """Until it is killed, or has stopped."""
        self._life, self._stop, self._partitions, self.ended = trio.CancelScope(), trio.Event(), None, trio.Event()
        try:
            await self._run(opening)
        finally:
            self.ended.set()

    def report(self) -> CopyReport:
        """How far its copy is; for when it has one."""
        report = self.progress.report
        assert report is not None
        return report

    def role(self) -> Role | None:
        """None while it starts."""
        return None if self.progress.report is None else self.progress.report.role

    async def _run(self, opening: AbstractAsyncContextManager[Engine]) -> None:
        with self._life:
            async with (
                opening as engine,
                open_storage(self._directory, map_bytes=2**28, watcher=NobodyWatches()) as storage,
            ):
                copy = Copy(
                    self._directory,
                    storage,
                    SETTINGS,
                    range(SETTINGS.group_journals),
                    await engine.open_stream("shard-0"),
                    self.name,
                    self._rank,
                    TIMES,
                    self._ids,
                    lambda: time.time_ns() // 1_000_000,
                    progress=self.progress,
                    giver=self.giver,
                )
                try:
                    await play_roles(copy, self, self._stop)
                except EntryGone as gone:  # here, within the groups of what is open
                    self.left_behind = gone

    def kill(self) -> None:
        self._life.cancel()

    def stop(self) -> None:
        self._stop.set()

    def read(self) -> list[list[bytes]] | None:
        """All batches of all logs, in the logs' order; None while it starts."""
        if self._partitions is None:
            return None
        answers = self._partitions.data_logs.read(
            [ReadRequest(log, Offset(0), 1 << 30) for log in self._logs], bytes_max=1 << 30
        )
        found: list[list[bytes]] = []
        for answer in answers:
            assert isinstance(answer, ReadResult), answer
            found.append([bytes(batch) for batch in answer.batches])
        return found

    def groups(self, log: LogId) -> list[tuple[bytes, bytes]] | None:
        """The records of groups in an offsets log; None while it starts."""
        return None if self._partitions is None else self._partitions.data_logs.groups(log)

    # --- its roles ---

    async def lead(self, partitions: Partitions) -> None:
        await partitions.lead(self._logs, JOURNAL)

    async def adopt(self, _partitions: Partitions, _log: LogId) -> bool:
        return False

    @asynccontextmanager
    async def following(self, replica: Replica) -> AsyncIterator[None]:
        self._partitions = replica.partitions
        yield

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        shard = owned.shard
        await shard.lead(self._logs)
        await shard.recover()
        async with trio.open_nursery() as background:
            background.start_soon(shard.partitions.run)
            await shard.drain()
            background.start_soon(shard.coordinator.run)
            self._partitions, self.shard = shard.partitions, shard
            self.epochs.append(shard.leader_epoch)
            try:
                async with trio.open_nursery() as waiting:
                    for event in (stop, owned.over):
                        waiting.start_soon(_cancel_when, event, waiting.cancel_scope)
            finally:
                self.shard = None
            background.cancel_scope.cancel()

    def offsets_decided(self, _log: LogId, _txid: TxId, _offset: Offset | None) -> None:
        """No offsets are committed."""

    def successor(self) -> str | None:
        return None


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def until(what: Callable[[], bool]) -> None:
    """Wait until it is so. Raises TooSlowError."""
    with trio.fail_after(WAIT_S):
        while not what():  # noqa: ASYNC110
            await trio.sleep(0.01)
