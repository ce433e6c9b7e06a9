"""A broker in memory that speaks the native protocol, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio

from fairlog.kafka.server import Server
from fairlog.native.protocol import NativeProtocol
from tests.kafka.in_memory import Memory
from tests.native.sinks_in_memory import MemorySinks
from tests.native.talking import Talker


@pytest.fixture
def memory() -> Memory:
    memory = Memory(coordinator=MemorySinks())
    memory.topics.create_now("orders", partitions=2)
    memory.topics.create_now("totals")
    memory.coordinator.logs = [memory.log("orders", 0), memory.log("totals", 0)]
    return memory


@pytest.fixture
async def server(memory: Memory, nursery: trio.Nursery) -> AsyncIterator[Server]:
    """Kafka's listener, with the native protocol as its guest. Has `address`."""
    native = NativeProtocol(memory.broker)
    server = Server(memory.broker, [native])
    server.native = native
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, listeners)
    server.address = listeners[0].socket.getsockname()[:2]
    yield server
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
