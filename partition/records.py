"""The records of a local journal, as values; their codec is `record_codec`.

One frame holds one record. The frame's CBOR header is a short array of the fields in the order in which
they stand here (docs/formats/local-journal.md); a batch's bytes are the frame's payload, untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog_types import ApplyNumber, Offset, ProducerEpoch, ProducerId, ShardNumber, TxId


@dataclass(frozen=True, slots=True)
class Fence:
    """From here on, `producer_id`'s epochs below `epoch` are refused in this partition."""

    producer_id: ProducerId
    epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """A batch outside any transaction, decided as soon as it is written. The payload is the batch."""

    base_offset: Offset
    record_count: int
    max_timestamp_ms: int
    producer_id: ProducerId
    """-1 for a producer without idempotence."""
    producer_epoch: ProducerEpoch
    first_sequence: int
    """-1 without idempotence."""


@dataclass(frozen=True, slots=True)
class TransactionalBatch:
    """A batch of an open transaction. The payload is the batch."""

    txid: TxId
    record_count: int
    max_timestamp_ms: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch of an open transaction that is readable at once, decided as soon as it is written (marker mode).

    The payload is the batch.
    """

    txid: TxId
    base_offset: Offset
    record_count: int
    max_timestamp_ms: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """All batches of the transaction are before this, and no more come: only its coordinator decides what it becomes.

    Written for a coordinator in another shard, which has not counted the records itself.
    """

    txid: TxId
    record_count: int
    coordinator_shard: ShardNumber


@dataclass(frozen=True, slots=True)
class Apply:
    """The transaction has committed: its records here are `base_offset … base_offset + record_count - 1`."""

    txid: TxId
    apply_number: ApplyNumber
    base_offset: Offset
    record_count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Discard:
    """The transaction has aborted: its batches here are never copied."""

    txid: TxId


@dataclass(frozen=True, slots=True)
class Marker:
    """The transaction has ended, and its `OpenBatch`es with it: a control record at `offset` tells readers (KIP-98)."""

    txid: TxId
    apply_number: ApplyNumber
    """NO_APPLY_NUMBER if it has aborted."""
    offset: Offset
    committed: bool
    coordinator_epoch: int
    """Of the coordinator that has decided: on one node, the leader epoch of the group journal."""
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The producer has been idle for so long that nothing of it is remembered here from now on.

    It stands in the journal so that a replay forgets at the same place (invariant 4).
    """

    producer_id: ProducerId


@dataclass(frozen=True, slots=True)
class Start:
    """The log begins at `offset`, or later if it did: what lies before was deleted, by a client or by retention.

    It stands in the journal so that each copy of the log begins there, after each restart.
    """

    offset: Offset


LocalRecord = Fence | PlainBatch | TransactionalBatch | OpenBatch | Prepared | Apply | Discard | Marker | Forget | Start
