"""A cluster store in memory that the nodes of several shards share, each with a view of its own.

Fault model: a change is seen by all at once, and none is lost; races are made by holding a shard back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from uuid import UUID

import trio

from fairlog.cluster.interface import Topic, TopicExists, UnknownTopic
from fairlog.cluster.topic_rules import check_total_untrusted
from fairlog_types import ShardNumber
from shard.placement import Placement


class SharedStore:
    """What all have in common."""

    def __init__(self, shards: int) -> None:
        self.placement = Placement(shards)
        self.by_id: dict[UUID, Topic] = {}
        self.deleting: dict[UUID, tuple[Topic, set[ShardNumber]]] = {}
        """With the shards that have yet to drop it."""
        self.changed = trio.Event()
        self.made = 0

    def view(self, shard: int) -> StoreView:
        return StoreView(self, ShardNumber(shard))

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class StoreView:
    """One shard's. Only what `fairlog.topics.LocalTopics` uses of `fairlog.cluster.interface.ClusterStore`."""

    def __init__(self, store: SharedStore, shard: ShardNumber) -> None:
        self._store, self.shard = store, shard
        self.placement = store.placement
        self.is_alone = store.placement.shards == 1

    def changed(self) -> trio.Event:
        return self._store.changed

    def topics(self) -> Sequence[Topic]:
        return sorted(self._store.by_id.values(), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic | None:
        return next((topic for topic in self._store.by_id.values() if topic.name == name), None)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._store.by_id.get(topic_id)

    def deleting(self) -> Sequence[Topic]:
        return [topic for topic, shards in self._store.deleting.values() if self.shard in shards]

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str], now_ms: int) -> Topic:
        await trio.lowlevel.checkpoint()
        if self.topic(name) is not None:
            raise TopicExists(name)
        self._store.made += 1
        topic = Topic(name, UUID(int=self._store.made), partitions, dict(configs), now_ms)
        self._store.by_id[topic.topic_id] = topic
        self._store.tell()
        return topic

    async def add_partitions(self, name: str, total: int) -> Topic:
        await trio.lowlevel.checkpoint()
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopic(name)
        check_total_untrusted(topic, total)
        grown = self._store.by_id[topic.topic_id] = dataclasses.replace(topic, partitions=total)
        self._store.tell()
        return grown

    async def delete_topic(self, name: str) -> Topic:
        await trio.lowlevel.checkpoint()
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopic(name)
        del self._store.by_id[topic.topic_id]
        self._store.deleting[topic.topic_id] = topic, {*map(ShardNumber, range(self.placement.shards))}
        self._store.tell()
        return topic

    async def forget_topic(self, topic_id: UUID) -> None:
        await trio.lowlevel.checkpoint()
        _, shards = self._store.deleting[topic_id]
        shards.discard(self.shard)
        if not shards:
            del self._store.deleting[topic_id]
