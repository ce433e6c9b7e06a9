"""Where the broker of each shard listens, and what it tells clients: from the settings that all have in common. Pure.

    listen, advertised    of each listener the first shard's, and the ports of the others follow; or one is listed for
                          each shard
    admin.listen          the first shard's, and the ports of the others follow
    port 0                stays 0: for each shard the system picks one

Which process serves the shard does not matter. No two brokers may listen on one address, or be told to clients under
one: clients would reach another broker than the one that they were told of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address, ListenerAddresses, NamedAddresses
from fairlog.configured_listeners import require_distinct

_PORT_MAX = 65535


def settings_of_shard(settings: Settings, shard: int, shards: int) -> Settings:
    """The settings with which this shard, from 0, of so many is served. Raises ConfigError if no address is left.

    `node_id` stays the first one's.
    """
    listen, advertised, admin = settings.listen, settings.advertised, settings.admin
    return dataclasses.replace(
        settings,
        shard=shard,
        shards=shards,
        listen=_of_shard(listen, shard, shards, "listen"),
        advertised=None if advertised is None else _of_shard(advertised, shard, shards, "advertised"),
        admin=dataclasses.replace(
            admin,
            listen=None if admin.listen is None else _following(admin.listen, shard, "admin.listen"),
        ),
    )


def settings_of_all(settings: Settings, shards: int) -> Sequence[Settings]:
    """The settings of each shard, by number. Raises ConfigError, also if two of their addresses are the same."""
    all_of_them = [settings_of_shard(settings, shard, shards) for shard in range(shards)]
    listening: list[tuple[str, Address]] = []
    told: list[tuple[str, Address]] = []
    for each in all_of_them:
        listening += _named("listen", each.listen, each.shard)
        if each.admin.listen is not None:
            listening.append((f"admin.listen of shard {each.shard}", each.admin.listen))
        if each.advertised is not None:
            ports = {name: address.port for name, address in each.listen.one_each().items()}
            told += (
                (what, dataclasses.replace(address, port=address.port or ports[name]))
                for name, (what, address) in zip(
                    each.advertised.one_each(), _named("advertised", each.advertised, each.shard), strict=True
                )
            )
    require_distinct(listening)
    require_distinct(told)
    return all_of_them


def _named(key: str, addresses: ListenerAddresses, shard: int) -> Iterator[tuple[str, Address]]:
    """The addresses of a shard, as messages name them."""
    by_name = addresses.one_each()
    for name, address in by_name.items():
        yield f"{key} of {f'{name} of ' if len(by_name) > 1 else ''}shard {shard}", address


def _of_shard(addresses: ListenerAddresses, shard: int, shards: int, key: str) -> ListenerAddresses:
    """One address for each listener."""
    return ListenerAddresses(
        tuple(
            NamedAddresses(
                name, (_address_of(of_shards, shard, shards, key if len(addresses.named) == 1 else f"{key} of {name}"),)
            )
            for name, of_shards in addresses.named
        )
    )


def _address_of(of_shards: Sequence[Address], shard: int, shards: int, key: str) -> Address:
    if len(of_shards) == 1:
        return _following(of_shards[0], shard, key)
    if len(of_shards) != shards:
        raise ConfigError(
            f"{key} has {len(of_shards)} addresses, and the node has {shards} shard{'s' if shards > 1 else ''}: one "
            "HOST:PORT is needed, or one for each shard (with several processes, each has one at first)"
        )
    return of_shards[shard]


def _following(address: Address, shard: int, key: str) -> Address:
    if address.port == 0:
        return address
    if address.port + shard > _PORT_MAX:
        raise ConfigError(f"{key} = {address} leaves no port for shard {shard}: choose a lower one")
    return Address(address.host, address.port + shard)
