"""Logs that their leader adds to a transaction which another shard coordinates (transaction version 2, KIP-890).

    Adding.add ─▶ AddLog ┈┈▶ the coordinator's add_logs ─▶ Begin ┈┈▶ back to the leader; BEGIN on disk ─▶ LogAdded

The producer names its partitions to nobody. Its first batch for each comes to the leader, which has the coordinator add
the log, and takes the batch then. It asks as often as it likes: a log that was added is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.answers import Refusal
from fairlog_types import LogId, ProducerEpoch, ProducerId, ShardNumber
from shard.links import Asked, Links


@dataclass(frozen=True, slots=True)
class AddLog:
    """Add the log to the transaction of this epoch, which begins with it if none is open. Answered with LogAdded."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    log: LogId


@dataclass(frozen=True, slots=True)
class LogAdded:
    """What the coordinator says."""

    refusal: Refusal | None
    """None: the transaction has the log, on disk."""


AddsLog = Callable[[AddLog], Awaitable[LogAdded]]


class Adding:
    """Asks other shards' coordinators."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._asked: dict[tuple[ShardNumber, AddLog], Asked] = {}
        """A producer that repeats its batch while the coordinator is down does not have the same asked twice."""

    async def add(self, coordinator: ShardNumber, message: AddLog) -> Refusal | None:
        """What that shard's coordinator says, however long it takes. Cancelling changes nothing.

        Raises StorageFailure if this shard stops meanwhile.
        """
        self._asked = {key: asked for key, asked in self._asked.items() if not asked.is_answered}
        asked = self._asked.get((coordinator, message))
        if asked is None:
            asked = self._asked[coordinator, message] = self._links.ask(coordinator, message)
        answer: LogAdded = await asked.answer()
        return answer.refusal
