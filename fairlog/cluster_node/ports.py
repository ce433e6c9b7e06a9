"""Where a node of a cluster listens: one port for whoever begins, and two for each shard.

    listen            any client's first address: `fairlog.bystander`
    listen + 1 + s    clients of shard s on this node
    listen + 1 + S + s   other nodes' brokers, for shard s (S shards)

All of them are open for as long as the node lives; who accepts from one changes with the shard's owner. With port 0 the
system picks each. Other nodes and clients find them in the metadata (`NodeRecord`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import trio

from fairlog.cluster.cluster_records import Ports
from fairlog.config import ConfigError, Settings, advertised_address
from fairlog.config_values import Address
from fairlog_types import ShardNumber

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class OfShard:
    """Those of one shard."""

    clients: Sequence[trio.SocketListener]
    brokers: Sequence[trio.SocketListener]


@dataclass(frozen=True, slots=True)
class NodeListeners:
    """All of a node."""

    door: Sequence[trio.SocketListener]
    advertised: Address
    """What clients are told to begin with."""
    of_shard: Mapping[ShardNumber, OfShard]

    @property
    def ports(self) -> Mapping[ShardNumber, Ports]:
        """What is announced."""
        return {shard: Ports(_port(each.clients), _port(each.brokers)) for shard, each in self.of_shard.items()}

    def advertised_of(self, shard: ShardNumber) -> Address:
        """What clients of a shard are told to connect to."""
        return replace(self.advertised, port=_port(self.of_shard[shard].clients))


async def open_listeners(stack: AsyncExitStack, settings: Settings) -> NodeListeners:
    """Listen everywhere, until `stack` is left. Raises ConfigError, and OSError if an address is taken."""
    host, first, shards = settings.listen.host, settings.listen.port, settings.cluster.shards
    if first and first + 2 * shards > PORT_MAX:
        raise ConfigError(
            f"listen ({settings.listen}) has no room for the ports that follow it, two for each of {shards} shards"
        )

    async def listen(port: int) -> Sequence[trio.SocketListener]:
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror or error} (port {port})") from error
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        return listeners

    door = await listen(first)
    of_shard: dict[ShardNumber, OfShard] = {}
    for shard in map(ShardNumber, range(shards)):
        clients = await listen(first + 1 + shard if first else 0)
        brokers = await listen(first + 1 + shards + shard if first else 0)
        of_shard[shard] = OfShard(clients, brokers)
    bound = Address(door[0].socket.getsockname()[0], _port(door))
    return NodeListeners(door, advertised_address(settings, bound), of_shard)


def _port(listeners: Sequence[trio.SocketListener]) -> int:
    return int(listeners[0].socket.getsockname()[1])
