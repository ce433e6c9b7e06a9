"""Whoever changes their own password, or deletes themselves, gets the answer before the connection is closed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

import pytest
import trio
import trio.testing
from cryptography.x509.oid import NameOID

from fairlog.edge.frames import FrameReader
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.security import sign_in
from fairlog.security.client_auth import ClientAuth
from fairlog.security.listeners import PLAIN, Listener, SecurityProtocol
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import TlsFiles, TlsListeners
from tests.kafka.in_memory import Memory
from tests.security.certificates import Authority, name_of
from tests.security.signing_in import NONE, Peer, add_user, admin, listening

PASSWORD = "secret of alice"
ALTER = admin.AlterUserScramCredentialsRequest
NEW_PASSWORD = ALTER.ScramCredentialUpsertion(
    name="alice", mechanism=1, iterations=4096, salt=b"s" * 32, salted_password=b"p" * 32
)
DELETIONS = [ALTER.ScramCredentialDeletion(name="alice", mechanism=mechanism) for mechanism in (1, 2)]


class TlsPeer(Peer):
    """By TLS."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address)
        self._context = context

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.stream = trio.SSLStream(self.stream, self._context, server_hostname="localhost", https_compatible=True)
        self._frames = FrameReader(self.stream, frame_bytes_max=1 << 20)
        return self


@pytest.fixture
async def tls_address(tmp_path: Path, memory: Memory, nursery: trio.Nursery):
    """Where to connect, and how."""
    authority = Authority(tmp_path)
    pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
    listener = Listener(PLAIN.name, SecurityProtocol.SASL_SSL)
    tls = TlsListeners.load(TlsFiles(pair.certificate, pair.key), {listener.name: ClientAuth.NONE}, PrincipalRules())
    server = Server(memory.broker)
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    (door,) = await nursery.start(server.serve, [Door(each, listener, tls.by_name[listener.name]) for each in sockets])
    yield door.socket.socket.getsockname()[:2], ssl.create_default_context(cafile=authority.certificate)
    server.stop()


async def alter(peer: Peer, **changes: object) -> list[int] | None:
    fields = {"deletions": [], "upsertions": [], **changes}
    answer = await peer.ask(ALTER(version=0, **fields), admin.AlterUserScramCredentialsResponse, 0)
    return None if answer is None else [each.error_code for each in answer.results]


@pytest.mark.parametrize("changes", [{"upsertions": [NEW_PASSWORD]}, {"deletions": DELETIONS}])
async def test_own_user_is_changed_over_tls_and_answered(tls_address, memory, monkeypatch, changes):
    """Also if the change is known before it is durable, as it is in a store on a disk."""
    alter_access = memory.cluster.alter_access

    async def altered(*arguments: object) -> bool:
        has_changed = await alter_access(*arguments)
        await trio.testing.wait_all_tasks_blocked()
        return has_changed

    monkeypatch.setattr(memory.cluster, "alter_access", altered)
    async with TlsPeer(*tls_address) as peer, TlsPeer(*tls_address) as other:
        for each in (peer, other):
            assert (await each.scram("alice", PASSWORD)).error_code == NONE
        assert await alter(peer, **changes) == [NONE]
        assert await peer.is_closed()
        assert await other.is_closed()


async def test_somebody_else_is_changed_and_the_connection_stays(tls_address, memory):
    """And the next change of the client's own user by another closes it at once."""
    async with TlsPeer(*tls_address) as peer:
        assert (await peer.scram("alice", PASSWORD)).error_code == NONE
        bob = ALTER.ScramCredentialUpsertion(
            name="bob", mechanism=1, iterations=4096, salt=b"s" * 32, salted_password=b"p" * 32
        )
        assert await alter(peer, upsertions=[bob]) == [NONE]
        assert (await peer.metadata()).brokers
        await add_user(memory.cluster, "alice", "another")
        assert await peer.is_closed()


async def test_answer_that_does_not_come_is_not_waited_for(memory, nursery, monkeypatch):
    """As when the client does not read: the connection ends in time."""
    monkeypatch.setattr(sign_in, "ANSWER_S", 0.2)
    server = Server(memory.broker)
    address = await listening(nursery, server)
    never = trio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    async with Peer(address) as peer:
        assert (await peer.scram("alice", PASSWORD)).error_code == NONE
        monkeypatch.setattr("fairlog.kafka.connection.Connection._answer", hang)
        assert await alter(peer, deletions=DELETIONS) is None
    server.stop()
