"""A broker in memory that speaks the native protocol, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.protocol import NativeProtocol
from tests.kafka.example_requests import build_batch
from tests.kafka.in_memory import Memory
from tests.native.golden_conversation import new_memory
from tests.native.talking import Talker
from tests.three_processes import three as three


@pytest.fixture
def memory() -> Memory:
    return new_memory()


@pytest.fixture
async def server(memory: Memory, nursery: trio.Nursery) -> AsyncIterator[Server]:
    """Kafka's listener, with the native protocol on its port. Has `address`."""
    native = NativeProtocol(memory.broker)
    server = Server(memory.broker, [native])
    server.native = native
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, [Door(each) for each in listeners])
    server.address = listeners[0].socket.getsockname()[:2]
    yield server
    memory.coordinator.gate.set()  # a commit that waits there is shielded
    server.stop()


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Callable[[], Awaitable[trio.SocketStream]]]:
    """Opens connections, which are closed at the end."""
    async with AsyncExitStack() as stack:

        async def opened() -> trio.SocketStream:
            return await stack.enter_async_context(await trio.open_tcp_stream(*server.address))

        yield opened


@pytest.fixture
async def talker(connect: Callable[[], Awaitable[trio.SocketStream]]) -> Talker:
    """A client that has exchanged the preambles."""
    talker = Talker(await connect())
    assert await talker.greet() == b"FLG1"
    return talker


@pytest.fixture
def batch() -> Callable[..., bytes]:
    return build_batch


@pytest.fixture
def page() -> str:
    """The protocol's page."""
    return (Path(__file__).resolve().parents[2] / "docs/formats/native-protocol.md").read_text(encoding="utf-8")
