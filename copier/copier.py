"""The copier: takes what the leaders have placed, waits until it is durable, and copies it, in order.

How it works. `submit` puts a group at the end of one queue and starts the flush of its journals. `run` takes
as much from the head as is durable (at most `chunk_bytes_max`) and copies it in one hop to a worker thread
(`apply`); then it tells the shard (`on_copied`). While one chunk is copied,
the next one gathers and its flushes go on: a lone batch is copied at once, under load the chunks grow and share
the cost of the LMDB commit. No timer, nothing to tune::

    submit ─▶ [ queue: durable … | not yet durable … ] ─▶ chunk ─▶ worker thread ─▶ on_copied
                 └─ start_flush, at once                     one LMDB transaction

A change without records (fence, discard, forgotten producer, start) is nothing that anybody waits for, so it costs no
flush of its own: it rests until the next records of the same log take it along, or until `urge`.

A large group is copied in stages (`staging`), and between two of them what may go past it (`backlog`)::

    stage ─▶ chunk of others ─▶ stage ─▶ chunk of others ─▶ … ─▶ the last step, with which it becomes visible

The copier copies only what is durable in the journal, so that the data log never holds what a crash could
take out of the journal again; the rest follows from `plan` and `apply`. If anything fails, it stops for good
(`failed`): the queue stays as it is, what was copied stays readable, and a restart begins at the marks. Only a want of
file descriptors is waited out.

Keeps invariants 4, 6 and 7; gives `reclaim` what it needs for 11.

Rejected: one task per log (a transaction's logs must change together, and LMDB has one writer anyway); waiting
for the flush of the whole queue instead of its durable head (the thread then idles for a flush per chunk:
1,680 instead of 2,700 batches/s with 16 producers that each wait for their own); a thread of our own for the copy
(its hop saves 10–30 µs of some 500).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog
import trio

from copier.apply import Copied, PayloadSource, apply, stage
from copier.backlog import SMALL_BYTES, Backlog
from copier.plan import Group, logs_of, merge
from copier.staging import Staging
from datalog.interface import DataLogs, Mark
from fairlog_types import CorruptStorage, JournalPosition, LogId, Offset, StorageFailure
from journal.journal import NoFiles
from partition.placed import WITHOUT_RECORDS, Placed, PlacedStart, PlacedState

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHUNK_BYTES_MAX = 8 * 2**20
"""Large enough that the commit's cost does not count, small enough to be copied in some 20 ms."""

BACKLOG_BYTES_MAX = 256 * 2**20
"""About one second's work of a good disk. Behind that, leaders ask their producers to wait (`room`)."""

BACKLOG_BYTES_SLOW = 32 * 2**20
BACKLOG_S = 1.0
"""On a slow disk, so much that has waited so long: what is committed now is seen behind all that is in front of it."""

OUTRUN_BYTES = 2**20
"""Behind so much, a producer is answered when its batch is copied: what is copied late has left the processor's caches.
At 2 MiB, requests of 1 MB were a tenth slower than without early answers; at 512 KiB, those of 250 KB gained nothing.
For the producer of small batches, so much in small ones alone.
"""

RESTING_ITEMS_MAX = 4096
"""How many changes of state may rest in memory before they are copied for their own sake."""

NO_FILES_PAUSE_S = 0.5
"""Between two attempts while no file can be opened."""

Done = TypeVar("Done")


class LocalJournal(PayloadSource, Protocol):
    """What the copier needs of a local journal; `journal.journal.Journal` has it."""

    @property
    def durable(self) -> JournalPosition: ...

    def start_flush(self) -> None: ...

    async def flush(self, through: JournalPosition) -> None: ...


@dataclass(frozen=True, slots=True)
class CopierStatistics:
    """What the copier has done since the start, and what lies before it."""

    copied_chunks: int
    copied_records: int
    copied_payload_bytes: int
    backlog_bytes: int
    lag_s: float
    """How long the oldest of it has waited; 0 if there is none."""
    resting_items: int
    last_copy_ms: float
    """From handing a chunk to the worker thread until it was back; 0 before the first."""


class Copier:
    """Copies what is placed in the journals into the data logs. All methods are called on the event loop."""

    def __init__(
        self,
        data_logs: DataLogs,
        journal_of: Callable[[LogId], LocalJournal],
        on_copied: Callable[[Mapping[LogId, Offset], Mapping[LogId, Offset], Mapping[LogId, Offset]], None],
        *,
        on_failure: Callable[[StorageFailure], None],
        on_durable: Callable[[Sequence[Group]], None] = lambda _groups: None,
        chunk_bytes_max: int = CHUNK_BYTES_MAX,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        keeps_cuts: bool = True,
    ) -> None:
        """Make a copier; `run` starts it.

        `journal_of` gives the journal of every log that is submitted, until it is forgotten. `on_copied` is
        called after each chunk with the new high watermark of each log that got records, the last stable offset of (at
        least) these, and where those logs begin (or later) that were told so. `on_durable` is called before each chunk
        is copied, with its groups, which are on disk; not for what was recovered. `on_failure` is called once, when
        copying stops for good. None of the three may raise. With `keeps_cuts`, what a chunk leaves may be stored as a
        cut (`datalog.cuts`).
        """
        self.failed: StorageFailure | None = None
        self._data_logs = data_logs
        self._journal_of = journal_of
        self._on_copied = on_copied
        self._on_failure = on_failure
        self._on_durable = on_durable
        self._chunk_bytes_max = chunk_bytes_max
        self._backlog_bytes_max = backlog_bytes_max
        self._keeps_cuts = keeps_cuts

        self._backlog = Backlog()
        self._staging: Staging | None = None
        """Of the large group that stands aside, if there is one."""
        self._resting: dict[LogId, list[PlacedState | PlacedStart]] = {}
        """Changes of state that wait for company, per log in order."""
        self._resting_items = 0
        self._dropped: dict[LogId, int] = {}
        """Logs that were forgotten, each with the last group that may have a part of it: it goes when that is copied.
        Read by the worker thread."""
        self._recovered_through = 0
        """Up to this group all were recovered. What crashes have split a transaction's group into is among them."""
        self._limiter = trio.CapacityLimiter(1)
        """Its own, so that reads which fill the common one do not hold up the copy."""
        self._work = trio.Event()
        """Set when there is something to do; replaced by a new one when `run` finds the queue empty."""
        self._progress = trio.Event()
        """Set after each chunk and at failure, then replaced."""

        self._marks: dict[LogId, Mark] = {}
        self._copied_chunks = 0
        self._copied_records = 0
        self._copied_payload_bytes = 0
        self._last_copy_ms = 0.0

    # What comes in

    def submit(self, group: Group, *, order: str | None = None) -> None:
        """Queue the items of one decision, which become visible together (invariant 7), in the order of calls.

        Others may go past a large group if they share no log and no producer with it, and have not the same `order`.

        Called right after the deciding frames were appended; those of one log in its journal's order. Starts the flush
        of the journals if the group has records. After a failure the groups still queue up, for the journals hold them
        and the order is theirs; leaders refuse writes then.
        """
        if any(not isinstance(item, WITHOUT_RECORDS) for item in group):
            for item in group:
                self._wake_resting(item.log)
            self._enqueue(group, order)
            for item in group:
                self._journal_of(item.log).start_flush()
            return
        for item in group:
            assert isinstance(item, WITHOUT_RECORDS)
            self._resting.setdefault(item.log, []).append(item)
        self._resting_items += len(group)
        if self._resting_items >= RESTING_ITEMS_MAX:
            self.urge()

    def recover(self, per_log: Mapping[LogId, Sequence[Placed]], marks: Mapping[LogId, Mark]) -> None:
        """Queue what the journals hold beyond the marks; called once, before anything is submitted.

        `per_log` has, in the journal's order, what replaying each journal has placed; what a mark has passed
        does no harm. `marks` are the marks of *all* data logs. Since a crash may have split a group (`plan.merge`), no
        cuts are kept until all of it is copied.
        """
        assert not self._backlog.last_number, "recover comes before submit"
        self._marks.update(marks)
        for group in merge(per_log):
            self._enqueue(group)
        self._recovered_through = self._backlog.last_number
        for log, items in per_log.items():
            if items:
                self._journal_of(log).start_flush()

    def urge(self) -> None:
        """Let the changes of state that rest be copied now; this costs a flush of each log that has some."""
        for log in list(self._resting):
            self._wake_resting(log)
            self._journal_of(log).start_flush()

    def forget(self, log: LogId) -> None:
        """The log is being deleted: skip what is queued of it.

        Called *before* the data log is dropped and the journal closed; nothing of the log may be submitted
        later. Groups keep their other logs' parts. A chunk on its way may still copy to it until it is dropped.
        """
        if self._backlog.done_through < self._backlog.last_number:
            self._dropped[log] = self._backlog.last_number
        self._resting_items -= len(self._resting.pop(log, []))
        self._marks.pop(log, None)

    def _wake_resting(self, log: LogId) -> None:
        resting = self._resting.pop(log, None)
        if resting is not None:
            self._resting_items -= len(resting)
            for item in resting:
                self._enqueue((item,))

    def _enqueue(self, group: Group, order: str | None = None) -> None:
        self._backlog.add(group, order, perf_counter())
        self._work.set()

    # What goes out

    async def drain(self) -> None:
        """Return once everything that was submitted or recovered so far is copied, also what rests.

        Raises StorageFailure if copying stops before.
        """
        self.urge()
        last_group = self._backlog.last_number
        while self._backlog.done_through < last_group:
            await self._next_progress()
        await trio.lowlevel.checkpoint()

    async def room(self, payload_bytes: int) -> None:
        """Return once the backlog has room for so many bytes; raises StorageFailure if copying has stopped.

        It is so in the very step in which this returns: of many who wait, each finds what those before him have added.
        """
        while True:
            await trio.lowlevel.checkpoint()
            if self.failed is None and not self.is_behind(payload_bytes):
                return
            await self._next_progress()

    async def copied_payload(self, total_bytes: int) -> None:
        """Return once `total_bytes` of payload were copied since the start; StorageFailure if copying stops before."""
        while self._copied_payload_bytes < total_bytes:
            await self._next_progress()
        await trio.lowlevel.checkpoint()

    async def _next_progress(self) -> None:
        if self.failed is not None:
            raise StorageFailure(str(self.failed)) from self.failed
        await self._progress.wait()

    @property
    def backlog_bytes(self) -> int:
        """How much is queued and not yet copied, in bytes of journal (and a little per item)."""
        return self._backlog.total_bytes

    def is_behind(self, payload_bytes: int) -> bool:
        """Whether so much is queued that so many bytes should not be added: see `room`.

        The last eighth of the backlog is kept for small batches, and they are taken however long others have waited:
        behind two hundred large ones that wait for room, a small one would wait for 200 MB.
        """
        backlog_bytes, most = self._backlog.ahead_bytes, self._backlog_bytes_max
        if payload_bytes <= SMALL_BYTES:
            return backlog_bytes > most
        if backlog_bytes > most - most // 8:
            return True
        return backlog_bytes > BACKLOG_BYTES_SLOW and _age_s(self._backlog.ahead_since_s) > BACKLOG_S

    def is_outrun(self, batch_bytes: int) -> bool:
        """Whether so much waits that the producer of such a batch should not go on before it is copied.

        For a small one only small ones count: beside large ones it would wait for the copy of all of those, though its
        producer outruns nobody.
        """
        waiting_bytes = self._backlog.small_bytes if batch_bytes <= SMALL_BYTES else self._backlog.ahead_bytes
        return waiting_bytes > OUTRUN_BYTES

    @property
    def marks(self) -> Mapping[LogId, Mark]:
        """The committed mark of every data log that the copier knows and that is not forgotten: a live view."""
        return MappingProxyType(self._marks)

    def statistics(self) -> CopierStatistics:
        return CopierStatistics(
            copied_chunks=self._copied_chunks,
            copied_records=self._copied_records,
            copied_payload_bytes=self._copied_payload_bytes,
            backlog_bytes=self._backlog.total_bytes,
            lag_s=_age_s(self._backlog.oldest_s),
            resting_items=self._resting_items,
            last_copy_ms=self._last_copy_ms,
        )

    # The work

    async def run(self) -> None:
        """Copy until cancelled, or return after a failure. Cancelling waits for the chunk that is on its way.

        Raises AssertionError or UnknownLog if what was submitted contradicts the data logs: our bug, not the disk's.
        """
        try:
            while self.failed is None:
                if self._staging is not None:
                    await self._go_on(self._staging)
                elif (head := self._backlog.head) is not None:
                    await self._are_durable(head)
                    if (large := self._backlog.set_aside_if_large()) is not None:
                        self._staging = Staging(large)
                        self._tell_progress()
                    await self._copy_chunk()
                else:
                    self._work = trio.Event()
                    await self._work.wait()
        except (StorageFailure, CorruptStorage, OSError) as error:
            self.fail(error)

    def fail(self, error: StorageFailure | CorruptStorage | OSError) -> None:
        """Stop for good: say so to all who wait and to `on_failure`. Only the first failure counts."""
        if self.failed is not None:
            return
        self.failed = StorageFailure(
            f"copying into the data logs has stopped: {error}; what was answered is in the journals, restart the node"
        )
        self.failed.__cause__ = error
        self._tell_progress()
        self._work.set()
        self._on_failure(self.failed)

    async def _are_durable(self, group: Group) -> None:
        """Wait for the flushes of the group, which `submit` has started."""
        for item in group:
            if item.log in self._dropped:
                continue
            try:
                await self._journal_of(item.log).flush(item.end)
            except StorageFailure:
                if item.log not in self._dropped:
                    raise

    async def _go_on(self, staging: Staging) -> None:
        """The next stage of the large group, or its last step; and then what may go past it."""
        pieces = staging.stage()
        if pieces:
            sizes_bytes = await self._in_thread(
                {piece.item.log for piece in pieces},
                lambda journals: stage(pieces, self._data_logs, journals, self._dropped),
            )
            staging.was_written(sizes_bytes)
        else:
            copied = await self._apply([staging.group], staging.sizes_bytes)
            self._staging = None
            self._backlog.large_is_done()
            self._account(copied)
        await self._copy_chunk()

    @property
    def _recovered_are_copied(self) -> bool:
        return self._backlog.done_through >= self._recovered_through

    async def _copy_chunk(self) -> None:
        """Copy what is durable at the head of the queue, or may go past a large group; nothing if nothing is.

        What was recovered has an order of its own (`merge`), and nobody goes past that.
        """
        if self._staging is not None and not self._recovered_are_copied:
            return
        durable: dict[LogId, JournalPosition] = {}

        def is_durable(group: Group) -> bool:
            for item in group:
                log = item.log
                if log in self._dropped:
                    continue
                if log not in durable:
                    durable[log] = self._journal_of(log).durable
                if item.end > durable[log]:
                    return False
            return True

        chunk = self._backlog.take(is_durable, bytes_max=self._chunk_bytes_max)
        if chunk:
            if self._recovered_are_copied:
                self._on_durable(chunk)
            copied = await self._apply(chunk, {})
            self._backlog.taken_is_done()
            self._account(copied)

    async def _apply(self, groups: Sequence[Group], staged: Mapping[LogId, Sequence[int]]) -> Copied:
        cut_at_s = trio.current_time() if self._keeps_cuts and self._recovered_are_copied else None
        return await self._in_thread(
            logs_of(groups),
            lambda journals: apply(groups, self._data_logs, journals, self._dropped, cut_at_s, staged),
        )

    async def _in_thread(self, logs: Set[LogId], write: Callable[[Mapping[LogId, LocalJournal]], Done]) -> Done:
        """One write to the data logs, in the worker thread; it gets the journals of these logs that are not dropped."""
        journals = {log: self._journal_of(log) for log in logs - self._dropped.keys()}
        started = perf_counter()
        while True:
            dropped_logs = len(self._dropped)
            try:
                done = await trio.to_thread.run_sync(write, journals, limiter=self._limiter)
                break
            except NoFiles as failure:
                # Nothing of it was written, and the journals keep it: it passes when some other file is closed.
                _log.warning("copying waits for a file descriptor", reason=str(failure))
                await trio.sleep(NO_FILES_PAUSE_S)
            except (StorageFailure, CorruptStorage, OSError):
                if dropped_logs == len(self._dropped):
                    raise
                # A log was deleted under the copy, and its journal closed: the chunk is whole without it. Nothing
                # of it was written, so this repeats no write on a file that has failed (invariant 12).
        self._last_copy_ms = (perf_counter() - started) * 1e3
        return done

    def _account(self, copied: Copied) -> None:
        self._copied_chunks += 1
        self._copied_records += copied.records
        self._copied_payload_bytes += copied.payload_bytes
        alive = {log: mark for log, mark in copied.marks.items() if log not in self._dropped}
        self._marks.update(alive)
        high_watermarks = {log: offset for log, offset in copied.high_watermarks.items() if log in alive}
        log_starts = {log: offset for log, offset in copied.log_starts.items() if log in alive}
        if high_watermarks or log_starts:
            self._on_copied(high_watermarks, copied.last_stable, log_starts)
        if self._dropped:
            done_through = self._backlog.done_through
            self._dropped = {log: last_group for log, last_group in self._dropped.items() if last_group > done_through}
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _age_s(since_s: float | None) -> float:
    """How long ago that was; 0 if it is nothing."""
    return 0.0 if since_s is None else perf_counter() - since_s
