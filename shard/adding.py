"""Logs that their leader adds to a transaction which another shard coordinates (transaction version 2, KIP-890).

    Adding.add ─▶ AddLog ┈┈▶ the coordinator's add_logs ─▶ Begin ┈┈▶ back to the leader; BEGIN on disk ─▶ LogAdded

The producer names its partitions to nobody. Its first batch for each comes to the leader, which has the coordinator add
the log, and takes the batch then. It asks as often as it likes: a log that was added is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from coordinator.answers import Refusal
from coordinator.service import Coordinator
from fairlog_types import LogId, ProducerEpoch, ProducerId, ShardNumber, StorageFailure
from journal.failpoints import reach
from shard.holding import Commits
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


class AddingForOthers:
    """Has this shard's coordinator add logs for the shards that lead them."""

    def __init__(self, coordinator: Coordinator, commits: Commits, catch_up: Callable[[], Awaitable[None]]) -> None:
        """`catch_up` returns when the log of each message that has come is known here."""
        self._coordinator = coordinator
        self._commits = commits
        self._catch_up = catch_up

    async def add(self, message: AddLog) -> LogAdded:
        """Carry out a command of another shard, once this one has recovered."""
        await self._commits.until_recovered()
        who = message.transactional_id, message.producer_id, message.producer_epoch
        try:
            await self._catch_up()  # the topic may be a moment old, and the log's leader the first to know it
            added = await self._coordinator.add_logs(*who, (message.log,), None)
        except StorageFailure:
            return LogAdded(Refusal.STORAGE)
        if added is Refusal.STOPPING:
            await trio.sleep_forever()  # the next start is asked again
        refusal = added if isinstance(added, Refusal) else added[message.log]
        if refusal is None:
            reach("coordinator.log_added")
        return LogAdded(refusal)
