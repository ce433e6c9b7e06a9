"""What a partition remembers of one producer: enough to refuse gaps and to recognise repetitions.

A window holds the producer's epoch, its last batches (KIP-98 keeps five, because an idempotent producer
has at most five requests in flight), and its last applied transactions. It is a value: every change gives
a new window, so that the item that the copier carries shows the window as it was at that frame, whatever
comes later.

Two questions are answered from it:

- `check_sequence`: may this batch be appended, is it a repetition, or is it refused (strict: a producer
  that is unknown here begins with 0)?
- `applied`: where was this transaction placed? So preparing or applying again, after a crash, a transaction
  that the copier has long taken out of the journal, is answered as it was the first time.

Sequences are int32 and go on with 0 behind 2^31 - 1; "before" and "behind" are therefore meant on that
circle, as for TCP's sequence numbers (RFC 1982).

`as_of` says through which journal position the window is up to date. The data log keeps windows as opaque
bytes; a restart loads them and folds into each only what stands at or behind its own `as_of` (invariant 4).

Keeps invariant 9 for one partition: a smaller epoch than the window's is refused. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import cbor2

from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, Offset, ProducerEpoch, TxId

NO_SEQUENCE = -1
"""The first sequence of a batch without idempotence, and of committed offsets (TxnOffsetCommit has none)."""

BATCHES_KEPT = 5
"""max.in.flight.requests.per.connection of an idempotent producer (KIP-98, ProducerStateEntry)."""

TRANSACTIONS_KEPT = 5
"""One more than the coordinator lets be committed but not yet recorded as COMMITTED."""

_SEQUENCES = 1 << 31
_FORMAT_VERSION = 1


class BatchRefusal(Enum):
    """Why a batch is not appended; the value is a sentence for logs. None of these has any effect."""

    FENCED = "a newer epoch of this producer has been seen in this partition"
    UNKNOWN_PRODUCER = "the producer is unknown in this partition, and its batch is not its first"
    OUT_OF_ORDER = "the batch does not follow the producer's last one"
    NOT_OPEN = "the transaction is not open in this partition"
    SEALED = "the transaction is being committed and takes no more batches"


@dataclass(frozen=True, slots=True)
class Accept:
    """Append the batch."""


@dataclass(frozen=True, slots=True)
class DuplicateOf:
    """The batch was appended before; answer as then, append nothing."""

    base_offset: Offset | None
    """Where the first one was placed; None for a batch of a transaction, or if not `remembered`."""
    remembered: bool
    """False: older than the window, so all that is known is that it was appended."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The batch is not appended, now or later."""

    reason: BatchRefusal


BatchCheck = Accept | DuplicateOf | Refused

ACCEPT = Accept()


class WindowBatch(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: Offset | None
    """None for a batch of a transaction."""


class AppliedTransaction(NamedTuple):
    """Where a transaction of the producer was placed."""

    epoch: ProducerEpoch
    number: int
    apply_number: ApplyNumber
    base_offset: Offset
    record_count: int


@dataclass(frozen=True, slots=True)
class ProducerWindow:
    """One producer in one partition, as of one journal position."""

    epoch: ProducerEpoch
    """The largest epoch seen; smaller ones are fenced."""
    batches: tuple[WindowBatch, ...]
    """The last ones of `epoch`, oldest first, at most BATCHES_KEPT."""
    applied: tuple[AppliedTransaction, ...]
    """The last ones of any epoch, oldest first, at most TRANSACTIONS_KEPT."""
    last_use_ms: int
    """When the producer last did something here, by the node's clock, ms since 1970."""
    as_of: JournalPosition
    """The end of the last frame that is folded in."""

    def fenced(self, epoch: ProducerEpoch, *, as_of: JournalPosition, now_ms: int) -> ProducerWindow:
        """After a frame that names `epoch` and holds no batch: a new epoch begins with sequence 0."""
        raise NotImplementedError

    def with_batch(
        self,
        epoch: ProducerEpoch,
        first_sequence: int,
        record_count: int,
        base_offset: Offset | None,
        *,
        as_of: JournalPosition,
        now_ms: int,
    ) -> ProducerWindow:
        """After a batch. A larger epoch fences the present one."""
        raise NotImplementedError

    def with_applied(self, entry: AppliedTransaction, *, as_of: JournalPosition, now_ms: int) -> ProducerWindow:
        """After an APPLY of one of the producer's transactions."""
        raise NotImplementedError

    def find_applied(self, txid: TxId) -> AppliedTransaction | None:
        """Where the transaction was placed, if it is one of the last."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """The window as the data log keeps it (docs/formats/local-journal.md)."""
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes) -> ProducerWindow:
        """Read what `encode` wrote. Raises CorruptStorage on anything else."""
        raise NotImplementedError


def check_sequence(
    window: ProducerWindow | None, epoch: ProducerEpoch, first_sequence: int, record_count: int
) -> BatchCheck:
    """May a batch of `record_count` records, the first numbered `first_sequence`, follow what the window holds?

    `window` is None for a producer that is not known in this partition.
    """
    raise NotImplementedError
