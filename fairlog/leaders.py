"""The partition leaders of this node: what clients write to them, and how far they can be read.

    Produce ──▶ append ─────────────▶ fairlog.led_writer ─▶ journal J-p ─▶ fold ─▶ copier ─▶ Fetch
    OffsetCommit ──▶ append_record ────▲
    coordinator ──▶ fairlog.participants ▲

`LocalLeaders` is the public face: it opens and removes logs, takes batches, answers Fetch's questions, and runs what
goes on in the background. Its parts are the writer, which alone changes a log, and the participants, which do what
the coordinator says.

Not here: what a Kafka request looks like, which error code an outcome has, when a transaction ends, which batches are
taken (`partition.produce`), and how transactions are kept (`partition.modes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

import trio

from copier.copier import BACKLOG_BYTES_MAX, CopierStatistics
from copier.reclaim import Reclaimer
from datalog.batch import BatchHeader
from datalog.interface import DataLogs, NoRoom, TooManyLogs, UnknownLog
from fairlog.led_logs import LedLog, LedLogStore, steps
from fairlog.led_writer import LedWriter
from fairlog.participants import LocalParticipants
from fairlog_types import (
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.failpoints import reach
from journal.flush import Flusher
from journal.journal import JournalSettings, NoFiles
from partition import produce
from partition.answers import (
    AbortRefusal,
    ActiveProducer,
    Appended,
    Buffer,
    DuplicateOf,
    LogCut,
    PlacedEnd,
    RefusedAppend,
    Watcher,
)
from partition.modes import JOURNAL, TransactionMode
from partition.records import Forget, LocalRecord
from partition.state import PartitionState

EXPIRY_CHECK_MS = 600_000
"""How often idle producers are looked for: Kafka's producer.id.expiration.check.interval.ms."""

DELETE_BATCHES_MAX = 500
"""Deleted in one write block: 1 ms, and 9 of batches of 1 MB."""

DELETE_ROOM_BYTES = 1 << 20
"""What such a block may need on the disk before it gives room back: the pages that the batches hang on."""


class AppendedCounts:
    """What clients have written since the start: batches, and what their headers say of them."""

    __slots__ = ("batches", "records", "size_bytes")

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.size_bytes = 0

    def note(self, header: BatchHeader) -> None:
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes


class LocalLeaders:
    """All logs that this node leads. Implements `fairlog.broker.Leaders`."""

    def __init__(
        self,
        directory: Path,
        *,
        data_logs: DataLogs,
        flusher: Flusher,
        journal_settings: JournalSettings,
        leader_epoch: LeaderEpoch,
        producer_expiration_ms: int,
        now_ms: Callable[[], int],
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
    ) -> None:
        """`directory` holds one directory per journal, named by its log.

        With more than `backlog_bytes_max` written and not copied yet, producers wait.
        """
        self._store = LedLogStore(
            directory,
            data_logs=data_logs,
            flusher=flusher,
            journal_settings=journal_settings,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )
        self._data_logs = data_logs
        self._flusher = flusher
        self._producer_expiration_ms = producer_expiration_ms
        self._now_ms = now_ms
        self._epoch_of: Callable[[ProducerId], ProducerEpoch | None] = _no_transactional_producer
        self._writer = LedWriter(
            data_logs, leader_epoch=leader_epoch, now_ms=now_ms, backlog_bytes_max=backlog_bytes_max
        )
        self.participants = LocalParticipants(self._writer, self._store)
        """For the coordinator."""
        self.appended = AppendedCounts()

    @property
    def data_logs(self) -> DataLogs:
        return self._data_logs

    @property
    def flusher(self) -> Flusher:
        return self._flusher

    async def drain(self) -> None:
        """Return once everything that is placed so far is visible. Raises StorageFailure if it will not be."""
        await self._writer.copier.drain()

    @property
    def led(self) -> Mapping[LogId, LedLog]:
        """Everything that is led, to be looked at: a live view."""
        return MappingProxyType(self._writer.led)

    def copier_statistics(self) -> CopierStatistics:
        return self._writer.copier.statistics()

    @property
    def failure(self) -> StorageFailure | None:
        """Why this node takes no more writes until it is restarted; None as long as it does."""
        return self._writer.failure

    # --- the logs that are led ----------------------------------------------------------------

    async def lead(self, logs: Sequence[LogId], mode: TransactionMode = JOURNAL) -> None:
        """Take the lead of `logs`, all of one mode: open their journals and replay what the data logs do not hold yet.

        Raises CorruptStorage or StorageFailure; then none of the remaining logs is led, and a node that has recovered
        already refuses writes: its next start leads them. NoFiles, if no file can be opened just now, is no failure,
        nor is TooManyLogs, which concerns new logs alone.
        """
        try:
            async for opened in self._store.open([log for log in logs if log not in self._writer.led], mode):
                self.participants.recall(opened.led)
                self._writer.adopt(opened)
        except (NoFiles, TooManyLogs):
            raise
        except StorageFailure as failure:
            if not self._writer.is_recovering:
                self._writer.fail(failure)
            raise

    def finish_recovery(self) -> None:
        """Called once the coordinators have said again what they had decided, and what is open and goes on.

        An open transaction that none of them has resumed belongs to no one: its BEGIN was lost with the power, or its
        abort left no trace here. It is discarded. What recovery has placed goes to the copier in one order.
        """
        self.participants.discard_orphans()
        self._writer.finish_recovery()

    async def drop(self, logs: Sequence[LogId]) -> None:
        """Stop leading `logs`, then remove their journals and data logs. What is not there is passed over.

        Raises StorageFailure; asking again goes on where it stopped.
        """
        for step in steps(logs):
            for log in step:
                journal = self._writer.forget(log)
                if journal is not None:
                    await journal.close()
            await self._store.remove(step)

    async def close(self) -> None:
        """Close all journals cleanly. Nothing may be appended any more.

        Raises the first StorageFailure; the other journals are closed all the same.
        """
        failures: list[StorageFailure] = []
        for leader in self._writer.led.values():
            try:
                await leader.journal.close()
            except StorageFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def ask_epochs_of(self, epoch_of: Callable[[ProducerId], ProducerEpoch | None]) -> None:
        """From now on, ask `epoch_of` for the current epoch of a transactional producer (None: it is none).

        A partition that a new instance never touches learns of the new epoch in no other way (invariant 9).
        """
        self._epoch_of = epoch_of

    def tell_decided_offsets(self, decided: Callable[[LogId, TxId, Offset | None], None]) -> None:
        """From now on, call `decided` when a transaction that wrote to an offsets log is decided.

        It gets the offset of that log at which its part is visible, or None if it is discarded. It must not raise.
        """
        self.participants.tell_decided_offsets(decided)

    def open_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> TxId | RefusedAppend:
        """The transaction that the producer has open on this node, or why there is none for it."""
        return self.participants.open_transaction(producer_id, epoch)

    # --- Produce ------------------------------------------------------------------------------

    def open_of(self, producer_id: ProducerId) -> TxId | None:
        """See `fairlog.broker.Leaders`."""
        return self.participants.open_of(producer_id)

    async def append(
        self, log: LogId, data: Buffer, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        """Write one checked batch to the journal of `log`. See `fairlog.broker.Leaders`.

        Waits only for room: in the journal (it is made ahead), and in the copier's backlog. A batch whose
        transaction has ended meanwhile does not go into the producer's next one: MUST_ABORT, or FENCED. A repetition is
        answered as one also when its transaction has ended: clients use the sequences of refused batches again.
        """
        try:
            leader = await self._writer.leader_with_place(log, len(data))
            if leader is None:
                return RefusedAppend.UNKNOWN_LOG
            decision = self._decide(leader, header, came_in)
            if isinstance(decision, DuplicateOf | RefusedAppend):
                return decision
            self._writer.write(leader, decision, data)
        except StorageFailure:
            return self._answered_before(log, header) or RefusedAppend.STORAGE
        self.appended.note(header)
        return produce.appended(decision, through=leader.state.folded_through)

    def _decide(self, leader: LedLog, header: BatchHeader, came_in: TxId | None) -> produce.Decision:
        """`came_in`: what the producer had open when the batch came, if it is transactional."""
        producer_id = header.producer_id
        if header.transactional:
            txid = self.participants.open_transaction(producer_id, header.producer_epoch)
            if txid is RefusedAppend.FENCED:
                return txid
            if isinstance(txid, TxId) and txid == came_in:
                return produce.transactional(leader.state, header, txid, leader.mode)
            has_ended = came_in is not None and came_in.epoch == header.producer_epoch
            return produce.outside(leader.state, header, has_ended=has_ended, current_epoch=self._epoch_of(producer_id))
        return produce.plain(
            leader.state,
            header,
            current_epoch=self._epoch_of(producer_id),
            open_transaction=self.participants.open_of(producer_id),
        )

    def _answered_before(self, log: LogId, header: BatchHeader) -> DuplicateOf | None:
        """The batch's first result, if it is in the journal: then "nothing was written" would be untrue."""
        leader = self._writer.led.get(log)
        return None if leader is None else produce.answered_before(leader.state, header)

    def lowest_offset(self, log: LogId, header: BatchHeader) -> Offset | None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        txid = self.participants.open_transaction(header.producer_id, header.producer_epoch)
        if leader is None or isinstance(txid, RefusedAppend):
            return None
        return produce.lowest_offset(leader.state, txid, header.base_sequence)

    # --- other records than batches -----------------------------------------------------------

    async def append_record(
        self, log: LogId, payload: bytes, decide: Callable[[PartitionState], LocalRecord | None]
    ) -> RefusedAppend | None:
        """Write the record on which `decide` decides to the journal of `log`; its flush is under way if it is decided.

        `decide` is asked in the very step of the append, after all waiting for room; None from it: nothing is written.
        Cancelled: it was written or not.
        """
        try:
            leader = await self._writer.leader_with_place(log, len(payload))
            if leader is None:
                return RefusedAppend.UNKNOWN_LOG
            record = decide(leader.state)
            if record is not None:
                self._writer.write(leader, record, payload)
        except StorageFailure:
            return RefusedAppend.STORAGE
        return None

    def read_open(self, log: LogId) -> Mapping[TxId, Sequence[bytes]]:
        """The payloads of all batches that the journal of `log` holds for open transactions. For a worker thread.

        Raises CorruptStorage, StorageFailure. Only for logs that are led here.
        """
        leader = self._writer.led[log]
        return {
            txid: [bytes(leader.journal.read_payload(batch.position, batch.frame_bytes)) for batch in open_here.batches]
            for txid, open_here in leader.state.open_transactions.items()
        }

    # --- what is visible ----------------------------------------------------------------------

    def high_watermark(self, log: LogId) -> Offset | None:
        """The first offset that cannot be read yet; None if the log is not led here."""
        leader = self._writer.led.get(log)
        return None if leader is None else leader.high_watermark

    def last_stable_offset(self, log: LogId) -> Offset | None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        # DeleteRecords may have taken the beginning of an open transaction.
        return None if leader is None else max(leader.last_stable, leader.log_start)

    def placed_end(self, log: LogId) -> PlacedEnd | None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        return None if leader is None else PlacedEnd(leader.state.next_offset, leader.placed_stable)

    def log_start(self, log: LogId) -> Offset:
        """The first offset that can be read. Only for logs that are led here."""
        return self._writer.led[log].log_start

    def journal_bytes(self, log: LogId) -> int | None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        return None if leader is None else leader.journal.end - leader.journal.start

    def cut(self, logs: Iterable[LogId]) -> Mapping[LogId, LogCut]:
        """See `fairlog.broker.Leaders`. The copier tells of all logs of a chunk in one step, so this is a cut."""
        found: dict[LogId, LogCut] = {}
        for log in logs:
            end = self.last_stable_offset(log)
            if end is not None:
                found[log] = LogCut(self.log_start(log), end, end)
        return found

    async def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Mapping[LogId, LogCut]:
        """See `fairlog.broker.Leaders`."""
        wanted = {log: offset for log, offset in starts.items() if log in self._writer.led}
        while True:
            try:
                ends = await trio.to_thread.run_sync(
                    partial(self._data_logs.cut_within, dict(wanted), records_max=records_max)
                )
                break
            except UnknownLog as dropped:
                del wanted[dropped.log]
        now = self.cut(wanted)
        if any(ends[log] > max(cut.readable_end, wanted[log]) for log, cut in now.items()):
            return now  # a chunk was committed, and this loop has not been told yet: all that it knows is an older cut
        return {log: cut._replace(end=max(ends[log], cut.log_start)) for log, cut in now.items()}

    async def visible(self, log: LogId, offset: Offset) -> None:
        """Return once the high watermark is at least `offset`, or the log is gone.

        Raises StorageFailure if copying has stopped for good.
        """
        await self._writer.visible(log, offset)

    async def durable(self, log: LogId, through: JournalPosition) -> None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        if leader is None:
            return
        try:
            await leader.journal.flush(through)
        except StorageFailure as failure:
            if self._writer.led.get(log) is leader:  # else it was the deletion that closed the journal
                self._writer.fail(failure)
                raise

    def watch(self, log: LogId, watcher: Watcher, *, beyond: Offset, committed_only: bool) -> bool:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        if leader is None or leader.readable_end(committed_only=committed_only) > beyond:
            return False
        leader.watchers.add(watcher)
        return True

    def unwatch(self, log: LogId, watcher: Watcher) -> None:
        """See `fairlog.broker.Leaders`."""
        leader = self._writer.led.get(log)
        if leader is not None:
            leader.watchers.discard(watcher)

    async def delete_before(self, log: LogId, offset: Offset) -> Offset | None:
        """See `fairlog.broker.Leaders`. Retention and DeleteRecords use it.

        The start moves at once, and the batches before it go in steps, between which others write; a later call removes
        what is left (`LedLog.has_remains`). Raises NoRoom if the disk or the map is full: that alone refuses no other
        writes.
        """
        leader = self._writer.led.get(log)
        if leader is None:
            return None
        self._writer.raise_if_failed()
        moves = offset > leader.log_start
        try:
            start, more = offset, True
            while more:
                start = max(start, leader.log_start)
                more = await trio.to_thread.run_sync(self._delete_before, log, offset)
                if leader.log_start < offset:
                    leader.log_start = offset
                    leader.wake()
            leader.swept_through = max(leader.swept_through, start)
            if moves:
                # Without it a loss of power may bring back what was told to be gone.
                await trio.to_thread.run_sync(self._data_logs.sync)
        except UnknownLog:
            return None  # dropped meanwhile, with all its records
        except NoRoom:
            raise
        except StorageFailure as failure:
            self._writer.fail(failure)
            raise
        return leader.log_start

    def _delete_before(self, log: LogId, offset: Offset) -> bool:
        """Move the start and delete some of what lies before it; whether there may be more. In a worker thread."""
        with self._data_logs.write(room_bytes=DELETE_ROOM_BYTES) as writer:
            deleted_bytes = writer.delete_before(log, offset, batches_max=DELETE_BATCHES_MAX)
            reach("retention.delete.before_commit")
        reach("retention.delete.after_commit")
        return deleted_bytes > 0

    def describe_producers(self, log: LogId) -> Sequence[ActiveProducer]:
        """What the partition remembers of its producers. Only for logs that are led here."""
        state = self._writer.led[log].state
        open_here = {
            txid.producer_id: transaction
            for txid, transaction in state.open_transactions.items()
            if transaction.records
        }
        return [
            ActiveProducer(
                producer_id=producer_id,
                producer_epoch=window.epoch,
                last_sequence=window.batches[-1].last_sequence if window.batches else -1,
                last_timestamp_ms=window.last_use_ms,
                in_transaction=producer_id in open_here,
                first_offset=open_here[producer_id].first_offset if producer_id in open_here else None,
                coordinator_epoch=window.coordinator_epoch,
            )
            for producer_id, window in sorted(state.windows.items())
        ]

    def open_for_abort(
        self, log: LogId, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> TxId | AbortRefusal | None:
        """See `fairlog.broker.Leaders`."""
        return self.participants.open_for_abort(log, producer_id, producer_epoch, coordinator_epoch)

    # --- in the background, and when the disk fails ---------------------------------------------

    async def run(self) -> None:
        """Copy what is placed, give journal space back, and forget idle producers; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writer.copier.run)
            nursery.start_soon(Reclaimer(self._writer.copier, self._data_logs, self._writer.journal_of).run)
            nursery.start_soon(self._forget_idle_producers)

    async def _forget_idle_producers(self) -> None:
        while True:
            await trio.sleep(min(EXPIRY_CHECK_MS, self._producer_expiration_ms) / 1000)
            unused_since_ms = self._now_ms() - self._producer_expiration_ms
            for log, leader in list(self._writer.led.items()):
                await trio.lowlevel.checkpoint()
                if leader.state.expired(unused_since_ms=unused_since_ms):
                    with suppress(StorageFailure):
                        await self._writer.leader_with_room(log, 0)
                if self._writer.led.get(log) is not leader:
                    continue  # it is being deleted, and its journal takes nothing more
                # In one step, for a producer may come back at any checkpoint. Without room it is the next round's.
                for producer_id in leader.state.expired(unused_since_ms=unused_since_ms):
                    if self._writer.failure is None and leader.journal.has_room(0):
                        with suppress(StorageFailure):  # it is known by then, and refuses all further writes
                            self._writer.write(leader, Forget(producer_id))

    def refuse_writes(self, reason: str) -> None:
        """Some other file of this node has failed: take no more writes until a restart, as if it were one of ours."""
        self._writer.fail(StorageFailure(reason))


def _no_transactional_producer(producer_id: ProducerId) -> ProducerEpoch | None:  # noqa: ARG001
    return None
