"""The state of one local journal: what replaying it gives, live and after a restart alike.

Signatures first; the head follows with the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from journal.local_records import LocalRecord
from journal.placing import BatchRef, Placed, PlacedState
from journal.producer_window import AppliedTransaction, BatchCheck, ProducerWindow, Refused


class Held(NamedTuple):
    """What the log holds of an open transaction."""

    leader_epoch: LeaderEpoch
    """In which it was begun here."""
    records: int


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that is neither applied nor discarded here: an index of its batches, never the data."""

    leader_epoch: LeaderEpoch
    first_position: JournalPosition | None = None
    """Of its first batch's frame; None as long as it has none."""
    batches: list[BatchRef] = field(default_factory=list[BatchRef])
    records: int = 0
    sealed: bool = False


class LocalState:
    """What the leader of `log` knows from its journal. Not thread-safe; every method is one step."""

    def __init__(self, log: LogId, leader_epoch: LeaderEpoch) -> None: ...

    log: LogId
    next_offset: Offset
    """Of the next record that is decided."""
    folded_through: JournalPosition
    """The end of the last frame that was folded."""
    open_transactions: dict[TxId, OpenTransaction]
    windows: dict[ProducerId, ProducerWindow]

    def restore(
        self,
        *,
        copied_through: JournalPosition,
        replay_from: JournalPosition,
        next_offset: Offset,
        windows: Mapping[ProducerId, ProducerWindow],
    ) -> None:
        """Start from what the data log holds; then fold the journal's frames from `replay_from` to its end."""
        raise NotImplementedError

    def fold(
        self,
        record: LocalRecord,
        position: JournalPosition,
        end: JournalPosition,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> Placed | None:
        """Take in the next frame; answer what it decided. Raises CorruptStorage if it contradicts the state."""
        raise NotImplementedError

    def check_plain(
        self, producer_id: ProducerId, epoch: ProducerEpoch, first_sequence: int, record_count: int
    ) -> BatchCheck:
        """May this plain batch be appended? `producer_id` -1: a producer without idempotence, always."""
        raise NotImplementedError

    def check_transactional(self, txid: TxId, first_sequence: int, record_count: int) -> BatchCheck:
        """May this batch be appended to the transaction? (`first_sequence` -1 in offsets logs only.)"""
        raise NotImplementedError

    def check_begin(self, txid: TxId) -> Refused | None:
        """May the transaction begin here? Refused: FENCED."""
        raise NotImplementedError

    def needs_fence(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Is (producer id, epoch) new here, so that a Fence must be appended and folded before `begin`?"""
        raise NotImplementedError

    def begin(self, txid: TxId) -> LeaderEpoch:
        """Open the transaction, in memory only; answer the leader epoch it was begun in. Idempotent."""
        raise NotImplementedError

    def seal(self, txid: TxId) -> Held | None:
        """Close the transaction for further batches, in memory only; None if it is not open. Idempotent."""
        raise NotImplementedError

    def held(self, txid: TxId) -> Held | None:
        """What the log holds of an open transaction; None if it is not open."""
        raise NotImplementedError

    def holds(self, txid: TxId, leader_epoch: LeaderEpoch, records: int) -> str | None:
        """None if the transaction can be committed here with so many records, or already is; else why not."""
        raise NotImplementedError

    def applied(self, txid: TxId) -> AppliedTransaction | None:
        """Where the transaction was placed, if it is one of the producer's last."""
        raise NotImplementedError

    def pinned_from(self, end: JournalPosition) -> JournalPosition:
        """The first position that is still needed: of the oldest open transaction's first frame, or `end`."""
        raise NotImplementedError

    def expire(self, *, unused_since_ms: int) -> list[PlacedState]:
        """Forget the producers last used before `unused_since_ms`, but none with an open transaction.

        The items (window None) go to the copier, so that the deletion keeps its place behind what was
        placed before it, and before what the producer may write when it comes back.
        """
        raise NotImplementedError
