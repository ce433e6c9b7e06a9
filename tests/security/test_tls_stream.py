"""The TLS stream by itself: over a pair of sockets, the peer is `ssl`'s own state machine, a step at a time."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography.x509.oid import NameOID

from fairlog.security.tls_stream import ENCRYPTED_BYTES, TlsStream
from tests.security.certificates import Authority, name_of

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Contexts:
    """Of a node, and of clients that know its CA."""

    def __init__(self, directory: Path, version: ssl.TLSVersion) -> None:
        authority = Authority(directory)
        pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "node")))
        self.server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.server.load_cert_chain(pair.certificate, pair.key)
        self.server.minimum_version = self.server.maximum_version = version
        self.client = ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def contexts(tmp_path: Path, request: pytest.FixtureRequest) -> Contexts:
    return Contexts(tmp_path, request.param)


class Peer:
    """A client that makes records as it likes, and sends them when it likes."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def flush(self) -> None:
        await self.stream.send_all(self.outgoing.read())

    async def more(self) -> None:
        received = await self.stream.receive_some()
        self.incoming.write(received) if received else self.incoming.write_eof()

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self.more()
            else:
                await self.flush()
                return

    async def read(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                received += self.tls.read(count - len(received))
            except ssl.SSLWantReadError:
                await self.more()
        return received


@pytest.fixture
async def sockets() -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    """The node's and the peer's."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        far = await trio.open_tcp_stream(*listener.socket.getsockname())
        async with far, await listener.accept() as near:
            yield near, far


@pytest.fixture
async def ends(contexts: Contexts, sockets: tuple[trio.SocketStream, trio.SocketStream]) -> tuple[TlsStream, Peer]:
    """Of a connection whose handshake is done."""
    near, far = sockets
    node, peer = TlsStream(near, contexts.server, server_side=True), Peer(far, contexts.client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.shake_hands)
        await node.do_handshake()
    return node, peer


@contextmanager
def turns() -> Iterator[Callable[[], int]]:
    """How many turns of the event loop there have been."""

    class Counter(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    counter = Counter()
    trio.lowlevel.add_instrument(counter)
    try:
        yield lambda: counter.count
    finally:
        trio.lowlevel.remove_instrument(counter)


async def test_many_small_records_are_read_in_a_few_turns(ends: tuple[TlsStream, Peer]) -> None:
    """As librdkafka makes them: 1,000 of 60 bytes are in the socket."""
    node, peer = ends
    for number in range(1_000):
        peer.tls.write(b"%060d" % number)
    await peer.flush()
    buffer = memoryview(bytearray(100_000))
    filled = 0
    with turns() as so_far:
        before = so_far()
        while filled < 60_000:
            filled += await node.receive_into(buffer[filled:])
        assert so_far() - before < 20
    assert bytes(buffer[:60_000]) == b"".join(b"%060d" % number for number in range(1_000))


async def test_receiving_takes_no_more_than_was_asked_for_and_keeps_the_rest(ends: tuple[TlsStream, Peer]) -> None:
    """Both ways of receiving, in turns."""
    node, peer = ends
    for part in (b"abc", b"defg", b"h"):
        peer.tls.write(part)
    await peer.flush()
    assert await node.receive_some(2) == b"ab"
    buffer = bytearray(3)
    with memoryview(buffer) as view:
        assert await node.receive_into(view) == 3
    assert buffer == b"cde"
    assert await node.receive_some() == b"fgh"


async def test_receiving_what_is_there_lets_others_run(ends: tuple[TlsStream, Peer]) -> None:
    """A client that sends without end is not the only one."""
    node, peer = ends
    peer.tls.write(b"x" * 100)
    await peer.flush()
    assert await node.receive_some(10) == b"x" * 10
    with memoryview(bytearray(10)) as view, trio.testing.assert_checkpoints():
        await node.receive_into(view)


@pytest.mark.parametrize("goodbye", [True, False])
async def test_end_of_a_connection_is_told_with_and_without_a_goodbye(
    ends: tuple[TlsStream, Peer], *, goodbye: bool
) -> None:
    """What was sent before is read first, and the end is told again and again."""
    node, peer = ends
    peer.tls.write(b"last")
    if goodbye:
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.unwrap()
    await peer.flush()
    await peer.stream.aclose()
    assert await node.receive_some() == b"last"
    with memoryview(bytearray(10)) as view:
        assert [await node.receive_into(view), await node.receive_some()] == [0, b""]


async def test_what_is_no_record_breaks_the_stream_after_what_came_before(ends: tuple[TlsStream, Peer]) -> None:
    """For both directions, and for good: TLS cannot go on."""
    node, peer = ends
    peer.tls.write(b"last")
    await peer.stream.send_all(peer.outgoing.read() + b"no record of TLS at all")
    assert await node.receive_some() == b"last"
    with pytest.raises(trio.BrokenResourceError):
        await node.receive_some()
    with pytest.raises(trio.BrokenResourceError) as broken, memoryview(bytearray(10)) as view:
        await node.receive_into(view)
    assert isinstance(broken.value.__cause__, ssl.SSLError)
    with pytest.raises(trio.BrokenResourceError, match="has failed before"):
        await node.send_all(b"x")


async def test_several_tasks_send_one_after_the_other_while_another_one_receives(ends: tuple[TlsStream, Peer]) -> None:
    """More than the socket takes."""
    node, peer = ends
    size = 8 * ENCRYPTED_BYTES
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.receive_some)
        for letter in (b"a", b"b"):
            nursery.start_soon(node.send_all, letter * size)
        await trio.testing.wait_all_tasks_blocked()
        received = await peer.read(2 * size)
        peer.tls.write(b"thanks")
        await peer.flush()
    assert received in (b"a" * size + b"b" * size, b"b" * size + b"a" * size)


async def test_sending_much_lets_others_run(ends: tuple[TlsStream, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a peer that takes all of it at once."""
    node, _ = ends
    monkeypatch.setattr(os, "writev", lambda _fd, buffers: sum(map(len, buffers)))
    with trio.testing.assert_checkpoints():
        await node.send_all(bytes(2 << 20))


async def test_send_that_is_cancelled_in_a_record_is_the_last_one(ends: tuple[TlsStream, Peer]) -> None:
    """The peer would take the next record for the rest of that one."""
    node, _ = ends
    with trio.move_on_after(0.05) as patience:
        await node.send_all(bytes(64 << 20))
    assert patience.cancelled_caught
    with pytest.raises(trio.BrokenResourceError, match="has failed before"):
        await node.send_all(b"x")


async def test_handshake_that_fails_says_why_to_both_sides(
    contexts: Contexts, sockets: tuple[trio.SocketStream, trio.SocketStream]
) -> None:
    """The reason here, an alert for the peer."""
    near, far = sockets
    node = TlsStream(near, contexts.server, server_side=True)
    old = ssl.create_default_context()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    if contexts.server.maximum_version is ssl.TLSVersion.TLSv1_2:
        old.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        old.maximum_version = ssl.TLSVersion.TLSv1_2
    peer = Peer(far, old)
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.do_handshake()
    await peer.flush()
    with pytest.raises(trio.BrokenResourceError) as broken:
        await node.do_handshake()
    assert isinstance(broken.value.__cause__, ssl.SSLError)
    peer.incoming.write(node.unsent())
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        peer.tls.do_handshake()


async def test_peer_that_sends_records_without_data_is_cut_off(
    tmp_path: Path, sockets: tuple[trio.SocketStream, trio.SocketStream]
) -> None:
    """Here a server that has 200 tickets for its client."""
    contexts = Contexts(tmp_path, ssl.TLSVersion.TLSv1_3)
    contexts.server.num_tickets = 200
    near, far = sockets
    client = TlsStream(near, contexts.client, server_side=False, server_hostname="localhost")
    server = TlsStream(far, contexts.server, server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        await client.do_handshake()
    await server.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError) as broken:
        await client.receive_some()
    assert "records without data" in str(broken.value.__cause__)
