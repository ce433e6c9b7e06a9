"""The state of one local journal: what folding its frames gives, live and after a restart alike.

The leader of a partition decides with the `check_*` methods (which change nothing), appends the frame to the
journal, and folds it; recovery folds the same frames, in the same order, with the same code. So there is
one place that says what a frame means::

    Produce ─▶ check ─▶ journal.append ─▶ fold ─▶ Placed ─▶ copier
                        journal.frames ─▶ fold ─▶ Placed ─▶ copier        (recovery)

What it holds: the next offset, and where the log begins; per producer a window (`producer_window`); and per open
transaction an index of its batches, by position in the journal. Never the data.

*Replay.* The data log knows through which position it has been copied, from where to replay (the first frame of
the oldest transaction open then), and every producer's window as of its last decided frame before that mark. So a
replay begins before the mark. What was decided there is in the data log already: such frames only rebuild the
open transactions. Their batches go into a window only at or behind its `as_of`; a producer that the data log has
no window of, though it wrote before the mark, was forgotten before the mark, and is not revived.

*Trust.* `check_*` judge what a client sends. `fold` raises CorruptStorage only where the journal says what can not
be: a decision that leaves a hole or an overlap, or counts other records than are there (invariants 2, 3); a
batch that no check would have accepted (invariant 9, and exactly once).

*PREPARED* is written for a coordinator in another shard, behind the last batch. A transaction that has it is whole,
whatever a loss of power has taken, takes no more batches, and waits for that coordinator.

*Two ways to keep a transaction*, and the records tell which (`partition.modes` chooses them). A
TransactionalBatch is held, here by its position, until its Apply places it. An OpenBatch is placed as soon as it is
written, and what a Marker adds is how it ended: such a transaction pins nothing in the journal, but the *last stable
offset*. The data log keeps which of these are open, so a restart has them from there.

Keeps invariants 2, 3, 4 and 9 for one log; 11 through `pinned_from`. Offsets logs are treated the same: their
records are entries, their offsets running numbers. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from fairlog_types import (
    NO_PRODUCER_ID,
    CorruptStorage,
    JournalPosition,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from partition.placed import (
    BatchRef,
    OpenPart,
    Placed,
    PlacedBatch,
    PlacedMarker,
    PlacedStart,
    PlacedState,
    PlacedTransaction,
)
from partition.producer_window import (
    ACCEPT,
    NO_SEQUENCE,
    AppliedTransaction,
    BatchCheck,
    BatchRefusal,
    DuplicateOf,
    ProducerWindow,
    Refused,
    check_sequence,
    first_window,
    is_before,
)
from partition.records import (
    Apply,
    Discard,
    Fence,
    Forget,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Prepared,
    Start,
    TransactionalBatch,
)

_START = JournalPosition(0)


class Held(NamedTuple):
    """What the log holds of an open transaction."""

    leader_epoch: LeaderEpoch
    """In which it was begun here."""
    records: int
    prepared_for: ShardNumber | None
    """The shard of the coordinator that alone decides it now; None unless it is PREPARED."""


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that is not decided here: an index of the batches that are held, never the data."""

    leader_epoch: LeaderEpoch
    first_position: JournalPosition | None = None
    """Of the frame of the first batch that is held; None as long as there is none."""
    batches: list[BatchRef] = field(default_factory=list[BatchRef])
    first_offset: Offset | None = None
    """Of the first batch that was placed at once; None as long as there is none."""
    first_sequence: int | None = None
    """Of the first batch; None as long as there is none, or if DeleteRecords has taken it (marker mode)."""
    records: int = 0
    written_through: JournalPosition = _START
    """The end of the last batch's frame, if that was folded in this run: with it on disk, all of them are."""
    sealed: bool = False
    prepared_for: ShardNumber | None = None
    """As in `Held`; it is sealed then."""
    added_by: str | None = None
    """The transactional id of `PartitionState.note_added`."""

    def may_have_written(self, first_sequence: int) -> bool:
        """Whether a batch that was appended, and begins so, is of this transaction. False: it is of an earlier one.

        False also if the first batch was deleted: to refuse a repetition is safe, to take a new batch for one is not.
        """
        return self.first_sequence is not None and not is_before(first_sequence, self.first_sequence)


class PartitionState:
    """What the leader of `log` knows from its journal. Not thread-safe; every method is one step."""

    __slots__ = (
        "_copied_through",
        "_pins",
        "_unstable",
        "folded_through",
        "in_doubt",
        "leader_epoch",
        "log",
        "log_start",
        "next_offset",
        "open_transactions",
        "started_through",
        "windows",
    )

    def __init__(self, log: LogId, leader_epoch: LeaderEpoch) -> None:
        """An empty log. `leader_epoch` is the one in which transactions begin from now on."""
        self.log = log
        self.leader_epoch = leader_epoch
        self.next_offset = Offset(0)
        """Of the next record that is decided."""
        self.log_start = Offset(0)
        """Where the log begins when all that is folded is copied. The data log may begin there already, or later."""
        self.started_through = _START
        """The end of the last Start that was folded in this run."""
        self.folded_through = _START
        """The end of the last frame that was folded."""
        self.open_transactions: dict[TxId, OpenTransaction] = {}
        self.in_doubt: set[TxId] = set()
        """The open transactions that another shard's coordinator may have committed: those with PREPARED."""
        self.windows: dict[ProducerId, ProducerWindow] = {}
        self._copied_through = _START
        self._pins: dict[TxId, JournalPosition] = {}
        """First position of every open transaction that the journal must keep: of its first batch, or of its PREPARED
        if there is none that is held. In the order of positions, as they are entered when they are folded: so the
        oldest is the first one, without a search."""
        self._unstable: set[TxId] = set()
        """The open transactions whose batches are placed."""

    def restore(
        self,
        *,
        copied_through: JournalPosition,
        replay_from: JournalPosition,
        next_offset: Offset,
        log_start: Offset,
        windows: Mapping[ProducerId, ProducerWindow],
        open_parts: Iterable[OpenPart] = (),
        first_sequences: Mapping[TxId, int] | None = None,
    ) -> None:
        """Start from what the data log holds; then fold the journal's frames from `replay_from` to its end.

        The first three are the data log's mark, `log_start` is where it begins, `windows` what it keeps of the
        producers, `open_parts` the transactions that are open in it, `first_sequences` those of their first batches, as
        far as they are there.
        """
        assert replay_from <= copied_through, (self.log, replay_from, copied_through)
        self.next_offset = next_offset
        self.log_start = log_start
        self.started_through = _START
        self.folded_through = replay_from
        self.open_transactions = {}
        self.in_doubt = set()
        self.windows = dict(windows)
        self._copied_through = copied_through
        self._pins = {}
        self._unstable = set()
        for part in open_parts:
            self._unstable.add(part.txid)
            self.open_transactions[part.txid] = OpenTransaction(
                part.leader_epoch,
                first_offset=part.first_offset,
                first_sequence=(first_sequences or {}).get(part.txid),
                records=part.records,
            )

    # ------------------------------------------------------------------ decisions (nothing changes)

    def check_plain(
        self, producer_id: ProducerId, epoch: ProducerEpoch, first_sequence: int, record_count: int
    ) -> BatchCheck:
        """May this batch outside any transaction be appended?

        `producer_id` -1 is a producer without idempotence: always. FENCED, UNKNOWN_PRODUCER or OUT_OF_ORDER.
        """
        if producer_id == NO_PRODUCER_ID:
            return ACCEPT
        return check_sequence(self.windows.get(producer_id), epoch, first_sequence, record_count)

    def check_transactional(self, txid: TxId, first_sequence: int, record_count: int) -> BatchCheck:
        """May this batch be appended to the transaction?

        `first_sequence` -1 (no sequence) is for offsets logs only. A repetition is answered as one also when the
        transaction is sealed or decided by now: "no effect" would be untrue. But not one of an *earlier* transaction,
        while this one takes batches: librdkafka gives sequences of records that it purged at an abort to new ones,
        though the old ones may have arrived, and a new record must not pass for an old one. Otherwise the transaction
        must have begun here and take batches still (NOT_OPEN, SEALED), and the sequence must fit.
        """
        if self._is_fenced(txid):
            return Refused(BatchRefusal.FENCED)
        if first_sequence == NO_SEQUENCE and self.log.kind == LogKind.OFFSETS.value:
            check = ACCEPT
        else:
            check = check_sequence(self.windows.get(txid.producer_id), txid.epoch, first_sequence, record_count)
        transaction = self.open_transactions.get(txid)
        if isinstance(check, DuplicateOf):
            if transaction is None or transaction.sealed or transaction.may_have_written(first_sequence):
                return check
            return Refused(BatchRefusal.OUT_OF_ORDER)
        if transaction is None:
            return Refused(BatchRefusal.NOT_OPEN)
        if transaction.sealed:
            return Refused(BatchRefusal.SEALED)
        return check

    def check_begin(self, txid: TxId) -> Refused | None:
        """May the transaction begin here? Refused if its epoch is FENCED."""
        return Refused(BatchRefusal.FENCED) if self._is_fenced(txid) else None

    def _is_fenced(self, txid: TxId) -> bool:
        window = self.windows.get(txid.producer_id)
        return window is not None and txid.epoch < window.epoch

    def needs_fence(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Is this epoch of the producer new here, so that a Fence must be appended and folded before `begin`?"""
        window = self.windows.get(producer_id)
        return window is None or epoch > window.epoch

    # ------------------------------------------------------------------ memory only

    def begin(self, txid: TxId) -> LeaderEpoch:
        """Open the transaction; answer the leader epoch it was begun in. Idempotent.

        Only after `check_begin` and, where needed, a Fence. A restart remembers it if there are batches; else `resume`
        says it again.
        """
        assert not self.needs_fence(txid.producer_id, txid.epoch), f"{self.log}: {txid} begins without its fence"
        assert self.check_begin(txid) is None, f"{self.log}: {txid} begins though it is fenced"
        transaction = self.open_transactions.get(txid)
        if transaction is None:
            transaction = self.open_transactions[txid] = OpenTransaction(self.leader_epoch)
        return transaction.leader_epoch

    def resume(self, txid: TxId) -> LeaderEpoch | str:
        """After a restart: the transaction had begun here, and is still open. Answers as `begin`, or in words why not.

        Its Fence is in the journal, or in the data log: the producer's window is of this epoch, and does not know how
        the transaction ended. Or it is of a later one, which has written beside a transaction that was kept (KIP-939).
        One that is prepared cannot go on: batches behind PREPARED might be lost, and it would still seem whole.
        """
        transaction = self.open_transactions.get(txid)
        if transaction is not None and transaction.prepared_for is not None:
            return f"{self.log} has prepared it"
        window = self.windows.get(txid.producer_id)
        if window is None or window.epoch < txid.epoch:
            known = "no epoch of it" if window is None else f"epoch {window.epoch}"
            return f"{self.log} knows {known}"
        if window.find_applied(txid) is not None:
            return f"{self.log} has applied it already"
        return self.open_transactions.setdefault(txid, OpenTransaction(self.leader_epoch)).leader_epoch

    def seal(self, txid: TxId) -> Held | None:
        """Close the transaction for further batches and say what the log holds of it; None if it is not open.

        Idempotent; forgotten by a restart, which finds the transaction open, or decided.
        """
        transaction = self.open_transactions.get(txid)
        if transaction is None:
            return None
        transaction.sealed = True
        return _held(transaction)

    # ------------------------------------------------------------------ questions

    def open_of(self, producer_id: ProducerId) -> TxId | None:
        """The transaction of which the producer has readable records here, and no marker behind them."""
        for txid in self._unstable:
            if txid.producer_id == producer_id:
                return txid
        return None

    def note_added(self, txid: TxId, transactional_id: str) -> None:
        """The id's coordinator has written down that this log takes part in the transaction. Forgotten by a restart."""
        transaction = self.open_transactions.get(txid)
        if transaction is not None:
            transaction.added_by = transactional_id

    def has_added(self, txid: TxId, transactional_id: str) -> bool:
        """Whether the transaction is open here, not sealed, and `note_added` was said of it for this id.

        That it has begun is not enough: its coordinator may not have heard that, and may go without this log.
        """
        transaction = self.open_transactions.get(txid)
        return transaction is not None and transaction.added_by == transactional_id and not transaction.sealed

    def held(self, txid: TxId) -> Held | None:
        """What the log holds of an open transaction; None if it is not open."""
        transaction = self.open_transactions.get(txid)
        return None if transaction is None else _held(transaction)

    def written_through(self, txid: TxId) -> JournalPosition | None:
        """The journal position behind the last batch of an open transaction; None if it is not open.

        0 if all its batches were copied before this run, and so were on disk.
        """
        transaction = self.open_transactions.get(txid)
        return None if transaction is None else transaction.written_through

    def holds(self, txid: TxId, leader_epoch: LeaderEpoch, records: int) -> str | None:
        """None if the transaction can be committed here with so many records, or was; else why not, in words.

        `leader_epoch` is the one in which it was begun. A participant that nothing was written to holds its 0
        records also after a restart, which has forgotten that it began.
        """
        applied = self.applied(txid)
        if applied is not None:
            if applied.record_count == records:
                return None
            return f"{self.log} has applied {txid} with {applied.record_count} records, not {records}"
        held = self.held(txid)
        if held is None:
            return None if records == 0 else f"{self.log} holds nothing of {txid}, where {records} records are expected"
        if held.records != records:
            return f"{self.log} holds {held.records} records of {txid}, where {records} are expected"
        if held.leader_epoch != leader_epoch:
            return f"{self.log} has begun {txid} in leader epoch {held.leader_epoch}, not {leader_epoch}"
        return None

    def applied(self, txid: TxId) -> AppliedTransaction | None:
        """Where the transaction was placed, if it is one of the producer's last."""
        window = self.windows.get(txid.producer_id)
        return None if window is None else window.find_applied(txid)

    def expired(self, *, unused_since_ms: int) -> list[ProducerId]:
        """The producers last used before `unused_since_ms`, but none with an open transaction.

        Nothing changes: the leader appends and folds a Forget for each, so that the deletion has its place in
        the journal's order, before what the producer may write when it comes back. Ask only once the
        coordinator has recovered: until then it may ask what was applied before a long stop.
        """
        busy = {txid.producer_id for txid in self.open_transactions}
        return [
            producer_id
            for producer_id, window in self.windows.items()
            if window.last_use_ms < unused_since_ms and producer_id not in busy
        ]

    def pinned_from(self, end: JournalPosition) -> JournalPosition:
        """The first position that is still needed if all decided before `end` is copied (invariant 11)."""
        for position in self._pins.values():
            return min(position, end)
        return end

    # ------------------------------------------------------------------ the fold

    def fold(
        self,
        record: LocalRecord,
        position: JournalPosition,
        end: JournalPosition,
        *,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> Placed | None:
        """Take in the next frame of the journal; answer what it decided, if that is not in the data log yet.

        The frame lies at `position … end` (padding included) and was written in `leader_epoch`, at `timestamp_ms` by
        its writer's clock: the only time that counts, so a replay gives the windows that were live. Raises
        CorruptStorage, before anything has changed, if the frame contradicts what stands before it.
        """
        assert self.folded_through <= position < end, (self.log, self.folded_through, position, end)
        placed: Placed | None
        match record:
            case PlainBatch():
                placed = self._fold_plain(record, position, end, leader_epoch, timestamp_ms)
            case TransactionalBatch():
                placed = self._fold_transactional(record, position, end, leader_epoch, timestamp_ms)
            case OpenBatch():
                placed = self._fold_open(record, position, end, leader_epoch, timestamp_ms)
            case Prepared():
                placed = self._fold_prepared(record, position, end, leader_epoch)
            case Apply():
                placed = self._fold_apply(record, position, end, leader_epoch, timestamp_ms)
            case Discard(txid):
                self._close(txid)
                placed = self._fold_epoch(txid.producer_id, txid.epoch, position, end, timestamp_ms)
            case Fence(producer_id, epoch):
                placed = self._fold_epoch(producer_id, epoch, position, end, timestamp_ms)
            case Marker():
                placed = self._fold_marker(record, position, end, leader_epoch, timestamp_ms)
            case Forget(producer_id):
                placed = self._fold_forget(producer_id, position, end)
            case Start(offset):
                placed = self._fold_start(offset, position, end)
            case _:
                assert_never(record)
        self.folded_through = end
        return placed

    def _fold_plain(
        self,
        record: PlainBatch,
        position: JournalPosition,
        end: JournalPosition,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> PlacedBatch | None:
        if position < self._copied_through:
            return None
        producer_id = record.producer_id
        self._require_next_offset(record.base_offset, record.record_count, "a plain batch", position)
        window = None
        if producer_id != NO_PRODUCER_ID:
            window = self._window_with_batch(
                producer_id, record.producer_epoch, record, record.base_offset, position, end, timestamp_ms
            )
            self.windows[producer_id] = window
        self.next_offset = Offset(record.base_offset + record.record_count)
        return PlacedBatch(
            self.log,
            record.base_offset,
            producer_id,
            record.producer_epoch,
            leader_epoch,
            _batch_ref(record, position, end),
            window,
            end,
            self.pinned_from(end),
        )

    def _fold_transactional(
        self,
        record: TransactionalBatch,
        position: JournalPosition,
        end: JournalPosition,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> None:
        txid = record.txid
        producer_id = txid.producer_id
        window = self.windows.get(producer_id)
        if position >= self._copied_through or (window is not None and position >= window.as_of):
            self.windows[producer_id] = self._window_with_batch(
                producer_id, txid.epoch, record, None, position, end, timestamp_ms
            )
        transaction = self.open_transactions.get(txid)
        if transaction is None:
            transaction = self.open_transactions[txid] = OpenTransaction(leader_epoch)
        if transaction.first_position is None:
            transaction.first_position = self._pins[txid] = position
            transaction.first_sequence = record.first_sequence
        transaction.batches.append(_batch_ref(record, position, end))
        transaction.records += record.record_count
        transaction.written_through = end

    def _fold_open(
        self,
        record: OpenBatch,
        position: JournalPosition,
        end: JournalPosition,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> PlacedBatch | None:
        if position < self._copied_through:
            return None
        txid, base_offset, record_count = record.txid, record.base_offset, record.record_count
        self._require_next_offset(base_offset, record_count, f"a batch of {txid}", position)
        window = self._window_with_batch(txid.producer_id, txid.epoch, record, base_offset, position, end, timestamp_ms)
        transaction = self.open_transactions.get(txid)
        if transaction is None:
            transaction = self.open_transactions[txid] = OpenTransaction(leader_epoch)
        if transaction.first_offset is None:
            transaction.first_offset = base_offset
            transaction.first_sequence = record.first_sequence
            self._unstable.add(txid)
        transaction.records += record_count
        transaction.written_through = end
        self.windows[txid.producer_id] = window
        self.next_offset = Offset(base_offset + record_count)
        return PlacedBatch(
            self.log,
            base_offset,
            txid.producer_id,
            txid.epoch,
            leader_epoch,
            _batch_ref(record, position, end),
            window,
            end,
            self.pinned_from(end),
            OpenPart(txid, transaction.leader_epoch, transaction.first_offset, transaction.records),
        )

    def _fold_prepared(
        self, record: Prepared, position: JournalPosition, end: JournalPosition, leader_epoch: LeaderEpoch
    ) -> None:
        """It pins the journal: a restart has to find it as long as the transaction is not decided.

        Before the mark the count is not checked: of what was placed at once, the data log knows what became of it.
        """
        txid = record.txid
        transaction = self.open_transactions.get(txid)
        if transaction is None:
            transaction = OpenTransaction(leader_epoch)
        if position >= self._copied_through and transaction.records != record.record_count:
            raise self._contradiction(
                position,
                f"PREPARED of {txid} counts {record.record_count} records, but {transaction.records} stand before it",
            )
        self.open_transactions[txid] = transaction
        transaction.sealed = True
        transaction.prepared_for = record.coordinator_shard
        self.in_doubt.add(txid)
        transaction.written_through = end
        self._pins.setdefault(txid, position)

    def _fold_apply(
        self,
        record: Apply,
        position: JournalPosition,
        end: JournalPosition,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> PlacedTransaction | None:
        txid = record.txid
        if position < self._copied_through:
            self._close(txid)
            return None
        self._require_next_offset(record.base_offset, record.record_count, f"the APPLY of {txid}", position)
        transaction = self.open_transactions.get(txid)
        held = 0 if transaction is None or transaction.first_offset is not None else transaction.records
        if held != record.record_count:
            raise self._contradiction(
                position, f"the APPLY of {txid} places {record.record_count} records, but {held} stand before it"
            )
        self._close(txid)
        entry = AppliedTransaction(txid.epoch, txid.number, record.apply_number, record.base_offset, held)
        window = self.windows.get(txid.producer_id)
        if window is None:
            window = first_window(txid.epoch, as_of=end, timestamp_ms=timestamp_ms)
        window = window.with_applied(entry, as_of=end, timestamp_ms=timestamp_ms)
        self.windows[txid.producer_id] = window
        self.next_offset = Offset(record.base_offset + held)
        return PlacedTransaction(
            self.log,
            record.base_offset,
            txid,
            record.apply_number,
            leader_epoch,
            held,
            () if transaction is None else tuple(transaction.batches),
            window,
            end,
            self.pinned_from(end),
            record.timestamp_ms,
        )

    def _fold_marker(
        self,
        record: Marker,
        position: JournalPosition,
        end: JournalPosition,
        leader_epoch: LeaderEpoch,
        timestamp_ms: int,
    ) -> PlacedMarker | None:
        txid, offset = record.txid, record.offset
        if position < self._copied_through:
            self._close(txid)  # its PREPARED may have been read again
            return None
        self._require_next_offset(offset, 1, f"the marker of {txid}", position)
        transaction = self.open_transactions.get(txid)
        if transaction is not None and transaction.batches:
            raise self._contradiction(position, f"a marker ends {txid}, whose batches are not placed")
        entry = None
        if record.committed:
            records, first_offset = 0, offset
            if transaction is not None and transaction.first_offset is not None:
                records, first_offset = transaction.records, transaction.first_offset
            entry = AppliedTransaction(txid.epoch, txid.number, record.apply_number, first_offset, records)
        self._close(txid)
        window = self.windows.get(txid.producer_id)
        if window is None:
            window = first_window(txid.epoch, as_of=end, timestamp_ms=timestamp_ms)
        window = window.with_marker(txid.epoch, entry, record.coordinator_epoch, as_of=end, timestamp_ms=timestamp_ms)
        self.windows[txid.producer_id] = window
        self.next_offset = Offset(offset + 1)
        return PlacedMarker(
            self.log,
            offset,
            txid,
            record.apply_number,
            record.committed,
            record.coordinator_epoch,
            leader_epoch,
            record.timestamp_ms,
            window,
            end,
            self.pinned_from(end),
        )

    def _fold_epoch(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        position: JournalPosition,
        end: JournalPosition,
        timestamp_ms: int,
    ) -> PlacedState | None:
        """A Fence or a Discard: no records; the producer is known by this epoch from here on."""
        if position < self._copied_through:
            return None
        window = self.windows.get(producer_id)
        if window is None:
            window = first_window(epoch, as_of=end, timestamp_ms=timestamp_ms)
        else:
            window = window.fenced(epoch, as_of=end, timestamp_ms=timestamp_ms)
        self.windows[producer_id] = window
        return PlacedState(self.log, producer_id, window, end, self.pinned_from(end))

    def _fold_forget(
        self, producer_id: ProducerId, position: JournalPosition, end: JournalPosition
    ) -> PlacedState | None:
        if position < self._copied_through:
            return None
        self.windows.pop(producer_id, None)
        return PlacedState(self.log, producer_id, None, end, self.pinned_from(end))

    def _fold_start(self, offset: Offset, position: JournalPosition, end: JournalPosition) -> PlacedStart | None:
        """It never goes back: where a later start was folded, this one only moves the mark."""
        if position < self._copied_through:
            return None
        if offset > self.next_offset or self.log.kind != LogKind.TOPIC.value:
            what = "which is a table" if self.log.kind != LogKind.TOPIC.value else f"which ends at {self.next_offset}"
            raise self._contradiction(position, f"a START lets the log begin at offset {offset}, {what}")
        self.log_start = max(self.log_start, offset)
        self.started_through = end
        return PlacedStart(self.log, offset, end, self.pinned_from(end))

    def _window_with_batch(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        batch: PlainBatch | TransactionalBatch | OpenBatch,
        base_offset: Offset | None,
        position: JournalPosition,
        end: JournalPosition,
        timestamp_ms: int,
    ) -> ProducerWindow:
        window = self.windows.get(producer_id)
        if window is None:
            window = first_window(epoch, as_of=end, timestamp_ms=timestamp_ms)
        if not window.accepts(epoch, batch.first_sequence):
            raise self._contradiction(
                position,
                f"producer {producer_id} goes on in epoch {epoch} with sequence {batch.first_sequence}, but it was in "
                f"epoch {window.epoch} and before sequence {window.next_sequence}",
            )
        return window.with_batch(
            epoch, batch.first_sequence, batch.record_count, base_offset, as_of=end, timestamp_ms=timestamp_ms
        )

    def _close(self, txid: TxId) -> None:
        self.open_transactions.pop(txid, None)
        self.in_doubt.discard(txid)
        self._pins.pop(txid, None)
        self._unstable.discard(txid)

    def _require_next_offset(
        self, base_offset: Offset, record_count: int, what: str, position: JournalPosition
    ) -> None:
        """Density (invariant 2): a decision places its records exactly where the log ends."""
        if base_offset == self.next_offset:
            return
        raise self._contradiction(
            position,
            f"{what} places {record_count} records at offset {base_offset}, but the log goes on at offset "
            f"{self.next_offset}",
        )

    def _contradiction(self, position: JournalPosition, what: str) -> CorruptStorage:
        return CorruptStorage(
            f"the journal of {self.log} contradicts itself at position {position}: {what}; restore this log from a copy"
        )


def _held(transaction: OpenTransaction) -> Held:
    return Held(transaction.leader_epoch, transaction.records, transaction.prepared_for)


def _batch_ref(
    record: PlainBatch | TransactionalBatch | OpenBatch, position: JournalPosition, end: JournalPosition
) -> BatchRef:
    return BatchRef(position, end - position, record.record_count, record.max_timestamp_ms, record.first_sequence)
