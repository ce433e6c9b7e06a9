"""Topics and everything that belongs to them: the cluster store's entry, the journals and the data logs.

    create:  cluster store ──▶ lead its partitions ──▶ answered
    grow:    lead the new partitions ──▶ cluster store ──▶ answered
    configs: cluster store ──▶ answered; code that acts on one reads it where it is needed
    delete:  cluster store: marked ──▶ answered ──▶ journals and data logs removed ──▶ cluster store: forgotten

The next start repairs a crash between two steps: `recover` leads the partitions of every topic in the store, and `run`
removes marked topics. A topic whose partitions cannot be led is deleted again: at the next start it could not be led
either. New partitions of a topic are led before the store knows them, since they could not be removed again: until
then no client can write to them, and what a crash, or a refusal, leaves of them is empty, and removed.

Changes take turns: many clients may ask for a new topic at once, which each would auto-create; and a change of configs
reads what it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import structlog
import trio

from fairlog.cluster.interface import ClusterStore, InvalidPartitions, InvalidTopic, Topic, UnknownTopic
from fairlog.cluster.topic_rules import check_total_untrusted
from fairlog.topic_configs import mode_of
from fairlog_types import CorruptStorage, LogId, StorageFailure
from partition.modes import TransactionMode
from shard.shard import Shard

log = structlog.get_logger()

NODE_PARTITIONS_MAX = 50_000
"""Of all topics together. The data logs' environment has room for 65,536 databases between two starts, and logs that
were dropped since the last one still count there."""


REMOVE_AGAIN_S = 60
"""Between two attempts to remove what a deleted topic has left. What stands in the way may pass, such as a want of file
descriptors."""


class LocalTopics:
    """The topics of a node that leads all partitions. Implements `fairlog.broker.Topics`."""

    def __init__(
        self,
        cluster: ClusterStore,
        shard: Shard,
        now_ms: Callable[[], int],
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_deleted` hears that a topic is no longer there, once that is durable."""
        self._on_deleted = on_deleted
        self._cluster = cluster
        self._shard = shard
        self._now_ms = now_ms
        self._changing = trio.Lock()
        self._marked = trio.Event()

    async def recover(self) -> None:
        """Lead the partitions of all topics. Raises CorruptStorage, StorageFailure."""
        leftovers = await trio.to_thread.run_sync(self._partitions_never_added)
        if leftovers:
            log.info("partitions that were never added are removed", logs=[str(each) for each in leftovers])
            await self._shard.drop(leftovers)
        logs: dict[TransactionMode, list[LogId]] = {}
        for topic in self._cluster.topics():
            logs.setdefault(mode_of(topic), []).extend(topic.logs())
        for mode, of_mode in logs.items():
            await self._shard.lead(of_mode, mode)

    def _partitions_never_added(self) -> list[LogId]:
        """The data logs that lie behind a topic's last partition. In a worker thread. Raises CorruptStorage."""
        totals = {
            topic.topic_id.hex: topic.partitions for topic in (*self._cluster.topics(), *self._cluster.deleting())
        }
        data_logs = self._shard.data_logs
        beyond = [each for each in data_logs.logs() if each.partition >= totals.get(each.topic, each.partition + 1)]
        for each in beyond:
            if data_logs.bounds(each).next_offset:
                raise CorruptStorage(
                    f"the data log {each} has records, but its topic has {totals[each.topic]} partitions: the cluster "
                    "store is older than the data logs. Put back the one that belongs to them."
                )
        return beyond

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """See `fairlog.broker.Topics.create`. Cancelled: the topic was made, with its partitions, or it was not."""
        async with self._changing:
            if (problem := self._why_no_room_for(partitions)) is not None:
                raise InvalidTopic(problem)
            unled: StorageFailure | None = None
            with trio.CancelScope(shield=True):
                topic = await self._cluster.create_topic(
                    name, partitions=partitions, configs=configs, now_ms=self._now_ms()
                )
                try:
                    await self._shard.lead(topic.logs(), mode_of(topic))
                except StorageFailure as failure:
                    unled = failure
                if unled is not None:
                    await self._cluster.delete_topic(name)
                    self._marked.set()
                    raise unled
                log.info("topic created", topic=name, topic_id=str(topic.topic_id), partitions=partitions)
                return topic
        raise AssertionError("a shielded step is not cancelled")

    def _why_no_room_for(self, partitions: int) -> str | None:
        taken = sum(topic.partitions for topic in (*self._cluster.topics(), *self._cluster.deleting()))
        if taken + partitions <= NODE_PARTITIONS_MAX:
            return None
        return f"{partitions} partitions more would make {taken + partitions}; a node leads {NODE_PARTITIONS_MAX}"

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> Topic:
        """See `fairlog.broker.Topics.add_partitions`. Cancelled: they are there, or they are not."""
        async with self._changing:
            topic = self._known(name)
            check_total_untrusted(topic, total)
            if (problem := self._why_no_room_for(total - topic.partitions)) is not None:
                raise InvalidPartitions(problem)
            if validate_only:
                return topic
            with trio.CancelScope(shield=True):
                return await self._grow(topic, total)
        raise AssertionError("a shielded step is not cancelled")

    async def _grow(self, topic: Topic, total: int) -> Topic:
        new = replace(topic, partitions=total).logs()[topic.partitions :]
        try:
            await self._shard.lead(new, mode_of(topic))
            grown = await self._cluster.add_partitions(topic.name, total)
        except StorageFailure as failure:
            refused = failure
        else:
            log.info("partitions added", topic=topic.name, topic_id=str(topic.topic_id), partitions=total)
            return grown
        with suppress(StorageFailure):  # what is left is removed by the next start
            await self._shard.drop(new)
        raise refused

    async def alter_configs(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic:
        """See `fairlog.broker.Topics.alter_configs`."""
        async with self._changing:
            topic = self._known(name)
            configs = change(topic.configs)
            if configs == topic.configs:
                return topic
            changed = await self._cluster.set_topic_configs(name, configs)
        log.info("topic configs changed", topic=name, topic_id=str(topic.topic_id), configs=dict(configs))
        return changed

    def _known(self, name: str) -> Topic:
        topic = self._cluster.topic(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    async def delete(self, topic_id: UUID) -> None:
        """See `fairlog.broker.Topics.delete`."""
        async with self._changing:
            topic = self._cluster.topic_by_id(topic_id)
            if topic is None:
                raise UnknownTopic(f"there is no topic with the id {topic_id}")
            await self._cluster.delete_topic(topic.name)
        log.info("topic deleted", topic=topic.name, topic_id=str(topic_id))
        self._on_deleted()
        self._marked.set()

    async def run(self) -> None:
        """Remove what deleted topics leave behind, however often it takes; until cancelled."""
        unremoved: set[UUID] = set()
        while True:
            self._marked = trio.Event()
            for topic in self._cluster.deleting():
                try:
                    await self._shard.drop(topic.logs())
                    await self._cluster.forget_topic(topic.topic_id)
                except StorageFailure as failure:
                    if topic.topic_id not in unremoved:  # once, not for each attempt
                        log.warning("deleted topic not removed yet", **_named(topic), reason=str(failure))
                    unremoved.add(topic.topic_id)
                else:
                    if topic.topic_id in unremoved:
                        log.info("deleted topic removed after all", **_named(topic))
                    unremoved.discard(topic.topic_id)
            with trio.move_on_after(REMOVE_AGAIN_S if unremoved else math.inf):
                await self._marked.wait()


def _named(topic: Topic) -> dict[str, str]:
    return {"topic": topic.name, "topic_id": str(topic.topic_id)}
