"""The other shards of the data directory or cluster, as the broker of one of them reaches them.

    shard.links ─▶ Peers ┈┈ connections, on one machine by its loopback interface ┈┈▶ Peers of the other ─▶ its links

Where the others listen, the cluster store says: each process writes its address there at its start. The listener for
brokers is one of its own, on a port that the system picks, and speaks with those alone who know the directory's secret.
In the process that takes cuts, backups are heard there as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from coordinator.answers import Refusal
from fairlog.cluster.coordinators import shard_of_transactional_id
from fairlog.cluster.interface import ClusterStore
from fairlog.interbroker.giving_copies import GivesCopies
from fairlog.interbroker.peers import Peers
from fairlog.interbroker.ways import Way
from fairlog.listening import another_listener
from fairlog_types import LogId, ProducerEpoch, ProducerId, ShardNumber
from shard.adding import AddLog
from shard.conversation import Message
from shard.cut_messages import NoCut
from shard.cutting import TAKER
from shard.shard import Neighbours, Shard

INTERNAL_HOST = "127.0.0.1"
"""All processes of a data directory are on one machine."""


class Coordinators:
    """The coordinators of other shards. Implements the `OtherCoordinators` of `fairlog.broker` and of the groups."""

    def __init__(self, cluster: ClusterStore, shard: Shard, group_separator: str) -> None:
        self._cluster = cluster
        self._shard = shard
        self._group_separator = group_separator

    def coordinates(self, transactional_id: str) -> bool:
        """See `fairlog.groups.offset_producers.OtherCoordinators`."""
        return self._of(transactional_id) != self._cluster.shard

    async def hear(self, transactional_id: str) -> None:
        """See `OtherCoordinators.hear`."""
        if self.coordinates(transactional_id):
            await self._shard.hear(self._of(transactional_id))

    async def add_log(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId
    ) -> Refusal | None:
        """See `OtherCoordinators.add_log`."""
        message = AddLog(transactional_id, producer_id, epoch, log)
        return await self._shard.add_log(self._of(transactional_id), message)

    def _of(self, transactional_id: str) -> ShardNumber:
        return shard_of_transactional_id(self._cluster, transactional_id, self._group_separator)


class Neighbourhood:
    """The way to the other shards. Made before the shard, which it carries messages for once it is `open`."""

    def __init__(
        self,
        cluster: ClusterStore,
        secret: bytes,
        listeners: Sequence[trio.SocketListener],
        giver: GivesCopies | None = None,
        appends_wait: Callable[[], bool] = lambda: False,
        way: Way | None = None,
    ) -> None:
        """`listeners` are for brokers; `secret` is the data directory's, or the cluster's. `giver` gives copies of the
        shard to nodes that join. While the shard's `appends_wait`, no connection is opened: another owner of it
        may have its own by then, and each would take the place of the other's, again and again. `way` is how others are
        reached; None: without TLS.
        """
        self.listeners = listeners
        self._cluster = cluster
        self._shard: Shard | None = None
        self._peers = Peers(
            cluster.shard,
            cluster.cluster_id,
            secret,
            lambda shard: None if appends_wait() else cluster.internal_address(shard),
            self._receive,
            way=way,
            connected=self._connected,
            disconnected=self._disconnected,
            moved=cluster.changed,
            while_all_hold=self._while_all_hold if cluster.shard == TAKER else None,
            giver=giver,
        )
        self.neighbours = Neighbours(cluster.placement, self._other_shard_of, cluster.catch_up, self._peers)
        """What the shard is to know of the others."""

    @property
    def address(self) -> tuple[str, int]:
        """Where other brokers reach this one."""
        host, port = self.listeners[0].socket.getsockname()[:2]
        return host, port

    async def open(self, nursery: trio.Nursery, shard: Shard) -> None:
        """Begin to carry messages, once the shard leads its logs. Its listeners stay open when that ends."""
        self._shard = shard
        await nursery.start(shard.run_links)
        listeners = [another_listener(each) for each in self.listeners]
        await nursery.start(self._peers.run, listeners, self._cluster.placement.others(self._cluster.shard))

    def _other_shard_of(self, log: LogId) -> ShardNumber | None:
        shard = self._cluster.shard_of(log)
        return None if shard == self._cluster.shard else shard

    def _receive(self, shard: ShardNumber, message: Message) -> None:
        assert self._shard is not None
        self._shard.receive(shard, message)

    def _connected(self, shard: ShardNumber) -> None:
        assert self._shard is not None
        self._shard.connected(shard)

    def _disconnected(self, shard: ShardNumber) -> None:
        assert self._shard is not None
        self._shard.disconnected(shard)

    async def _while_all_hold(self, inside: Callable[[], Awaitable[None]]) -> bool | NoCut:
        assert self._shard is not None
        assert self._shard.cutting is not None
        return await self._shard.cutting.while_all_hold(inside)
