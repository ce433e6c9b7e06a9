"""The embedded store's records, as bytes: keys and CBOR values. Pure.

The format is 3, 4 once a shard was added, and 5 once somebody was given an account, a right or a quota.

docs/formats/cluster-store.md describes them; tests/golden/cluster-store-3.txt has them as bytes, and
cluster-store-3-shards.txt those that only a store of several shards has, cluster-store-4.txt those of one that grew,
cluster-store-5.txt those of one with a user and an ACL.
Formats 1 and 2 are read as well: the next start brings the store up to this one (`brought_up`).
A value that does not read back as it was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeGuard, TypeVar, cast
from uuid import UUID

import cbor2

from fairlog import cbor_records
from fairlog.cbor_records import load, shown
from fairlog.cluster.interface import Topic
from fairlog.security.access_kind import AccessKind
from fairlog.security.kinds import KINDS
from fairlog.security.listeners import PLAIN
from fairlog_types import CorruptStorage, ShardNumber

V = TypeVar("V")

MAGIC = "fairlog-cluster"
VERSION = 3
GROWN_VERSION = 4
"""Of a store to which a shard was added: an older program would look for its logs in other shards."""
LOCKED_VERSION = 5
"""Of a store that says who may do what: an older program would let everybody do everything. It may have grown."""
READ_VERSIONS = (1, 2, 3, 4, 5)
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
SHARDS_KEY = b"shards"
"""Not there if there is one."""
FIRST_SHARDS_KEY = b"first-shards"
"""Not there if no shard was added."""
GROUP_SEPARATOR_KEY = b"group-separator"
"""Not there if there is one shard: it may then change."""
SHARD_PREFIX = b"shard/"
ADDRESS_PREFIX = b"node/"
LISTENERS_PREFIX = b"listeners/"
"""Not there for a broker whose only listener is PLAINTEXT."""
DROPPED_PREFIX = b"dropped/"
TOPIC_PREFIX = b"topic/"
FEATURE_PREFIX = b"feature/"
BROKER_PREFIX = b"broker/"
GROUP_CONFIGS_PREFIX = b"group-config/"
ACCESS_PREFIX = b"access/"

_DIGEST_BYTES = 16
_ID_BYTES = 16
_DECIMAL = re.compile(rb"0|[1-9][0-9]{0,9}")

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


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """How far a shard has come."""

    starts: int
    group_journals_begun: bool
    """All that it has are on disk."""


@dataclass(frozen=True, slots=True)
class AddressRecord:
    """Where a broker was last reached."""

    host: str
    port: int
    """By clients."""
    internal: tuple[str, int] | None
    """By the other brokers; None if it listens for none."""


def encode_format(version: int = VERSION) -> bytes:
    return cbor_records.encode_format(MAGIC, version)


def brought_up(content: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """What is to be written into a store to make it one of this format; nothing if it is. Raises CorruptStorage."""
    if (version := decode_format(content[FORMAT_KEY])) >= VERSION:
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


def decode_shards(content: Mapping[bytes, bytes]) -> int:
    """Over how many shards the data is spread. Raises CorruptStorage."""
    return decode_count(content[SHARDS_KEY], "shards", least=2) if SHARDS_KEY in content else 1


def decode_first_shards(content: Mapping[bytes, bytes], shards: int) -> int | None:
    """How many of so many shards there were at the first start; None if none was added. Raises CorruptStorage."""
    if FIRST_SHARDS_KEY not in content:
        return None
    first = decode_count(content[FIRST_SHARDS_KEY], "first-shards", least=1)
    if first >= shards:
        raise CorruptStorage(f"the record 'first-shards' reads {first}, of {shards} shards")
    return first


def encode_group_separator(separator: str) -> bytes:
    return cbor2.dumps(separator)


def decode_group_separator(value: bytes) -> str:
    """What stands between group and member in the transactional ids of several shards. Raises CorruptStorage."""
    match load(value, "group-separator"):
        case str(separator):
            return separator
        case other:
            raise CorruptStorage(f"the record 'group-separator' reads {shown(other)}, not a text")


def shard_key(shard: ShardNumber) -> bytes:
    return SHARD_PREFIX + str(shard).encode()


def encode_shard(record: ShardRecord) -> bytes:
    return cbor2.dumps([record.starts, record.group_journals_begun])


def decode_shard_records(content: Mapping[bytes, bytes], shards: int) -> dict[ShardNumber, ShardRecord]:
    """The shards that have started, of so many. Raises CorruptStorage."""
    found: dict[ShardNumber, ShardRecord] = {}
    for key, value in content.items():
        if key.startswith(SHARD_PREFIX):
            number = _shard_in(key, len(SHARD_PREFIX), shards)
            match load(value, f"shard/{number}"):
                case [int(starts), bool(begun)] if starts >= 0:
                    found[number] = ShardRecord(starts, begun)
                case other:
                    raise CorruptStorage(f"the record shard/{number} reads {shown(other)}")
    return found


def address_key(node_id: int) -> bytes:
    return ADDRESS_PREFIX + str(node_id).encode()


def encode_address(record: AddressRecord) -> bytes:
    return cbor2.dumps([record.host, record.port, *(record.internal or ())])


def decode_addresses(content: Mapping[bytes, bytes]) -> dict[int, AddressRecord]:
    """Where brokers were last reached, by node id. Raises CorruptStorage."""
    found: dict[int, AddressRecord] = {}
    for key, value in content.items():
        if key.startswith(ADDRESS_PREFIX):
            node_id = _number_in(key, len(ADDRESS_PREFIX))
            match load(value, f"node/{node_id}"):
                case [str(host), int(port)] if _are_ports(port):
                    found[node_id] = AddressRecord(host, port, None)
                case [str(host), int(port), str(internal), int(internal_port)] if _are_ports(port, internal_port):
                    found[node_id] = AddressRecord(host, port, (internal, internal_port))
                case other:
                    raise CorruptStorage(f"the record node/{node_id} reads {shown(other)}")
    return found


def listeners_key(node_id: int) -> bytes:
    return LISTENERS_PREFIX + str(node_id).encode()


def encode_listeners(endpoints: Mapping[str, tuple[str, int]]) -> bytes | None:
    """Host and port of each listener of a broker, by name; None if there is only PLAINTEXT, at its address."""
    if set(endpoints) == {PLAIN.name}:
        return None
    return cbor2.dumps({name: list(endpoint) for name, endpoint in endpoints.items()})


def decode_listeners(content: Mapping[bytes, bytes]) -> dict[int, Mapping[str, tuple[str, int]]]:
    """Host and port of each listener, by node id and name. Raises CorruptStorage."""
    found: dict[int, Mapping[str, tuple[str, int]]] = {}
    for key, value in content.items():
        if key.startswith(LISTENERS_PREFIX):
            node_id = _number_in(key, len(LISTENERS_PREFIX))
            by_name = load(value, f"listeners/{node_id}")
            if not _are_endpoints(by_name):
                raise CorruptStorage(f"the record listeners/{node_id} reads {shown(by_name)}")
            found[node_id] = types.MappingProxyType({name: (host, port) for name, (host, port) in by_name.items()})
    return found


def gone_listeners(keys: Iterable[bytes]) -> list[int]:
    """The brokers whose listeners have these keys, among others. Raises CorruptStorage."""
    return [_number_in(key, len(LISTENERS_PREFIX)) for key in keys if key.startswith(LISTENERS_PREFIX)]


def _are_endpoints(value: object) -> TypeGuard[dict[str, tuple[str, int]]]:
    if not isinstance(value, dict) or not value:
        return False
    for name, endpoint in cast("dict[object, object]", value).items():
        match (name, endpoint):
            case (str(), [str(), int(port)]) if _are_ports(port):
                pass
            case _:
                return False
    return True


def _are_ports(*numbers: int) -> bool:
    return all(0 <= number < 1 << 16 for number in numbers)


def dropped_key(topic_id: UUID, shard: ShardNumber) -> bytes:
    """Of the note that the shard has no log of a topic that is being deleted any more."""
    return DROPPED_PREFIX + topic_id.bytes + b"/" + str(shard).encode()


def encode_dropped() -> bytes:
    return cbor2.dumps(True)


def decode_dropped(keys: Iterable[bytes], shards: int) -> list[tuple[UUID, ShardNumber]]:
    """Which of so many shards have dropped which topic. Raises CorruptStorage."""
    found: list[tuple[UUID, ShardNumber]] = []
    for key in keys:
        if key.startswith(DROPPED_PREFIX):
            at = len(DROPPED_PREFIX) + _ID_BYTES
            if key[at : at + 1] != b"/":
                raise CorruptStorage(f"the record {key!r} has no topic id")
            found.append((UUID(bytes=key[len(DROPPED_PREFIX) : at]), _shard_in(key, at + 1, shards)))
    return found


def _shard_in(key: bytes, at: int, shards: int) -> ShardNumber:
    number = _number_in(key, at)
    if number >= shards:
        raise CorruptStorage(f"the record {key!r} is of shard {number}, of {shards}")
    return ShardNumber(number)


def _number_in(key: bytes, at: int) -> int:
    if _DECIMAL.fullmatch(key, at) is None:
        raise CorruptStorage(f"the record {key!r} has no number in decimal")
    return int(key[at:])


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
    state = _DELETING if record.deleting else _LIVE
    later = [] if topic.spread_over is None else [topic.spread_over]
    return cbor2.dumps(
        [topic.name, topic.partitions, dict(topic.configs), topic.created_ms, state, *later], canonical=True
    )


def decode_topic(key: bytes, value: bytes, shards: int) -> TopicRecord:
    """Read a topic of so many shards from its key and value. Raises CorruptStorage."""
    if len(key) != len(TOPIC_PREFIX) + _ID_BYTES:
        raise CorruptStorage(f"the record {key!r} has no topic id")
    topic_id = UUID(bytes=key[len(TOPIC_PREFIX) :])
    content = load(value, f"topic/{topic_id}")
    match content:
        case [str(name), int(partitions), dict(), int(created_ms), int(state)] | [
            str(name),
            int(partitions),
            dict(),
            int(created_ms),
            int(state),
            int(),
        ] if (
            partitions >= 1
            and state in (_LIVE, _DELETING)
            and _maps_texts(configs := cast(list[object], content)[2])
            and _are_spread(spread := cast(list[object], content)[5:], shards)
        ):
            over = spread[0] if spread else None
            topic = Topic(name, topic_id, partitions, types.MappingProxyType(configs), created_ms, over)
            return TopicRecord(topic, state == _DELETING)
        case other:
            raise CorruptStorage(f"the record topic/{topic_id} reads {shown(other)}")


def _are_spread(later: list[object], shards: int) -> TypeGuard[list[int]]:
    """Nothing, or over how many of the shards a topic is spread."""
    return not later or (len(later) == 1 and type(later[0]) is int and 1 <= later[0] <= shards)


def decode_topics(content: Mapping[bytes, bytes], shards: int) -> list[TopicRecord]:
    """All topics of so many shards, also those that are being deleted. Raises CorruptStorage."""
    return [decode_topic(key, value, shards) for key, value in content.items() if key.startswith(TOPIC_PREFIX)]


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


def access_key(kind: str, name: str) -> bytes:
    """Of the record of a name in a table; a digest, because the name may be longer than an LMDB key (511 bytes)."""
    return ACCESS_PREFIX + kind.encode() + b"/" + blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()


def encode_access(kind: AccessKind[V], name: str, value: V) -> bytes:
    return cbor2.dumps([name, kind.encode(value)], canonical=True)


class AccessRecord(NamedTuple):
    """A name in a table of `fairlog.security`, and its value."""

    kind: str
    name: str
    value: object


def decode_access(content: Mapping[bytes, bytes]) -> list[AccessRecord]:
    """Who may do what. Raises CorruptStorage, which tells no value: it may be a secret."""
    found: list[AccessRecord] = []
    for key, value in content.items():
        if key.startswith(ACCESS_PREFIX):
            kind_name, _, digest = key.removeprefix(ACCESS_PREFIX).partition(b"/")
            where = f"access/{kind_name.decode(errors='replace')}/{digest.hex()}"
            kind = KINDS.get(kind_name.decode(errors="replace"))
            if kind is None:
                raise CorruptStorage(f"the record {where} is of no kind that this program knows")
            match record := load(value, where):
                case [str(name), object()] if access_key(kind.name, name) == key:
                    try:
                        decoded = kind.decode(name, cast("list[object]", record)[1])
                        found.append(AccessRecord(kind.name, name, decoded))
                    except ValueError as error:
                        raise CorruptStorage(f"the record {where} of {name!r} cannot be read: {error}") from error
                case _:
                    raise CorruptStorage(f"the record {where} is not a name, under its digest, and a value")
    return found


def _maps_texts(value: object) -> TypeGuard[dict[str, str]]:
    if not isinstance(value, dict):
        return False
    items = cast(dict[object, object], value).items()
    return all(isinstance(name, str) and isinstance(text, str) for name, text in items)
