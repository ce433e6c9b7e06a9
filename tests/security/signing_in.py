"""A client by hand that signs in, or tries to, on Kafka's protocol; SCRAM's client side is scramp's."""

from __future__ import annotations

import os
import struct
import warnings
from typing import Any, Self

import trio
from scramp import ScramClient

from fairlog.edge.frames import FrameReader
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.security.listeners import PLAIN, Listener, SecurityProtocol
from fairlog.security.user_changes import Change
from fairlog.security.users import Credential, ScramMechanism, credential_of, salted
from fairlog.user_accounts import StoreAccounts
from tests.kafka.serving import framed

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin as admin
    from kafka.protocol import metadata, sasl

NONE = 0
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def credentials_of(password: str, *, iterations: int = 4096) -> dict[ScramMechanism, Credential]:
    """What is kept of a password."""
    found = {}
    for mechanism in ScramMechanism:
        salt = os.urandom(32)
        found[mechanism] = credential_of(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)
    return found


async def add_user(cluster: Any, name: str, password: str, *, iterations: int = 4096) -> None:
    """Or give the user another password."""
    credentials = credentials_of(password, iterations=iterations)
    changes = [Change(name, mechanism, credential) for mechanism, credential in credentials.items()]
    outcome = await StoreAccounts(cluster).change(lambda _: changes, by="test")
    assert not outcome.refused


async def delete_user(cluster: Any, name: str) -> None:
    changes = [Change(name, mechanism, None) for mechanism in ScramMechanism]
    assert not (await StoreAccounts(cluster).change(lambda _: changes, by="test")).refused


SASL_PLAIN = Listener(PLAIN.name, SecurityProtocol.SASL_PLAINTEXT)
"""By the name under which the broker in memory can be reached."""


async def listening(nursery: trio.Nursery, server: Server) -> tuple[str, int]:
    """Serve clients who have to sign in; answers where."""
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    (door,) = await nursery.start(server.serve, [Door(each, SASL_PLAIN) for each in sockets])
    return door.socket.socket.getsockname()[:2]


class Peer:
    """A connection to a server, one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    async def __aenter__(self) -> Self:
        self.stream = await trio.open_tcp_stream(*self._address)
        self._frames = FrameReader(self.stream, frame_bytes_max=2**31 - 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.aclose_forcefully(self.stream)

    async def send(self, body: bytes) -> None:
        await self.stream.send_all(framed(body))

    async def receive(self, patience_s: float = 10) -> bytes | None:
        """The next frame; None if the connection is closed."""
        with trio.fail_after(patience_s):
            try:
                frame = await self._frames.next_frame()
            except trio.BrokenResourceError:
                return None
        return None if frame is None else bytes(frame)

    async def ask(self, request: Any, response: Any, version: int) -> Any:
        """The answer; None if the connection is closed instead."""
        request.with_header(correlation_id=5, client_id="peer")
        await self.send(bytes(request.encode(version=version, header=True)))
        frame = await self.receive()
        if frame is None:
            return None
        header_bytes = 5 if type(request).flexible_version_q(version) else 4
        return response.decode(frame[header_bytes:], version=version)

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(
            sasl.SaslHandshakeRequest(version=version, mechanism=mechanism), sasl.SaslHandshakeResponse, version
        )

    async def authenticate(self, message: bytes, version: int = 2) -> Any:
        return await self.ask(
            sasl.SaslAuthenticateRequest(version=version, auth_bytes=message), sasl.SaslAuthenticateResponse, version
        )

    async def scram(self, name: str, password: str, mechanism: str = SHA_256, version: int = 2) -> Any:
        """Sign in; the last answer. The server's own proof is checked."""
        assert (await self.handshake(mechanism)).error_code == NONE
        client = ScramClient([mechanism], name, password)
        first = await self.authenticate(client.get_client_first().encode(), version)
        assert first.error_code == NONE
        client.set_server_first(first.auth_bytes.decode())
        last = await self.authenticate(client.get_client_final().encode(), version)
        if last.error_code == NONE:
            client.set_server_final(last.auth_bytes.decode())
        return last

    async def plain(self, name: str, password: str, authorization_id: str = "") -> Any:
        assert (await self.handshake("PLAIN")).error_code == NONE
        return await self.authenticate(f"{authorization_id}\0{name}\0{password}".encode())

    async def metadata(self) -> Any:
        """Something that only those get who have signed in."""
        return await self.ask(metadata.MetadataRequest(version=1, topics=[]), metadata.MetadataResponse, 1)

    async def versions(self) -> bytes | None:
        await self.send(struct.pack(">hhih", 18, 0, 5, -1))
        return await self.receive()

    async def is_closed(self) -> bool:
        return await self.receive() is None
