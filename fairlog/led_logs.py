"""A led log on disk: its journal and its data log, opened together and removed together.

    open:    what the data log has, up to its mark ─▶ journal, its tail recovered ─▶ frames from the mark on, folded
    remove:  data log dropped ─▶ journal's directory deleted

What opening finds is handed on: the state, and what the journal has placed that the data log does not hold.
Logs that were never written to have no file, so a topic with many partitions costs little until it is used.

Many logs are opened and removed in steps of `STEP_LOGS`. Each is one write of the data logs, during which the copier,
and so every producer, waits; and the event loop turns between two of them.

Not here: who leads what, and what is written (`fairlog.leaders`).
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import trio

from datalog.batch import parse_batch_header_untrusted
from datalog.interface import Bounds, DataLogs, Mark, ReadRequest, ReadResult
from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch, LogId, Offset, ProducerId, StorageFailure, TxId
from journal.flush import Flusher
from journal.journal import Fsync, Journal, JournalKind, JournalSettings
from partition.answers import Watcher
from partition.modes import TransactionMode
from partition.placed import OpenPart, Placed
from partition.producer_window import ProducerWindow
from partition.record_codec import replay_local
from partition.state import PartitionState

logger = structlog.get_logger("fairlog.led_logs")

STEP_LOGS = 100
"""A step takes some 10 ms, and more where there are ten thousands of logs: LMDB looks through all open databases for
each one that it opens."""


class LedLog:
    """One log that this node leads: the fold over its journal, and how far its data log can be read."""

    __slots__ = (
        "high_watermark",
        "journal",
        "last_stable",
        "log_start",
        "mode",
        "state",
        "swept_through",
        "watchers",
    )

    def __init__(self, state: PartitionState, journal: Journal, bounds: Bounds, mode: TransactionMode) -> None:
        self.state = state
        self.mode = mode
        self.journal = journal
        self.high_watermark = bounds.next_offset
        self.last_stable: Offset = bounds.last_stable_offset
        self.log_start = bounds.log_start
        self.swept_through = Offset(0)
        """No batch lies before this offset any more, as far as this run knows."""
        self.watchers: set[Watcher] = set()
        """Told when an offset changes, and when the log goes."""

    @property
    def has_remains(self) -> bool:
        """Whether batches may lie before the log's start: a deletion was cut short, in this run or an earlier one."""
        return self.swept_through < self.log_start

    def readable_end(self, *, committed_only: bool) -> Offset:
        """The first offset that a reader cannot read yet."""
        return self.last_stable if committed_only else self.high_watermark

    @property
    def placed_stable(self) -> Offset:
        """The last stable offset, once all that is placed by now can be read."""
        next_offset = self.state.next_offset
        if next_offset == self.high_watermark or not self.mode.has_markers:
            stable = self.last_stable if self.mode.has_markers else next_offset
        else:
            begun = (each.first_offset for each in self.state.open_transactions.values())
            stable = min((it for it in begun if it is not None), default=next_offset)
        return max(stable, self.log_start)  # DeleteRecords may have taken the beginning of an open transaction

    def advance(self, high_watermark: Offset, last_stable: Offset) -> None:
        """The data log can be read up to here: tell those who have waited for that."""
        stable = last_stable != self.last_stable
        if stable or high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            self.last_stable = last_stable
            self._tell(stable=stable)

    def wake(self) -> None:
        """Tell everybody who waits for this log that there is something to look at."""
        self._tell(stable=True)

    def _tell(self, *, stable: bool) -> None:
        enough = [watcher for watcher in self.watchers if watcher.moved(stable=stable)]
        self.watchers.difference_update(enough)


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a log has found."""

    led: LedLog
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


class LedLogStore:
    """Opens and removes logs. Every log is in the hands of one caller at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        data_logs: DataLogs,
        flusher: Flusher,
        journal_settings: JournalSettings,
        leader_epoch: LeaderEpoch,
        now_ms: Callable[[], int],
    ) -> None:
        """`directory` holds one directory per journal, named by its log."""
        self._directory = directory
        self._data_logs = data_logs
        self._flusher = flusher
        self._journal_settings = journal_settings
        self._leader_epoch = leader_epoch
        self._now_ms = now_ms

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
        if journal.end < mark.copied_through:
            mark = await self._go_on_at_the_mark(log, journal, mark)
        await journal.begin_under_present_setting()
        state = PartitionState(log, self._leader_epoch)
        state.restore(
            copied_through=mark.copied_through,
            replay_from=mark.replay_from,
            next_offset=mark.next_offset,
            windows=loaded.windows,
            open_parts=loaded.open_parts,
            first_sequences=loaded.first_sequences,
        )
        placed: list[Placed] = []
        if journal.end > mark.replay_from:
            placed = await trio.to_thread.run_sync(self._replay, journal, state, mark.replay_from)
        return Opened(LedLog(state, journal, loaded.bounds, mode), mark, placed)

    async def _open_journal(self, log: LogId, *, there: bool) -> Journal:
        directory, kind, settings = self.journal_directory(log), JournalKind.LOCAL, self._journal_settings
        flusher, epoch = self._flusher, self._leader_epoch
        if not there:  # thousands of them at once are not worth a thread each
            return Journal.unbegun(directory, kind=kind, settings=settings, flusher=flusher, leader_epoch=epoch)
        return await Journal.open(directory, kind=kind, settings=settings, flusher=flusher, leader_epoch=epoch)

    async def _go_on_at_the_mark(self, log: LogId, journal: Journal, mark: Mark) -> Mark:
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

    def _replay(self, journal: Journal, state: PartitionState, start: JournalPosition) -> list[Placed]:
        """Fold the journal's frames from `start` on. In a worker thread."""
        return list(replay_local(journal.frames(start), state, now_ms=self._now_ms()))

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
