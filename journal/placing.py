"""What a local journal hands to the copier: batches whose place in the data log is decided.

These values flow from the fold over a local journal (`local_state`) to the copier, live and in recovery
alike. They hold positions in the journal, never the data: the copier reads the bytes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog_types import ApplyNumber, JournalPosition, LogId, Offset, ProducerEpoch, ProducerId, TxId


@dataclass(frozen=True, slots=True)
class BatchRef:
    """Where a batch's bytes lie in its journal, and what the copier must know of it without reading."""

    position: JournalPosition
    """Of the *frame* that holds the batch."""
    frame_bytes: int
    record_count: int
    max_timestamp_ms: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A plain batch, to be copied to `base_offset`."""

    log: LogId
    base_offset: Offset
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    batch: BatchRef
    end: JournalPosition
    """The position behind the deciding frame: copying this moves the copied-through mark here."""
    replay_from: JournalPosition
    """min(end, first frame of the oldest transaction open at that moment): where a restart begins to read."""


@dataclass(frozen=True, slots=True)
class PlacedTransaction:
    """This log's part of a committed transaction, to be copied to `base_offset` in one piece."""

    log: LogId
    base_offset: Offset
    txid: TxId
    apply_number: ApplyNumber
    record_count: int
    batches: tuple[BatchRef, ...]
    end: JournalPosition
    replay_from: JournalPosition
    timestamp_ms: int


Placed = PlacedBatch | PlacedTransaction
