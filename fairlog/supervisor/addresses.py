"""Where each of several processes listens, and what it tells clients: from the settings that all have in common. Pure.

    listen, advertised    the first process's, and the ports of the others follow; or one is listed for each
    admin.listen          the first process's, and the ports of the others follow
    port 0                stays 0: for each process the system picks one

No two processes may listen on one address, or be told to clients under one: clients would reach another broker than
the one that they were told of.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence

from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address, FirstAddress

_PORT_MAX = 65535


def settings_of_process(settings: Settings, process: int) -> Settings:
    """The settings with which the process of this number runs, from 0. Raises ConfigError if the ports do not suffice.

    `node_id` stays the first one's.
    """
    listen, advertised, admin = settings.listen, settings.advertised, settings.admin
    return dataclasses.replace(
        settings,
        process=process,
        listen=_address_of(listen, process, "listen"),
        advertised=None if advertised is None else _address_of(advertised, process, "advertised"),
        admin=dataclasses.replace(
            admin, listen=None if admin.listen is None else _address_of(admin.listen, process, "admin.listen")
        ),
    )


def settings_of_all(settings: Settings) -> Sequence[Settings]:
    """The settings of each process, by number. Raises ConfigError if two of their addresses are the same."""
    all_of_them = [settings_of_process(settings, process) for process in range(settings.processes)]
    listening: list[tuple[str, Address]] = []
    told: list[tuple[str, Address]] = []
    for each in all_of_them:
        listening.append((f"listen of process {each.process}", each.listen))
        if each.admin.listen is not None:
            listening.append((f"admin.listen of process {each.process}", each.admin.listen))
        if each.advertised is not None:
            port = each.advertised.port or each.listen.port
            told.append((f"advertised of process {each.process}", dataclasses.replace(each.advertised, port=port)))
    _require_distinct(listening)
    _require_distinct(told)
    return all_of_them


def _address_of(address: Address, process: int, name: str) -> Address:
    if isinstance(address, FirstAddress):
        return (Address(address.host, address.port), *address.others)[process]
    if address.port == 0:
        return address
    if address.port + process > _PORT_MAX:
        raise ConfigError(f"{name} = {address} leaves no port for process {process}: choose a lower one")
    return Address(address.host, address.port + process)


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
