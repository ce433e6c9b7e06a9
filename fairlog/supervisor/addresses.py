"""Where the broker of each shard listens, and what it tells clients: from the settings that all have in common. Pure.

    listen, advertised    the first shard's, and the ports of the others follow; or one is listed for each
    admin.listen          the first shard's, and the ports of the others follow
    port 0                stays 0: for each shard the system picks one

Which process serves the shard does not matter. No two brokers may listen on one address, or be told to clients under
one: clients would reach another broker than the one that they were told of.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence

from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address, FirstAddress

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
        listen=_address_of(listen, shard, shards, "listen"),
        advertised=None if advertised is None else _address_of(advertised, shard, shards, "advertised"),
        admin=dataclasses.replace(
            admin,
            listen=None if admin.listen is None else _address_of(admin.listen, shard, shards, "admin.listen"),
        ),
    )


def settings_of_all(settings: Settings, shards: int) -> Sequence[Settings]:
    """The settings of each shard, by number. Raises ConfigError, also if two of their addresses are the same."""
    all_of_them = [settings_of_shard(settings, shard, shards) for shard in range(shards)]
    listening: list[tuple[str, Address]] = []
    told: list[tuple[str, Address]] = []
    for each in all_of_them:
        listening.append((f"listen of shard {each.shard}", each.listen))
        if each.admin.listen is not None:
            listening.append((f"admin.listen of shard {each.shard}", each.admin.listen))
        if each.advertised is not None:
            port = each.advertised.port or each.listen.port
            told.append((f"advertised of shard {each.shard}", dataclasses.replace(each.advertised, port=port)))
    _require_distinct(listening)
    _require_distinct(told)
    return all_of_them


def _address_of(address: Address, shard: int, shards: int, name: str) -> Address:
    if isinstance(address, FirstAddress):
        listed = (Address(address.host, address.port), *address.others)
        if len(listed) != shards:
            raise ConfigError(
                f"{name} has {len(listed)} addresses, and the node has {shards} shard{'s' if shards > 1 else ''}: one "
                "HOST:PORT is needed, or one for each shard (with several processes, each has one at first)"
            )
        return listed[shard]
    if address.port == 0:
        return address
    if address.port + shard > _PORT_MAX:
        raise ConfigError(f"{name} = {address} leaves no port for shard {shard}: choose a lower one")
    return Address(address.host, address.port + shard)


def _require_distinct(named: Sequence[tuple[str, Address]]) -> None:
    for number, (name, address) in enumerate(named):
        for other_name, other in named[:number]:
            if address.port and address.port == other.port and _may_be_one_host(address.host, other.host):
                raise ConfigError(f"{name} ({address}) and {other_name} ({other}) are the same: choose other ports")


def _may_be_one_host(one: str, other: str) -> bool:
    return one == other or _is_wildcard(one) or _is_wildcard(other)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
