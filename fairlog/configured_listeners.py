"""The listeners of a broker, as the settings say. Pure.

    listen      = CLIENTS://0.0.0.0:9093,LOCAL://127.0.0.1:9092       where it listens, by name
    advertised  = CLIENTS://broker.example:9093                       what it tells clients; else where it listens
    security.protocols = CLIENTS:SSL,LOCAL:PLAINTEXT                  how it is spoken there

As in Kafka, each has a name of its own, and what is advertised is of one of them. Unlike in Kafka, a listener without
an advertised address is advertised where it listens.

`security.inner_listener` names the one by which the nodes of a cluster reach each other. It is none of the others:
clients are not served there, and are not told of it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping, Sequence

from fairlog.config import KEYS, ConfigError, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.security.client_auth import ClientAuth, ClientAuthByListener
from fairlog.security.listeners import Listener, SecurityProtocol, UnknownProtocol, listener_named
from fairlog.security.mechanisms import offered
from fairlog.security_settings import SaslSettings


def all_listeners_of(settings: Settings) -> Sequence[Listener]:
    """All listeners, in their order, the inner one among them. Raises ConfigError if one has no protocol."""
    try:
        return [listener_named(name, settings.security.protocols) for name, _ in settings.listen.named]
    except UnknownProtocol as error:
        raise ConfigError(str(error)) from None


def listeners_of(settings: Settings) -> Sequence[Listener]:
    """Those for clients, in their order. Raises ConfigError as `all_listeners_of`."""
    return [each for each in all_listeners_of(settings) if each.name != settings.security.inner_listener]


def inner_listener_of(settings: Settings) -> Listener | None:
    """The one for other nodes, if it has a name. Raises ConfigError as `all_listeners_of`."""
    return next((each for each in all_listeners_of(settings) if each.name == settings.security.inner_listener), None)


def listen_addresses(settings: Settings) -> Mapping[Listener, Address]:
    """Where each listener of a shard listens for clients. Raises ConfigError as `all_listeners_of`."""
    addresses = settings.listen.one_each()
    return {listener: addresses[listener.name] for listener in listeners_of(settings)}


def check_listeners(settings: Settings) -> None:
    """What must hold between the keys of listeners. Raises ConfigError."""
    listeners = listeners_of(settings)
    names = [name for name, _ in settings.listen.named]
    advertised = () if settings.advertised is None else settings.advertised.named
    _require_names("advertised", [name for name, _ in advertised], names)
    limited = settings.requests.connections_max_by_listener.named
    of_clients = [listener.name for listener in listeners]
    _require_names("requests.connections_max_by_listener", [name for name, _ in limited], of_clients)
    _require_names("tls.client_auth", [name for name, _ in settings.tls.client_auth.named], names)
    _check_inner_listener(settings, names)
    require_distinct([(f"listen of {name}", of_shards[0]) for name, of_shards in settings.listen.named])
    for listener in listeners:
        _require_mechanism(listener, settings.sasl)
    encrypted = [listener for listener in listeners if listener.protocol.is_encrypted]
    for name in ("certificate", "key"):
        if encrypted and getattr(settings.tls, name) is None:
            raise ConfigError(f"the listener {encrypted[0].name} has TLS, and tls.{name} is not set")
    _require_tls_for_client_auth(settings.tls.client_auth, [listener.name for listener in encrypted])
    _check_admin(settings)
    asking = [each for each in encrypted if settings.tls.client_auth.of(each.name) is not ClientAuth.NONE]
    if asking and settings.tls.client_ca is None:
        raise ConfigError(
            f"the listener {asking[0].name} asks clients for certificates (tls.client_auth), and tls.client_ca is not "
            "set: name the CAs that they have to come from"
        )


def _check_admin(settings: Settings) -> None:
    """What must hold for the admin listener. Raises ConfigError."""
    protocol, tls = settings.admin.protocol, settings.tls
    if settings.admin.listen is None:
        return
    for name, file in (("certificate", tls.certificate), ("key", tls.key)):
        if protocol.is_encrypted and file is None:
            raise ConfigError(f"the admin listener has TLS (admin.protocol), and tls.{name} is not set")
    if protocol is SecurityProtocol.SASL_PLAINTEXT and not settings.sasl.secrets_without_tls:
        raise ConfigError(
            "the admin listener is to be sent passwords without TLS (admin.protocol = SASL_PLAINTEXT), which everybody "
            "on the line can read: SASL_SSL is needed, or sasl.secrets_without_tls"
        )


def _check_inner_listener(settings: Settings, names: Sequence[str]) -> None:
    name = settings.security.inner_listener
    inner, tls = inner_listener_of(settings), settings.tls
    if name:
        _require_names("security.inner_listener", [name], names)
        if settings.journal.engine is None:
            raise ConfigError(
                f"security.inner_listener names {name}, and there are no other nodes without journal.engine (--journals"
                " kafka://…): the processes of one machine speak with each other on the loopback interface"
            )
        if names == [name]:
            raise ConfigError(
                f"listen has the inner listener {name} only (security.inner_listener): add one for clients"
            )
    is_encrypted = inner is not None and inner.protocol is SecurityProtocol.SSL
    if settings.security.inner_plaintext and not is_encrypted:
        raise ConfigError("security.inner_plaintext is for an inner listener with TLS (SSL, security.inner_listener)")
    if inner is None:
        return
    if inner.protocol.asks_who_it_is:
        raise ConfigError(
            f"the inner listener {name} has the protocol {inner.protocol.value}: it is SSL or PLAINTEXT, for nodes do "
            "not sign in and know each other by the cluster's secret"
        )
    if name in (named for named, _ in tls.client_auth.named):
        raise ConfigError(
            f"tls.client_auth names the inner listener {name}: with TLS other nodes always show a certificate there"
        )
    if is_encrypted:
        for needed in ("certificate", "key"):
            if getattr(tls, needed) is None:
                raise ConfigError(f"the inner listener {name} has TLS, and tls.{needed} is not set")
        if tls.inner_ca is None and tls.client_ca is None:
            raise ConfigError(
                f"the inner listener {name} has TLS, and neither tls.inner_ca nor tls.client_ca is set: name the CAs "
                "that the certificates of other nodes have to come from"
            )


def _require_mechanism(listener: Listener, sasl: SaslSettings) -> None:
    protocol = listener.protocol
    if protocol.asks_who_it_is and not offered(
        sasl.mechanisms, is_encrypted=protocol.is_encrypted, secrets_without_tls=sasl.secrets_without_tls
    ):
        raise ConfigError(
            f"the listener {listener.name} asks who clients are and offers nothing to sign in with: "
            f"{' and '.join(sasl.mechanisms)} (sasl.mechanisms) needs TLS ({listener.name}:SASL_SSL in "
            "security.protocols) or sasl.secrets_without_tls"
        )


def _require_tls_for_client_auth(client_auth: ClientAuthByListener, encrypted: Sequence[str]) -> None:
    for name, auth in client_auth.named:
        if auth is not ClientAuth.NONE and name not in encrypted:
            raise ConfigError(
                f"tls.client_auth asks clients of the listener {name} for certificates, and it has no TLS "
                f"({name}:SSL or {name}:SASL_SSL in security.protocols)"
            )
    if client_auth.otherwise is not ClientAuth.NONE and not encrypted:
        raise ConfigError(
            "tls.client_auth asks clients for certificates, and no listener has TLS (SSL or SASL_SSL in listen)"
        )


def _require_names(key: str, used: Sequence[str], names: Sequence[str]) -> None:
    for name in used:
        if name not in names:
            raise ConfigError(f"{key} names the listener {name}, and listen has {', '.join(names)}")


def require_distinct(named: Sequence[tuple[str, Address]]) -> None:
    """No two of these addresses may be the same. Raises ConfigError."""
    for number, (name, address) in enumerate(named):
        for other_name, other in named[:number]:
            if address.port and address.port == other.port and _may_be_one_host(address.host, other.host):
                raise ConfigError(f"{name} ({address}) and {other_name} ({other}) are the same: choose other ports")


def advertised_endpoints(
    settings: Settings, bound: Mapping[str, Address], told: str = "clients"
) -> Mapping[str, Address]:
    """What is told to clients, or `told`, to connect to, by listener, when the broker listens on `bound`.

    Raises ConfigError if one is a wildcard, which is an address to listen on but not one to connect to.
    """
    advertised: Mapping[str, Address] = {} if settings.advertised is None else settings.advertised.one_each()
    return {name: _advertised(name, advertised.get(name), address, told) for name, address in bound.items()}


def _advertised(name: str, advertised: Address | None, bound: Address, told: str) -> Address:
    address = advertised or bound
    if address.port == 0:
        address = dataclasses.replace(address, port=bound.port)
    if is_wildcard(address.host):
        shown = ListenerAddresses.of({name: address})
        raise ConfigError(
            f"{told} cannot connect to {shown}: set advertised ({KEYS['advertised'].variable} or --advertised) "
            "to the HOST:PORT by which they reach this node"
        )
    return address


def open_to_everybody(settings: Settings, bound: Mapping[str, Address]) -> Sequence[str]:
    """The listeners, with their addresses, that whoever reaches this machine can use without a password, and that
    other machines may reach.
    """
    plain = {each.name for each in listeners_of(settings) if each.protocol is SecurityProtocol.PLAINTEXT}
    return [
        str(address) if len(bound) == 1 else f"{name}://{address}"
        for name, address in bound.items()
        if name in plain and not is_loopback(address.host)
    ]


def _may_be_one_host(one: str, other: str) -> bool:
    return one == other or is_wildcard(one) or is_wildcard(other)


def is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
