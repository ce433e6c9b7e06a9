"""How a partition keeps transactions: which records its leader writes for them. Pure.

    journal   TransactionalBatch … ─▶ Apply, or Discard    placed by the commit, in one piece; aborted, never
    markers   OpenBatch …          ─▶ Marker               placed as it is written; the marker tells the outcome

The second is how Kafka does it (KIP-98). A topic's config `fairlog.transactions` names its mode, once and for all.
Nobody else asks for it: what follows, follows from the records. The fold says what each means (`partition.state`),
the copier what becomes of it, and the coordinator knows of no modes at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from datalog.batch import BatchHeader
from fairlog_types import NO_APPLY_NUMBER, ApplyNumber, Offset, TxId
from partition.producer_window import AppliedTransaction
from partition.records import Apply, Discard, Marker, OpenBatch, TransactionalBatch
from partition.state import PartitionState

TransactionModeName = Literal["journal", "markers"]
"""How a mode is named in configs."""


class TransactionMode(Protocol):
    """What is written to a log for its transactions. Each record is meant for the very next frame of its journal."""

    @property
    def name(self) -> TransactionModeName: ...

    @property
    def has_markers(self) -> bool:
        """Do readers of committed records wait for an open transaction's marker, which may be written by hand?"""
        ...

    def batch(self, state: PartitionState, txid: TxId, header: BatchHeader) -> TransactionalBatch | OpenBatch:
        """One batch of the open transaction, which the state has accepted."""
        ...

    def commit(
        self, state: PartitionState, txid: TxId, number: ApplyNumber, *, coordinator_epoch: int, now_ms: int
    ) -> Apply | Marker | None:
        """The transaction is committed; `number` orders it among the node's.

        None if nothing of it is here, and so nothing has to be placed: what the leader knows of it may be discarded.
        """
        ...

    def abort(self, state: PartitionState, txid: TxId, *, coordinator_epoch: int, now_ms: int) -> Discard | Marker:
        """The transaction, which has begun here, is aborted."""
        ...

    def visible_at(self, state: PartitionState, applied: AppliedTransaction) -> Offset:
        """The high watermark at which a transaction that the log has applied in this run can be read."""
        ...


class _Journal:
    """Held in the journal until the commit."""

    name: TransactionModeName = "journal"
    has_markers = False

    def batch(self, state: PartitionState, txid: TxId, header: BatchHeader) -> TransactionalBatch:  # noqa: ARG002
        return TransactionalBatch(txid, header.record_count, header.max_timestamp, header.base_sequence)

    def commit(
        self,
        state: PartitionState,
        txid: TxId,
        number: ApplyNumber,
        *,
        coordinator_epoch: int,  # noqa: ARG002
        now_ms: int,
    ) -> Apply | None:
        held = state.held(txid)
        # What is PREPARED is applied with 0 records, too: if the coordinator asks again, it is not taken for lost.
        if held is None or not (held.records or held.prepared_for is not None):
            return None
        return Apply(txid, number, state.next_offset, held.records, now_ms)

    def abort(self, state: PartitionState, txid: TxId, *, coordinator_epoch: int, now_ms: int) -> Discard:  # noqa: ARG002
        return Discard(txid)

    def visible_at(self, state: PartitionState, applied: AppliedTransaction) -> Offset:  # noqa: ARG002
        return Offset(applied.base_offset + applied.record_count)


class _Markers:
    """In the data log at once, and ended by a control record."""

    name: TransactionModeName = "markers"
    has_markers = True

    def batch(self, state: PartitionState, txid: TxId, header: BatchHeader) -> OpenBatch:
        return OpenBatch(txid, state.next_offset, header.record_count, header.max_timestamp, header.base_sequence)

    def commit(
        self, state: PartitionState, txid: TxId, number: ApplyNumber, *, coordinator_epoch: int, now_ms: int
    ) -> Marker:
        # Also where nothing was written, as in Kafka.
        return Marker(txid, number, state.next_offset, True, coordinator_epoch, now_ms)

    def abort(self, state: PartitionState, txid: TxId, *, coordinator_epoch: int, now_ms: int) -> Marker:
        return Marker(txid, NO_APPLY_NUMBER, state.next_offset, False, coordinator_epoch, now_ms)

    def visible_at(self, state: PartitionState, applied: AppliedTransaction) -> Offset:  # noqa: ARG002
        # Where its marker stands is not remembered; what came behind it since is copied with it, or soon after.
        return state.next_offset


JOURNAL: TransactionMode = _Journal()
MARKERS: TransactionMode = _Markers()

MODES: Mapping[TransactionModeName, TransactionMode] = {mode.name: mode for mode in (JOURNAL, MARKERS)}
"""All modes, by the name that a topic's config gives them."""
