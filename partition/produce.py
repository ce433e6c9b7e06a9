"""Whether a partition's leader takes a batch, and as which record of its journal. Pure.

    header of the batch ─┐
    state of the log  ───┼──▶ plain, transactional ──▶ the record to write │ the result it had before │ a refusal
    what else is known ──┘

A leader asks in the very step in which it writes: between the decision and the frame nobody else has a turn, so that
what was decided still holds. What the log itself remembers (sequences, epochs, open transactions) decides
`partition.state`; here stand the rules that need more than one log (invariant 9 among them), and the translation
into what `Partition.append` answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from datalog.batch import BatchHeader
from fairlog_types import JournalPosition, Offset, ProducerEpoch, TxId
from partition import producer_window
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import TransactionMode
from partition.producer_window import BatchRefusal
from partition.records import OpenBatch, PlainBatch, TransactionalBatch
from partition.state import PartitionState

Decision = PlainBatch | TransactionalBatch | OpenBatch | DuplicateOf | RefusedAppend

_REFUSALS: Mapping[BatchRefusal, RefusedAppend] = {
    BatchRefusal.FENCED: RefusedAppend.FENCED,
    BatchRefusal.UNKNOWN_PRODUCER: RefusedAppend.UNKNOWN_PRODUCER,
    BatchRefusal.OUT_OF_ORDER: RefusedAppend.OUT_OF_ORDER,
    BatchRefusal.NOT_OPEN: RefusedAppend.NOT_IN_TRANSACTION,
    BatchRefusal.SEALED: RefusedAppend.NOT_IN_TRANSACTION,
}


def open_transaction(opened: TxId | None, epoch: ProducerEpoch) -> TxId | RefusedAppend:
    """The transaction to which a batch of this epoch belongs, or why to none. `opened`: what its producer has open."""
    if opened is None or opened.epoch < epoch:
        return RefusedAppend.NOT_IN_TRANSACTION
    return RefusedAppend.FENCED if opened.epoch > epoch else opened


def plain(
    state: PartitionState, header: BatchHeader, *, current_epoch: ProducerEpoch | None, open_transaction: TxId | None
) -> Decision:
    """Decide on a batch that is outside of transactions.

    `current_epoch` is the coordinator's word on this producer (None: it is no transactional one); `open_transaction` is
    what the producer has open in this shard.
    """
    producer_id, epoch = header.producer_id, header.producer_epoch
    if current_epoch is not None and epoch != current_epoch:
        # A larger one was never granted; taking it would fence the rightful producer out of this partition.
        return RefusedAppend.FENCED
    if open_transaction is not None and open_transaction.epoch <= epoch and open_transaction in state.open_transactions:
        return RefusedAppend.IN_TRANSACTION
    match state.check_plain(producer_id, epoch, header.base_sequence, header.record_count):
        case producer_window.Refused(reason):
            return _REFUSALS[reason]
        case producer_window.DuplicateOf(base_offset, remembered):
            return _repeated(state, base_offset) if remembered else RefusedAppend.DUPLICATE_FORGOTTEN
        case producer_window.Accept():
            return PlainBatch(
                base_offset=state.next_offset,
                record_count=header.record_count,
                max_timestamp_ms=header.max_timestamp,
                producer_id=producer_id,
                producer_epoch=epoch,
                first_sequence=header.base_sequence,
            )


def transactional(state: PartitionState, header: BatchHeader, txid: TxId, mode: TransactionMode) -> Decision:
    """Decide on a batch of the transaction `txid`, in a log of `mode`."""
    match state.check_transactional(txid, header.base_sequence, header.record_count):
        case producer_window.Refused(reason):
            return _REFUSALS[reason]
        case producer_window.DuplicateOf(base_offset, remembered):
            return _repeated(state, base_offset) if remembered else RefusedAppend.DUPLICATE_FORGOTTEN
        case producer_window.Accept():
            return mode.batch(state, txid, header)


def outside(
    state: PartitionState, header: BatchHeader, *, has_ended: bool, current_epoch: ProducerEpoch | None
) -> DuplicateOf | RefusedAppend:
    """Decide on a transactional batch whose transaction is not open, or no longer (`has_ended`, while it waited).

    It may be a repetition: then it was written, and its sequences are used, whatever has become of its transaction.
    `current_epoch` is the coordinator's word on this producer.
    """
    if current_epoch is not None and header.producer_epoch < current_epoch:
        return RefusedAppend.FENCED
    match state.check_plain(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count):
        case producer_window.DuplicateOf(base_offset, remembered):
            return _repeated(state, base_offset) if remembered else RefusedAppend.DUPLICATE_FORGOTTEN
        case _:
            return RefusedAppend.MUST_ABORT if has_ended else RefusedAppend.NOT_IN_TRANSACTION


def answered_before(state: PartitionState, header: BatchHeader) -> DuplicateOf | None:
    """What a batch was answered the first time; None if the log does not remember it, or it has no offset yet."""
    decision = state.check_plain(header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    if isinstance(decision, producer_window.DuplicateOf) and decision.base_offset is not None:
        return _repeated(state, decision.base_offset)
    return None


def appended(record: PlainBatch | TransactionalBatch | OpenBatch, *, through: JournalPosition) -> Appended:
    """What is answered once `record` is written, up to `through`.

    A batch that is held gets its offsets when it is placed, and durability is bought at the commit. One that is placed
    is promised to be there, so it has to be on disk.
    """
    if isinstance(record, TransactionalBatch):
        return Appended(None, None)
    return Appended(record.base_offset, through)


def lowest_offset(state: PartitionState, txid: TxId, first_sequence: int) -> Offset | None:
    """The smallest offset that a batch which is held for an open transaction can still get; None if it is not held.

    A transaction's records are placed as one block, in their order, at the log's next offset. That only grows until
    then: by what others place before. So the answer is never too large, and exact if nobody does.
    """
    transaction = state.open_transactions.get(txid)
    if transaction is None:
        return None
    before = transaction.records
    for batch in reversed(transaction.batches):  # it is the last one, or one of the few that may be repeated
        before -= batch.record_count
        if batch.first_sequence == first_sequence:
            return Offset(state.next_offset + before)
    return None


def _repeated(state: PartitionState, base_offset: Offset | None) -> DuplicateOf:
    """The first one may not be on disk yet; where it ends is not remembered, but not after the journal's end."""
    return DuplicateOf(base_offset, None if base_offset is None else state.folded_through)
