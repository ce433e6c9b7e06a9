"""What others may do to an engine's topics: for tests. All of it blocks.

An admin client that nothing refers to is closed before it has answered.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

_WAIT_S = 30.0


def delete_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic], operation_timeout=_WAIT_S)[topic].result(_WAIT_S)


def make_topic(servers: str, topic: str, *, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    new = NewTopic(topic, partitions, replicas, config=dict(configs))
    admin.create_topics([new], operation_timeout=_WAIT_S)[topic].result(_WAIT_S)


def set_config(servers: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(_WAIT_S)


def add_partitions(servers: str, topic: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, total)], operation_timeout=_WAIT_S)[topic].result(_WAIT_S)


def configs_of(servers: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": servers})
    entries = admin.describe_configs([resource])[resource].result(_WAIT_S)
    return {name: str(entry.value) for name, entry in entries.items()}


def leader_of(servers: str, topic: str) -> int:
    """As these brokers know it; -1 for none."""
    return AdminClient({"bootstrap.servers": servers}).list_topics(topic, _WAIT_S).topics[topic].partitions[0].leader


def latest_offset(servers: str, topic: str) -> int:
    """What Kafka's own question for the end is answered."""
    admin, partition = AdminClient({"bootstrap.servers": servers}), TopicPartition(topic, 0)
    asked = admin.list_offsets({partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return asked[partition].result(_WAIT_S).offset
