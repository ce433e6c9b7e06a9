"""The partitions of a shard, with the copier after them.

    opened by `partition.store` ─▶ here, by log ─▶ recovered: one order for what all of them have placed
    partition ─▶ place ─▶ copier ─▶ visibility of each log that moved, or will in a moment (`reading_ahead`)

Until the shard has recovered, what is placed is kept back: it goes after what recovery finds (`finish_recovery`).

A storage failure is final for the run: from then on every write of the shard is refused, reads go on (invariant 12).

Not here: what is written to a log (`partition.partition`), and transactions (`participant`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

import structlog
import trio

from copier.copier import BACKLOG_BYTES_MAX, Copier, CopierStatistics
from copier.reclaim import Reclaimer
from datalog.interface import DataLogs, Mark, NoRoom, TooManyLogs, UnknownLog
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, StorageFailure, TxId
from journal.interface import Journals, OpenJournal
from journal.journal import NoFiles
from partition.answers import LogCut
from partition.modes import JOURNAL, TransactionMode
from partition.partition import AppendedCounts, Partition
from partition.placed import Placed
from partition.store import Opened, PartitionStore, steps
from shard.reading_ahead import read_ahead

EXPIRY_CHECK_MS = 600_000
"""How often idle producers are looked for: Kafka's producer.id.expiration.check.interval.ms."""

REFUSED_SAID_EVERY_S = 60
"""A process without file descriptors may refuse thousands of writes in a second."""

SWEEP_AGAIN_S = 10
"""After a sweep for which there was no room."""

logger = structlog.get_logger("fairlog.partitions")


class Partitions:
    """All partitions that a shard leads. Used on the event loop. Implements `partition.partition.ShardOfPartition`."""

    def __init__(
        self,
        directory: Path,
        *,
        data_logs: DataLogs,
        journals: Journals,
        leader_epoch: LeaderEpoch,
        producer_expiration_ms: int,
        now_ms: Callable[[], int],
        epoch_of: Callable[[ProducerId], ProducerEpoch | None] = lambda _producer_id: None,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        keeps_cuts: bool = True,
    ) -> None:
        """`directory` holds one directory per journal, named by its log.

        `epoch_of` tells the current epoch of a transactional producer (None: it is none). With more than
        `backlog_bytes_max` written and not copied yet, producers wait. `keeps_cuts`: see `Copier`.
        """
        self.leader_epoch = leader_epoch
        self.data_logs = data_logs
        self.now_ms = now_ms
        self.failure: StorageFailure | None = None
        """Why no more writes are taken; None as long as they are."""
        self.has_failed = trio.Event()
        """Set with `failure`."""
        self.appended = AppendedCounts()
        self.open_by_producer: dict[ProducerId, TxId] = {}
        """The transaction that each producer has open in this shard: Produce names the producer only."""
        self.current_epoch_of = epoch_of
        self._by_log: dict[LogId, Partition] = {}
        self._store = PartitionStore(directory, self, journals)
        self._producer_expiration_ms = producer_expiration_ms
        self._copier = Copier(
            data_logs,
            self._journal_of,
            on_copied=self._on_copied,
            on_failure=self._copying_has_failed,
            on_durable=lambda groups: read_ahead(groups, self._by_log.get),
            backlog_bytes_max=backlog_bytes_max,
            keeps_cuts=keeps_cuts,
        )
        self.is_copier_behind = self._copier.is_behind
        self.room_in_copier = self._copier.room
        self.is_copier_outrun = self._copier.is_outrun
        self._marks: dict[LogId, Mark] = {}
        """Of all logs, as the data logs had them at the start; handed on with what is recovered."""
        self._recovered: dict[LogId, list[Placed]] | None = {}
        """What is placed and not yet copied, by log, until `finish_recovery` hands it to the copier."""
        self._sweepers: trio.Nursery | None = None
        """Where what lies before the logs' starts is deleted; None where that is not looked for."""
        self._is_sweeping = False
        self._refused_for_files = 0
        """Since the log last said so."""
        self._refused_said_s = -math.inf

    # --- which there are ----------------------------------------------------------------------

    def get(self, log: LogId) -> Partition | None:
        """The partition of `log`; None if this shard does not lead it."""
        return self._by_log.get(log)

    @property
    def by_log(self) -> Mapping[LogId, Partition]:
        """All of them: a live view."""
        return MappingProxyType(self._by_log)

    def journal_directory(self, log: LogId) -> Path:
        return self._store.journal_directory(log)

    async def lead(
        self,
        logs: Sequence[LogId],
        mode: TransactionMode = JOURNAL,
        *,
        opened: Callable[[Partition], None] = lambda _partition: None,
    ) -> None:
        """Take the lead of `logs`, all of one mode: open their journals and replay what the data logs do not hold yet.

        `opened` is called with each, before it takes writes. Raises CorruptStorage or StorageFailure; then none of the
        remaining logs is led, and a shard that has recovered already refuses writes: its next start leads them.
        NoFiles, if no file can be opened just now, is no failure, nor is TooManyLogs, which concerns new logs alone.
        """
        try:
            async for found in self._store.open([log for log in logs if log not in self._by_log], mode):
                opened(found.partition)
                self._adopt(found)
        except (NoFiles, TooManyLogs):
            raise
        except StorageFailure as failure:
            if self._recovered is None:
                self.fail(failure)
            raise

    def _adopt(self, opened: Opened) -> None:
        log = opened.partition.log
        assert self._recovered is not None or not opened.placed, "a log with a past is led at the start only"
        if self._recovered is not None:
            self._marks[log] = opened.mark
            self._recovered[log] = opened.placed
        self._by_log[log] = opened.partition

    def finish_recovery(self) -> None:
        """Hand what is placed so far to the copier, in one order."""
        assert self._recovered is not None
        recovered, self._recovered = self._recovered, None
        self._copier.recover(recovered, self._marks)
        self._marks = {}

    async def drop(self, logs: Sequence[LogId]) -> None:
        """Stop leading `logs`, then remove their journals and data logs. What is not there is passed over.

        Raises StorageFailure; asking again goes on where it stopped.
        """
        for step in steps(logs):
            for log in step:
                partition = self._by_log.pop(log, None)
                if partition is not None:
                    self._copier.forget(log)
                    await partition.leave().close()
            await self._store.remove(step)

    async def close(self) -> None:
        """Close all journals cleanly. Nothing may be appended any more.

        Raises the first StorageFailure; the other journals are closed all the same.
        """
        failures: list[StorageFailure] = []
        for partition in self._by_log.values():
            try:
                await partition.journal.close()
            except StorageFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    # --- the copy -----------------------------------------------------------------------------

    def place(self, group: tuple[Placed, ...], *, order: str | None = None) -> None:
        """See `ShardOfPartition.place`."""
        if self._recovered is None:
            self._copier.submit(group, order=order)
            return
        for item in group:
            self._recovered.setdefault(item.log, []).append(item)

    async def drain(self) -> None:
        """Return once everything that is placed so far is visible. Raises StorageFailure if it will not be."""
        await self._copier.drain()

    @property
    def failed_copy(self) -> StorageFailure | None:
        """Why nothing is copied any more; None as long as it is."""
        return self._copier.failed

    def urge(self) -> None:
        """Let what is placed, and changes no records, be copied now as well; otherwise it waits for the next ones."""
        self._copier.urge()

    def copier_statistics(self) -> CopierStatistics:
        return self._copier.statistics()

    def _journal_of(self, log: LogId) -> OpenJournal:
        return self._by_log[log].journal

    def _on_copied(
        self,
        high_watermarks: Mapping[LogId, Offset],
        last_stable: Mapping[LogId, Offset],
        log_starts: Mapping[LogId, Offset],
    ) -> None:
        for log, high_watermark in high_watermarks.items():
            partition = self._by_log.get(log)
            if partition is not None:
                partition.visibility.advance(high_watermark, last_stable[log])
        if log_starts:
            for log, log_start in log_starts.items():
                partition = self._by_log.get(log)
                if partition is not None:
                    partition.visibility.begin_at(log_start)
            self._sweep_soon()

    def _copying_has_failed(self, failure: StorageFailure) -> None:
        self.fail(failure)
        for partition in self._by_log.values():
            partition.visibility.fail(failure)

    def open_transaction_of(self, producer_id: ProducerId) -> TxId | None:
        """See `ShardOfPartition.open_transaction_of`."""
        return self.open_by_producer.get(producer_id)

    # --- cuts ---------------------------------------------------------------------------------

    def cut(self, logs: Iterable[LogId]) -> Mapping[LogId, LogCut]:
        """How far each of these logs can be read, as of one moment; logs that are not led here are left out.

        The copier tells of all logs of a chunk in one step, so this is a cut: of every transaction it holds all or
        nothing. In topics of marker mode it may hold a part (`datalog.cuts`).
        """
        found: dict[LogId, LogCut] = {}
        for log in logs:
            partition = self._by_log.get(log)
            if partition is not None:
                end = partition.visibility.last_stable_offset
                found[log] = LogCut(partition.visibility.log_start, end, end)
        return found

    def high_watermarks(self, logs: Iterable[LogId]) -> Mapping[LogId, Offset]:
        """Those of these logs that are led here."""
        led = ((log, self._by_log.get(log)) for log in logs)
        return {log: partition.visibility.high_watermark for log, partition in led if partition is not None}

    async def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Mapping[LogId, LogCut]:
        """Like `cut`, with ends that lie at most `records_max` records after the starts, all together.

        After at least some, if there are any to be read: `DataLogs.cut_within` says which cut it is then. Raises
        StorageFailure, CorruptStorage.
        """
        wanted = {log: offset for log, offset in starts.items() if log in self._by_log}
        while True:
            try:
                ends = await trio.to_thread.run_sync(
                    partial(self.data_logs.cut_within, dict(wanted), records_max=records_max)
                )
                break
            except UnknownLog as dropped:
                del wanted[dropped.log]
        now = self.cut(wanted)
        if any(ends[log] > max(cut.readable_end, wanted[log]) for log, cut in now.items()):
            return now  # a chunk was committed, and this loop has not been told yet: all that it knows is an older cut
        return {log: cut._replace(end=max(ends[log], cut.log_start)) for log, cut in now.items()}

    # --- in the background, and when the disk fails ---------------------------------------------

    async def run(self) -> None:
        """Copy what is placed, give journal space back, and forget idle producers; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._copy_in(nursery)
            nursery.start_soon(self._forget_idle_producers)

    async def copy(self) -> None:
        """What a replica does: copy, give journal space back, and delete what the owner has deleted; until cancelled.

        An owner does not, because its retention looks for what is to be deleted there.
        """
        async with trio.open_nursery() as nursery:
            self._copy_in(nursery)
            self._sweepers = nursery
            self._sweep_soon()

    def _copy_in(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._copier.run)
        nursery.start_soon(Reclaimer(self._copier, self.data_logs, self._journal_of).run)

    def _sweep_soon(self) -> None:
        """Have what lies before the logs' starts deleted, if there is any, and somebody has to look for it here."""
        if self._sweepers is not None and not self._is_sweeping and self._remains():
            self._is_sweeping = True
            self._sweepers.start_soon(self._sweep)

    def _remains(self) -> Sequence[Partition]:
        return [partition for partition in self._by_log.values() if partition.has_remains]

    async def _sweep(self) -> None:
        """Return when nothing is left, or when the disk has failed."""
        while remains := self._remains():
            try:
                for partition in remains:
                    await partition.sweep()
            except NoRoom as full:
                logger.warning("there is no room to sweep what was deleted", reason=str(full))
                await trio.sleep(SWEEP_AGAIN_S)
            except StorageFailure:
                return
        self._is_sweeping = False

    async def _forget_idle_producers(self) -> None:
        while True:
            await trio.sleep(min(EXPIRY_CHECK_MS, self._producer_expiration_ms) / 1000)
            unused_since_ms = self.now_ms() - self._producer_expiration_ms
            for partition in list(self._by_log.values()):
                await trio.lowlevel.checkpoint()
                if partition.state.expired(unused_since_ms=unused_since_ms):
                    with suppress(StorageFailure):  # without room it is the next round's
                        if await partition.wait_for_room(0):
                            partition.forget_producers(unused_since_ms=unused_since_ms)

    def refused_for_files(self, refusal: NoFiles) -> None:
        """See `ShardOfPartition.refused_for_files`."""
        self._refused_for_files += 1
        now_s = trio.current_time()
        if now_s - self._refused_said_s >= REFUSED_SAID_EVERY_S:
            logger.warning("refused for want of file descriptors", refused=self._refused_for_files, reason=str(refusal))
            self._refused_for_files, self._refused_said_s = 0, now_s

    def refuse_writes(self, reason: str) -> None:
        """Another file of this shard has failed: take no more writes until a restart, as if it were one of ours."""
        self.fail(StorageFailure(reason))

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, failure: StorageFailure) -> None:
        """A disk has failed: refuse writes until a restart."""
        if self.failure is None:
            logger.error("writes are refused until this node is restarted", reason=str(failure))
            self.end(failure)

    def end(self, failure: StorageFailure) -> None:
        """Refuse writes from now on, and let nobody wait for what will not come."""
        if self.failure is not None:
            return
        self.failure = failure
        self.has_failed.set()
        for partition in self._by_log.values():
            partition.visibility.wake()
            partition.wake()
