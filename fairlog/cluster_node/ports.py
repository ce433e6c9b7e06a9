"""Where a node of a cluster listens: for each listener one port for whoever begins and one for each shard, and one more
for each shard where nodes reach each other.

    listen            any client's first address: `fairlog.bystander`
    listen + 1 + s    clients of shard s on this node
    listen + 1 + S + s   other nodes' brokers, for shard s (S shards): after the first listener's ports only

All of them are open for as long as the node lives; who accepts from one changes with the shard's owner. With port 0 the
system picks each. Other nodes and clients find them in the metadata (`NodeRecord`, `ListenersRecord`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import trio

from fairlog.cluster.cluster_records import ListenerPlaces, Ports
from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.configured_listeners import advertised_endpoints, listen_addresses, require_distinct
from fairlog.listening import Door, bound_to, open_doors
from fairlog.security.tls import TlsListener
from fairlog_types import ShardNumber

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class OfShard:
    """Those of one shard."""

    clients: Sequence[Door]
    brokers: Sequence[trio.SocketListener]


@dataclass(frozen=True, slots=True)
class NodeListeners:
    """All of a node."""

    doors: Sequence[Door]
    advertised: Mapping[str, Address]
    """What clients are told to begin with, by listener."""
    of_shard: Mapping[ShardNumber, OfShard]

    @property
    def host(self) -> str:
        """By which other nodes reach this one: that of the first listener."""
        return next(iter(self.advertised.values())).host

    @property
    def ports(self) -> Mapping[ShardNumber, Ports]:
        """What is announced of the first listener."""
        first = next(iter(self.advertised))
        return {
            shard: Ports(self.advertised_of(shard)[first].port, _port(each.brokers[0]))
            for shard, each in self.of_shard.items()
        }

    @property
    def places(self) -> Mapping[str, ListenerPlaces]:
        """What is announced of all listeners."""
        ports = {shard: self.advertised_of(shard) for shard in self.of_shard}
        return {
            name: ListenerPlaces(address.host, {shard: by_name[name].port for shard, by_name in ports.items()})
            for name, address in self.advertised.items()
        }

    def advertised_of(self, shard: ShardNumber) -> Mapping[str, Address]:
        """What clients of a shard are told to connect to, by listener."""
        bound = bound_to(self.of_shard[shard].clients)
        return {name: replace(address, port=bound[name].port) for name, address in self.advertised.items()}


async def open_listeners(stack: AsyncExitStack, settings: Settings, tls: Mapping[str, TlsListener]) -> NodeListeners:
    """Listen everywhere, until `stack` is left. Raises ConfigError, and OSError if an address is taken."""
    shards, addresses = settings.cluster.shards, listen_addresses(settings)
    first = next(iter(addresses.values()))
    ranges: list[tuple[str, Address]] = []
    for listener, address in addresses.items():
        after = 2 * shards if address is first else shards
        if address.port and address.port + after > PORT_MAX:
            where = settings.listen if len(addresses) == 1 else ListenerAddresses.of({listener.name: address})
            raise ConfigError(
                f"listen ({where}) has no room for the ports that follow it, {'two' if address is first else 'one'} "
                f"for each of {shards} shards"
            )
        if address.port:
            ranges += (
                (f"listen of {listener.name}", replace(address, port=address.port + n)) for n in range(after + 1)
            )
    require_distinct(ranges)

    async def listen(after: int) -> Sequence[Door]:
        """The ports that are so many after the first one of each listener."""
        at = {each: _after(address, after) for each, address in addresses.items()}
        try:
            return await open_doors(stack, at, tls)
        except OSError as error:
            port = "" if len(addresses) > 1 else f" (port {next(iter(at.values())).port})"
            raise OSError(error.errno, f"{error.strerror or error}{port}") from error

    async def listen_for_brokers(after: int) -> Sequence[trio.SocketListener]:
        port = _after(first, after).port
        try:
            sockets = await trio.open_tcp_listeners(port, host=first.host)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror or error} (port {port})") from error
        for socket in sockets:
            stack.push_async_callback(socket.aclose)
        return sockets

    doors = await listen(0)
    of_shard: dict[ShardNumber, OfShard] = {}
    for shard in map(ShardNumber, range(shards)):
        of_shard[shard] = OfShard(await listen(1 + shard), await listen_for_brokers(1 + shards + shard))
    return NodeListeners(doors, advertised_endpoints(settings, bound_to(doors)), of_shard)


def _after(address: Address, ports: int) -> Address:
    """Port 0 stays 0."""
    return replace(address, port=address.port and address.port + ports)


def _port(listener: trio.SocketListener) -> int:
    return int(listener.socket.getsockname()[1])
