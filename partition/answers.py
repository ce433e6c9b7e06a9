"""What a partition answers to those who write to it and ask it: values, in the words of the log.

No error codes of Kafka here: each edge has its own for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from fairlog_types import JournalPosition, Offset, ProducerEpoch, ProducerId

Buffer = bytes | bytearray | memoryview


class RefusedAppend(Enum):
    """Why a leader does not take a batch. None of these leaves a trace in the log."""

    UNKNOWN_LOG = "this node does not lead the partition (any more)"
    FENCED = "the producer's epoch is older than one that this partition has seen"
    UNKNOWN_PRODUCER = "the partition knows nothing of this producer, and the batch is not its first"
    OUT_OF_ORDER = "the batch does not follow the producer's last one"
    DUPLICATE_FORGOTTEN = "the batch was written long ago; its offset is no longer known"
    NOT_IN_TRANSACTION = "the partition was not added to an open transaction of this producer"
    IN_TRANSACTION = "a plain batch of a producer that has an open transaction in the partition"
    MUST_ABORT = "the broker has aborted the producer's transaction; the producer has to do the same"
    STORAGE = "the journal takes no more: the disk is full or has failed"


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch is in the journal; the flush of one that has its offset is under way.

    A transactional batch has no offset in a topic of journal mode, where the commit decides its place. Any other batch
    has one, and is kept for good when the journal is on disk through `durable_at`: `Partition.durable` waits for that.
    """

    base_offset: Offset | None
    durable_at: JournalPosition | None


@dataclass(frozen=True, slots=True)
class DuplicateOf:
    """The batch was appended before: the original's result. The fields mean what `Appended`'s mean."""

    base_offset: Offset | None
    durable_at: JournalPosition | None


class AbortRefusal(Enum):
    """Why a partition's open transaction is not aborted by an administrator's marker. Nothing is changed then."""

    NO_MARKERS = "the topic is of journal mode: nobody waits for its open transactions, and there are no markers"
    INVALID_PRODUCER_EPOCH = "the partition knows a later epoch of the producer, or has a transaction of another open"
    COORDINATOR_FENCED = "a coordinator of a later epoch has written a marker for this producer"


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What a partition knows of one producer."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    """-1 if nothing was written in this epoch."""
    last_timestamp_ms: int
    """When it was last heard of here; -1 if unknown."""
    in_transaction: bool
    """Has batches in a transaction that is not decided."""
    first_offset: Offset | None = None
    """Of that transaction; None if there is none, and in a topic of journal mode, where it has no offsets yet."""
    coordinator_epoch: int = -1
    """Of the last marker that was written for the producer here; -1 if there is none."""


class LogCut(NamedTuple):
    """One log's part of a cut."""

    log_start: Offset
    """The first offset that can be read."""
    end: Offset
    """The cut: what lies before it, in all logs of the cut, holds of every transaction all or nothing."""
    readable_end: Offset
    """The first offset that a reader of committed records cannot read yet; these are a cut as well, the newest."""


class Watcher(Protocol):
    """Someone who waits for a log to move. It is told in the step in which the log does, so it only takes note."""

    def moved(self, *, stable: bool) -> bool:
        """High watermark, log start or (then `stable`) last stable offset have changed. Whether that is enough."""
        ...


class PlacedEnd(NamedTuple):
    """Where a log ends with all that is placed in its journal by now, of which some may not be readable yet."""

    next_offset: Offset
    last_stable_offset: Offset
    """To readers of committed records."""
