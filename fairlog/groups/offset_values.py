"""What a commit and a fetch of offsets are made of: plain values, for handlers and for `committed`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from coordinator.answers import Refusal
from datalog.offset_entries import CommittedOffset
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_index import Partition
from fairlog_types import LogId, Offset, ProducerEpoch, ProducerId
from partition.answers import RefusedAppend


@dataclass(frozen=True, slots=True)
class Sender:
    """Who commits, as a member of the group; the defaults are those of who is none."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """Who commits inside a transaction, and on which connection."""

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    connection: int
    """Its ordinal."""


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The next record that the group wants of a partition."""

    partition: Partition
    offset: int
    leader_epoch: int
    """-1 if the client did not say."""
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitUnderWay:
    """A commit that stands in the journal; `CommittedOffsets.settled` waits until it is durable and seen."""

    log: LogId
    visible_at: Offset


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A group's offset in a partition."""

    value: CommittedOffset | None
    """None if there is none."""
    pending: bool
    """There is a newer one in an open transaction; said only to who asked for stable offsets."""


class OffsetRefusal(Enum):
    """Why a commit is not taken, apart from who sends it. Without effect."""

    TOO_LARGE = "the offsets of one commit do not fit into one record"
    TIMED_OUT = "no room in the journal, or behind it, or no word of the transaction's coordinator, in time"


CommitRefusal = GroupRefusal | OffsetRefusal | RefusedAppend | Refusal
"""Why offsets were not taken. None of these has any effect."""
