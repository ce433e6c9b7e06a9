"""A shard, put together: partitions, their copier, a coordinator, one LMDB environment, one leader epoch, one failure.

    directory ─▶ data logs, flusher ─▶ partitions ─▶ participant ─▶ coordinator
    up:    lead (journals replayed) ─▶ recover (decided again, what is placed goes to the copier) ─▶ run
    down:  drain ─▶ group journals closed ─▶ local journals ─▶ flusher ─▶ data logs

The coordinator speaks to the participant in messages (`coordinator.messages`), and to nothing else of the shard.
Where its files lie, `shard.directory` says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from coordinator.group_journal import GroupJournal
from coordinator.id_table import IdTable
from coordinator.ids import ProducerIds
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from datalog.environment import LmdbDataLogs
from datalog.interface import DataLogs
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, Offset, StorageFailure, TxId
from journal.flush import Flusher, TailWatcher, open_flusher
from journal.journal import Fsync, Journal, JournalKind, JournalSettings
from journal.segment_file import make_root
from partition.modes import JOURNAL, TransactionMode
from shard.directory import ShardDirectory
from shard.participant import Participant
from shard.partitions import Partitions

GROUP_SEGMENT_BYTES_MAX = 8 * 2**20
"""Group journals are small and are snapshotted as whole segments; Kafka's __transaction_state uses 100 MiB for
want of such a cut, etcd snapshots every 10,000 entries."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard uses its directory, and the rules of its transactions."""

    map_bytes: int
    fsync: Fsync
    fsync_interval_ms: int
    segment_bytes_max: int
    """Of local journals."""
    group_journals: int
    producer_expiration_ms: int
    coordinator: CoordinatorSettings


class Shard:
    """All that one event loop owns of a node. Made by `open_shard`."""

    def __init__(self, partitions: Partitions, participant: Participant, coordinator: Coordinator) -> None:
        self.partitions = partitions
        self.coordinator = coordinator
        self._participant = participant

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Under which it leads its partitions and its groups in this run."""
        return self.partitions.leader_epoch

    @property
    def data_logs(self) -> DataLogs:
        return self.partitions.data_logs

    @property
    def failure(self) -> StorageFailure | None:
        """Why this shard takes no more writes until it is restarted; None as long as it does."""
        return self.partitions.failure

    async def lead(self, logs: Sequence[LogId], mode: TransactionMode = JOURNAL) -> None:
        """See `Partitions.lead`."""
        await self.partitions.lead(logs, mode, opened=self._participant.recall)

    async def drop(self, logs: Sequence[LogId]) -> None:
        """See `Partitions.drop`."""
        await self.partitions.drop(logs)

    async def recover(self, *, tail_kept: bool) -> None:
        """Decide what the last run left undecided, once all that is there is led; then what is placed may be copied.

        An open transaction that its coordinator has not resumed is discarded: its BEGIN was lost with the power, or its
        abort left no trace here. Raises StorageFailure, CorruptStorage; see `Coordinator.recover`.
        """
        await self.coordinator.recover(tail_kept=tail_kept)
        self.finish_recovery()

    def finish_recovery(self) -> None:
        """The end of `recover`: the coordinator has said again what it had decided, and what is open and goes on."""
        self._participant.discard_orphans()
        self.partitions.finish_recovery()

    async def drain(self) -> None:
        """Return once everything that is placed so far is visible. Raises StorageFailure if it will not be."""
        await self.partitions.drain()


@asynccontextmanager
async def open_shard(
    directory: ShardDirectory,
    settings: ShardSettings,
    *,
    leader_epoch: LeaderEpoch,
    producer_ids: ProducerIds,
    begun: bool,
    note_begun: Callable[[], Awaitable[None]],
    watcher: TailWatcher,
    offsets_decided: Callable[[LogId, TxId, Offset | None], None],
    now_ms: Callable[[], int],
) -> AsyncGenerator[Shard, None]:
    """Open the shard in `directory`; it leads nothing yet. On leaving, all files are closed in good order.

    `begun`: its group journals were made by an earlier start, so that a missing one is a loss; otherwise `note_begun`
    is awaited once they are on disk. Raises CorruptStorage, StorageFailure.
    """
    async with AsyncExitStack() as stack:
        data_logs = await trio.to_thread.run_sync(
            partial(LmdbDataLogs.open, directory.data_logs, map_bytes=settings.map_bytes)
        )
        stack.push_async_callback(close_in_thread, data_logs.close)
        for root in (directory.local_journals, directory.group_journals):
            await trio.to_thread.run_sync(partial(make_root, root, below=directory.data_dir))
        flusher = await stack.enter_async_context(open_flusher(watcher=watcher))
        ids = IdTable(settings.group_journals, settings.coordinator.group_separator)
        partitions = Partitions(
            directory.local_journals,
            data_logs=data_logs,
            flusher=flusher,
            journal_settings=JournalSettings(
                fsync=settings.fsync,
                fsync_interval_ms=settings.fsync_interval_ms,
                segment_bytes_max=settings.segment_bytes_max,
            ),
            leader_epoch=leader_epoch,
            producer_expiration_ms=settings.producer_expiration_ms,
            now_ms=now_ms,
            epoch_of=ids.epoch_of,
        )
        stack.push_async_callback(partitions.close)
        participant = Participant(partitions, offsets_decided=offsets_decided)
        group_journals = await _open_group_journals(
            stack, directory, settings, flusher=flusher, leader_epoch=leader_epoch, begun=begun
        )
        if not begun:
            await _begin(group_journals)
            await note_begun()
        coordinator = Coordinator(
            table=ids,
            journals=[GroupJournal(journal, now_ms) for journal in group_journals],
            participants=participant,
            producer_ids=producer_ids,
            settings=settings.coordinator,
            now_ms=now_ms,
            on_failure=partitions.refuse_writes,
        )
        yield Shard(partitions, participant, coordinator)


async def _open_group_journals(
    stack: AsyncExitStack,
    directory: ShardDirectory,
    settings: ShardSettings,
    *,
    flusher: Flusher,
    leader_epoch: LeaderEpoch,
    begun: bool,
) -> Sequence[Journal]:
    opened: list[Journal] = []
    for number in range(settings.group_journals):
        journal = await Journal.open(
            directory.group_journal(number),
            kind=JournalKind.GROUP,
            settings=JournalSettings(
                fsync=settings.fsync,
                fsync_interval_ms=settings.fsync_interval_ms,
                segment_bytes_max=GROUP_SEGMENT_BYTES_MAX,
            ),
            flusher=flusher,
            leader_epoch=leader_epoch,
        )
        stack.push_async_callback(journal.close)
        if begun and not journal.begun:
            raise CorruptStorage(
                f"the group journal {directory.group_journal(number)} is missing. Put back an intact copy of the "
                "directory; starting without it would lose what was answered."
            )
        opened.append(journal)
    return opened


async def _begin(journals: Sequence[Journal]) -> None:
    """Let each be on disk, in parallel. Raises StorageFailure."""
    failures: list[StorageFailure] = []

    async def begin(journal: Journal) -> None:
        try:
            await journal.begin()
        except StorageFailure as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for journal in journals:
            nursery.start_soon(begin, journal)
    if failures:
        raise failures[0]


async def close_in_thread(close: Callable[[], None]) -> None:
    """Close something that blocks, even if the start was cancelled."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(close)
