"""What a shard asks of the one that has a consumer group: to write its offsets in a transaction. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlog_types import ProducerEpoch, ProducerId


@dataclass(frozen=True, slots=True)
class WriteOffsets:
    """Write these offsets into the transaction, which has the group's log. Answered with None or OffsetsRefused."""

    listener_epoch: int
    """To which start of the group's shard this is said. A later one may have the offsets already, and does not write
    them again."""
    group: str
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    offsets: tuple[tuple[str, int, int], ...]
    """Topic's id in hex, partition, the next record that the group wants."""


class WhyNotWritten(Enum):
    """Why offsets are not written. The numbers are those of the messages between brokers."""

    GROUP_IN_USE = 0
    REFUSED = 1
    STORAGE = 2
    STARTED_AGAIN = 3


@dataclass(frozen=True, slots=True)
class OffsetsRefused:
    """The offsets are not written. After STARTED_AGAIN they may be: the transaction has to be aborted."""

    why: WhyNotWritten
    reason: str
