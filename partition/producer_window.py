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

from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple

import cbor2

from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, Offset, ProducerEpoch, TxId

NO_COORDINATOR_EPOCH = -1
"""No marker was written for the producer yet."""

NO_SEQUENCE = -1
"""The first sequence of a batch without idempotence, and of committed offsets (TxnOffsetCommit has none)."""

BATCHES_KEPT = 5
"""max.in.flight.requests.per.connection of an idempotent producer (KIP-98, ProducerStateEntry)."""

TRANSACTIONS_KEPT = 5
"""One more than the coordinator lets be committed but not yet recorded as COMMITTED."""

_SEQUENCES = 1 << 31
_WITHOUT_MARKERS, _WITH_MARKERS = 1, 2
"""Versions of the format. A window without markers is written as it was before there were any."""


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
    """When the producer last did something here, by the clock of whoever wrote the frame, ms since 1970."""
    as_of: JournalPosition
    """The end of the last frame that is folded in."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    """Of the last marker."""

    def fenced(self, epoch: ProducerEpoch, *, as_of: JournalPosition, timestamp_ms: int) -> ProducerWindow:
        """After a frame that names `epoch` and holds no batch; a larger epoch begins with sequence 0.

        A smaller one changes nothing: a transaction of an older epoch may still be decided.
        """
        if epoch > self.epoch:
            return ProducerWindow(epoch, (), self.applied, timestamp_ms, as_of, self.coordinator_epoch)
        return ProducerWindow(self.epoch, self.batches, self.applied, timestamp_ms, as_of, self.coordinator_epoch)

    def with_batch(
        self,
        epoch: ProducerEpoch,
        first_sequence: int,
        record_count: int,
        base_offset: Offset | None,
        *,
        as_of: JournalPosition,
        timestamp_ms: int,
    ) -> ProducerWindow:
        """After a batch that `check_sequence` has accepted. A larger epoch fences the present one.

        A batch without a sequence (NO_SEQUENCE: committed offsets) is not remembered, only its epoch.
        """
        if first_sequence == NO_SEQUENCE:
            return self.fenced(epoch, as_of=as_of, timestamp_ms=timestamp_ms)
        batch = WindowBatch(first_sequence, last_sequence(first_sequence, record_count), base_offset)
        batches = (batch,) if epoch > self.epoch else (*self.batches[1 - BATCHES_KEPT :], batch)
        return ProducerWindow(epoch, batches, self.applied, timestamp_ms, as_of, self.coordinator_epoch)

    def with_applied(self, entry: AppliedTransaction, *, as_of: JournalPosition, timestamp_ms: int) -> ProducerWindow:
        """After an APPLY of one of the producer's transactions, of this epoch or of another one."""
        applied = (*self.applied[1 - TRANSACTIONS_KEPT :], entry)
        batches = self.batches if entry.epoch <= self.epoch else ()
        epoch = max(self.epoch, entry.epoch)
        return ProducerWindow(epoch, batches, applied, timestamp_ms, as_of, self.coordinator_epoch)

    def with_marker(
        self,
        epoch: ProducerEpoch,
        entry: AppliedTransaction | None,
        coordinator_epoch: int,
        *,
        as_of: JournalPosition,
        timestamp_ms: int,
    ) -> ProducerWindow:
        """After the marker of a transaction of `epoch`; `entry` says where it stands, if it has committed."""
        ended = self.fenced(epoch, as_of=as_of, timestamp_ms=timestamp_ms)
        applied = ended.applied if entry is None else (*ended.applied[1 - TRANSACTIONS_KEPT :], entry)
        return ProducerWindow(ended.epoch, ended.batches, applied, timestamp_ms, as_of, coordinator_epoch)

    def accepts(self, epoch: ProducerEpoch, first_sequence: int) -> bool:
        """Would a batch of this epoch that begins so be appended? (NO_SEQUENCE asks of the epoch alone.)"""
        if first_sequence == NO_SEQUENCE:
            return epoch >= self.epoch
        if epoch == self.epoch:
            return first_sequence == self.next_sequence
        return epoch > self.epoch and first_sequence == 0

    @property
    def next_sequence(self) -> int:
        """The sequence with which the next batch of the present epoch must begin."""
        return (self.batches[-1].last_sequence + 1) % _SEQUENCES if self.batches else 0

    def find_applied(self, txid: TxId) -> AppliedTransaction | None:
        """Where the transaction was placed, if it is one of the last."""
        for entry in reversed(self.applied):
            if entry.number == txid.number and entry.epoch == txid.epoch:
                return entry
        return None

    def encode(self) -> bytes:
        """The window as the data log keeps it (docs/formats/local-journal.md, "Producer windows")."""
        fields = (self.epoch, self.last_use_ms, self.as_of, self.batches, self.applied)
        if self.coordinator_epoch == NO_COORDINATOR_EPOCH:
            return cbor2.dumps((_WITHOUT_MARKERS, *fields))
        return cbor2.dumps((_WITH_MARKERS, *fields, self.coordinator_epoch))

    @classmethod
    def decode(cls, data: bytes) -> ProducerWindow:
        """Read what `encode` wrote. Raises CorruptStorage on anything else; the caller knows whose window it is."""
        try:
            version, *fields = cbor2.loads(data)
            if version not in (_WITHOUT_MARKERS, _WITH_MARKERS):
                raise CorruptStorage(f"a producer window has format version {version}; a newer version has written it")
            if version == _WITHOUT_MARKERS:
                fields.append(NO_COORDINATOR_EPOCH)
            epoch, last_use_ms, as_of, batches, applied, coordinator_epoch = fields
            window = cls(
                epoch=epoch,
                batches=tuple(WindowBatch(*batch) for batch in batches),
                applied=tuple(AppliedTransaction(*entry) for entry in applied),
                last_use_ms=last_use_ms,
                as_of=as_of,
                coordinator_epoch=coordinator_epoch,
            )
        except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
            raise CorruptStorage(f"a producer window does not read: {data.hex()}") from error
        numbers: list[object] = [epoch, last_use_ms, as_of, coordinator_epoch, *chain.from_iterable(window.applied)]
        for first, last, base_offset in window.batches:
            numbers += (first, last) if base_offset is None else (first, last, base_offset)
        if not all(type(number) is int for number in numbers):
            raise CorruptStorage(f"a producer window does not read: {data.hex()}")
        return window


def first_window(epoch: ProducerEpoch, *, as_of: JournalPosition, timestamp_ms: int) -> ProducerWindow:
    """The window of a producer that has just become known, before its first batch."""
    return ProducerWindow(epoch, (), (), timestamp_ms, as_of)


def last_sequence(first_sequence: int, record_count: int) -> int:
    """The sequence of the last of `record_count` records: int32, going on with 0 behind 2^31 - 1."""
    return (first_sequence + record_count - 1) % _SEQUENCES


def check_sequence(
    window: ProducerWindow | None, epoch: ProducerEpoch, first_sequence: int, record_count: int
) -> BatchCheck:
    """May a batch of `record_count` records, the first numbered `first_sequence`, follow what the window holds?

    `window` is None for a producer that is not known in this partition. A negative `first_sequence` is
    OUT_OF_ORDER. A repetition is recognised by both ends of the batch, as clients repeat batches unchanged.
    """
    if first_sequence < 0:
        return Refused(BatchRefusal.OUT_OF_ORDER)
    if window is None:
        return ACCEPT if first_sequence == 0 else Refused(BatchRefusal.UNKNOWN_PRODUCER)
    if epoch < window.epoch:
        return Refused(BatchRefusal.FENCED)
    if epoch > window.epoch:
        return ACCEPT if first_sequence == 0 else Refused(BatchRefusal.OUT_OF_ORDER)
    if first_sequence == window.next_sequence:
        return ACCEPT
    if not window.batches:
        return Refused(BatchRefusal.UNKNOWN_PRODUCER)
    last = last_sequence(first_sequence, record_count)
    for batch in window.batches:
        if batch.first_sequence == first_sequence and batch.last_sequence == last:
            return DuplicateOf(batch.base_offset, remembered=True)
    if len(window.batches) == BATCHES_KEPT and is_before(last, window.batches[0].first_sequence):
        return DuplicateOf(None, remembered=False)
    return Refused(BatchRefusal.OUT_OF_ORDER)


def is_before(sequence: int, other: int) -> bool:
    """Whether `sequence` lies in the half circle before `other`."""
    return sequence != other and (other - sequence) % _SEQUENCES < _SEQUENCES // 2
