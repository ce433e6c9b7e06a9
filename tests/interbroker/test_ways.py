"""TLS between brokers: who is let in and connected to, what others are told, and how a cluster moves to it."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import structlog.testing
import trio
from cryptography.x509.oid import NameOID

from fairlog.cluster.interface import InnerAddress
from fairlog.interbroker import peers
from fairlog.interbroker.getting_copies import get_copy
from fairlog.interbroker.peers import Peers
from fairlog.interbroker.ways import ByTls, InnerStream, Plain, Way, why_it_ended
from fairlog.security import tls as tls_module
from fairlog.security.client_auth import ClientAuth
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import HandshakeFailed, TlsFiles, TlsListeners
from fairlog.security.tls_stream import TlsStream
from shard.commands import Failed
from shard.conversation import Hello, Reply
from shard.directory import shard_directory
from shard.progress import CopyProgress
from tests.interbroker.processes import CLUSTER, SECRET, Directory, Process
from tests.interbroker.test_copies import FILES, SHARD, STREAM, Giver, files_in, parts
from tests.security.certificates import Authority, Pair, name_of

NODE = name_of((NameOID.COMMON_NAME, "node.example"))
INNER = "INNER"
WAIT_S = 20.0


class Site:
    """The CA of a cluster, and what its nodes have of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.pair = self.authority.issue("node", NODE)

    def files(self, pair: Pair | None = None, *, ca: Path | None = None, revoked: Path | None = None) -> TlsFiles:
        pair = pair or self.pair
        return TlsFiles(pair.certificate, pair.key, ca or self.authority.certificate, revoked)

    def listeners(
        self, pair: Pair | None = None, *, ca: Path | None = None, revoked: Path | None = None
    ) -> TlsListeners:
        files = self.files(pair, ca=ca, revoked=revoked)
        return TlsListeners.load(files, {INNER: ClientAuth.REQUIRED}, PrincipalRules(), of_nodes=True)

    def way(self, pair: Pair | None = None, *, plaintext: bool = False, ca: Path | None = None) -> ByTls:
        return ByTls(self.listeners(pair, ca=ca), plaintext=plaintext)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "certificates")


@pytest.fixture
async def directory(nursery: trio.Nursery) -> AsyncGenerator[Directory]:
    directory = Directory(nursery)
    yield directory
    directory.close()


async def are_connected(a: Process, b: Process) -> None:
    """And hear each other."""
    with trio.fail_after(WAIT_S):
        assert (await a.connected(), await b.connected()) == (1, 0)
        a.peers.send(b.shard, Hello(1))
        b.peers.send(a.shard, Hello(2))
        assert (await a.receive(), await b.receive()) == ((1, Hello(2)), (0, Hello(1)))


async def started(directory: Directory, shard: int, way: Way) -> Process:
    process = Process(directory, shard, way=way)
    await process.start()
    return process


async def until_lines(lines: list[dict[str, str]], *events: str) -> list[str]:
    """The reasons that the first lines of these events have."""
    with trio.fail_after(WAIT_S):
        while not {line["event"] for line in lines} >= set(events):  # noqa: ASYNC110 (nothing tells of it)
            await trio.sleep(0.01)
    return [next(line["reason"] for line in lines if line["event"] == event) for event in events]


async def test_shards_speak_inside_of_tls_in_order_and_large_messages_too(directory: Directory, site: Site) -> None:
    """What goes over the connection is not to be read, and what comes is what was sent."""
    a, b = await started(directory, 0, site.way()), await started(directory, 1, site.way())
    await are_connected(a, b)
    large = Reply(1, 1, 1, Failed("x" * 3_000_000))
    for number in range(100):
        a.peers.send(b.shard, Hello(number))
    a.peers.send(b.shard, large)
    b.peers.send(a.shard, large)
    with trio.fail_after(WAIT_S):
        assert [await b.receive() for _ in range(100)] == [(0, Hello(number)) for number in range(100)]
        assert (await a.receive(), await b.receive()) == ((1, large), (0, large))
        again = await started(directory, 1, site.way())  # the first one is gone as far as others can tell
        assert await again.connected() == 0


async def secured(directory: Directory, process: Process, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    recorded = await directory.connect(process)
    return trio.SSLStream(recorded.stream, context, server_hostname="localhost", https_compatible=True)


def client(site: Site, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=site.authority.certificate)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


async def test_connection_has_to_be_of_tls_1_3_with_a_certificate(directory: Directory, site: Site) -> None:
    """One without TLS, without a certificate, or of TLS 1.2 is closed, with a line and counted. One with a certificate
    comes as far as the handshake of brokers.
    """
    way = site.way()
    a = await started(directory, 0, way)
    old = client(site, site.pair)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with structlog.testing.capture_logs() as lines, trio.fail_after(WAIT_S):
        plain = await directory.connect(a)
        await plain.send(b"FLIB\0\2" + bytes(104))
        assert await plain.receive_exactly(2) == b"\x15\x03", "an alert of TLS"
        assert await plain.is_closed()
        await plain.stream.aclose()
        await failed(lines, 1)
        bare = await secured(directory, a, client(site))
        await bare.do_handshake()
        with pytest.raises(trio.BrokenResourceError) as refused:
            await bare.receive_some(1)
        assert "certificate required" in why_it_ended(refused.value)
        await trio.aclose_forcefully(bare)
        await failed(lines, 2)
        stale = await secured(directory, a, old)
        with pytest.raises(trio.BrokenResourceError):
            await stale.do_handshake()
        await trio.aclose_forcefully(stale)
        reasons = await failed(lines, 3)
        known = await secured(directory, a, client(site, site.pair))
        await known.send_all(b"GET / HTTP/1.1\r\n\r\n")
        assert await known.receive_some(1) == b""
    assert reasons == [
        "it does not speak TLS: its node may have none for other nodes (security.inner_listener)",
        "peer did not return a certificate",
        "unsupported protocol",
    ]
    assert way.failed == 3
    assert "does not speak the protocol between brokers" in lines[-1]["reason"]


async def failed(lines: list[dict[str, str]], count: int) -> list[str]:
    """Why other nodes were refused, when there are so many."""
    reasons: list[str] = []
    while len(reasons) < count:
        await trio.sleep(0.01)
        reasons = [line["reason"] for line in lines if line["event"] == "TLS handshake of another node failed"]
    return reasons


async def refused_by(site: Site, accepting: Way, connecting: Way) -> str:
    """Why the connecting side gives up a connection; closed at the end."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = InnerAddress("127.0.0.1", listener.socket.getsockname()[1], accepting.has_tls)
    said: list[str] = []

    async def accept() -> None:
        stream = await listener.accept()
        try:
            await accepting.accept(stream)
        except HandshakeFailed as failure:
            said.append(str(failure))
        await trio.aclose_forcefully(stream)

    stream: InnerStream | None = None
    with trio.fail_after(WAIT_S):
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            try:
                stream = await connecting.connect(address)
                await stream.receive_some(1)
                said.append("closed")
            except HandshakeFailed as failure:
                said.append(str(failure))
            except trio.BrokenResourceError as error:
                said.append(why_it_ended(error))
            if stream is not None:
                await trio.aclose_forcefully(stream)
    return "; ".join(said)


@pytest.mark.parametrize("is_accepting", [True, False], ids=["accepts", "connects"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("expired", "certificate has expired"),
        ("other CA", "unable to get local issuer certificate"),
        ("revoked", "certificate revoked"),
    ],
)
async def test_certificate_that_is_not_good_is_refused_by_either_side_and_both_say_why(
    site: Site, is_accepting: bool, wrong: str, words: str
) -> None:
    """The side that has the good one counts it; TLS tells the other one."""
    bad = site.authority.issue("bad", NODE, days=-1 if wrong == "expired" else 10)
    ca: Path | None = None
    if wrong == "other CA":
        bad = Authority(site.directory / "other", "Other CA").issue("bad", NODE)
    lists = site.directory / "revoked.pem"
    site.authority.revoke(lists, [bad] if wrong == "revoked" else [])
    good = ByTls(site.listeners(ca=ca, revoked=lists))
    of_bad = site.way(bad)
    said = await refused_by(site, *((of_bad, good) if is_accepting else (good, of_bad)))
    assert words in said
    assert "refuse" in said.split("; ")[1]
    assert "alert" in said
    assert good.failed == 1


async def test_certificate_has_to_be_for_the_host_that_is_connected_to(site: Site) -> None:
    """By its alternative names: the common name does not count. The connecting side alone can check that."""
    elsewhere = site.authority.issue("elsewhere", name_of((NameOID.COMMON_NAME, "127.0.0.1")), host="node2.example")
    said = await refused_by(site, site.way(elsewhere), site.way())
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in said
    assert await refused_by(site, site.way(), site.way(elsewhere)) == "closed", "who comes is not told by its host"


async def test_node_with_tls_and_node_without_say_so_and_find_each_other_when_they_agree(
    directory: Directory, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side names the setting, whoever connects."""
    monkeypatch.setattr(peers, "START_S", 0.0)
    with structlog.testing.capture_logs() as lines:
        a, b = await started(directory, 0, site.way()), await started(directory, 1, Plain())
        told = await until_lines(
            lines,
            "TLS handshake of another node failed",  # of a: b has come without
            "the process at a shard's address was refused",  # of b: a answers by an alert
            "a connection to the brokers' listener was refused",  # of b: a comes with TLS
            "TLS handshake with a shard's node failed",  # of a: b hangs up
        )
    assert told[0].startswith("it does not speak TLS: its node may have none")
    assert told[1].startswith("it speaks TLS with other nodes, and this node does not: give the inner listeners")
    assert told[2] == told[1]
    assert "its node may have no TLS for other nodes (security.inner_listener)" in told[3]
    assert a.has_connected() == b.has_connected() == 0
    await b.stop()
    await are_connected(a, await started(directory, 1, site.way()))


@pytest.mark.parametrize("other", ["plain", "both", "TLS"])
async def test_node_that_moves_to_tls_speaks_both(directory: Directory, site: Site, other: str) -> None:
    """So nodes are moved one by one: first all of them to both, then to TLS alone."""
    ways: dict[str, Way] = {"plain": Plain(), "both": site.way(plaintext=True), "TLS": site.way()}
    spoken: list[type[object]] = []
    moving = site.way(plaintext=True)
    connect = moving.connect

    async def noted(address: InnerAddress) -> InnerStream:
        spoken.append(type(stream := await connect(address)))
        return stream

    moving.connect = noted  # type: ignore[method-assign]
    await are_connected(await started(directory, 0, moving), await started(directory, 1, ways[other]))
    assert spoken[-1] is (trio.SocketStream if other == "plain" else TlsStream)
    assert moving.failed == 0


async def test_handshake_that_dribbles_is_given_up_and_others_are_served(
    directory: Directory, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the time of both handshakes together, holds up nobody, and is counted."""
    monkeypatch.setattr(peers, "HANDSHAKE_S", 0.5)
    way = site.way()
    a = await started(directory, 0, way)
    with structlog.testing.capture_logs() as lines:
        stranger = await directory.connect(a)
        await stranger.send(b"\x16\x03\x01")
        await are_connected(a, await started(directory, 1, site.way()))
        with trio.fail_after(WAIT_S):
            assert await stranger.is_closed()
    assert "no handshake in time" in [line.get("reason") for line in lines]
    assert way.failed == 1


async def test_changed_certificate_is_shown_and_checked_in_new_connections(
    directory: Directory, site: Site, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both sides, without a restart; a connection that is open stays."""
    monkeypatch.setattr(tls_module, "LOOK_S", 0.02)
    listeners = site.listeners()
    nursery.start_soon(listeners.run)
    way = ByTls(listeners)
    a, b = await started(directory, 0, way), await started(directory, 1, site.way())
    await are_connected(a, b)
    other = Authority(site.directory / "other", "Other CA")
    pair = other.issue("node", NODE)
    with structlog.testing.capture_logs() as lines:
        for new, file in ((pair.certificate, site.pair.certificate), (pair.key, site.pair.key)):
            shutil.copy(new, file)
        shutil.copy(other.certificate, site.authority.certificate)
        with trio.fail_after(WAIT_S):
            while "changed TLS files are used from now on" not in {line["event"] for line in lines}:  # noqa: ASYNC110
                await trio.sleep(0.01)
        a.peers.send(b.shard, Hello(3))
        assert await b.receive() == (0, Hello(3))
        await b.stop()
        of_new = TlsFiles(pair.certificate, pair.key, other.certificate)
        asks = {INNER: ClientAuth.REQUIRED}
        again = ByTls(TlsListeners.load(of_new, asks, PrincipalRules(), of_nodes=True))
        await are_connected(a, await started(directory, 1, again))
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("speaks_tls", [True, False], ids=["TLS", "plain"])
async def test_copy_of_a_shard_comes_by_tls(
    tmp_path: Path, site: Site, nursery: trio.Nursery, speaks_tls: bool
) -> None:
    """A giver that speaks otherwise is passed over, with the reason."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    giver = Giver(*parts())
    peer = Peers(SHARD, CLUSTER, SECRET, lambda _: None, lambda _shard, _message: None, way=site.way(), giver=giver)
    await nursery.start(peer.run, [listener], [])
    address = InnerAddress("127.0.0.1", listener.socket.getsockname()[1], has_tls=True)
    way = site.way() if speaks_tls else Plain()
    with structlog.testing.capture_logs() as lines, trio.move_on_after(WAIT_S if speaks_tls else 0.5):
        await get_copy(
            shard_directory(tmp_path, SHARD),
            STREAM,
            lambda: [address],
            cluster_id=CLUSTER,
            secret=SECRET,
            way=way,
            progress=CopyProgress(),
        )
    reasons = [line["reason"] for line in lines if line["event"] == "no copy of the shard"]
    if speaks_tls:
        assert (files_in(tmp_path), reasons) == (FILES, [])
    else:
        assert (files_in(tmp_path), giver.asked) == ({}, [])
        assert reasons[0].startswith("it speaks TLS with other nodes, and this node does not")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["a..b", ".x", "x" * 64])
async def test_host_that_is_no_name_is_an_error_of_the_connection(host: str) -> None:
    """Whatever another node has announced, this one goes on."""
    with pytest.raises(OSError, match="is no name of a host"):
        await Plain().connect(InnerAddress(host, 1, has_tls=False))
