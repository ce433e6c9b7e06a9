"""The content of a store of several machines as values, and what a node may change of it beside topics. Pure.

Nodes say where they are reached; whoever spreads the shards says which nodes keep a copy of each; a shard's owner says
that it is the owner, and which nodes it sees in sync. Who owns a shard is decided in the shard's own stream, by the
first FENCE of an epoch. Here it is only published, and a published epoch never becomes less.

An operator may wish that a certain node owns a shard. It is a wish to whoever spreads the shards, and stands until it
is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import (
    NO_SHARD_RECORD,
    InnerTlsRecord,
    ListenerPlaces,
    ListenersRecord,
    NodeNumber,
    NodeRecord,
    ShardRecord,
)
from fairlog.cluster.common_memory import Changes, CommonMemory
from fairlog.cluster.features import Feature
from fairlog.cluster.interface import InnerAddress
from fairlog.security.listeners import PLAIN
from fairlog_types import CorruptStorage, LeaderEpoch, ShardNumber


class StaleOwner(Exception):
    """Another node owns the shard by now, in a later epoch. The message says which."""


class NodeInUse(Exception):
    """A node cannot be taken out of the cluster yet. The message says why."""


class NoSuchShard(Exception):
    """There is no shard of this number. The message says which ones there are."""


class NoSuchNode(Exception):
    """No node of this number has ever been in the cluster. The message says which ones have."""


class ClusterMemory(CommonMemory):
    """What the cluster has agreed on."""

    def __init__(self, content: Mapping[bytes, bytes], features: Mapping[str, Feature]) -> None:
        """`content` is all records. Raises CorruptStorage; KeyError for a missing record."""
        version = cluster_records.decode_version(content[records.FORMAT_KEY])
        if version not in cluster_records.READ_VERSIONS:
            raise CorruptStorage(
                f"the metadata have version {version}; this program reads up to {cluster_records.READ_VERSIONS[-1]}"
            )
        self.cluster = cluster_records.decode_cluster(content[cluster_records.CLUSTER_KEY])
        self.group_separator = records.decode_group_separator(content[records.GROUP_SEPARATOR_KEY])
        super().__init__(content, features)
        self.nodes: dict[NodeNumber, NodeRecord] = {}
        self._listeners: dict[NodeNumber, ListenersRecord] = {}
        self._inner_tls: dict[NodeNumber, InnerTlsRecord] = {}
        self._shard_records: dict[ShardNumber, ShardRecord] = {}
        self.wishes: dict[ShardNumber, NodeNumber] = {}
        """The nodes that are to own certain shards whenever they can."""
        self.apply(content)

    def shard(self, shard: ShardNumber) -> ShardRecord:
        """Who keeps the shard."""
        return self._shard_records.get(shard, NO_SHARD_RECORD)

    def endpoint(self, node: NodeNumber, shard: ShardNumber, listener: str) -> tuple[str, int] | None:
        """Host and port where clients reach the shard's broker on a node by a listener; None if it has none there."""
        record, listeners = self.nodes.get(node), self._listeners.get(node)
        if record is None:
            return None
        if listeners is not None and listeners.incarnation == record.incarnation:
            place = listeners.by_name.get(listener)
            port = None if place is None else place.ports.get(shard)
            return None if place is None or port is None else (place.host, port)
        if listener != PLAIN.name or shard not in record.ports:
            return None
        return record.host, record.ports[shard].clients

    def internal_address(self, node: NodeNumber, shard: ShardNumber) -> InnerAddress | None:
        """Where other nodes reach the shard's broker on a node; None if it has none."""
        record = self.nodes.get(node)
        if record is None or shard not in record.ports:
            return None
        inner = self._inner_tls.get(node)
        has_tls = inner is not None and inner.incarnation == record.incarnation
        return InnerAddress(record.internal_host, record.ports[shard].brokers, has_tls)

    def announced(
        self,
        node: NodeNumber,
        record: NodeRecord,
        listeners: Mapping[str, ListenerPlaces] | None = None,
        *,
        has_inner_tls: bool = False,
    ) -> Changes:
        """What says where a node is reached; without `listeners` only by PLAINTEXT, where `record` says."""
        others = None
        if listeners is not None and set(listeners) != {PLAIN.name}:
            others = cluster_records.encode_listeners(ListenersRecord(record.incarnation, listeners))
        return {
            cluster_records.node_key(node): cluster_records.encode_node(record),
            cluster_records.listeners_key(node): others,
            cluster_records.inner_tls_key(node): (
                cluster_records.encode_inner_tls(InnerTlsRecord(record.incarnation)) if has_inner_tls else None
            ),
        }

    def removed(self, node: NodeNumber) -> Changes:
        """What takes a node out of the cluster. Raises NodeInUse if it keeps a shard."""
        kept = sorted(shard for shard, record in self._shard_records.items() if node in record.copies)
        if kept:
            raise NodeInUse(f"node {node} keeps the shards {', '.join(map(str, kept))}: let others keep them first")
        wishes = (shard for shard, wished in self.wishes.items() if wished == node)
        own = (
            cluster_records.node_key(node),
            cluster_records.listeners_key(node),
            cluster_records.inner_tls_key(node),
        )
        return {**dict.fromkeys(own), **{cluster_records.wish_key(shard): None for shard in wishes}}

    def spread(self, replicas: Mapping[ShardNumber, Sequence[NodeNumber]]) -> Changes:
        """What gives the copies of shards to these nodes."""
        return {
            cluster_records.shard_key(shard): cluster_records.encode_shard(
                replace(self.shard(shard), replicas=tuple(nodes))
            )
            for shard, nodes in replicas.items()
        }

    def wished(self, shard: ShardNumber, node: NodeNumber | None) -> Changes:
        """What asks for a node that is to own the shard; None: for none of them. Raises NoSuchShard, NoSuchNode."""
        if shard >= self.shards:
            raise NoSuchShard(f"there is no shard {shard}: there are {self.shards}, from 0 on")
        if node is not None and node not in self.nodes:
            known = ", ".join(map(str, sorted(self.nodes)))
            raise NoSuchNode(f"there is no node {node} in the cluster: there are {known}")
        return {cluster_records.wish_key(shard): None if node is None else cluster_records.encode_wish(node)}

    def published(
        self, shard: ShardNumber, owner: NodeNumber, epoch: LeaderEpoch, in_sync: Sequence[NodeNumber]
    ) -> Changes:
        """What says that a node owns the shard in this epoch. Raises StaleOwner if it does not any more."""
        assert owner in in_sync, (owner, in_sync)
        known = self.shard(shard)
        if epoch < known.epoch or (epoch == known.epoch and known.owner not in (None, owner)):
            raise StaleOwner(
                f"shard {shard} is node {known.owner}'s in epoch {known.epoch}, so it is not node {owner}'s in {epoch}"
            )
        changed = replace(known, owner=owner, epoch=epoch, in_sync=tuple(in_sync))
        return {cluster_records.shard_key(shard): cluster_records.encode_shard(changed)}

    def _decode_own(self, after: Mapping[bytes, bytes], gone: Collection[bytes], /) -> Callable[[], bool]:
        nodes = cluster_records.decode_nodes(after, self.shards)
        gone_nodes = cluster_records.gone_nodes(gone)
        listeners, gone_listeners = (
            cluster_records.decode_listeners(after, self.shards),
            cluster_records.gone_listeners(gone),
        )
        inner_tls, gone_inner_tls = cluster_records.decode_inner_tls(after), cluster_records.gone_inner_tls(gone)
        shards = cluster_records.decode_shard_records(after, self.shards)
        wishes = cluster_records.decode_wishes(after, self.shards)
        gone_wishes = cluster_records.gone_wishes(gone, self.shards)

        def take_in() -> bool:
            self.nodes |= nodes
            for node in gone_nodes:
                self.nodes.pop(node, None)
            self._listeners |= listeners
            for node in gone_listeners:
                self._listeners.pop(node, None)
            self._inner_tls |= inner_tls
            for node in gone_inner_tls:
                self._inner_tls.pop(node, None)
            self._shard_records |= shards
            self.wishes |= wishes
            for shard in gone_wishes:
                self.wishes.pop(shard, None)
            of_nodes = nodes or gone_nodes or listeners or gone_listeners or inner_tls or gone_inner_tls
            return bool(of_nodes or shards or wishes or gone_wishes)

        return take_in

    @property
    def _locked_format(self) -> bytes:
        return cluster_records.encode_format(cluster_records.LOCKED_VERSION)

    @property
    def _counts_levels(self) -> bool:
        return True
