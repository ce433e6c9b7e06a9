"""The partition leaders of this node: what is written to a local journal, and in which order.

    Produce ──▶ append ─────────────────────────────▶ journal J-p ─▶ fold ─▶ copier ─▶ high watermark ─▶ Fetch
    OffsetCommit ──▶ append_record ────────────────────────▲
    coordinator ──▶ begin, seal, prepare, place, discard ──▲

A leader is a journal with its `LocalState`, the fold over that journal. Every change goes the same way: the
state decides (pure), the journal gets a frame, the state folds the frame, and what the fold says is placed
goes to the copier. A restart replays the frames through the same fold, so live and recovered leaders agree.

`LocalLeaders` answers the coordinator as `Participants`. All of a transaction's logs on this node get
their APPLY frames in one step without a checkpoint, and go to the copier as one group: this is what makes
them visible in one LMDB transaction (invariant 7) and in the group's order (invariant 6).

A storage failure is final for the run: from then on every write is refused, reads go on (invariant 12).

Not here: what a Kafka request looks like, which error code an outcome has, when a transaction ends, and which batches
are taken (`fairlog.produce_decisions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import structlog
import trio

from coordinator.messages import (
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Prepare,
    Prepared,
)
from copier.copier import BACKLOG_BYTES_MAX, Copier, CopierStatistics
from copier.reclaim import Reclaimer
from copier.visibility import LogForgotten
from datalog.batch import BatchHeader
from datalog.interface import DataLogs, Mark, NoRoom, UnknownLog
from fairlog import produce_decisions
from fairlog.broker import AbortRefusal, ActiveProducer, Appended, Buffer, DuplicateOf, RefusedAppend
from fairlog.led_logs import LedLog, LedLogStore, steps
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.failpoints import planted, reach
from journal.flush import Flusher
from journal.journal import Journal, JournalSettings, NoFiles
from journal.local_journal import encode_local
from journal.local_records import Apply, Discard, Fence, Forget, LocalRecord
from journal.local_state import LocalState
from journal.placing import Placed

logger = structlog.get_logger("fairlog.leaders")

EXPIRY_CHECK_MS = 600_000
"""How often idle producers are looked for: Kafka's producer.id.expiration.check.interval.ms."""

DELETE_BATCHES_MAX = 500
"""Deleted in one write block: 1 ms, and 9 of batches of 1 MB."""

DELETE_ROOM_BYTES = 1 << 20
"""What such a block may need on the disk before it gives room back: the pages that the batches hang on."""


REFUSED_SAID_EVERY_S = 60
"""A process without file descriptors may refuse thousands of writes in a second."""


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
    """All logs that this node leads. Implements `coordinator.messages.Participants` and `fairlog.broker.Leaders`."""

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
        self._leader_epoch = leader_epoch
        self._producer_expiration_ms = producer_expiration_ms
        self._now_ms = now_ms
        self._epoch_of: Callable[[ProducerId], ProducerEpoch | None] = _no_transactional_producer
        self._tell_decided: Callable[[LogId, TxId, Offset | None], None] = _told_to_nobody
        self._leaders: dict[LogId, LedLog] = {}
        self._open: dict[ProducerId, TxId] = {}
        """The transaction that each producer has open on this node: Produce names the producer only."""
        self._next_apply_number = 0
        self._marks: dict[LogId, Mark] = {}
        """Of all logs, as the data logs had them at the start; handed on with what is recovered."""
        self._recovered: dict[LogId, list[Placed]] | None = {}
        """What is placed and not yet copied, by log, until `finish_recovery` hands it to the copier."""
        self._copier: Copier = Copier(
            data_logs,
            self._journal_of,
            on_copied=self._on_copied,
            on_failure=self._on_failure,
            backlog_bytes_max=backlog_bytes_max,
        )
        self._backlog_bytes_max = backlog_bytes_max
        self._failure: StorageFailure | None = None
        self._refused_without_files = 0
        """For want of file descriptors, since the log last said so."""
        self._refused_said_s = -math.inf
        self.appended = AppendedCounts()

    @property
    def data_logs(self) -> DataLogs:
        return self._data_logs

    @property
    def flusher(self) -> Flusher:
        return self._flusher

    async def drain(self) -> None:
        """Return once everything that is placed so far is visible. Raises StorageFailure if it will not be."""
        await self._copier.drain()

    @property
    def led(self) -> Mapping[LogId, LedLog]:
        """Everything that is led, to be looked at: a live view."""
        return MappingProxyType(self._leaders)

    def copier_statistics(self) -> CopierStatistics:
        return self._copier.statistics()

    @property
    def failure(self) -> StorageFailure | None:
        """Why this node takes no more writes until it is restarted; None as long as it does."""
        return self._failure

    # --- the logs that are led ----------------------------------------------------------------

    async def lead(self, logs: Sequence[LogId]) -> None:
        """Take the lead of `logs`: open their journals and replay what the data logs do not hold yet.

        Raises CorruptStorage or StorageFailure; then none of the remaining logs is led, and a node that has recovered
        already refuses writes: its next start leads them. NoFiles, if no file can be opened just now, is no failure.
        """
        try:
            await self._lead(logs)
        except NoFiles:
            raise
        except StorageFailure as failure:
            if self._recovered is None:
                self._on_failure(failure)
            raise

    async def _lead(self, logs: Sequence[LogId]) -> None:
        missing = [log for log in logs if log not in self._leaders]
        async for opened in self._store.open(missing):
            log = opened.led.state.log
            assert self._recovered is not None or not opened.placed, "a log with a past is led at the start only"
            if self._recovered is not None:
                self._marks[log] = opened.mark
                self._recovered[log] = opened.placed
            for window in opened.led.state.windows.values():
                for applied in window.applied:
                    self._next_apply_number = max(self._next_apply_number, applied.apply_number + 1)
            self._leaders[log] = opened.led

    def finish_recovery(self) -> None:
        """Called once the coordinators have said again what they had decided.

        What is still open then belongs to nobody: a BEGIN that was lost with the power, or aborted without
        a trace. It is discarded, and what recovery has placed goes to the copier in one order.
        """
        for log, leader in self._leaders.items():
            for txid in list(leader.state.open_transactions):
                logger.info("orphan discarded", log=str(log), txid=str(txid))
                self._discard_in(log, leader, txid)
        self._open.clear()
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
                leader = self._leaders.pop(log, None)
                if leader is not None:
                    leader.wake()
                    self._copier.forget(log)
                    await leader.journal.close()
            await self._store.remove(step)

    async def close(self) -> None:
        """Close all journals cleanly. Nothing may be appended any more.

        Raises the first StorageFailure; the other journals are closed all the same.
        """
        failures: list[StorageFailure] = []
        for leader in self._leaders.values():
            try:
                await leader.journal.close()
            except StorageFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _journal_of(self, log: LogId) -> Journal:
        return self._leaders[log].journal

    def ask_epochs_of(self, epoch_of: Callable[[ProducerId], ProducerEpoch | None]) -> None:
        """From now on, ask `epoch_of` for the current epoch of a transactional producer (None: it is none).

        A partition that a new instance never touches learns of the new epoch in no other way (invariant 9).
        """
        self._epoch_of = epoch_of

    def tell_decided_offsets(self, decided: Callable[[LogId, TxId, Offset | None], None]) -> None:
        """From now on, call `decided` when a transaction that wrote to an offsets log is decided.

        It gets the offset of that log at which its part is visible, or None if it is discarded. It must not raise.
        """
        self._tell_decided = decided

    # --- Produce ------------------------------------------------------------------------------

    async def append(self, log: LogId, data: Buffer, header: BatchHeader) -> Appended | DuplicateOf | RefusedAppend:
        """Write one checked batch to the journal of `log`. See `fairlog.broker.Leaders`.

        Waits only for room: in the journal (zeros are written ahead), and in the copier's backlog.
        """
        try:
            leader = await self._leader_with_place(log, len(data))
            if leader is None:
                return RefusedAppend.UNKNOWN_LOG
            decision = self._decide(leader.state, header)
            if isinstance(decision, DuplicateOf | RefusedAppend):
                return decision
            self._write(leader, decision, data)
        except StorageFailure:
            return self._answered_before(log, header) or RefusedAppend.STORAGE
        self.appended.note(header)
        return produce_decisions.appended(decision)

    def _decide(self, state: LocalState, header: BatchHeader) -> produce_decisions.Decision:
        producer_id = header.producer_id
        if header.transactional:
            txid = self.open_transaction(producer_id, header.producer_epoch)
            return txid if isinstance(txid, RefusedAppend) else produce_decisions.transactional(state, header, txid)
        return produce_decisions.plain(
            state, header, current_epoch=self._epoch_of(producer_id), open_transaction=self._open.get(producer_id)
        )

    def _answered_before(self, log: LogId, header: BatchHeader) -> DuplicateOf | None:
        """The batch's first result, if it is in the journal: then "nothing was written" would be untrue."""
        leader = self._leaders.get(log)
        return None if leader is None else produce_decisions.answered_before(leader.state, header)

    async def _leader_with_room(self, log: LogId, payload_bytes: int) -> LedLog | None:
        """The leader of `log`, in a step in which its journal has room for a frame with so many bytes.

        None if the log is not led, or was dropped meanwhile. Raises StorageFailure.
        """
        leader = self._leaders.get(log)
        # Again after each wait: somebody else, who waited for the same room, may have taken it.
        while leader is not None and self._failure is None and not leader.journal.has_room(payload_bytes):
            try:
                await leader.journal.make_room(payload_bytes)
            except NoFiles as refusal:
                self._say_refused(refusal)
                raise  # this write is refused; the next may find a file descriptor free again
            except StorageFailure as failure:
                if self._leaders.get(log) is leader:  # else it was the deletion that closed the journal
                    self._on_failure(failure)
            leader = self._leaders.get(log)
        if leader is not None:
            self._raise_if_failed()
        return leader

    def _say_refused(self, refusal: NoFiles) -> None:
        self._refused_without_files += 1
        now_s = trio.current_time()
        if now_s - self._refused_said_s >= REFUSED_SAID_EVERY_S:
            logger.warning(
                "refused for want of file descriptors", refused=self._refused_without_files, reason=str(refusal)
            )
            self._refused_without_files, self._refused_said_s = 0, now_s

    def open_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> TxId | RefusedAppend:
        """The transaction that the producer has open on this node, or why there is none for it."""
        txid = self._open.get(producer_id)
        if txid is None or txid.epoch < epoch:
            return RefusedAppend.NOT_IN_TRANSACTION
        return RefusedAppend.FENCED if txid.epoch > epoch else txid

    # --- other records than batches -----------------------------------------------------------

    async def append_record(
        self, log: LogId, payload: bytes, decide: Callable[[LocalState], LocalRecord | None]
    ) -> RefusedAppend | None:
        """Write the record on which `decide` decides to the journal of `log`; its flush is under way if it is decided.

        `decide` is asked in the very step of the append, after all waiting for room; None from it: nothing is written.
        Cancelled: it was written or not.
        """
        try:
            leader = await self._leader_with_place(log, len(payload))
            if leader is None:
                return RefusedAppend.UNKNOWN_LOG
            record = decide(leader.state)
            if record is not None:
                self._write(leader, record, payload)
        except StorageFailure:
            return RefusedAppend.STORAGE
        return None

    async def _leader_with_place(self, log: LogId, payload_bytes: int) -> LedLog | None:
        """`_leader_with_room`, once the copier's backlog has room as well."""
        if self._copier.backlog_bytes > self._backlog_bytes_max:
            await self._copier.room()
        return await self._leader_with_room(log, payload_bytes)

    def _write(self, leader: LedLog, record: LocalRecord, payload: Buffer = b"") -> None:
        """Append, fold, hand on. Raises StorageFailure, and then nothing was folded and the node refuses writes."""
        item = self._fold(leader, record, payload)
        if item is not None:
            self._submit((item,))

    def _fold(self, leader: LedLog, record: LocalRecord, payload: Buffer = b"") -> Placed | None:
        # After a failure the copier must get nothing more: it might pass an APPLY that was not handed to it.
        self._raise_if_failed()
        kind, header = encode_local(record)
        try:
            position = leader.journal.append(kind, header, (payload,) if payload else ())
        except StorageFailure as failure:
            self._on_failure(failure)
            raise
        return leader.state.fold(
            record, position, leader.journal.end, leader_epoch=self._leader_epoch, now_ms=self._now_ms()
        )

    def _submit(self, group: tuple[Placed, ...]) -> None:
        if self._recovered is None:
            self._copier.submit(group)
            return
        for item in group:
            self._recovered.setdefault(item.log, []).append(item)

    # --- what the coordinator says ------------------------------------------------------------

    async def begin(self, message: Begin) -> Begun:
        """See `Participants.begin`. The fence is written the first time an epoch of a producer is seen in a log."""
        self._raise_if_failed()
        epochs: dict[LogId, LeaderEpoch] = {}
        refused: dict[LogId, str] = {}
        for log in message.logs:
            try:
                leader = await self._leader_with_room(log, 0)
            except NoFiles as failure:
                refused[log] = str(failure)
                continue
            if leader is None:
                refused[log] = "this node does not lead the log"
                continue
            refusal = leader.state.check_begin(message.txid)
            if refusal is not None:
                refused[log] = refusal.reason.value
                continue
            if leader.state.needs_fence(message.txid.producer_id, message.txid.epoch):
                self._write(leader, Fence(message.txid.producer_id, message.txid.epoch))
            epochs[log] = leader.state.begin(message.txid)
        if epochs:
            self._open[message.txid.producer_id] = message.txid
        return Begun(epochs, refused)

    def seal(self, txid: TxId, logs: tuple[LogId, ...]) -> Mapping[LogId, Expected]:
        """See `Participants.seal`."""
        if self._open.get(txid.producer_id) == txid:
            del self._open[txid.producer_id]
        expected: dict[LogId, Expected] = {}
        for log in logs:
            leader = self._leaders.get(log)
            held = None if leader is None else leader.state.seal(txid)
            if held is not None:
                expected[log] = Expected(held.leader_epoch, held.records)
        return expected

    async def prepare(self, message: Prepare) -> Prepared:
        """See `Participants.prepare`: all flushes are started before the first is waited for.

        A node that refuses writes prepares nothing: it could not place what the producer is told to be committed.
        """
        self._raise_if_failed()
        refused: dict[LogId, str] = {}
        gone: dict[LogId, str] = {}
        flushing: list[tuple[LogId, Journal, JournalPosition]] = []
        for log, expected in message.expected.items():
            leader = self._leaders.get(log)
            if leader is None:
                logger.warning("transaction goes without a deleted log", txid=str(message.txid), log=str(log))
                continue
            reason = leader.state.holds(message.txid, expected.leader_epoch, expected.records)
            if reason is not None:
                refused[log] = reason
                if not leader.journal.begun:
                    gone[log] = str(self._store.journal_directory(log))
            elif expected.records:
                flushing.append((log, leader.journal, leader.journal.end))
        if planted("skip-flush-of-one-participant"):
            del flushing[:1]
        for _, journal, _ in flushing:
            journal.start_flush()
        for log, journal, through in flushing:
            try:
                await journal.flush(through)
            except StorageFailure as failure:
                if log in self._leaders:
                    self._on_failure(failure)
                    refused[log] = str(failure)
        return Prepared(refused, gone)

    def place(self, message: ApplyCommit) -> None:
        """See `Participants.place`: no checkpoint from the first APPLY to the hand-over of the group."""
        self._raise_if_failed()
        number = self.surviving_apply_number(message.txid, message.logs)
        if number is None:
            number = ApplyNumber(self._next_apply_number)
            self._next_apply_number += 1
        group: list[Placed] = []
        try:
            for log in message.logs:
                leader = self._leaders.get(log)
                if leader is None or leader.state.applied(message.txid) is not None:
                    continue
                held = leader.state.held(message.txid)
                record = Apply(
                    txid=message.txid,
                    apply_number=number,
                    base_offset=leader.state.next_offset,
                    record_count=0 if held is None else held.records,
                    timestamp_ms=message.timestamp_ms,
                )
                item = self._fold(leader, record)
                assert item is not None, f"an APPLY places something: {record}"
                group.append(item)
                reach("coordinator.place.between_logs")
        except (StorageFailure, OSError) as failure:
            # Some logs hold the APPLY and some do not: nothing of it may be copied in this run.
            self._on_failure(StorageFailure(str(failure)))
            raise
        if group:
            self._submit(tuple(group))
        for item in group:
            if item.log.kind == LogKind.OFFSETS.value:
                self._tell_decided(item.log, message.txid, self._leaders[item.log].state.next_offset)

    def surviving_apply_number(self, txid: TxId, logs: Iterable[LogId]) -> ApplyNumber | None:
        """See `Participants.surviving_apply_number`."""
        for log in logs:
            leader = self._leaders.get(log)
            applied = None if leader is None else leader.state.applied(txid)
            if applied is not None:
                return applied.apply_number
        return None

    async def applied(self, message: ApplyCommit) -> Applied:
        """See `Participants.applied`. Raises StorageFailure if this run will not get there."""
        placements: list[Placement] = []
        for log in message.logs:
            leader = self._leaders.get(log)
            applied = None if leader is None else leader.state.applied(message.txid)
            if applied is not None and applied.record_count:
                placements.append(Placement(log, applied.base_offset, applied.record_count))
        for placement in placements:
            await self.visible(placement.log, Offset(placement.base_offset + placement.count))
        return Applied(tuple(placement for placement in placements if placement.log in self._leaders))

    def discard(self, message: DiscardTransaction) -> None:
        """See `Participants.discard`."""
        if self._open.get(message.txid.producer_id) == message.txid:
            del self._open[message.txid.producer_id]
        for log in message.logs:
            leader = self._leaders.get(log)
            if leader is not None and leader.state.held(message.txid) is not None:
                self._discard_in(log, leader, message.txid)

    def _discard_in(self, log: LogId, leader: LedLog, txid: TxId) -> None:
        try:
            self._write(leader, Discard(txid))
        except StorageFailure as failure:
            # Undecided is as good as discarded: nothing is copied without an APPLY, and the next start discards it.
            logger.warning("discard not written", log=str(log), txid=str(txid), reason=str(failure))
        if log.kind == LogKind.OFFSETS.value:
            self._tell_decided(log, txid, None)

    # --- what is visible ----------------------------------------------------------------------

    def high_watermark(self, log: LogId) -> Offset | None:
        """The first offset that cannot be read yet; None if the log is not led here."""
        leader = self._leaders.get(log)
        return None if leader is None else leader.high_watermark

    def log_start(self, log: LogId) -> Offset:
        """The first offset that can be read. Only for logs that are led here."""
        return self._leaders[log].log_start

    async def visible(self, log: LogId, offset: Offset) -> None:
        """Return once the high watermark is at least `offset`, or the log is gone.

        Raises StorageFailure if copying has stopped for good.
        """
        with suppress(LogForgotten):
            await self._copier.copied(log, offset)

    async def durable(self, log: LogId, through: JournalPosition) -> None:
        """See `fairlog.broker.Leaders`."""
        leader = self._leaders.get(log)
        if leader is None:
            return
        try:
            await leader.journal.flush(through)
        except StorageFailure as failure:
            if self._leaders.get(log) is leader:  # else it was the deletion that closed the journal
                self._on_failure(failure)
                raise

    async def wait_for_more(self, ends: Mapping[LogId, Offset]) -> None:
        """Return as soon as any of these high watermarks is above the given offset, or its log is gone."""
        leaders: list[LedLog] = []
        for log, end in ends.items():
            leader = self._leaders.get(log)
            if leader is None or leader.high_watermark > end:
                return
            leaders.append(leader)
        event = trio.Event()
        for leader in leaders:
            leader.watchers.add(event)
        try:
            await event.wait()
        finally:
            for leader in leaders:
                leader.watchers.discard(event)

    async def delete_before(self, log: LogId, offset: Offset) -> Offset | None:
        """See `fairlog.broker.Leaders`. Retention and DeleteRecords use it.

        The start moves at once, and the batches before it go in steps, between which others write; a later call removes
        what is left. Raises NoRoom if the disk or the map is full: that alone refuses no other writes.
        """
        leader = self._leaders.get(log)
        if leader is None:
            return None
        self._raise_if_failed()
        moves = offset > leader.log_start
        try:
            more = await trio.to_thread.run_sync(self._delete_before, log, offset)
            leader.log_start = max(leader.log_start, offset)
            while more:
                more = await trio.to_thread.run_sync(self._delete_before, log, offset)
            if moves:
                # Without it a loss of power may bring back what was told to be gone.
                await trio.to_thread.run_sync(self._data_logs.sync)
        except UnknownLog:
            return None  # dropped meanwhile, with all its records
        except NoRoom:
            raise
        except StorageFailure as failure:
            self._on_failure(failure)
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
        state = self._leaders[log].state
        writing = {txid.producer_id for txid, transaction in state.open_transactions.items() if transaction.records}
        return [
            ActiveProducer(
                producer_id=producer_id,
                producer_epoch=window.epoch,
                last_sequence=window.batches[-1].last_sequence if window.batches else -1,
                last_timestamp_ms=window.last_use_ms,
                in_transaction=producer_id in writing,
            )
            for producer_id, window in sorted(state.windows.items())
        ]

    async def abort_by_hand(
        self,
        log: LogId,
        producer_id: ProducerId,  # noqa: ARG002 (all logs are of journal mode)
        producer_epoch: ProducerEpoch,  # noqa: ARG002
        coordinator_epoch: int,  # noqa: ARG002
    ) -> AbortRefusal | None:
        """See `fairlog.broker.Leaders`."""
        return AbortRefusal.NO_MARKERS if log in self._leaders else AbortRefusal.UNKNOWN_LOG

    def _on_copied(self, high_watermarks: Mapping[LogId, Offset]) -> None:
        for log, high_watermark in high_watermarks.items():
            leader = self._leaders.get(log)
            if leader is not None:
                leader.high_watermark = high_watermark
                leader.wake()

    # --- in the background, and when the disk fails ---------------------------------------------

    async def run(self) -> None:
        """Copy what is placed, give journal space back, and forget idle producers; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copier.run)
            nursery.start_soon(Reclaimer(self._copier, self._data_logs, self._journal_of).run)
            nursery.start_soon(self._forget_idle_producers)

    async def _forget_idle_producers(self) -> None:
        while True:
            await trio.sleep(min(EXPIRY_CHECK_MS, self._producer_expiration_ms) / 1000)
            unused_since_ms = self._now_ms() - self._producer_expiration_ms
            for log, leader in list(self._leaders.items()):
                await trio.lowlevel.checkpoint()
                if leader.state.expired(unused_since_ms=unused_since_ms):
                    with suppress(StorageFailure):
                        await self._leader_with_room(log, 0)
                # In one step, for a producer may come back at any checkpoint. Without room it is the next round's.
                for producer_id in leader.state.expired(unused_since_ms=unused_since_ms):
                    if self._failure is None and leader.journal.has_room(0):
                        with suppress(StorageFailure):  # it is known by then, and refuses all further writes
                            self._write(leader, Forget(producer_id))

    def refuse_writes(self, reason: str) -> None:
        """Some other file of this node has failed: take no more writes until a restart, as if it were one of ours."""
        self._on_failure(StorageFailure(reason))

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_failure(self, failure: StorageFailure) -> None:
        """Refuse writes from now on, and let nobody wait for what will not come."""
        if self._failure is not None:
            return
        self._failure = failure
        logger.error("writes are refused until this node is restarted", reason=str(failure))
        for leader in self._leaders.values():
            leader.wake()


def _no_transactional_producer(producer_id: ProducerId) -> ProducerEpoch | None:  # noqa: ARG001
    return None


def _told_to_nobody(log: LogId, txid: TxId, visible_at: Offset | None) -> None:
    """Nobody keeps an index of pending offsets (yet)."""
