"""The part of a cluster store that does not depend on how a change is made durable.

    a reader ──▶ memory                    a change ──▶ `decisions` on memory ──▶ `_change`: durable, and into memory

`embedded` makes changes durable in LMDB, and `replicated` in a stream. Both call `_tell` when memory has changed.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar, cast
from uuid import UUID

import trio

from fairlog.cluster import decisions
from fairlog.cluster.common_memory import Changes, CommonMemory
from fairlog.cluster.features import FeatureLevels, FeatureUpdate
from fairlog.cluster.interface import ConfigsChange, PartitionCopies, Topic
from fairlog.cluster.topic_rules import check_topic_untrusted
from fairlog.security.access_kind import AccessKind
from fairlog_types import LogId, LogKind, ShardNumber
from shard.placement import Placement

_PLACEMENT, _TOGETHER = "fairlog.placement", "together"
"""A topic's config, and its value if one shard leads all its partitions."""

_Answer = TypeVar("_Answer")
V = TypeVar("V")


class DecidingStore(ABC):
    """See `ClusterStore` for the methods' promises."""

    def __init__(self, common: CommonMemory, shard: ShardNumber) -> None:
        self._common = common
        self._shard = shard
        self._placement = Placement(common.shards, common.first_shards)
        self._generation = 0
        self._changed = trio.Event()

    @abstractmethod
    def broker_of(self, shard: ShardNumber) -> int:
        """See `ClusterStore.broker_of`."""

    def copies_of(self, shard: ShardNumber) -> PartitionCopies:
        broker = self.broker_of(shard)
        return PartitionCopies((broker,), (broker,))

    @property
    def controller_id(self) -> int:
        return self.broker_of(ShardNumber(0))

    @abstractmethod
    async def _change(self, decide: Callable[[], tuple[Changes, _Answer]]) -> _Answer:
        """Make a change durable, then visible. `decide` says on memory what it is, and may be called again."""

    def _tell(self) -> None:
        """Memory has changed."""
        self._generation += 1
        self._changed.set()
        self._changed = trio.Event()

    @property
    def shard(self) -> ShardNumber:
        return self._shard

    @property
    def is_alone(self) -> bool:
        return self._placement.shards == 1

    @property
    def placement(self) -> Placement:
        return self._placement

    @property
    def generation(self) -> int:
        return self._generation

    def changed(self) -> trio.Event:
        """Set at the next change of `generation`. Get it before you look at what may change."""
        return self._changed

    @property
    def offsets_log_count(self) -> int:
        return self._common.offsets_logs

    @property
    def features(self) -> FeatureLevels:
        return self._common.features

    def topics(self) -> Sequence[Topic]:
        return sorted(self._common.by_name.values(), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic | None:
        return self._common.by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._common.by_id.get(topic_id)

    def deleting(self) -> Sequence[Topic]:
        dropped = self._common.dropped
        return tuple(
            topic for topic in self._common.deleting.values() if self._shard not in dropped.get(topic.topic_id, ())
        )

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        return self._common.broker_configs.get(resource, {})

    def group_configs(self, group: str) -> Mapping[str, str]:
        return self._common.group_configs.get(group, {})

    def configured_groups(self) -> Collection[str]:
        return self._common.group_configs.keys()

    def access(self, kind: AccessKind[V]) -> Mapping[str, V]:
        return cast("Mapping[str, V]", self._common.access.get(kind.name, {}))

    def shard_of(self, log: LogId) -> ShardNumber | None:
        if log.kind == LogKind.OFFSETS.value:
            known = log.partition < self.offsets_log_count
            return self._placement.shard_of(log, together=False) if known else None
        topic = self._common.by_log_topic.get(log.topic)
        if topic is None or log.partition >= topic.partitions:
            return None
        return self._placement.shard_of(log, together=_is_together(topic), over=topic.spread_over)

    def _shards_of(self, topic: Topic) -> Sequence[ShardNumber]:
        """The shard of each partition of a topic that is served, in their order."""
        if self._common.shards == 1:
            return [ShardNumber(0)] * topic.partitions
        together, over = _is_together(topic), topic.spread_over
        return [self._placement.shard_of(log, together=together, over=over) for log in topic.logs()]

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str], now_ms: int) -> Topic:
        check_topic_untrusted(name, partitions)
        topic_id = uuid.uuid4()
        return await self._change(
            lambda: decisions.create_topic(
                self._common, name, topic_id, partitions=partitions, configs=configs, now_ms=now_ms
            )
        )

    async def alter_topic_configs(self, name: str, change: ConfigsChange) -> Topic:
        return await self._change(lambda: decisions.alter_topic_configs(self._common, name, change))

    async def add_partitions(self, name: str, total: int) -> Topic:
        return await self._change(lambda: decisions.add_partitions(self._common, name, total))

    async def alter_broker_configs(self, resource: str, change: ConfigsChange) -> bool:
        return await self._change(lambda: decisions.alter_broker_configs(self._common, resource, change))

    async def alter_group_configs(self, group: str, change: ConfigsChange) -> bool:
        return await self._change(lambda: decisions.alter_group_configs(self._common, group, change))

    async def alter_access(
        self, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
    ) -> bool:
        return await self._change(lambda: decisions.alter_access(self._common, kind, change))

    async def delete_topic(self, name: str) -> Topic:
        return await self._change(lambda: decisions.delete_topic(self._common, name))

    async def forget_topic(self, topic_id: UUID) -> None:
        await self._change(lambda: decisions.forget_topic(self._common, topic_id, self._shard))

    async def allot_producer_ids(self, count: int) -> range:
        return await self._change(lambda: decisions.allot_producer_ids(self._common, count))

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        await self._change(lambda: decisions.update_features(self._common, updates, validate_only=validate_only))


def _is_together(topic: Topic) -> bool:
    return topic.configs.get(_PLACEMENT) == _TOGETHER
