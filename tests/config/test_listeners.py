"""The settings of listeners: Kafka's syntax, what must hold between them, and where each is."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID

from fairlog.broker_configs import BROKER_CONFIGS
from fairlog.config import ConfigError, Settings
from fairlog.config_sources import load
from fairlog.config_values import Address, ListenerAddresses, read_client_auth, read_protocols
from fairlog.configured_listeners import (
    advertised_endpoints,
    all_listeners_of,
    inner_listener_of,
    listen_addresses,
    listeners_of,
    open_to_everybody,
)
from fairlog.interbroker.ways import Plain
from fairlog.opening_listeners import open_tls, open_way
from fairlog.security.client_auth import ClientAuth
from fairlog.security.listeners import Listener, SecurityProtocol
from fairlog.supervisor.addresses import settings_of_all, settings_of_shard
from tests.security.certificates import Authority, name_of

TLS = {"tls.certificate": "node.pem", "tls.key": "key.pem"}


def settings_with(**more: object) -> Settings:
    flags = {name.replace("__", "."): value for name, value in more.items()}
    return load(flags=TLS | flags, environment={})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("h:1", "h:1"),
        ("h:1,[::1]:2", "h:1,[::1]:2"),
        ("PLAINTEXT://h:1", "h:1"),
        ("clients://h:1, LOCAL://[::1]:2", "CLIENTS://h:1,LOCAL://[::1]:2"),
        ("A://h:1,B://h:2,A://i:1,B://i:2", "A://h:1,A://i:1,B://h:2,B://i:2"),
    ],
)
def test_listeners_read_back_as_they_are_written(text: str, shown: str) -> None:
    """Names are upper case, as in Kafka; PLAINTEXT alone needs none."""
    addresses = ListenerAddresses.parse(text)
    assert str(addresses) == shown
    assert ListenerAddresses.parse(shown) == addresses


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h:1,SSL://h:2", "either all addresses have the name of a listener"),
        ("://h:1", "the name of a listener has letters"),
        ("a b://h:1", "the name of a listener has letters"),
        ("SSL://", "an address is HOST:PORT"),
        ("SSL://:9092", "an address is HOST:PORT"),
        ("SSL://a:1,", "either all"),
        ("", "an address is HOST:PORT"),
    ],
)
def test_listeners_that_are_none_are_refused(text: str, words: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=words):
        ListenerAddresses.parse(text)


def test_protocol_is_the_name_or_what_it_is_mapped_to() -> None:
    """As in Kafka's listener.security.protocol.map. Names that no listener has are no mistake there, nor here."""
    settings = settings_with(
        listen="CLIENTS://h:1,SSL://h:2,LOCAL://h:3",
        security__protocols="clients:ssl,LOCAL:PLAINTEXT,PLAINTEXT:PLAINTEXT,OTHER:SSL",
    )
    assert list(listeners_of(settings)) == [
        Listener("CLIENTS", SecurityProtocol.SSL),
        Listener("SSL", SecurityProtocol.SSL),
        Listener("LOCAL", SecurityProtocol.PLAINTEXT),
    ]
    assert [str(address) for address in listen_addresses(settings).values()] == ["h:1", "h:2", "h:3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A", "NAME:PROTOCOL is needed"),
        ("A:TLS", "'TLS' is none of the protocols PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("SSL:PLAINTEXT", "SSL is a protocol itself"),
        ("A:SSL,a:SSL", "A is named twice"),
        ("a/b:SSL", "the name of a listener"),
    ],
)
def test_map_of_protocols_that_is_none_is_refused(text: str, words: str) -> None:
    """A listener must not be served in another way than somebody meant."""
    with pytest.raises(ValueError, match=words):
        read_protocols(text)


def test_client_auth_is_that_of_all_or_of_single_listeners() -> None:
    """Those that are not named ask for none then."""
    assert read_client_auth("Required").of("ANY") is ClientAuth.REQUIRED
    some = read_client_auth("a:requested,B:REQUIRED")
    assert [some.of(name) for name in "ABC"] == [ClientAuth.REQUESTED, ClientAuth.REQUIRED, ClientAuth.NONE]
    assert str(some) == "A:requested,B:required"
    for text in ("always", "A:always", "A", "A:", ":none", "A:required,a:none"):
        with pytest.raises(ValueError, match=r"needed|has letters|named twice"):
            read_client_auth(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"listen": "CLIENTS://h:1"},
            "the listener CLIENTS has no security protocol: map it to one of ",
        ),
        ({"advertised": "SSL://h:1"}, "advertised names the listener SSL, and listen has PLAINTEXT"),
        ({"listen": "SSL://h:1", "advertised": "h:1"}, "advertised names the listener PLAINTEXT, and listen has SSL"),
        ({"tls.client_auth": "SLS:required"}, "tls.client_auth names the listener SLS, and listen has PLAINTEXT"),
        ({"listen": "SSL://h:1", "tls.key": ""}, "the listener SSL has TLS, and tls.key is not set"),
        ({"listen": "SSL://h:1", "tls.certificate": ""}, "the listener SSL has TLS, and tls.certificate is not set"),
        (
            {"listen": "SSL://h:1", "tls.client_auth": "requested"},
            "the listener SSL asks clients for certificates (tls.client_auth), and tls.client_ca is not set",
        ),
        (
            {"tls.client_auth": "PLAINTEXT:required"},
            "tls.client_auth asks clients of the listener PLAINTEXT for certificates, and it has no TLS",
        ),
        ({"tls.client_auth": "required"}, "tls.client_auth asks clients for certificates, and no listener has TLS"),
        (
            {"listen": "SASL_PLAINTEXT://h:1", "sasl.mechanisms": "PLAIN"},
            "the listener SASL_PLAINTEXT asks who clients are and offers nothing to sign in with: PLAIN",
        ),
        (
            {"admin.protocol": "SSL", "tls.key": ""},
            "the admin listener has TLS (admin.protocol), and tls.key is not set",
        ),
        (
            {"admin.protocol": "sasl_plaintext"},
            "the admin listener is to be sent passwords without TLS (admin.protocol = SASL_PLAINTEXT)",
        ),
        ({"admin.protocol": "TLS"}, "admin.protocol = 'TLS' in the flag --admin-protocol: one of PLAINTEXT, SSL, "),
        ({"listen": "A://h:1,B://h:1", "security.protocols": "A:SSL,B:SSL"}, "listen of B (h:1) and listen of A (h:1)"),
    ],
)
def test_listeners_that_cannot_be_served_are_refused(flags: dict[str, str], words: str) -> None:
    """At the start, in a sentence."""
    with pytest.raises(ConfigError) as raised:
        load(flags=TLS | flags, environment={})
    assert str(raised.value).startswith(words)


INNER = {
    "journal.engine": "kafka://k:1",
    "cluster.name": "c",
    "listen": "PLAINTEXT://h:1,INNER://i:2",
    "security.protocols": "INNER:SSL",
    "security.inner_listener": "inner",
    "tls.client_ca": "ca.pem",
}


def test_inner_listener_is_none_of_the_clients() -> None:
    """With an address, a protocol and an advertised address as the others; all of them are in the broker's configs."""
    settings = load(flags=TLS | INNER | {"advertised": "INNER://n.example:0"}, environment={})
    inner = inner_listener_of(settings)
    assert inner == Listener("INNER", SecurityProtocol.SSL)
    assert list(all_listeners_of(settings)) == [Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT), inner]
    assert [each.name for each in listeners_of(settings)] == ["PLAINTEXT"]
    assert [str(address) for address in listen_addresses(settings).values()] == ["h:1"]
    told = advertised_endpoints(settings, {"INNER": Address("10.0.0.1", 41)}, "other nodes")
    assert told == {"INNER": Address("n.example", 41)}
    with pytest.raises(ConfigError, match=r"other nodes cannot connect to INNER://\[::\]:41: set advertised"):
        advertised_endpoints(load(flags=TLS | INNER, environment={}), {"INNER": Address("::", 41)}, "other nodes")
    assert inner_listener_of(Settings()) is None
    configs = broker_configs(settings)
    assert configs["inter.broker.listener.name"] == "INNER"
    assert configs["listener.security.protocol.map"] == "PLAINTEXT:PLAINTEXT,INNER:SSL"
    assert broker_configs(Settings())["inter.broker.listener.name"] is None


def broker_configs(settings: Settings) -> dict[str, str | None]:
    return {row.name: row.value(settings) for row in BROKER_CONFIGS.values()}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"security.inner_listener": "IN"}, "security.inner_listener names the listener IN, and listen has PLAINTEXT"),
        (
            {"journal.engine": "files", "cluster.name": ""},
            "security.inner_listener names INNER, and there are no other",
        ),
        ({"listen": "INNER://i:2"}, "listen has the inner listener INNER only (security.inner_listener): add one for"),
        ({"security.protocols": "INNER:SASL_SSL"}, "the inner listener INNER has the protocol SASL_SSL: it is SSL or"),
        ({"tls.client_auth": "INNER:required"}, "tls.client_auth names the inner listener INNER: with TLS other nodes"),
        ({"tls.certificate": ""}, "the inner listener INNER has TLS, and tls.certificate is not set"),
        ({"tls.key": ""}, "the inner listener INNER has TLS, and tls.key is not set"),
        ({"tls.client_ca": ""}, "the inner listener INNER has TLS, and neither tls.inner_ca nor tls.client_ca is set"),
        (
            {"security.protocols": "INNER:PLAINTEXT", "security.inner_plaintext": True},
            "security.inner_plaintext is for an inner listener with TLS",
        ),
        ({"security.inner_listener": "", "security.inner_plaintext": True}, "security.inner_plaintext is for an inner"),
    ],
)
def test_inner_listeners_that_cannot_be_served_are_refused(flags: dict[str, object], words: str) -> None:
    """At the start, in a sentence."""
    with pytest.raises(ConfigError) as raised:
        load(flags=TLS | INNER | flags, environment={})
    assert str(raised.value).startswith(words)


async def test_way_to_other_nodes_is_what_the_settings_say(tmp_path: Path) -> None:
    """Their certificates come from a CA of their own, if there is one; else from that of clients."""
    authority = Authority(tmp_path)
    pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "node")))
    files = {"tls.certificate": str(pair.certificate), "tls.key": str(pair.key)}
    ca, none = str(authority.certificate), str(tmp_path / "none.pem")
    async with AsyncExitStack() as stack:
        assert type(await open_way(stack, Settings())) is Plain
        plain = load(flags=INNER | files | {"security.protocols": "INNER:PLAINTEXT"}, environment={})
        assert type(await open_way(stack, plain)) is Plain
        for cas in ({"tls.client_ca": ca}, {"tls.client_ca": none, "tls.inner_ca": ca}):
            assert (await open_way(stack, load(flags=INNER | files | cas, environment={}))).has_tls
        with pytest.raises(ConfigError, match=r"cannot read .*none\.pem: No such file"):
            await open_way(
                stack, load(flags=INNER | files | {"tls.client_ca": ca, "tls.inner_ca": none}, environment={})
            )


async def test_files_that_cannot_be_read_are_a_mistake_of_the_settings(tmp_path: Path) -> None:
    """The node does not start."""
    settings = settings_with(listen="SSL://h:1", tls__certificate=str(tmp_path / "none.pem"))
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError, match=r"cannot read .*none\.pem: No such file"):
            await open_tls(stack, settings)


def test_listener_is_advertised_where_it_listens_unless_told_otherwise() -> None:
    """Port 0 stands for the one that was picked."""
    settings = settings_with(listen="SSL://0.0.0.0:0,PLAINTEXT://127.0.0.1:0", advertised="SSL://broker.example:0")
    bound = {"SSL": Address("0.0.0.0", 41), "PLAINTEXT": Address("127.0.0.1", 42)}
    told = advertised_endpoints(settings, bound)
    assert told == {"SSL": Address("broker.example", 41), "PLAINTEXT": Address("127.0.0.1", 42)}
    with pytest.raises(ConfigError, match=r"clients cannot connect to SSL://0\.0\.0\.0:41: set advertised"):
        advertised_endpoints(settings_with(listen="SSL://0.0.0.0:0"), {"SSL": Address("0.0.0.0", 41)})


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        *[(host, False) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost")],
        *[(host, True) for host in ("0.0.0.0", "::", "10.0.0.1", "broker.example")],
    ],
)
def test_plain_listener_that_others_may_reach_is_open(host: str, is_open: bool) -> None:
    """One with TLS is not."""
    settings = settings_with(listen="SSL://h:1,PLAINTEXT://h:2")
    found = open_to_everybody(settings, {"SSL": Address(host, 1), "PLAINTEXT": Address(host, 2)})
    assert found == ([f"PLAINTEXT://{Address(host, 2)}"] if is_open else [])
    assert open_to_everybody(Settings(), {"PLAINTEXT": Address(host, 2)}) == (
        [str(Address(host, 2))] if is_open else []
    )


def of_shards(shards: int, **flags: str) -> list[tuple[str, str]]:
    return [(str(each.listen), str(each.advertised)) for each in settings_of_all(settings_with(**flags), shards)]


def test_addresses_of_shards_follow_for_each_listener() -> None:
    """From the first one, or from a list."""
    found = of_shards(2, listen="SSL://a:1,PLAINTEXT://b:11,PLAINTEXT://c:11", advertised="SSL://d:5")
    assert found == [("SSL://a:1,PLAINTEXT://b:11", "SSL://d:5"), ("SSL://a:2,PLAINTEXT://c:11", "SSL://d:6")]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"listen": "SSL://a:1,PLAINTEXT://a:2"},
            "listen of SSL of shard 1 (a:2) and listen of PLAINTEXT of shard 0 (a:2) are the same",
        ),
        ({"listen": "SSL://a:1,SSL://a:9,PLAINTEXT://b:1"}, "listen of SSL has 2 addresses, and the node has 3 shards"),
        ({"listen": "SSL://a:65534"}, "listen = a:65534 leaves no port for shard 2"),
        (
            {"listen": "SSL://a:1,PLAINTEXT://a:9", "advertised": "SSL://b:1,PLAINTEXT://b:3"},
            "advertised of SSL of shard 2 (b:3) and advertised of PLAINTEXT of shard 0 (b:3) are the same",
        ),
    ],
)
def test_addresses_of_shards_that_overlap_or_do_not_suffice_are_refused(flags: dict[str, str], words: str) -> None:
    """The message names the listener."""
    with pytest.raises(ConfigError) as raised:
        settings_of_all(settings_with(**flags), 3)
    assert words in str(raised.value)


def test_only_shard_has_all_listeners() -> None:
    """One address each."""
    settings = settings_of_shard(settings_with(listen="SSL://a:1,PLAINTEXT://b:1"), 0, 1)
    assert settings.listen.one_each() == {"SSL": Address("a", 1), "PLAINTEXT": Address("b", 1)}
