"""The records that only a store of several machines has, as bytes: cluster, nodes, and who keeps which shard. Pure.

    cluster   [cluster id, group journals]
    node/M    [incarnation, host, internal host, {shard: [port, internal port]}, rack]
    listeners/M   [incarnation, {name: [host, {shard: port}]}]
    inner-tls/M   [incarnation]
    shard/N   [replicas, owner, epoch, in sync]
    wish/N    node

The others are those of one machine (`records`). docs/formats/metadata-stream.md describes them. A value that does not
read back as it was written is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

import base64
import binascii
import re
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NewType, TypeGuard, cast
from uuid import UUID

import cbor2

from fairlog import cbor_records
from fairlog.cbor_records import load, shown
from fairlog.cluster import records
from fairlog_types import CorruptStorage, LeaderEpoch, ShardNumber

NodeNumber = NewType("NodeNumber", int)
"""A machine of the cluster, or one process of it."""

MAGIC = "fairlog-metadata"
VERSION = 1
LOCKED_VERSION = 2
"""Of metadata that say who may do what: an older program would let everybody do everything."""
READ_VERSIONS = (1, 2)
CLUSTER_KEY = b"cluster"
NODE_PREFIX = b"node/"
SHARD_PREFIX = b"shard/"
WISH_PREFIX = b"wish/"
INNER_TLS_PREFIX = b"inner-tls/"

SHARDS_MAX = 1000
"""A node's brokers are numbered by its number × 1000 + the shard."""
NODES_MAX = ((1 << 31) - SHARDS_MAX) // SHARDS_MAX
"""A broker's id is an int32."""
SECRET_BYTES = 32
_INCARNATION_BYTES = 16
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Written once, at the foundation."""

    cluster_id: str
    group_journal_count: int
    secret: bytes
    """32 random bytes, by which brokers of the cluster know each other."""

    @property
    def uuid(self) -> UUID:
        """That the cluster id is the text of."""
        return UUID(bytes=_uuid_bytes(self.cluster_id))


class Ports(NamedTuple):
    """Where a shard's broker listens on its node."""

    clients: int
    brokers: int


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node, as it was when it last started."""

    incarnation: bytes
    """16 random bytes for each run of the process."""
    host: str
    """For clients."""
    internal_host: str
    """For other brokers."""
    ports: Mapping[ShardNumber, Ports]
    """Of each shard that it can serve."""
    rack: str | None


class ListenerPlaces(NamedTuple):
    """Where clients reach a listener of a node."""

    host: str
    ports: Mapping[ShardNumber, int]
    """Of each shard that the node can serve."""


@dataclass(frozen=True, slots=True)
class ListenersRecord:
    """The listeners of a node that has others than PLAINTEXT."""

    incarnation: bytes
    """That of the node's record that it belongs to: an earlier version of the program writes that one alone."""
    by_name: Mapping[str, ListenerPlaces]


@dataclass(frozen=True, slots=True)
class InnerTlsRecord:
    """Of a node that speaks TLS with other nodes."""

    incarnation: bytes
    """That of the node's record that it belongs to, as in `ListenersRecord`."""


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Who keeps a shard, and who owns it."""

    replicas: Sequence[NodeNumber]
    """The nodes that are to keep a copy, in order of preference."""
    owner: NodeNumber | None
    """As it has said itself; None before the first one has."""
    epoch: LeaderEpoch
    """In which it owns the shard; 0 before the first one."""
    in_sync: Sequence[NodeNumber]
    """As the owner sees them, the owner among them."""

    @property
    def copies(self) -> Sequence[NodeNumber]:
        """All nodes that have a copy, or are to have one: first those that are to."""
        return tuple(dict.fromkeys((*self.replicas, *(() if self.owner is None else (self.owner,)), *self.in_sync)))


NO_SHARD_RECORD = ShardRecord((), None, LeaderEpoch(0), ())
"""A shard that nobody has been given yet."""


def broker_id(node: NodeNumber, shard: ShardNumber) -> int:
    """The node id of the shard's broker on a node, as clients know it."""
    return node * SHARDS_MAX + shard


def cluster_id_of(uuid: UUID) -> str:
    """The text of a cluster id."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def _uuid_bytes(cluster_id: str) -> bytes:
    return base64.b64decode(cluster_id + "==", altchars=b"-_", validate=True)


def encode_format(version: int = VERSION) -> bytes:
    return cbor_records.encode_format(MAGIC, version)


def decode_version(value: bytes) -> int:
    """Of the record `format`. Raises CorruptStorage."""
    return cbor_records.decode_format(value, MAGIC)


def encode_cluster(record: ClusterRecord) -> bytes:
    return cbor2.dumps([record.cluster_id, record.group_journal_count, record.secret])


def decode_cluster(value: bytes) -> ClusterRecord:
    """Raises CorruptStorage, also if there is no secret in it."""
    record = decode_shown_cluster(value)
    if not record.secret:
        raise CorruptStorage("the record 'cluster' has no secret: it is that of a backup")
    return record


def without_secret(value: bytes) -> bytes:
    """The same record as a backup has it. Raises CorruptStorage."""
    return encode_cluster(replace(decode_shown_cluster(value), secret=b""))


def decode_shown_cluster(value: bytes) -> ClusterRecord:
    """The same, for tools: that of a backup has an empty secret. Raises CorruptStorage."""
    match load(value, "cluster"):
        case [str(cluster_id), int(count), bytes(secret)] if (
            count >= 1 and _is_cluster_id(cluster_id) and len(secret) in (0, SECRET_BYTES)
        ):
            return ClusterRecord(cluster_id, count, secret)
        case _:
            raise CorruptStorage("the record 'cluster' is not an id, a count and a secret")


def _is_cluster_id(text: str) -> bool:
    try:
        return len(text) == 22 and len(_uuid_bytes(text)) == 16
    except (binascii.Error, ValueError):
        return False


def node_key(node: NodeNumber) -> bytes:
    return NODE_PREFIX + str(node).encode()


def encode_node(record: NodeRecord) -> bytes:
    ports = {shard: list(ports) for shard, ports in sorted(record.ports.items())}
    return cbor2.dumps([record.incarnation, record.host, record.internal_host, ports, record.rack], canonical=True)


def decode_nodes(content: Mapping[bytes, bytes], shards: int) -> dict[NodeNumber, NodeRecord]:
    """The nodes of a cluster of so many shards. Raises CorruptStorage."""
    found: dict[NodeNumber, NodeRecord] = {}
    for key, value in content.items():
        if key.startswith(NODE_PREFIX):
            node = _node_in(key, NODE_PREFIX)
            content_of = load(value, f"node/{node}")
            match content_of:
                case [bytes() as incarnation, str(host), str(internal_host), dict(), str() | None as rack] if len(
                    incarnation
                ) == _INCARNATION_BYTES and _are_ports(ports := cast("list[object]", content_of)[3], shards):
                    by_shard = {ShardNumber(shard): Ports(*both) for shard, both in ports.items()}
                    found[node] = NodeRecord(incarnation, host, internal_host, types.MappingProxyType(by_shard), rack)
                case other:
                    raise CorruptStorage(f"the record node/{node} reads {shown(other)}")
    return found


def listeners_key(node: NodeNumber) -> bytes:
    return records.LISTENERS_PREFIX + str(node).encode()


def encode_listeners(record: ListenersRecord) -> bytes:
    by_name = {name: [host, dict(sorted(ports.items()))] for name, (host, ports) in record.by_name.items()}
    return cbor2.dumps([record.incarnation, by_name])


def decode_listeners(content: Mapping[bytes, bytes], shards: int) -> dict[NodeNumber, ListenersRecord]:
    """The listeners of nodes, in a cluster of so many shards. Raises CorruptStorage."""
    found: dict[NodeNumber, ListenersRecord] = {}
    for key, value in content.items():
        if key.startswith(records.LISTENERS_PREFIX):
            node = _node_in(key, records.LISTENERS_PREFIX)
            content_of = load(value, f"listeners/{node}")
            match content_of:
                case [bytes() as incarnation, dict()] if len(incarnation) == _INCARNATION_BYTES and _are_places(
                    by_name := cast("list[object]", content_of)[1], shards
                ):
                    places = {name: ListenerPlaces(host, ports) for name, (host, ports) in by_name.items()}
                    found[node] = ListenersRecord(incarnation, types.MappingProxyType(places))
                case other:
                    raise CorruptStorage(f"the record listeners/{node} reads {shown(other)}")
    return found


def gone_listeners(keys: Collection[bytes]) -> list[NodeNumber]:
    """The nodes whose listeners have these keys, among others. Raises CorruptStorage."""
    return [_node_in(key, records.LISTENERS_PREFIX) for key in keys if key.startswith(records.LISTENERS_PREFIX)]


def inner_tls_key(node: NodeNumber) -> bytes:
    return INNER_TLS_PREFIX + str(node).encode()


def encode_inner_tls(record: InnerTlsRecord) -> bytes:
    return cbor2.dumps([record.incarnation])


def decode_inner_tls(content: Mapping[bytes, bytes]) -> dict[NodeNumber, InnerTlsRecord]:
    """The nodes that speak TLS with each other. Raises CorruptStorage."""
    found: dict[NodeNumber, InnerTlsRecord] = {}
    for key, value in content.items():
        if key.startswith(INNER_TLS_PREFIX):
            node = _node_in(key, INNER_TLS_PREFIX)
            match load(value, f"inner-tls/{node}"):
                case [bytes() as incarnation] if len(incarnation) == _INCARNATION_BYTES:
                    found[node] = InnerTlsRecord(incarnation)
                case other:
                    raise CorruptStorage(f"the record inner-tls/{node} reads {shown(other)}")
    return found


def gone_inner_tls(keys: Collection[bytes]) -> list[NodeNumber]:
    """The nodes of these keys, among others. Raises CorruptStorage."""
    return [_node_in(key, INNER_TLS_PREFIX) for key in keys if key.startswith(INNER_TLS_PREFIX)]


def _are_places(value: object, shards: int) -> TypeGuard[dict[str, tuple[str, dict[ShardNumber, int]]]]:
    if not isinstance(value, dict) or not value:
        return False
    for name, place in cast("dict[object, object]", value).items():
        match (name, place):
            case (str(), [str(), dict()]):
                ports = cast("dict[object, object]", cast("list[object]", place)[1])
                if not all(
                    isinstance(shard, int) and isinstance(port, int) and 0 <= shard < shards and 0 <= port < 1 << 16
                    for shard, port in ports.items()
                ):
                    return False
            case _:
                return False
    return True


def gone_nodes(keys: Collection[bytes]) -> list[NodeNumber]:
    """The nodes whose records have these keys, among others. Raises CorruptStorage."""
    return [_node_in(key, NODE_PREFIX) for key in keys if key.startswith(NODE_PREFIX)]


def _are_ports(value: object, shards: int) -> TypeGuard[dict[int, list[int]]]:
    if not isinstance(value, dict):
        return False
    for shard, ports in cast("dict[object, object]", value).items():
        match (shard, ports):
            case (int(number), [int(clients), int(brokers)]) if (
                0 <= number < shards and 0 <= clients < 1 << 16 and 0 <= brokers < 1 << 16
            ):
                pass
            case _:
                return False
    return True


def shard_key(shard: ShardNumber) -> bytes:
    return SHARD_PREFIX + str(shard).encode()


def encode_shard(record: ShardRecord) -> bytes:
    return cbor2.dumps([list(record.replicas), record.owner, record.epoch, list(record.in_sync)])


def decode_shard_records(content: Mapping[bytes, bytes], shards: int) -> dict[ShardNumber, ShardRecord]:
    """The shards that somebody was given, of so many. Raises CorruptStorage."""
    found: dict[ShardNumber, ShardRecord] = {}
    for key, value in content.items():
        if key.startswith(SHARD_PREFIX):
            number = _shard_in(key, SHARD_PREFIX, shards)
            content_of = load(value, f"shard/{number}")
            match content_of:
                case [list(), int() | None as owner, int(epoch), list()] if (
                    _are_nodes(replicas := cast("list[object]", content_of)[0])
                    and (owner is None or 0 <= owner <= NODES_MAX)
                    and epoch >= 0
                    and _are_nodes(in_sync := cast("list[object]", content_of)[3])
                ):
                    found[number] = ShardRecord(
                        tuple(map(NodeNumber, replicas)),
                        None if owner is None else NodeNumber(owner),
                        LeaderEpoch(epoch),
                        tuple(map(NodeNumber, in_sync)),
                    )
                case other:
                    raise CorruptStorage(f"the record shard/{number} reads {shown(other)}")
    return found


def wish_key(shard: ShardNumber) -> bytes:
    return WISH_PREFIX + str(shard).encode()


def encode_wish(node: NodeNumber) -> bytes:
    return cbor2.dumps(node)


def decode_wishes(content: Mapping[bytes, bytes], shards: int) -> dict[ShardNumber, NodeNumber]:
    """The nodes that were asked for, by shard, of so many. Raises CorruptStorage."""
    found: dict[ShardNumber, NodeNumber] = {}
    for key, value in content.items():
        if key.startswith(WISH_PREFIX):
            shard = _shard_in(key, WISH_PREFIX, shards)
            match load(value, f"wish/{shard}"):
                case int(node) if type(node) is int and 0 <= node <= NODES_MAX:
                    found[shard] = NodeNumber(node)
                case other:
                    raise CorruptStorage(f"the record wish/{shard} reads {shown(other)}")
    return found


def gone_wishes(keys: Collection[bytes], shards: int) -> list[ShardNumber]:
    """The shards whose wishes have these keys, among others. Raises CorruptStorage."""
    return [_shard_in(key, WISH_PREFIX, shards) for key in keys if key.startswith(WISH_PREFIX)]


def _are_nodes(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    numbers = cast("list[object]", value)
    return len(set(map(repr, numbers))) == len(numbers) and all(
        type(number) is int and 0 <= number <= NODES_MAX for number in numbers
    )


def _node_in(key: bytes, prefix: bytes) -> NodeNumber:
    number = _number_in(key, prefix)
    if number > NODES_MAX:
        raise CorruptStorage(f"the record {key!r} is of a node above {NODES_MAX}")
    return NodeNumber(number)


def _shard_in(key: bytes, prefix: bytes, shards: int) -> ShardNumber:
    number = _number_in(key, prefix)
    if number >= shards:
        raise CorruptStorage(f"the record {key!r} is of shard {number}, of {shards}")
    return ShardNumber(number)


def _number_in(key: bytes, prefix: bytes) -> int:
    if _NUMBER.fullmatch(key, len(prefix)) is None:
        raise CorruptStorage(f"the record {key!r} has no number in decimal")
    return int(key[len(prefix) :])


def first_records(
    cluster: ClusterRecord, *, shards: int, offsets_logs: int, group_separator: str
) -> dict[bytes, bytes]:
    """What a new cluster begins with."""
    return {
        records.FORMAT_KEY: encode_format(),
        CLUSTER_KEY: encode_cluster(cluster),
        records.STARTS_KEY: records.encode_count(0),
        records.PRODUCER_IDS_KEY: records.encode_count(0),
        records.OFFSETS_LOGS_KEY: records.encode_count(offsets_logs),
        records.GROUP_SEPARATOR_KEY: records.encode_group_separator(group_separator),
        **({} if shards == 1 else {records.SHARDS_KEY: records.encode_count(shards)}),
    }
