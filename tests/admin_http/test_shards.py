"""One process asks the others: what it shows of those that answer, and of those that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from fairlog.admin_http import asking
from fairlog.admin_http.app import make_app
from fairlog.admin_http.asking import get_untrusted
from fairlog.admin_http.server import open_admin_server
from fairlog.admin_http.shards import Shards
from fairlog.admin_http.view import Phase
from fairlog.config_values import Address
from tests.admin_http.conftest import TOKEN, FakeNode

SOON_S = 0.1
"""Patience with a peer that says nothing."""


class OfShard(FakeNode):
    """A node whose page is of one shard."""

    shard = 0

    async def metrics(self, accept: str, shards_up: Mapping[int, bool]) -> tuple[bytes, str]:
        content, content_type = await super().metrics(accept, shards_up)
        return content + b'a{shard="%d"} 1\n' % self.shard, content_type


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[trio.SocketListener, Address]]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield listener, Address(*listener.socket.getsockname()[:2])


@asynccontextmanager
async def three_shards(nodes: Sequence[FakeNode], *, down: Sequence[int] = ()) -> AsyncGenerator[Sequence[Address]]:
    """An admin listener for each node that is not down; gives all addresses."""
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(listening()) for _ in nodes]
        addresses = [address for _, address in listeners]
        for number, node in enumerate(nodes):
            if number in down:
                await listeners[number][0].aclose()
                continue
            shards = Shards(number, addresses)
            app = make_app(node, token=TOKEN, host_names=(), assets={}, shards=shards)
            await stack.enter_async_context(open_admin_server(app, [listeners[number][0]]))
        yield addresses


def nodes() -> list[OfShard]:
    made = [OfShard(shards=3) for _ in range(3)]
    for number, node in enumerate(made):
        node.shard = number
    return made


async def get(address: Address, path: str) -> bytes:
    answer = await get_untrusted(address, path, accept="text/x", deadline_s=10, body_bytes_max=1 << 20)
    assert answer is not None
    assert answer.status == 200
    return answer.body


async def test_first_process_has_the_metrics_of_all() -> None:
    """In the format that the scraper accepts; the others have their own alone."""
    async with three_shards(nodes()) as addresses:
        up = "".join(f'fairlog_shard_up{{shard="{shard}"}} 1\n' for shard in range(3))
        own = "".join(f'a{{shard="{shard}"}} 1\n' for shard in range(3))
        page = (await get(addresses[0], "/metrics")).decode()
        assert page.startswith("# HELP accepting text/x\n")
        assert sorted(page.splitlines()[1:]) == sorted((up + own).splitlines())
        assert await get(addresses[1], "/metrics") == b'# HELP accepting text/x\na{shard="1"} 1\n'


async def test_shard_that_is_down_is_told_and_the_others_are_shown() -> None:
    """A dead process takes no series away but its own."""
    async with three_shards(nodes(), down=[2]) as addresses:
        lines = (await get(addresses[0], "/metrics")).decode().splitlines()
        assert 'fairlog_shard_up{shard="2"} 0' in lines
        assert 'fairlog_shard_up{shard="1"} 1' in lines
        assert [line for line in lines if line.startswith("a{")] == ['a{shard="0"} 1', 'a{shard="1"} 1']


async def test_brokers_have_the_state_that_each_says() -> None:
    """Whichever process is asked; one that does not answer is down."""
    made = nodes()
    made[1].refusing_because = "the disk is full"
    async with three_shards(made, down=[2]) as addresses:
        for asked in (0, 1):
            brokers = json.loads(await get(addresses[asked], "/api/brokers"))["brokers"]
            assert [each["status"] for each in brokers] == ["serving", "refusing writes", "down"]
            assert [each["admin_port"] for each in brokers] == [address.port for address in addresses]
            assert [(each["node_id"], each["shard"], each["address"]) for each in brokers] == [
                (1, 0, "h:1"), (2, 1, "h:2"), (3, 2, "h:3"),
            ]  # fmt: skip


async def test_only_process_is_the_only_broker(ask: Any, node: FakeNode) -> None:
    """It asks nobody."""
    (broker,) = (await ask("/api/brokers")).document["brokers"]
    assert (broker["status"], broker["admin_port"], broker["partitions"]) == ("serving", None, 7)
    node.phase = Phase.RECOVERING
    assert (await ask("/api/cluster")).status == 503


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
async def test_answer_that_is_none_is_taken_for_none(answer: bytes) -> None:
    """Cut off, too long, not HTTP: whoever it is, it is not the process that was asked."""
    async with listening() as (listener, address), trio.open_nursery() as nursery:

        async def speak() -> None:
            stream = await listener.accept()
            async with stream:
                await stream.receive_some()
                await stream.send_all(answer)

        nursery.start_soon(speak)
        assert await get_untrusted(address, "/", accept="", deadline_s=10, body_bytes_max=1000) is None


async def test_peer_that_says_nothing_is_waited_for_until_the_deadline() -> None:
    """A process that is stopped still has its port, and the kernel accepts for it."""
    async with listening() as (_, address):
        assert await get_untrusted(address, "/", accept="", deadline_s=SOON_S, body_bytes_max=1000) is None


@pytest.mark.parametrize(
    ("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.1", "10.0.0.1"), ("box", "box")]
)
def test_process_that_listens_everywhere_is_reached_on_loopback(host: str, reached: str) -> None:
    """All others where they listen."""
    assert asking.reached_at(host) == reached


@pytest.mark.parametrize("body", [b"", b"[]", b'{"status": 1}', b"[" * 100_000, b"\xff"])
async def test_health_that_cannot_be_read_is_down(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another program's."""

    async def answered(*_: object, **__: object) -> asking.Answer:
        await trio.lowlevel.checkpoint()
        return asking.Answer(200, body)

    monkeypatch.setattr("fairlog.admin_http.shards.get_untrusted", answered)
    assert await Shards(0, [Address("h", 1), Address("h", 2)]).health() == {1: None}
