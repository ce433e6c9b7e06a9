"""A partition on disk: its journal and its data log, opened together and removed together.

    open:    what the data log has, up to its mark ─▶ journal, its tail recovered ─▶ frames from the mark on, folded
    remove:  data log dropped ─▶ journal's directory deleted

What opening finds is handed on: the state, and what the journal has placed that the data log does not hold.
Logs that were never written to have no file, so a topic with many partitions costs little until it is used.

Many logs are opened and removed in steps of `STEP_LOGS`. Each is one write of the data logs, during which the copier,
and so every producer, waits; and the event loop turns between two of them.

Not here: which partitions a shard has (`shard.partitions`), and what is written (`partition.partition`).
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import trio

from datalog.batch import parse_batch_header_untrusted
from datalog.interface import Bounds, Mark, ReadRequest, ReadResult
from fairlog_types import CorruptStorage, JournalPosition, LogId, Offset, ProducerId, StorageFailure, TxId
from journal.interface import Journals, OpenJournal
from journal.journal import Fsync, JournalKind
from partition.modes import TransactionMode
from partition.partition import Partition, ShardOfPartition
from partition.placed import OpenPart, Placed
from partition.producer_window import ProducerWindow
from partition.record_codec import replay_local
from partition.state import PartitionState
from partition.visibility import Visibility

logger = structlog.get_logger("partition.store")

STEP_LOGS = 100
"""A step takes some 10 ms, and more where there are ten thousands of logs: LMDB looks through all open databases for
each one that it opens."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a log has found."""

    partition: Partition
    mark: Mark
    """The data log's, or a later one from which the journal goes on."""
    placed: list[Placed]
    """In the journal's order, beyond the mark."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What lies on disk of one log, but for what is in its journal."""

    bounds: Bounds
    mark: Mark
    windows: dict[ProducerId, ProducerWindow]
    open_parts: list[OpenPart]
    first_sequences: dict[TxId, int]
    """Of the first batch of each open part, unless it has been deleted."""
    has_journal: bool


def steps(logs: Sequence[LogId]) -> Iterator[Sequence[LogId]]:
    """`logs`, as many at a time as others may be kept waiting for."""
    for start in range(0, len(logs), STEP_LOGS):
        yield logs[start : start + STEP_LOGS]


class PartitionStore:
    """Opens and removes partitions. Every log is in the hands of one caller at a time."""

    def __init__(self, directory: Path, shard: ShardOfPartition, journals: Journals) -> None:
        """`directory` holds one directory per journal, named by its log. The partitions are the shard's."""
        self._directory = directory
        self._shard = shard
        self._data_logs = shard.data_logs
        self._journals = journals

    def journal_directory(self, log: LogId) -> Path:
        return self._directory / str(log)

    async def open(self, logs: Sequence[LogId], mode: TransactionMode) -> AsyncIterator[Opened]:
        """Open `logs`, all of one mode, which are made where they are missing, one after the other in their order.

        Raises CorruptStorage or StorageFailure; the logs behind it are not opened then.
        """
        for step in steps(logs):
            for log, loaded in zip(step, await trio.to_thread.run_sync(self._load, step), strict=True):
                yield await self._open(log, loaded, mode)

    async def _open(self, log: LogId, loaded: _Loaded, mode: TransactionMode) -> Opened:
        journal = await self._open_journal(log, there=loaded.has_journal)
        mark = loaded.mark
        if journal.end < mark.copied_through and not journal.gets_tail_again:
            mark = await self._go_on_at_the_mark(log, journal, mark)
        await journal.begin_under_present_setting()
        state = PartitionState(log, self._shard.leader_epoch)
        state.restore(
            copied_through=mark.copied_through,
            replay_from=mark.replay_from,
            next_offset=mark.next_offset,
            log_start=loaded.bounds.log_start,
            windows=loaded.windows,
            open_parts=loaded.open_parts,
            first_sequences=loaded.first_sequences,
        )
        placed: list[Placed] = []
        if journal.end > mark.replay_from:
            placed = await trio.to_thread.run_sync(self._replay, journal, state, mark.replay_from)
        visibility = Visibility(log, loaded.bounds)
        return Opened(Partition(state, journal, visibility, mode, self._shard), mark, placed)

    async def _open_journal(self, log: LogId, *, there: bool) -> OpenJournal:
        directory = self.journal_directory(log)
        if not there:  # thousands of them at once are not worth a thread each
            return self._journals.unbegun(directory, JournalKind.LOCAL)
        return await self._journals.open(directory, JournalKind.LOCAL)

    async def _go_on_at_the_mark(self, log: LogId, journal: OpenJournal, mark: Mark) -> Mark:
        """The journal ends before what was copied of it. Where it had promised durability, it must not.

        Else a loss of power has taken the tail, after the copier had read it from memory. All of it that was decided
        is in the data log; an open transaction's batches may be gone, and then it cannot be prepared. Answers the
        mark to start from. Raises CorruptStorage, StorageFailure.
        """
        directory = self.journal_directory(log)
        if journal.begun_with is Fsync.COMMIT:
            raise CorruptStorage(
                f"the journal of {log} ends at {journal.end}, but the data log holds what was written up to "
                f"{mark.copied_through}: segment files of {directory} are missing or cut. Put them back."
            )
        logger.warning(
            "journal lost its tail, which the data log has; it goes on from there",
            log=str(log),
            directory=str(directory),
            journal_end=journal.end,
            copied_through=mark.copied_through,
            fsync=journal.begun_with.value,
        )
        if journal.end <= mark.replay_from:
            # Nothing is left to be replayed before the mark. It must say so before the journal begins behind that.
            mark = replace(mark, replay_from=mark.copied_through)
            await trio.to_thread.run_sync(self._put_mark, log, mark)
        await journal.advance(mark.copied_through)
        return mark

    def _put_mark(self, log: LogId, mark: Mark) -> None:
        with self._data_logs.write() as writer:
            writer.put_mark(log, mark)
        self._data_logs.sync()

    def _load(self, logs: Sequence[LogId]) -> list[_Loaded]:
        """What the data logs hold of `logs`, which are created where they are missing. In a worker thread."""
        absent = [log for log in logs if self._data_logs.mark(log) is None]
        if absent:
            with self._data_logs.write() as writer:
                for log in absent:
                    writer.create(log)
        loaded: list[_Loaded] = []
        for log in logs:
            mark = self._data_logs.mark(log)
            assert mark is not None, log
            windows = {producer: ProducerWindow.decode(state) for producer, state in self._data_logs.producers(log)}
            bounds = self._data_logs.bounds(log)
            open_parts = [
                OpenPart(it.txid, it.leader_epoch, it.first_offset, it.records)
                for it in self._data_logs.open_transactions(log)
            ]
            sequences = {part.txid: self._sequence_at(log, part.first_offset, bounds) for part in open_parts}
            known = {txid: sequence for txid, sequence in sequences.items() if sequence is not None}
            loaded.append(_Loaded(bounds, mark, windows, open_parts, known, self._has_journal(log)))
        return loaded

    def _sequence_at(self, log: LogId, offset: Offset, bounds: Bounds) -> int | None:
        """The first sequence of the batch that begins at `offset`; None if it has been deleted."""
        if offset < bounds.log_start:
            return None
        (answer,) = self._data_logs.read([ReadRequest(log, offset, 1)], bytes_max=1)
        assert isinstance(answer, ReadResult), answer
        return parse_batch_header_untrusted(answer.batches[0]).base_sequence

    def _has_journal(self, log: LogId) -> bool:
        try:
            return (self.journal_directory(log)).exists()
        except OSError:
            return True  # whoever opens it hears what is wrong

    def _replay(self, journal: OpenJournal, state: PartitionState, start: JournalPosition) -> list[Placed]:
        """Fold the journal's frames from `start` on. In a worker thread."""
        return list(replay_local(journal.frames(start), state))

    async def remove(self, logs: Sequence[LogId]) -> None:
        """Remove what there is of `logs`, whose journals are closed. Raises StorageFailure; it may be called again."""
        await trio.to_thread.run_sync(self._remove, logs)

    def _remove(self, logs: Sequence[LogId]) -> None:
        with self._data_logs.write() as writer:
            for log in logs:
                writer.drop(log)
        for log in logs:
            self._remove_journal(self.journal_directory(log))

    def _remove_journal(self, directory: Path) -> None:
        while True:
            try:
                if not directory.exists():
                    return
                shutil.rmtree(directory)
            except FileNotFoundError:
                continue  # space was being given back in there, and a segment went under our hands
            except OSError as error:
                raise StorageFailure(f"{directory}: the journal cannot be removed: {error}") from error
