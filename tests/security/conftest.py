"""A broker in memory whose clients have to sign in, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import trio

from fairlog.config import SaslSettings
from fairlog.kafka.server import Server
from fairlog.native.protocol import NativeProtocol
from fairlog.security.listeners import SASL_PLAIN
from tests.kafka.in_memory import Memory
from tests.security.signing_in import Peer, add_user


@pytest.fixture
def sasl() -> SaslSettings:
    """What a test may have otherwise: PLAIN is offered although nothing is encrypted."""
    return SaslSettings(plain_without_tls=True)


@pytest.fixture
async def memory(sasl: SaslSettings) -> Memory:
    memory = Memory()
    memory.settings = replace(memory.settings, sasl=sasl)
    await add_user(memory.cluster, "alice", "secret of alice")
    return memory


@pytest.fixture
async def server(memory: Memory, nursery: trio.Nursery) -> AsyncIterator[Server]:
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    listeners = await nursery.start(server.serve, await trio.open_tcp_listeners(0, host="127.0.0.1"), SASL_PLAIN)
    server.address = listeners[0].socket.getsockname()[:2]
    yield server
    server.stop()


@pytest.fixture
def connect(server: Server) -> Callable[[], Peer]:
    """Opens a connection: `async with connect() as peer`."""
    return lambda: Peer(server.address)
