"""TLS in front of Kafka's protocol and the native one: what a server does with clients, good and bad."""

from __future__ import annotations

import os
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from fairlog.edge.frames import FrameReader
from fairlog.edge.log_limiter import LINES_MAX
from fairlog.kafka.connection import Connection
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.calls import Op
from fairlog.native.protocol import NativeProtocol
from fairlog.security import tls as module
from fairlog.security.client_auth import ClientAuth
from fairlog.security.listeners import Listener, SecurityProtocol
from fairlog.security.principal import ANONYMOUS, Principal
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import BadTlsFiles, TlsFiles, TlsListeners
from fairlog.security.tls_stream import TlsStream
from tests.kafka.example_requests import build_batch
from tests.kafka.serving import framed
from tests.native.golden_conversation import new_memory
from tests.native.talking import Talker
from tests.native.test_connection import LANE
from tests.security.certificates import Authority, Pair, name_of

ALICE = name_of((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "alice"))
BOB = name_of((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "bob"))
RULES = PrincipalRules("RULE:CN=([^,]*),O=Example/$1/, RULE:CN=(nobody)/$1/")
TLS, MUTUAL, ASKS = "TLS", "MUTUAL", "ASKS"
AUTH = {TLS: ClientAuth.NONE, MUTUAL: ClientAuth.REQUIRED, ASKS: ClientAuth.REQUESTED}


class Site:
    """A server with a plain listener and three with TLS, and a CA for it and for its clients."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.node = self.authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
        self.alice = self.authority.issue("alice", ALICE)
        self.bob = self.authority.issue(
            "bob", name_of((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "bob"))
        )
        self.expired = self.authority.issue("expired", ALICE, days=-1)
        self.unmapped = self.authority.issue("unmapped", name_of((NameOID.COMMON_NAME, "other")))
        self.stranger = Authority(directory / "other", "Other CA").issue("alice", ALICE)
        self.revoked = directory / "revoked.pem"
        self.authority.revoke(self.revoked, [self.bob])
        self.files = TlsFiles(self.node.certificate, self.node.key, self.authority.certificate, self.revoked)
        self.tls = TlsListeners.load(self.files, AUTH, RULES)
        self.memory = new_memory()
        self.server = Server(self.memory.broker, [NativeProtocol(self.memory.broker)])
        self.ports: dict[str, int] = {}
        self.streams: list[trio.SocketStream] = []

    async def open(self, nursery: trio.Nursery) -> None:
        doors: list[Door] = []
        for name in ("PLAINTEXT", *AUTH):
            (socket,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            protocol = SecurityProtocol.SSL if name in AUTH else SecurityProtocol.PLAINTEXT
            doors.append(Door(socket, Listener(name, protocol), self.tls.by_name.get(name)))
            self.ports[name] = socket.socket.getsockname()[1]
        await nursery.start(self.server.serve, doors)

    async def plain(self, name: str = TLS) -> trio.SocketStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.ports[name])
        self.streams.append(stream)
        return stream

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def connect(self, name: str = TLS, pair: Pair | None = None) -> trio.SSLStream[trio.SocketStream]:
        stream = trio.SSLStream(
            await self.plain(name), self.context(pair), server_hostname="localhost", https_compatible=True
        )
        with trio.fail_after(10):
            await stream.do_handshake()
        return stream


@pytest.fixture
async def site(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.open(nursery)
    yield site
    site.memory.coordinator.gate.set()  # a commit that waits there is shielded
    site.server.stop()
    for stream in site.streams:
        await trio.aclose_forcefully(stream)


async def ask_versions(stream: trio.abc.Stream) -> bytes:
    """Asks for ApiVersions v0; the answer's frame, empty if the connection is closed instead."""
    with trio.fail_after(10):
        try:
            await stream.send_all(framed(struct.pack(">hhih", 18, 0, 5, -1)))
            return bytes(await FrameReader(stream, frame_bytes_max=1 << 30).next_frame() or b"")
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            return (getattr(cause, "reason", None) and cause.reason.encode()) or b""


async def is_closed(stream: trio.abc.Stream, within_s: float = 5) -> bool:
    with trio.fail_after(within_s):
        try:
            while await stream.receive_some(1 << 16):
                pass
        except trio.BrokenResourceError:
            pass
    return True


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(5):
        while not holds():  # noqa: ASYNC110 (nothing tells of it)
            await trio.sleep(0.01)


def failures(lines: list[dict[str, str]]) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == "TLS handshake failed"]


async def test_both_protocols_are_spoken_inside_of_tls(site: Site) -> None:
    """And a large frame goes each way, in many pieces."""
    site.memory.topics.create_now("big")
    sent = build_batch(size=900_000)
    produce = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, 1, 1000, 1) + struct.pack(">h3sii", 3, b"big", 1, 0)
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 0, 1, 10**7, 0, 1)
    fetch += struct.pack(">h3siiqi", 3, b"big", 1, 0, 0, 10**7)
    stream = await site.connect()
    assert (await ask_versions(stream))[:6] == struct.pack(">ih", 5, 0)
    reader = FrameReader(stream, frame_bytes_max=1 << 30)
    with trio.fail_after(20):
        for _ in range(5):
            await stream.send_all(framed(produce + struct.pack(">i", len(sent)) + sent))
            assert (await reader.next_frame())[21:23] == b"\0\0"  # no error
        await stream.send_all(framed(fetch))
        answer = bytes(await reader.next_frame())
    stored = b"".join(site.memory.leaders.logs[site.memory.log("big")])
    assert len(stored) == 4_500_000
    assert answer.endswith(stored)
    talker = Talker(await site.connect())
    assert await talker.greet() == b"FLG1"
    assert "topics" in await talker.ask("topics")


async def test_large_answer_of_the_native_protocol_is_encrypted_in_pieces(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read it would hold another copy of all of it."""
    sizes: list[int] = []
    encrypted = TlsStream._encrypted

    def noting(stream: TlsStream, data: memoryview) -> list[bytes]:
        sizes.append(len(data))
        return encrypted(stream, data)

    async def large(call: Any) -> dict[str, str]:
        call.arguments.end()
        return {"large": "x" * 400_000}

    protocol = next(iter(site.server._protocols.values()))
    monkeypatch.setitem(protocol._served.ops, "topics", (Op(large, ()), protocol._served.ops["topics"][1]))
    talker = Talker(await site.connect())
    await talker.greet()
    monkeypatch.setattr(TlsStream, "_encrypted", noting)
    assert await talker.ask("topics") == {"large": "x" * 400_000}
    assert sum(sizes) > 400_000
    assert max(sizes) == 128 * 1024


async def test_rules_are_not_asked_where_clients_sign_in(site: Site, nursery: trio.Nursery) -> None:
    """The name of a certificate is not used there, so it need not have one."""
    (socket,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = Server(site.memory.broker)
    listener = Listener(MUTUAL, SecurityProtocol.SASL_SSL)
    await nursery.start(server.serve, [Door(socket, listener, site.tls.by_name[MUTUAL])])
    site.ports["SASL"] = socket.socket.getsockname()[1]
    assert await ask_versions(await site.connect("SASL", site.unmapped))
    server.stop()


async def test_connection_that_comes_as_the_server_stops_is_closed_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold the stop for as long as a handshake may take."""
    serve = Server._serve_stream

    async def serve_late(server: Server, *arguments: Any) -> None:
        server.stop()
        await serve(server, *arguments)

    monkeypatch.setattr(Server, "_serve_stream", serve_late)
    assert await is_closed(await site.plain(), within_s=1)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_tls_of_two_versions_is_spoken(site: Site, version: str) -> None:
    """The others are refused: test_tls_clients has openssl try them."""
    context = site.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    stream = trio.SSLStream(await site.plain(), context, server_hostname="localhost")
    assert await ask_versions(stream)
    assert stream.version() == version.replace("_", ".")


NO_ISSUER = "certificate is refused: unable to get local issuer certificate"

# --- clients' certificates ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "pair", "principal"),
    [
        (TLS, None, ANONYMOUS),
        (TLS, "alice", ANONYMOUS),
        (ASKS, None, ANONYMOUS),
        (ASKS, "alice", Principal("User", "alice")),
        (MUTUAL, "alice", Principal("User", "alice")),
    ],
)
async def test_certificate_says_who_a_client_is(
    site: Site, monkeypatch: pytest.MonkeyPatch, listener: str, pair: str | None, principal: Principal
) -> None:
    """If it is asked for. The listener and the host are known as well, to both protocols."""
    clients = []

    class Noting(Connection):
        def __init__(self, stream, client, *rest, **more) -> None:
            clients.append(client)
            super().__init__(stream, client, *rest, **more)

    monkeypatch.setattr("fairlog.kafka.server.Connection", Noting)
    stream = await site.connect(listener, pair and getattr(site, pair))
    assert await ask_versions(stream)
    (client,) = clients
    assert (client.principal, client.listener.name, client.host) == (principal, listener, "127.0.0.1")
    calls = []

    async def noting(call):
        calls.append(call)
        call.arguments.end()
        return {}

    protocol = next(iter(site.server._protocols.values()))
    monkeypatch.setitem(protocol._served.ops, "topics", (Op(noting, ()), protocol._served.ops["topics"][1]))
    talker = Talker(await site.connect(listener, pair and getattr(site, pair)))
    await talker.greet()
    assert await talker.ask("topics") == {}
    (call,) = calls
    assert (call.client.principal, call.client.listener.name, call.client.host) == (principal, listener, "127.0.0.1")


@pytest.mark.parametrize(
    ("listener", "pair", "reason", "alert"),
    [
        (MUTUAL, None, "peer did not return a certificate", b"TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        (
            MUTUAL,
            "stranger",
            "certificate is refused: unable to get local issuer certificate",
            b"TLSV1_ALERT_UNKNOWN_CA",
        ),
        (ASKS, "stranger", NO_ISSUER, b"TLSV1_ALERT_UNKNOWN_CA"),
        (MUTUAL, "expired", "certificate is refused: certificate has expired", b"SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        (MUTUAL, "bob", "certificate is refused: certificate revoked", b"SSLV3_ALERT_CERTIFICATE_REVOKED"),
        (MUTUAL, "unmapped", "no rule of tls.principal_rules matches the subject 'CN=other'", b""),
    ],
)
async def test_client_without_a_good_certificate_is_refused(
    site: Site, listener: str, pair: str | None, reason: str, alert: bytes
) -> None:
    """It is told why by TLS's own alert, one line says so here, and it is counted. Nobody else is affected."""
    good = await site.connect(listener, site.alice)
    with capture_logs() as lines:
        stream = await site.connect(listener, pair and getattr(site, pair))  # TLS 1.3: refused after the handshake
        assert await ask_versions(stream) == alert
        await until(lambda: failures(lines))
    (found,) = failures(lines)
    assert reason in found
    assert site.server.statistics.handshakes_failed == 1
    assert await ask_versions(good)


async def test_client_with_tls_1_2_is_refused_in_the_handshake(site: Site) -> None:
    """There the client's certificate comes before the server is done."""
    context = site.context(site.bob)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    stream = trio.SSLStream(await site.plain(MUTUAL), context, server_hostname="localhost")
    assert await ask_versions(stream) == b"SSLV3_ALERT_CERTIFICATE_REVOKED"


async def handshake_of_tls_1_2(
    stream: trio.SocketStream, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """By hand: trio's stream does not take a session. Raises ssl.SSLError."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            await stream.send_all(outgoing.read())
            incoming.write(await stream.receive_some())
        else:
            await stream.send_all(outgoing.read())
            return client


@pytest.mark.parametrize("name", [TLS, MUTUAL])
async def test_handshake_of_tls_1_2_is_resumed_under_the_same_files_only(
    site: Site, name: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose certificate was revoked since would come in by an earlier one."""
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    nursery.start_soon(site.tls.run)
    context = site.context(site.alice)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    first = await handshake_of_tls_1_2(await site.plain(name), context)
    again = await handshake_of_tls_1_2(await site.plain(name), context, first.session)
    assert again.session_reused
    assert again.session.timeout <= 7200
    before = site.tls.by_name[name].context
    site.authority.revoke(site.revoked, [site.alice, site.bob])
    await until(lambda: site.tls.by_name[name].context is not before)
    if name == MUTUAL:
        with pytest.raises(ssl.SSLError, match="SSLV3_ALERT_CERTIFICATE_REVOKED"):
            await handshake_of_tls_1_2(await site.plain(name), context, again.session)
    else:
        assert not (await handshake_of_tls_1_2(await site.plain(name), context, again.session)).session_reused


async def test_handshake_of_tls_1_3_is_not_resumed_where_certificates_are_asked_for(site: Site) -> None:
    """There are no tickets to resume one by."""
    for name, resumes in ((TLS, True), (MUTUAL, False)):
        stream = await site.connect(name, site.alice)
        assert await ask_versions(stream)
        assert cast(Any, stream)._ssl_object.session.has_ticket is resumes


# --- clients that do not do what they should -----------------------------------------------------------------


async def test_plain_client_at_a_listener_with_tls_is_closed_at_once(site: Site) -> None:
    """And a client of the web."""
    with capture_logs() as lines:
        for data in (framed(struct.pack(">hhih", 18, 0, 5, -1)), b"GET / HTTP/1.1\r\n\r\n", b"FLG1"):
            stream = await site.plain()
            await stream.send_all(data)
            await stream.send_eof()
            assert await is_closed(stream, within_s=1)
        await until(lambda: len(failures(lines)) == 3)
    assert failures(lines) == [
        "wrong version number: the client does not speak TLS",
        "http request: the client does not speak TLS",
        "the client has closed the connection",
    ]
    assert site.server.statistics.handshakes_failed == 3


async def test_tls_client_at_a_plain_listener_is_closed_at_once(site: Site) -> None:
    """The first bytes of a handshake would be the length of a request of 352 MiB."""
    site.memory.settings = replace(
        site.memory.settings, requests=replace(site.memory.settings.requests, request_bytes_max=2**31 - 1)
    )
    with capture_logs() as lines:
        stream = trio.SSLStream(await site.plain("PLAINTEXT"), site.context(), server_hostname="localhost")
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(1):
            await stream.do_handshake()
    (line,) = lines
    assert (line["event"], line["reason"]) == ("malformed request", "the client speaks TLS, and this listener does not")


async def test_port_that_is_only_looked_at_is_no_failure(site: Site) -> None:
    """Whoever checks a node's health does so every few seconds."""
    with capture_logs() as lines:
        async with await site.plain():
            pass
        await until(lambda: site.server.statistics.accepted > 0 and site.server.statistics.connected == 0)
    assert (lines, site.server.statistics.handshakes_failed) == ([], 0)


async def dribble(stream: trio.SocketStream, data: bytes) -> None:
    for byte in data:
        await stream.send_all(bytes([byte]))
        await trio.sleep(0.05)


@pytest.mark.parametrize("dribbles", [False, True])
async def test_handshake_that_does_not_end_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, dribbles: bool
) -> None:
    """However its bytes come. It counts as a connection meanwhile; others are served."""
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.4)
    site.memory.settings = replace(
        site.memory.settings, requests=replace(site.memory.settings.requests, connections_max=2)
    )
    site.server._broker = site.memory.broker
    good = await site.connect()
    with capture_logs() as lines:
        stream = await site.plain()
        started_s = trio.current_time()
        await stream.send_all(b"\x16")
        assert await ask_versions(good)
        third = await site.plain()
        assert await is_closed(third, within_s=0.3)
        if dribbles:
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                await dribble(stream, b"\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(500))
        else:
            assert await is_closed(stream)
        assert trio.current_time() - started_s < 2
    assert failures(lines) == ["it took more than 0 s"]
    assert await ask_versions(good)


async def test_bad_handshakes_do_not_fill_the_log(site: Site) -> None:
    """So many lines of one address; the others are counted."""
    with capture_logs() as lines:
        for _ in range(LINES_MAX + 3):
            stream = await site.plain()
            await stream.send_all(bytes(20))
            assert await is_closed(stream)
        await until(lambda: site.server.statistics.handshakes_failed == LINES_MAX + 3)
    assert len(failures(lines)) == LINES_MAX


async def test_stop_does_not_wait_for_a_handshake(site: Site) -> None:
    """No request of that client is in flight."""
    stream = await site.plain()
    await stream.send_all(b"\x16")
    await trio.testing.wait_all_tasks_blocked(0.02)
    site.server.stop()
    assert await is_closed(stream, within_s=1)


async def test_stop_answers_a_long_poll_before_it_closes(site: Site) -> None:
    """The read that is interrupted leaves TLS as it was."""
    site.memory.topics.create_now("t")
    stream = await site.connect()
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 60_000, 1, 10**7, 0, 1)
    await stream.send_all(framed(fetch + struct.pack(">h1siiqi", 1, b"t", 1, 0, 0, 10**7)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    site.server.stop()
    with trio.fail_after(5):
        reader = FrameReader(stream, frame_bytes_max=1 << 30)
        assert bytes(await reader.next_frame())[:4] == struct.pack(">i", 6)
    assert await is_closed(stream)


async def test_client_that_is_gone_is_noticed_while_its_request_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection does not read meanwhile; under TLS it asks the system for the socket below."""
    begun = trio.Event()

    async def joined_never(lane: object) -> None:
        begun.set()
        await trio.sleep_forever()

    monkeypatch.setattr("fairlog.native.connection.HANG_UP_CHECK_S", 0.01)
    monkeypatch.setattr(site.memory.coordinator, "join_batch", joined_never)
    talker = Talker(await site.connect())
    await talker.greet()
    await talker.send("join", **LANE)
    with capture_logs() as lines, trio.fail_after(5):
        await begun.wait()
        await trio.aclose_forcefully(talker.stream)
        await until(lambda: site.server.statistics.connected == 0)
    assert [line["event"] for line in lines] == ["request given up: its client is gone"]


# --- files -----------------------------------------------------------------------------------------------


async def test_changed_files_are_used_without_a_restart(
    site: Site, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate, and a revocation list. Files that cannot be used change nothing, and one line says so."""
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    nursery.start_soon(site.tls.run)
    open_before = await site.connect(MUTUAL, site.alice)
    serial = site.node.x509.serial_number

    async def served() -> int:
        stream = await site.connect()
        found = int(stream.getpeercert()["serialNumber"], 16)
        await trio.aclose_forcefully(stream)
        return found

    assert await served() == serial
    with capture_logs() as lines:
        site.node.certificate.write_text("nonsense")
        await until(lambda: lines)
        await trio.sleep(0.2)
    assert [line["event"] for line in lines] == ["changed TLS files are not used"]
    assert str(site.node.certificate) in lines[0]["reason"]
    assert await served() == serial
    with capture_logs() as lines:
        changed = site.authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
        site.authority.revoke(site.revoked, [site.bob, site.alice])
        await until(lambda: "changed TLS files are used from now on" in [line["event"] for line in lines])
    assert await served() == changed.x509.serial_number
    refused = await site.connect(MUTUAL, site.alice)
    assert await ask_versions(refused) == b"SSLV3_ALERT_CERTIFICATE_REVOKED"
    assert await ask_versions(open_before)  # as with Kafka


def bad(directory: Path, spoil: Callable[[Authority, Pair, Path], TlsFiles]) -> str:
    authority = Authority(directory)
    revoked = directory / "revoked.pem"
    authority.revoke(revoked, [])
    pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
    with pytest.raises(BadTlsFiles) as raised:
        TlsListeners.load(spoil(authority, pair, revoked), {MUTUAL: ClientAuth.REQUIRED}, RULES)
    return str(raised.value)


def test_key_that_goes_while_it_is_looked_at_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is replaced in two steps; an OSError would end the task that reads changed files, and the node."""
    stat = Path.stat

    def gone(path: Path, **more: Any) -> os.stat_result:
        if path.name == "node-key.pem" and has_looked:
            raise FileNotFoundError(2, "No such file or directory")
        has_looked.append(path)
        return stat(path, **more)

    def as_it_is(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        monkeypatch.setattr(Path, "stat", gone)
        return TlsFiles(pair.certificate, pair.key, authority.certificate)

    has_looked: list[Path] = []
    assert bad(tmp_path / "ca", as_it_is) == f"cannot read {tmp_path}/ca/node-key.pem: No such file or directory"


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """In a sentence that says what to do. What is in them is not shown."""

    def absent(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        return TlsFiles(tmp_path / "none.pem", pair.key, authority.certificate)

    def open_key(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        pair.key.chmod(0o644)
        return TlsFiles(pair.certificate, pair.key, authority.certificate)

    def encrypted(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        locked = authority.issue("locked", ALICE, encrypted=True)
        return TlsFiles(locked.certificate, locked.key, authority.certificate)

    def other_key(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        return TlsFiles(pair.certificate, authority.issue("other", ALICE).key, authority.certificate)

    def no_key(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        pair.key.write_text("secret nonsense")
        return TlsFiles(pair.certificate, pair.key, authority.certificate)

    def no_ca(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        return TlsFiles(pair.certificate, pair.key, pair.key)

    def certificates_for_a_list(authority: Authority, pair: Pair, revoked: Path) -> TlsFiles:
        stranger = Authority(tmp_path / "other", "Other CA")
        return TlsFiles(pair.certificate, pair.key, authority.certificate, stranger.certificate)

    directory = tmp_path / "ca"
    assert bad(directory, absent) == f"cannot read {tmp_path}/none.pem: No such file or directory"
    assert bad(directory, open_key).endswith(
        f"so others may read it: chmod {640 if os.geteuid() == 0 else 600} {directory}/node-key.pem"
    )
    assert "locked-key.pem is encrypted: write it without a password" in bad(directory, encrypted)
    assert bad(directory, other_key).endswith("cannot be used: key values mismatch")
    assert "node-key.pem cannot be used: " in bad(directory, no_key)
    assert "nonsense" not in bad(directory, no_key)
    assert bad(directory, no_ca) == f"{directory}/node-key.pem has no certificate in PEM that can be read"
    assert "has something else than revocation lists" in bad(directory, certificates_for_a_list)


async def test_old_revocation_list_refuses_everybody(site: Site) -> None:
    """Nobody knows any more who is revoked."""
    site.authority.revoke(site.revoked, [], days=-1)
    site.tls.by_name[MUTUAL].context = TlsListeners.load(site.files, AUTH, RULES).by_name[MUTUAL].context
    with capture_logs() as lines:
        stream = await site.connect(MUTUAL, site.alice)
        assert await ask_versions(stream)
        await until(lambda: failures(lines))
    assert failures(lines) == ["the client's certificate is refused: CRL has expired"]


async def test_missing_revocation_list_refuses_everybody_of_its_ca(site: Site) -> None:
    """So a CA is taken out of use by taking its list out of the file."""
    Authority(site.revoked.parent / "another", "Another CA").revoke(site.revoked, [])
    site.tls.by_name[MUTUAL].context = TlsListeners.load(site.files, AUTH, RULES).by_name[MUTUAL].context
    with capture_logs() as lines:
        stream = await site.connect(MUTUAL, site.alice)
        assert await ask_versions(stream)
        await until(lambda: failures(lines))
    assert failures(lines) == ["the client's certificate is refused: unable to get certificate CRL"]
