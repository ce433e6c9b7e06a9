"""The embedded store's records, as bytes: keys and CBOR values of format 3. Pure.

docs/formats/cluster-store.md describes them; tests/golden/cluster-store-3.txt has them as bytes.
Formats 1 and 2 are read as well: the next start brings the store up to this one (`brought_up`).
A value that does not read back as it was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeGuard, cast
from uuid import UUID

import cbor2

from fairlog import cbor_records
from fairlog.cbor_records import load, shown
from fairlog.cluster.interface import Topic
from fairlog_types import CorruptStorage

MAGIC = "fairlog-cluster"
VERSION = 3
READ_VERSIONS = (1, 2, 3)
"""1 is written by programs that lead no offsets logs, 2 by those that look for data logs in the data directory itself.
They must not open what is written by later ones."""

OFFSETS_LOGS = 4
"""Offsets logs of a new store. They share one copier and one LMDB writer, so more of them would not commit faster; each
takes part in the flush of a transaction that commits offsets. Kafka's 50 (offsets.topic.num.partitions) spread
groups over brokers."""

FORMAT_KEY = b"format"
NODE_KEY = b"node"
STARTS_KEY = b"starts"
PRODUCER_IDS_KEY = b"producer-ids"
OFFSETS_LOGS_KEY = b"offsets-logs"
GROUP_JOURNALS_BEGUN_KEY = b"group-journals-begun"
"""Not there before all of them are on disk."""
TOPIC_PREFIX = b"topic/"
FEATURE_PREFIX = b"feature/"
BROKER_PREFIX = b"broker/"
GROUP_CONFIGS_PREFIX = b"group-config/"

_DIGEST_BYTES = 16

_LIVE, _DELETING = 0, 1


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Who the node is; written once, at the very first start."""

    cluster_id: str
    node_id: int
    group_journal_count: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic, and whether phase one of its deletion is done."""

    topic: Topic
    deleting: bool


def encode_format() -> bytes:
    return cbor_records.encode_format(MAGIC, VERSION)


def brought_up(content: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What is to be written into a store to make it one of this format; nothing if it is. Raises CorruptStorage."""
    if (version := decode_format(content[FORMAT_KEY])) == VERSION:
        return {}
    added = {FORMAT_KEY: encode_format()}
    if version == 1:
        added[OFFSETS_LOGS_KEY] = encode_count(OFFSETS_LOGS)
    return added


def decode_format(value: bytes) -> int:
    """The version. Raises CorruptStorage if this is not a cluster store's format record."""
    return cbor_records.decode_format(value, MAGIC)


def encode_node(node: NodeRecord) -> bytes:
    return cbor2.dumps([node.cluster_id, node.node_id, node.group_journal_count])


def decode_node(value: bytes) -> NodeRecord:
    match load(value, "node"):
        case [str(cluster_id), int(node_id), int(group_journal_count)]:
            return NodeRecord(cluster_id, node_id, group_journal_count)
        case other:
            raise CorruptStorage(f"the record 'node' reads {shown(other)}")


def encode_count(count: int) -> bytes:
    """The value of every key that holds a number."""
    return cbor2.dumps(count)


def decode_count(value: bytes, name: str, *, least: int = 0) -> int:
    match load(value, name):
        case int(count) if count >= least:
            return count
        case other:
            raise CorruptStorage(f"the record {name!r} reads {shown(other)}, not a count")


def feature_key(name: str) -> bytes:
    """Of the record that holds a feature's level, as a count."""
    return FEATURE_PREFIX + name.encode()


def decode_features(content: Mapping[bytes, bytes]) -> dict[str, int]:
    """The levels that were set, by the features' names. Raises CorruptStorage."""
    levels: dict[str, int] = {}
    for key, value in content.items():
        if key.startswith(FEATURE_PREFIX):
            name = key.removeprefix(FEATURE_PREFIX).decode(errors="replace")
            levels[name] = decode_count(value, f"feature/{name}")
    return levels


def topic_key(topic_id: UUID) -> bytes:
    return TOPIC_PREFIX + topic_id.bytes


def encode_topic(record: TopicRecord) -> bytes:
    topic = record.topic
    return cbor2.dumps(
        [topic.name, topic.partitions, dict(topic.configs), topic.created_ms, _DELETING if record.deleting else _LIVE],
        canonical=True,
    )


def decode_topic(key: bytes, value: bytes) -> TopicRecord:
    """Read a topic from its key and value. Raises CorruptStorage."""
    if len(key) != len(TOPIC_PREFIX) + 16:
        raise CorruptStorage(f"the record {key!r} has no topic id")
    topic_id = UUID(bytes=key[len(TOPIC_PREFIX) :])
    content = load(value, f"topic/{topic_id}")
    match content:
        case [str(name), int(partitions), dict(), int(created_ms), int(state)] if (
            partitions >= 1 and state in (_LIVE, _DELETING) and _maps_texts(configs := cast(list[object], content)[2])
        ):
            topic = Topic(name, topic_id, partitions, types.MappingProxyType(configs), created_ms)
            return TopicRecord(topic, state == _DELETING)
        case other:
            raise CorruptStorage(f"the record topic/{topic_id} reads {shown(other)}")


def broker_key(resource: str) -> bytes:
    return BROKER_PREFIX + resource.encode()


def encode_broker_configs(configs: Mapping[str, str]) -> bytes:
    return cbor2.dumps(dict(configs), canonical=True)


def decode_broker_configs(content: Mapping[bytes, bytes]) -> dict[str, Mapping[str, str]]:
    """What clients have set for brokers, by the brokers' ids. Raises CorruptStorage."""
    by_resource: dict[str, Mapping[str, str]] = {}
    for key, value in content.items():
        if key.startswith(BROKER_PREFIX):
            resource = key.removeprefix(BROKER_PREFIX).decode(errors="replace")
            configs = load(value, f"broker/{resource}")
            if not _maps_texts(configs):
                raise CorruptStorage(f"the record broker/{resource} reads {shown(configs)}")
            by_resource[resource] = types.MappingProxyType(configs)
    return by_resource


def group_configs_key(group: str) -> bytes:
    """A digest, because a group's id may be longer than an LMDB key (511 bytes)."""
    return GROUP_CONFIGS_PREFIX + blake2b(group.encode(), digest_size=_DIGEST_BYTES).digest()


def encode_group_configs(group: str, configs: Mapping[str, str]) -> bytes:
    return cbor2.dumps([group, dict(configs)], canonical=True)


def decode_group_configs(content: Mapping[bytes, bytes]) -> dict[str, Mapping[str, str]]:
    """What clients have set for consumer groups, by the groups' ids. Raises CorruptStorage."""
    by_group: dict[str, Mapping[str, str]] = {}
    for key, value in content.items():
        if key.startswith(GROUP_CONFIGS_PREFIX):
            name = f"group-config/{key.removeprefix(GROUP_CONFIGS_PREFIX).hex()}"
            found = load(value, name)
            match found:
                case [str(group), dict()] if group_configs_key(group) == key and _maps_texts(
                    configs := cast(list[object], found)[1]
                ):
                    by_group[group] = types.MappingProxyType(configs)
                case other:
                    raise CorruptStorage(f"the record {name} reads {shown(other)}")
    return by_group


def _maps_texts(value: object) -> TypeGuard[dict[str, str]]:
    if not isinstance(value, dict):
        return False
    items = cast(dict[object, object], value).items()
    return all(isinstance(name, str) and isinstance(text, str) for name, text in items)
