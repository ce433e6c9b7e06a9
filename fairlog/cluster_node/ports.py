"""Where a node of a cluster listens: for each listener one port for whoever begins and one for each shard, and one more
for each shard where nodes reach each other.

    listen            any client's first address: `fairlog.bystander`
    listen + 1 + s    clients of shard s on this node
    listen + 1 + S + s   other nodes' brokers, for shard s (S shards): after the first listener's ports only
    inner + s            the same, in place of it, if there is an inner listener (security.inner_listener)

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
from fairlog.configured_listeners import (
    advertised_endpoints,
    inner_listener_of,
    listen_addresses,
    require_distinct,
)
from fairlog.interbroker.ways import Way
from fairlog.listening import Door, bound_to, open_doors
from fairlog.security.listeners import Listener
from fairlog.security.tls import TlsListener
from fairlog_types import ShardNumber
from shard.directory import FIRST_SHARD

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class OfShard:
    """Those of one shard."""

    clients: Sequence[Door]
    brokers: Sequence[trio.SocketListener]
    brokers_port: int
    """That other nodes are told."""


@dataclass(frozen=True, slots=True)
class NodeListeners:
    """All of a node."""

    doors: Sequence[Door]
    advertised: Mapping[str, Address]
    """What clients are told to begin with, by listener."""
    of_shard: Mapping[ShardNumber, OfShard]
    inner_host: str
    """By which other nodes reach this one."""
    way: Way
    """How they do, and it them."""

    @property
    def host(self) -> str:
        """That of the first listener."""
        return next(iter(self.advertised.values())).host

    @property
    def ports(self) -> Mapping[ShardNumber, Ports]:
        """What is announced of the first listener, and of where other nodes reach this one."""
        first = next(iter(self.advertised))
        return {
            shard: Ports(self.advertised_of(shard)[first].port, each.brokers_port)
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


async def open_listeners(
    stack: AsyncExitStack, settings: Settings, tls: Mapping[str, TlsListener], way: Way
) -> NodeListeners:
    """Listen everywhere, until `stack` is left; `way` is how other nodes are spoken to.

    Raises ConfigError, and OSError if an address is taken.
    """
    shards, addresses = settings.cluster.shards, listen_addresses(settings)
    inner = inner_listener_of(settings)
    first = next(iter(addresses.values()))
    for_brokers = _after(first, 1 + shards) if inner is None else settings.listen.one_each()[inner.name]
    _require_ports(settings, addresses, inner)

    async def listen(after: int) -> Sequence[Door]:
        """The ports that are so many after the first one of each listener."""
        at = {each: _after(address, after) for each, address in addresses.items()}
        try:
            return await open_doors(stack, at, tls)
        except OSError as error:
            port = "" if len(addresses) > 1 else f" (port {next(iter(at.values())).port})"
            raise OSError(error.errno, f"{error.strerror or error}{port}") from error

    async def listen_for_brokers(shard: ShardNumber) -> Sequence[trio.SocketListener]:
        port = _after(for_brokers, shard).port
        try:
            sockets = await trio.open_tcp_listeners(port, host=for_brokers.host)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror or error} (port {port})") from error
        for socket in sockets:
            stack.push_async_callback(socket.aclose)
        return sockets

    doors = await listen(0)
    of_shard: dict[ShardNumber, OfShard] = {}
    for shard in map(ShardNumber, range(shards)):
        clients, brokers = await listen(1 + shard), await listen_for_brokers(shard)
        of_shard[shard] = OfShard(clients, brokers, _port(brokers[0]))
    advertised = advertised_endpoints(settings, bound_to(doors))
    if inner is None:
        return NodeListeners(doors, advertised, of_shard, next(iter(advertised.values())).host, way)
    inside = _advertised_inside(settings, inner, of_shard)
    of_shard = {shard: replace(each, brokers_port=inside[shard].port) for shard, each in of_shard.items()}
    return NodeListeners(doors, advertised, of_shard, inside[FIRST_SHARD].host, way)


def _require_ports(settings: Settings, addresses: Mapping[Listener, Address], inner: Listener | None) -> None:
    """All of a node's have to be there, and to be others. Raises ConfigError."""
    shards, ranges = settings.cluster.shards, list[tuple[str, Address]]()

    def take(listener: Listener, address: Address, after: int, for_each: str) -> None:
        if not address.port:
            return
        if address.port + after > PORT_MAX:
            where = settings.listen if len(settings.listen.named) == 1 else _shown(listener, address)
            raise ConfigError(
                f"listen ({where}) has no room for the ports that follow it, {for_each} of {shards} shards"
            )
        ranges.extend((f"listen of {listener.name}", _after(address, n)) for n in range(after + 1))

    for number, (listener, address) in enumerate(addresses.items()):
        if number == 0 and inner is None:
            take(listener, address, 2 * shards, "two for each")
        else:
            take(listener, address, shards, "one for each")
    if inner is not None:
        take(inner, settings.listen.one_each()[inner.name], shards - 1, "one for all but the first")
    require_distinct(ranges)


def _advertised_inside(
    settings: Settings, inner: Listener, of_shard: Mapping[ShardNumber, OfShard]
) -> Mapping[ShardNumber, Address]:
    """What other nodes are told of the inner listener: from the advertised port on, if there is one.

    Raises ConfigError.
    """
    advertised: Mapping[str, Address] = {} if settings.advertised is None else settings.advertised.one_each()
    follows = inner.name in advertised and advertised[inner.name].port != 0
    found: dict[ShardNumber, Address] = {}
    for shard, each in of_shard.items():
        bound = Address(each.brokers[0].socket.getsockname()[0], each.brokers_port)
        told = advertised_endpoints(settings, {inner.name: bound}, "other nodes")[inner.name]
        found[shard] = _after(told, shard) if follows else told
        if found[shard].port > PORT_MAX:
            raise ConfigError(f"advertised ({_shown(inner, told)}) has no room for the ports that follow it")
    return found


def _shown(listener: Listener, address: Address) -> ListenerAddresses:
    return ListenerAddresses.of({listener.name: address})


def _after(address: Address, ports: int) -> Address:
    """Port 0 stays 0."""
    return replace(address, port=address.port and address.port + ports)


def _port(listener: trio.SocketListener) -> int:
    return int(listener.socket.getsockname()[1])
