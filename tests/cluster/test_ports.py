"""Where a node of several machines listens: for each listener, and for each shard."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest

from fairlog.cluster.cluster_records import Ports
from fairlog.cluster_node.ports import open_listeners
from fairlog.config import ConfigError, Settings
from fairlog.config_sources import load
from fairlog.interbroker.ways import Plain
from fairlog.listening import bound_to
from fairlog_types import ShardNumber

SHARDS = 2


def settings_with(listen: str, **flags: str) -> Settings:
    cluster = {"journal.engine": "kafka://k:1", "cluster.name": "c", "cluster.shards": SHARDS}
    protocols = {"security.protocols": "OUT:PLAINTEXT"}
    return load(flags=cluster | protocols | {"listen": listen} | flags, environment={})


async def test_each_listener_has_a_port_for_each_shard() -> None:
    """And the first one has those of other nodes behind it. All are announced."""
    settings = settings_with("PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0", advertised="OUT://out.example:0")
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(stack, settings, {}, Plain())
        assert list(listeners.advertised) == ["PLAINTEXT", "OUT"]
        bound = bound_to(listeners.doors)
        assert str(listeners.advertised["OUT"]) == f"out.example:{bound['OUT'].port}"
        assert listeners.host == "127.0.0.1"
        for shard in map(ShardNumber, range(SHARDS)):
            own = listeners.of_shard[shard]
            clients = bound_to(own.clients)
            (brokers,) = own.brokers
            assert listeners.advertised_of(shard)["PLAINTEXT"] == clients["PLAINTEXT"]
            assert str(listeners.advertised_of(shard)["OUT"]) == f"out.example:{clients['OUT'].port}"
            expected = Ports(clients["PLAINTEXT"].port, brokers.socket.getsockname()[1])
            assert listeners.ports[shard] == expected
            assert [listeners.places[name].ports[shard] for name in bound] == [each.port for each in clients.values()]
        assert [place.host for place in listeners.places.values()] == ["127.0.0.1", "out.example"]


INNER = {"security.inner_listener": "INNER", "security.protocols": "OUT:PLAINTEXT,INNER:PLAINTEXT"}


@pytest.mark.parametrize(
    ("advertised", "host", "port"),
    [
        (None, "127.0.0.1", None),
        ("INNER://in.example:0", "in.example", None),
        ("INNER://in.example:700", "in.example", 700),
    ],
)
async def test_inner_listener_is_where_nodes_reach_each_other(
    advertised: str | None, host: str, port: int | None
) -> None:
    """And no client: it is none of those that are announced to them. A port that is advertised is the first shard's."""
    flags = INNER if advertised is None else INNER | {"advertised": advertised}
    settings = settings_with("PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0", **flags)
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(stack, settings, {}, Plain())
        assert list(listeners.advertised) == list(listeners.places) == ["PLAINTEXT"]
        assert (listeners.host, listeners.inner_host) == ("127.0.0.1", host)
        for shard in map(ShardNumber, range(SHARDS)):
            (brokers,) = listeners.of_shard[shard].brokers
            bound = brokers.socket.getsockname()[1]
            assert listeners.ports[shard].brokers == (bound if port is None else port + shard)
            assert listeners.advertised_of(shard).keys() == {"PLAINTEXT"}


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("PLAINTEXT://h:9092,OUT://h:9096", "listen of OUT (h:9096) and listen of PLAINTEXT (h:9096) are the same"),
        ("PLAINTEXT://h:9096,OUT://h:9094", "listen of OUT (h:9096) and listen of PLAINTEXT (h:9096) are the same"),
        ("h:65532", "listen (h:65532) has no room for the ports that follow it, two for each of 2 shards"),
        (
            "PLAINTEXT://h:1,OUT://h:65534",
            "listen (OUT://h:65534) has no room for the ports that follow it, one for each of 2 shards",
        ),
    ],
)
async def test_ports_that_overlap_or_do_not_suffice_are_refused(listen: str, words: str) -> None:
    """Before anything is opened."""
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError) as raised:
            await open_listeners(stack, settings_with(listen), {}, Plain())
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"listen": "PLAINTEXT://h:9092,INNER://h:9094"},
            "listen of INNER (h:9094) and listen of PLAINTEXT (h:9094) are the same",
        ),
        (
            {"listen": "PLAINTEXT://h:1,INNER://h:65535"},
            "listen (INNER://h:65535) has no room for the ports that follow it, one for all but the first of 2 shards",
        ),
        (
            {"listen": "PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0", "advertised": "INNER://h:65535"},
            "advertised (INNER://h:65535) has no room for the ports that follow it",
        ),
        (
            {"listen": "PLAINTEXT://127.0.0.1:0,INNER://0.0.0.0:0"},
            "other nodes cannot connect to INNER://0.0.0.0:",
        ),
    ],
)
async def test_inner_ports_that_overlap_or_cannot_be_reached_are_refused(flags: dict[str, str], words: str) -> None:
    """Likewise."""
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError) as raised:
            await open_listeners(stack, settings_with(**(INNER | flags)), {}, Plain())
    assert str(raised.value).startswith(words)


async def test_ports_right_beside_each_other_are_enough() -> None:
    """With an inner listener, the first one needs none for nodes."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = settings_with(f"PLAINTEXT://127.0.0.2:{port},INNER://127.0.0.2:{port + SHARDS + 1}", **INNER)
    async with AsyncExitStack() as stack:
        listeners = await open_listeners(stack, settings, {}, Plain())
        assert [listeners.ports[ShardNumber(n)] for n in range(SHARDS)] == [
            (port + 1 + n, port + SHARDS + 1 + n) for n in range(SHARDS)
        ]
