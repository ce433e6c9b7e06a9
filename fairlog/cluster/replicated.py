"""The cluster store of several machines, as one broker has it: what all agree on, and which of it is this broker's.

    the stream of metadata ──▶ MetadataLog, one in a process ──▶ ReplicatedStore, one for each broker of the process

A broker is a shard on a node. Its node id is the node's number × 1000 + the shard, and it has a port of its own.

What it does not do: it elects no owner and sees nobody die. The shards' streams do that (`stream.fold`). Here the owner
publishes what it has become, for clients to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio

from fairlog.cluster import cluster_records
from fairlog.cluster.cluster_records import ListenerPlaces, NodeNumber, NodeRecord, ShardRecord, broker_id
from fairlog.cluster.common_memory import Changes
from fairlog.cluster.deciding_store import DecidingStore
from fairlog.cluster.interface import BrokerAddress, InnerAddress, Leader, PartitionCopies, Topic
from fairlog.cluster.metadata_log import MetadataLog
from fairlog_types import LeaderEpoch, ShardNumber

NO_NODE = -1
"""The id of a broker that there is none of."""

_Answer = TypeVar("_Answer")


class ReplicatedStore(DecidingStore):
    """`ClusterStore` for one broker: a shard, on the node of this process."""

    def __init__(self, metadata: MetadataLog, node: NodeNumber, shard: ShardNumber) -> None:
        """The cluster must be known (`MetadataLog.found`)."""
        super().__init__(metadata.memory, shard)
        self._metadata = metadata
        self._node = node
        metadata.listen(self._tell)

    def close(self) -> None:
        """Hear of changes no more."""
        self._metadata.listen_no_more(self._tell)

    @property
    def cluster_id(self) -> str:
        return self._metadata.memory.cluster.cluster_id

    @property
    def node_id(self) -> int:
        return broker_id(self._node, self._shard)

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def starts(self) -> int:
        """The epoch in which the shard is owned, as was published last: that of its owner's logs."""
        return self._metadata.memory.shard(self._shard).epoch

    @property
    def group_journal_count(self) -> int:
        return self._metadata.memory.cluster.group_journal_count

    async def run(self) -> None:
        """See `ClusterStore.run`: `MetadataLog.run` does it for all brokers of the process."""
        await trio.sleep_forever()

    async def notice(self) -> None:
        await trio.lowlevel.checkpoint()  # what was accepted is read at once; to ask for more is for `catch_up`

    async def catch_up(self) -> None:
        await self._metadata.catch_up()

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        memory = self._metadata.memory
        found: list[BrokerAddress] = []
        for shard in map(ShardNumber, range(memory.shards)):
            for node in memory.shard(shard).copies:
                endpoint = memory.endpoint(node, shard, listener)
                if endpoint is not None:
                    found.append(BrokerAddress(broker_id(node, shard), *endpoint))
        return sorted(found)

    @property
    def started(self) -> Sequence[int]:
        """See `ClusterStore.started`, in order."""
        memory = self._metadata.memory
        return sorted(
            broker_id(node, shard)
            for shard in map(ShardNumber, range(memory.shards))
            for node in memory.shard(shard).copies
            if node in memory.nodes and shard in memory.nodes[node].ports
        )

    @property
    def controller_id(self) -> int:
        """See `ClusterStore.controller_id`: one of this node, for any broker changes the metadata.

        That of a certain shard might have no owner just now, and librdkafka does not ask again for a minute then.
        """
        brokers = self.started
        here = (each for each in brokers if each // cluster_records.SHARDS_MAX == self._node)
        return next(here, brokers[0] if brokers else NO_NODE)

    def broker_of(self, shard: ShardNumber) -> int:
        owner = self._metadata.memory.shard(shard).owner
        return NO_NODE if owner is None else broker_id(owner, shard)

    def internal_address(self, shard: ShardNumber) -> InnerAddress | None:
        """See `ClusterStore.internal_address`: that of the shard's owner."""
        owner = self._metadata.memory.shard(shard).owner
        return None if owner is None else self._metadata.memory.internal_address(owner, shard)

    def rack_of(self, node_id: int) -> str | None:
        record = self._metadata.memory.nodes.get(NodeNumber(node_id // cluster_records.SHARDS_MAX))
        return None if record is None else record.rack

    def leaders(self, topic: Topic) -> Sequence[Leader]:
        memory = self._metadata.memory
        leaders = [
            Leader(self.broker_of(shard), memory.shard(shard).epoch) for shard in map(ShardNumber, range(memory.shards))
        ]
        return [leaders[shard] for shard in self._shards_of(topic)]

    def copies(self, topic: Topic) -> Sequence[PartitionCopies]:
        memory = self._metadata.memory
        copies = [_copies_of(shard, memory.shard(shard)) for shard in map(ShardNumber, range(memory.shards))]
        return [copies[shard] for shard in self._shards_of(topic)]

    def copies_of(self, shard: ShardNumber) -> PartitionCopies:
        return _copies_of(shard, self._metadata.memory.shard(shard))

    async def announce(
        self,
        record: NodeRecord,
        listeners: Mapping[str, ListenerPlaces] | None = None,
        *,
        has_inner_tls: bool = False,
    ) -> None:
        """Say where this node is reached, as `ClusterMemory.announced` has it. Raises StorageFailure."""

        def announced() -> tuple[Changes, None]:
            memory = self._metadata.memory
            return memory.announced(self._node, record, listeners, has_inner_tls=has_inner_tls), None

        await self._change(announced)

    async def remove_node(self, node: NodeNumber) -> None:
        """Take a node out of the cluster. Idempotent. Raises NodeInUse if it keeps a shard, StorageFailure."""
        await self._change(lambda: (self._metadata.memory.removed(node), None))

    async def spread(self, replicas: Mapping[ShardNumber, Sequence[NodeNumber]]) -> None:
        """Let these nodes keep the copies of shards. Raises StorageFailure."""
        await self._change(lambda: (self._metadata.memory.spread(replicas), None))

    async def wish(self, shard: ShardNumber, node: NodeNumber | None) -> None:
        """Ask that a node owns a shard whenever it can; None: take that back.

        Raises NoSuchShard, NoSuchNode, StorageFailure.
        """
        await self._change(lambda: (self._metadata.memory.wished(shard, node), None))

    async def publish_owner(self, epoch: LeaderEpoch, in_sync: Sequence[NodeNumber]) -> None:
        """This node owns the shard in this epoch, and sees these nodes in sync, itself among them.

        Raises StaleOwner if another one owns it by now, StorageFailure.
        """
        await self._change(lambda: (self._metadata.memory.published(self._shard, self._node, epoch, in_sync), None))

    async def _change(self, decide: Callable[[], tuple[Changes, _Answer]]) -> _Answer:
        return await self._metadata.change(decide)


def _copies_of(shard: ShardNumber, record: ShardRecord) -> PartitionCopies:
    return PartitionCopies(
        tuple(broker_id(node, shard) for node in record.copies),
        tuple(broker_id(node, shard) for node in record.in_sync),
    )
