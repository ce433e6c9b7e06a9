"""What a change of the cluster is, decided on what a store holds. Pure: the same rules for every kind of store.

Each function tells which records change, and what its caller is answered once they have. It is asked again if the
content has changed before the records could be written.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast
from uuid import UUID

from fairlog.cluster import records
from fairlog.cluster.common_memory import Changes, CommonMemory
from fairlog.cluster.features import FeatureUpdate, updated_untrusted
from fairlog.cluster.interface import ConfigsChange, InvalidTopic, Topic, TopicExists, UnknownTopic
from fairlog.cluster.topic_rules import check_total_untrusted, folded_name
from fairlog.security.access_kind import AccessKind
from fairlog_types import ShardNumber

V = TypeVar("V")


def create_topic(
    memory: CommonMemory, name: str, topic_id: UUID, *, partitions: int, configs: Mapping[str, str], now_ms: int
) -> tuple[Changes, Topic]:
    """A topic of this id, which nothing else has. The name was checked. Raises TopicExists, InvalidTopic."""
    if name in memory.by_name:
        raise TopicExists(f"there is a topic {name} already")
    if (other := memory.by_folded_name.get(folded_name(name))) is not None:
        raise InvalidTopic(f"the topic name {name} collides with {other}: they differ only in . against _")
    over = None if memory.first_shards is None else memory.shards
    topic = Topic(name, topic_id, partitions, types.MappingProxyType(dict(configs)), now_ms, over)
    return _of_topic(topic), topic


def alter_topic_configs(memory: CommonMemory, name: str, change: ConfigsChange) -> tuple[Changes, Topic]:
    """Raises UnknownTopic, and what `change` raises."""
    topic = _known(memory, name)
    configs = change(topic.configs)
    if configs == topic.configs:
        return {}, topic
    changed = dataclasses.replace(topic, configs=types.MappingProxyType(dict(configs)))
    return _of_topic(changed), changed


def add_partitions(memory: CommonMemory, name: str, total: int) -> tuple[Changes, Topic]:
    """Raises UnknownTopic, InvalidPartitions."""
    topic = _known(memory, name)
    check_total_untrusted(topic, total)
    grown = dataclasses.replace(topic, partitions=total)
    return _of_topic(grown), grown


def alter_broker_configs(memory: CommonMemory, resource: str, change: ConfigsChange) -> tuple[Changes, bool]:
    """Whether anything changes. Raises what `change` raises."""
    own = memory.broker_configs.get(resource, {})
    if (configs := change(own)) == own:
        return {}, False
    return {records.broker_key(resource): records.encode_broker_configs(configs)}, True


def alter_group_configs(memory: CommonMemory, group: str, change: ConfigsChange) -> tuple[Changes, bool]:
    """Whether anything changes. Raises what `change` raises."""
    own = memory.group_configs.get(group, {})
    if (configs := change(own)) == own:
        return {}, False
    value = records.encode_group_configs(group, configs) if configs else None
    return {records.group_configs_key(group): value}, True


def alter_access(
    memory: CommonMemory, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
) -> tuple[Changes, bool]:
    """Whether anything changes. Raises what `change` raises."""
    changes = memory.with_access(kind, change(cast("Mapping[str, V]", memory.access.get(kind.name, {}))))
    return changes, bool(changes)


def delete_topic(memory: CommonMemory, name: str) -> tuple[Changes, Topic]:
    """Phase one. Raises UnknownTopic."""
    topic = _known(memory, name)
    return _of_topic(topic, deleting=True), topic


def forget_topic(memory: CommonMemory, topic_id: UUID, shard: ShardNumber) -> tuple[Changes, None]:
    """Phase two, in this shard."""
    assert topic_id not in memory.by_id, "only a topic that is being deleted may be forgotten"
    return memory.forgotten_by(topic_id, shard), None


def allot_producer_ids(memory: CommonMemory, count: int) -> tuple[Changes, range]:
    """The next `count` ids."""
    assert count > 0, count
    ids = range(memory.next_producer_id, memory.next_producer_id + count)
    return {records.PRODUCER_IDS_KEY: records.encode_count(ids.stop)}, ids


def update_features(
    memory: CommonMemory, updates: Sequence[FeatureUpdate], *, validate_only: bool
) -> tuple[Changes, None]:
    """Raises InvalidFeatureUpdate."""
    chosen = updated_untrusted(memory.features, updates)
    return {} if validate_only else memory.with_levels(chosen), None


def _known(memory: CommonMemory, name: str) -> Topic:
    topic = memory.by_name.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}")
    return topic


def _of_topic(topic: Topic, *, deleting: bool = False) -> Changes:
    return {records.topic_key(topic.topic_id): records.encode_topic(records.TopicRecord(topic, deleting))}
