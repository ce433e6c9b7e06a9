"""A consumer group's offsets, written for the broker of a sink in a transaction of that one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from coordinator.answers import Refusal
from fairlog.groups.interface import Membership
from fairlog.groups.offset_values import CommitRefusal, NewOffset, Sender, TransactionalProducer
from partition.answers import RefusedAppend
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets

CONNECTION = 0
"""In place of a client's: a lane's epoch writes its offsets once, so nothing of it can be late."""

_STORAGE = (Refusal.STORAGE, Refusal.STORAGE_EFFECT_UNKNOWN, Refusal.STOPPING, RefusedAppend.STORAGE)


class _Offsets(Protocol):
    async def commit_in_transaction(
        self, group: str, sender: Sender, producer: TransactionalProducer, offsets: Sequence[NewOffset]
    ) -> CommitRefusal | None: ...


async def write_for_other(membership: Membership, offsets: _Offsets, message: WriteOffsets) -> OffsetsRefused | None:
    """Write them, if the group has no members. None: written. Raises StorageFailure."""
    if not membership.is_empty(message.group):
        return OffsetsRefused(WhyNotWritten.GROUP_IN_USE, in_use(message.group))
    producer = TransactionalProducer(message.transactional_id, message.producer_id, message.producer_epoch, CONNECTION)
    new = [NewOffset((topic, partition), offset, -1, "") for topic, partition, offset in message.offsets]
    refusal = await offsets.commit_in_transaction(message.group, Sender(), producer, new)
    return None if refusal is None else not_taken(message.group, refusal)


def in_use(group: str) -> str:
    """What is wrong with a group that has members, for people."""
    return f"the consumer group {group} has members, which commit its offsets themselves: use another group"


def not_taken(group: str, refusal: CommitRefusal) -> OffsetsRefused:
    """Offsets that were not accepted, without effect."""
    if refusal in _STORAGE:
        return OffsetsRefused(
            WhyNotWritten.STORAGE, f"the offsets of the consumer group {group} are not written: {refusal.value}"
        )
    return OffsetsRefused(
        WhyNotWritten.REFUSED, f"the offsets of the consumer group {group} are refused: {refusal.value}"
    )
