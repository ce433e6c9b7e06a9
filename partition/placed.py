"""What a local journal hands to the copier: everything that has been decided, in the journal's order.

These values flow from the fold over a local journal (`state`) to the copier, live and in recovery
alike. They hold positions in the journal, never the data: the copier reads the bytes back.

Every decided frame gives one item, also those that place no records (fences, discards, starts): so the data log's
copied-through mark, its start and the producers' windows follow the journal frame by frame, and a restart finds in
the data log exactly the state that the journal had at the mark (invariant 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fairlog_types import ApplyNumber, JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from partition.producer_window import ProducerWindow


@dataclass(frozen=True, slots=True)
class BatchRef:
    """Where a batch's bytes lie in its journal, and what the copier must know of it without reading."""

    position: JournalPosition
    """Of the *frame* that holds the batch."""
    frame_bytes: int
    """From the frame's first byte to the next frame's, padding included."""
    record_count: int
    max_timestamp_ms: int
    first_sequence: int


class OpenPart(NamedTuple):
    """What a log holds of an open transaction whose batches are readable at once, as of some frame."""

    txid: TxId
    leader_epoch: LeaderEpoch
    """In which it was begun here."""
    first_offset: Offset
    records: int


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A batch that is decided by being written, to be copied to `base_offset`: a plain one, or one of `part`."""

    log: LogId
    base_offset: Offset
    producer_id: ProducerId
    """-1 for a producer without idempotence."""
    producer_epoch: ProducerEpoch
    leader_epoch: LeaderEpoch
    """Of the deciding frame: what the data log's batches carry."""
    batch: BatchRef
    window: ProducerWindow | None
    """The producer's window as of `end`, to be kept beside the data; None for a producer without idempotence."""
    end: JournalPosition
    """The position behind the deciding frame: copying this moves the copied-through mark here."""
    replay_from: JournalPosition
    """min(end, first frame of the oldest transaction open at that moment): where a restart begins to read."""
    part: OpenPart | None = None
    """The open transaction that the batch belongs to, this batch included; None for a plain one."""


@dataclass(frozen=True, slots=True)
class PlacedTransaction:
    """This log's part of a committed transaction, to be copied to `base_offset` in one piece.

    An Apply of 0 records is one all the same, without batches.
    """

    log: LogId
    base_offset: Offset
    txid: TxId
    apply_number: ApplyNumber
    leader_epoch: LeaderEpoch
    record_count: int
    batches: tuple[BatchRef, ...]
    window: ProducerWindow
    """The producer's window as of `end`; it remembers this very placement."""
    end: JournalPosition
    replay_from: JournalPosition
    timestamp_ms: int

    @property
    def producer_id(self) -> ProducerId:
        return self.txid.producer_id


@dataclass(frozen=True, slots=True)
class PlacedMarker:
    """The control record that ends a transaction in this log, to be written at `offset`.

    A participant that was never written to gets one all the same, as in Kafka, and with the same outcome.
    """

    log: LogId
    offset: Offset
    txid: TxId
    apply_number: ApplyNumber
    committed: bool
    coordinator_epoch: int
    leader_epoch: LeaderEpoch
    timestamp_ms: int
    window: ProducerWindow
    end: JournalPosition
    replay_from: JournalPosition

    @property
    def producer_id(self) -> ProducerId:
        return self.txid.producer_id


@dataclass(frozen=True, slots=True)
class PlacedState:
    """A change without records: a fence, a discard, or a producer that is forgotten."""

    log: LogId
    producer_id: ProducerId
    window: ProducerWindow | None
    """The producer's window as of `end`; None: the producer is forgotten, delete what is kept of it."""
    end: JournalPosition
    replay_from: JournalPosition


@dataclass(frozen=True, slots=True)
class PlacedStart:
    """The log begins at `offset`, if it does not begin later."""

    log: LogId
    offset: Offset
    end: JournalPosition
    replay_from: JournalPosition


Placed = PlacedBatch | PlacedTransaction | PlacedMarker | PlacedState | PlacedStart

WITHOUT_RECORDS = (PlacedState, PlacedStart)
"""The items that nobody who reads or writes records waits for."""
