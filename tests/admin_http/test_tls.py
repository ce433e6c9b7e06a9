"""TLS on the admin listener: as on other listeners, with bounded handshakes; and between processes of a node."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog.testing
import trio
from cryptography.x509.oid import NameOID

from fairlog.admin_http.app import make_app
from fairlog.admin_http.asking import OwnCertificate, get_untrusted
from fairlog.admin_http.server import AdminServer, open_admin_server
from fairlog.admin_http.shards import Shards
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.config_values import Address
from fairlog.security.client_auth import ClientAuth
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import TlsFiles, TlsListener, TlsListeners
from tests.admin_http.conftest import TOKEN
from tests.admin_http.test_server import BIG, application, request
from tests.admin_http.test_shards import OfShard
from tests.security.certificates import Authority, Pair, name_of

SUBJECT = name_of((NameOID.COMMON_NAME, "localhost"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("node", SUBJECT)


def tls_of(pair: Pair) -> TlsListener:
    files = TlsFiles(pair.certificate, pair.key)
    return TlsListeners.load(files, {"admin": ClientAuth.NONE}, PrincipalRules()).by_name["admin"]


class Served:
    """An admin server with TLS over the application of the server's tests."""

    def __init__(self, port: int, authority: Authority, statistics: AdminStatistics) -> None:
        self.port = port
        self.statistics = statistics
        self._context = ssl.create_default_context(cafile=str(authority.certificate))

    async def plain(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    @asynccontextmanager
    async def secret(self) -> AsyncGenerator[trio.SSLStream[trio.SocketStream]]:
        plain = await self.plain()
        try:
            stream = trio.SSLStream(plain, self._context, server_hostname="localhost", https_compatible=True)
            await stream.do_handshake()
            yield stream
        finally:
            await trio.aclose_forcefully(plain)  # a broken SSLStream does not close it

    async def is_served(self) -> bool:
        """Try until a new connection is; the caller bounds the time."""
        while True:
            try:
                async with self.secret() as stream:
                    if await answered(stream):
                        return True
            except trio.BrokenResourceError:
                await trio.sleep(0.01)


@asynccontextmanager
async def serving(authority: Authority, pair: Pair, *, connections_max: int = 64) -> AsyncGenerator[Served]:
    statistics = AdminStatistics()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = AdminServer(application, tls_of(pair), statistics, connections_max=connections_max)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        try:
            yield Served(listeners[0].socket.getsockname()[1], authority, statistics)
        finally:
            nursery.cancel_scope.cancel()


async def answered(stream: trio.abc.Stream, path: str = "/", body: bytes = b"hello") -> bytes:
    """What is answered, until the whole body is there, or until the end."""
    await stream.send_all(request(path))
    received = bytearray()
    while (head := received.find(b"\r\n\r\n")) < 0 or len(received) - head - 4 < len(body):
        part = await stream.receive_some()
        if not part:
            break
        received += part
    return bytes(received)


async def test_requests_are_answered_inside_tls(authority: Authority, pair: Pair) -> None:
    """One after the other on a connection; no other protocol is offered."""
    with trio.fail_after(10):
        async with serving(authority, pair) as served, served.secret() as stream:
            for _ in range(3):
                assert (await answered(stream)).startswith(b"HTTP/1.1 200")
            assert stream.selected_alpn_protocol() is None


async def test_large_answer_comes_whole_by_tls(authority: Authority, pair: Pair) -> None:
    """It is encrypted piece by piece, so that whoever reads slowly holds no second copy of it."""
    with trio.fail_after(30):
        async with serving(authority, pair) as served, served.secret() as stream:
            assert (await answered(stream, "/big", BIG)).endswith(b"\r\n\r\n" + BIG)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(request("/"), "the client does not speak TLS"), (b"\x16\x03\x01\x00\x05hello", ""), (b"\x00" * 100, "")],
)
async def test_connection_without_tls_is_closed_counted_and_said(
    authority: Authority, pair: Pair, sent: bytes, reason: str
) -> None:
    """Nothing is answered in plain text."""
    with trio.fail_after(10), structlog.testing.capture_logs() as logged:
        async with serving(authority, pair) as served:
            async with await served.plain() as stream:
                await stream.send_all(sent)
                received = b""
                try:
                    while part := await stream.receive_some():
                        received += part
                except trio.BrokenResourceError:
                    pass
                assert b"HTTP" not in received
            async with served.secret() as stream:
                assert await answered(stream)
            assert served.statistics.handshakes_failed == 1
    (line,) = [each for each in logged if each["event"] == "TLS handshake failed"]
    assert line["listener"] == "admin"
    assert reason in line["reason"]


async def test_handshake_that_hangs_gives_its_place_back(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are bounded, so one that says nothing must not keep others out."""
    monkeypatch.setattr("fairlog.security.tls.HANDSHAKE_S", 0.1)
    with trio.fail_after(10):
        async with serving(authority, pair, connections_max=1) as served:
            async with await served.plain() as silent:
                await silent.send_all(b"\x16")
                assert await served.is_served()
            assert served.statistics.handshakes_failed == 1


async def test_client_that_does_not_read_is_given_up(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again."""
    monkeypatch.setattr("fairlog.admin_http.server.SEND_PATIENCE_S", 0.05)
    with trio.fail_after(30):
        async with serving(authority, pair, connections_max=1) as served, served.secret() as deaf:
            await deaf.send_all(request("/big"))
            assert await served.is_served()


async def test_client_that_does_not_read_does_not_hold_up_the_end(authority: Authority, pair: Pair) -> None:
    """hypercorn shields its sending, also of what is encrypted: the end closes the socket under it."""
    with trio.fail_after(30):
        async with serving(authority, pair) as served:
            deaf = await served.plain()
            context = ssl.create_default_context(cafile=str(authority.certificate))
            stream = trio.SSLStream(deaf, context, server_hostname="localhost", https_compatible=True)
            await stream.send_all(request("/big"))
            await stream.receive_some(10)
        await trio.aclose_forcefully(deaf)


# --- other processes of the node -----------------------------------------------------------------------


@asynccontextmanager
async def three_shards(pairs: list[Pair], certificate: Path, *, asks: bool = True) -> AsyncGenerator[list[Address]]:
    """Admin listeners of three processes, each with a certificate; they look for the one in the file `certificate`."""
    nodes = [OfShard(shards=3) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        found = [(await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] for _ in nodes]
        addresses = [Address(*each.socket.getsockname()[:2]) for each in found]
        for number, node in enumerate(nodes):
            node.shard = number
            shards = Shards(number, addresses, certificate)
            app = make_app(node, token=TOKEN, asks=asks, host_names=(), assets={}, shards=shards)
            await nursery.start(_serve, app, found[number], tls_of(pairs[number]))
        yield addresses
        nursery.cancel_scope.cancel()


async def _serve(
    app: object, listener: trio.SocketListener, tls: TlsListener, *, task_status: trio.TaskStatus[None]
) -> None:
    async with listener, open_admin_server(app, [listener], tls):  # type: ignore[arg-type]
        task_status.started()
        await trio.sleep_forever()


async def shown(address: Address, certificate: Path, path: str, bearer: str | None = TOKEN) -> bytes:
    answer = await get_untrusted(
        address,
        path,
        accept="text/x",
        deadline_s=10,
        body_bytes_max=1 << 20,
        bearer=bearer,
        certificate=OwnCertificate(certificate),
    )
    assert answer is not None
    return answer.body


async def test_first_process_asks_the_others_by_tls(pair: Pair) -> None:
    """And shows them that it is one of the node's, though they ask who calls."""
    async with three_shards([pair] * 3, pair.certificate) as addresses:
        page = await shown(addresses[0], pair.certificate, "/metrics")
        for shard in range(3):
            assert b'fairlog_shard_up{shard="%d"} 1\n' % shard in page
            assert b'a{shard="%d"} 1\n' % shard in page
        brokers = await shown(addresses[0], pair.certificate, "/api/brokers")
        assert brokers.count(b'"status":"serving"') == 3
        assert b"sign in first" in await shown(addresses[0], pair.certificate, "/metrics", None)


async def test_process_that_has_another_certificate_is_none_of_the_node(authority: Authority, pair: Pair) -> None:
    """Even from the same CA: on a port that is free for a moment anybody may listen. A line says so, once."""
    other = authority.issue("other", SUBJECT)
    async with three_shards([pair, other, pair], pair.certificate) as addresses:
        with structlog.testing.capture_logs() as logged:
            page = await shown(addresses[0], pair.certificate, "/metrics")
            await shown(addresses[0], pair.certificate, "/metrics")
        lines = [line for line in logged if line["event"] == "another program answers at the admin port of a shard"]
        assert [line["address"] for line in lines] == [str(addresses[1])]
        assert b'fairlog_shard_up{shard="1"} 0\n' in page
        assert b'fairlog_shard_up{shard="2"} 1\n' in page
        assert b'a{shard="1"}' not in page


async def test_who_does_not_speak_tls_is_named(nursery: trio.Nursery, pair: Pair) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")

    [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
    address = Address("127.0.0.1", listener.socket.getsockname()[1])
    with structlog.testing.capture_logs() as logged:
        answered = await get_untrusted(
            address, "/", accept="", deadline_s=10, body_bytes_max=0, certificate=OwnCertificate(pair.certificate)
        )
    assert answered is None
    [line] = logged
    assert (line["address"], line["reason"][:8]) == (str(address), "no TLS: ")


async def test_process_that_stops_in_the_handshake_is_not_called_another_program(
    nursery: trio.Nursery, pair: Pair
) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    [listener] = await nursery.start(partial(trio.serve_tcp, close, 0, host="127.0.0.1"))
    address = Address("127.0.0.1", listener.socket.getsockname()[1])
    with structlog.testing.capture_logs() as logged:
        answered = await get_untrusted(
            address, "/", accept="", deadline_s=10, body_bytes_max=0, certificate=OwnCertificate(pair.certificate)
        )
    assert (answered, logged) == (None, [])


async def test_certificate_that_was_replaced_just_now_is_known(authority: Authority, pair: Pair) -> None:
    """Processes read the new files one after the other; none looks down meanwhile."""
    new = authority.issue("new", SUBJECT)
    known = OwnCertificate(pair.certificate)

    async def is_known(address: Address) -> bool:
        answer = await get_untrusted(
            address, "/health", accept="text/x", deadline_s=10, body_bytes_max=1 << 20, certificate=known
        )
        return answer is not None

    async with three_shards([pair, pair, new], pair.certificate) as addresses:
        assert [await is_known(each) for each in addresses] == [True, True, False]
        shutil.copy(new.certificate, pair.certificate)
        assert [await is_known(each) for each in addresses] == [True, True, True]
