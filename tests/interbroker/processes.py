"""Processes of one data directory, as far as their connections go: in one event loop, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Sequence

import trio

from fairlog.cluster.interface import InnerAddress
from fairlog.interbroker.handshake import Accepting, Connecting, Handshake, Identity
from fairlog.interbroker.peers import Peers
from fairlog.interbroker.serving_tools import WhileAllHold
from fairlog.interbroker.ways import Plain, Way
from fairlog_types import ShardNumber
from shard.conversation import Message

SECRET = b"s" * 32
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class Process:
    """One of them. What it receives and when it is connected can be waited for."""

    def __init__(
        self,
        directory: Directory,
        shard: int,
        *,
        cluster: str = CLUSTER,
        secret: bytes = SECRET,
        while_all_hold: WhileAllHold | None = None,
        way: Way | None = None,
    ) -> None:
        self.shard = ShardNumber(shard)
        self._directory = directory
        self._way = way or Plain()
        self._received_in, self._received = trio.open_memory_channel[tuple[ShardNumber, Message]](1000)
        self._connected_in, self._connected = trio.open_memory_channel[ShardNumber](1000)
        self._disconnected_in, self._disconnected = trio.open_memory_channel[ShardNumber](1000)
        self.peers = Peers(
            self.shard,
            cluster,
            secret,
            directory.addresses.get,
            lambda sender, message: self._received_in.send_nowait((sender, message)),
            connected=self._connected_in.send_nowait,
            disconnected=self._disconnected_in.send_nowait,
            while_all_hold=while_all_hold,
            way=way,
        )
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.address = InnerAddress("", 0)

    async def start(self, *, told: bool = True) -> None:
        """Listen on a port of its own; the others are told of it unless `told` is False."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = InnerAddress(*listeners[0].socket.getsockname()[:2], has_tls=self._way.has_tls)
        if told:
            self._directory.addresses[self.shard] = self.address
        await self._directory.nursery.start(self._run, listeners)

    async def _run(
        self, listeners: Sequence[trio.SocketListener], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self._scope:
            await self.peers.run(listeners, self._directory.shards, task_status=task_status)
        self._ended.set()

    async def stop(self) -> None:
        """As a killed process: all that it has open is closed."""
        self._scope.cancel()
        await self._ended.wait()

    async def connected(self) -> ShardNumber:
        """The next shard to which messages can be sent now."""
        return await self._connected.receive()

    async def disconnected(self) -> ShardNumber:
        """The next shard to which messages cannot be sent now."""
        return await self._disconnected.receive()

    def has_disconnected(self) -> int:
        return self._disconnected.statistics().current_buffer_used

    async def receive(self) -> tuple[ShardNumber, Message]:
        """The next message that comes, and from whom."""
        return await self._received.receive()

    def has_received(self) -> int:
        return self._received.statistics().current_buffer_used

    def has_connected(self) -> int:
        return self._connected.statistics().current_buffer_used


class Directory:
    """A data directory with so many shards."""

    def __init__(self, nursery: trio.Nursery, shards: int = 2) -> None:
        self.nursery = nursery
        self.shards = [*map(ShardNumber, range(shards))]
        self.addresses: dict[ShardNumber, InnerAddress] = {}
        """Where each listens, as its process has said last."""
        self.opened: list[trio.SocketStream | trio.SocketListener] = []
        """By the test itself."""

    def close(self) -> None:
        """All processes, and all that the test has opened."""
        self.nursery.cancel_scope.cancel()
        for each in self.opened:
            each.socket.close()

    async def listen_as(self, shard: int) -> trio.SocketListener:
        """Somebody has the shard's address who is no Process."""
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        self.opened.append(listener)
        self.addresses[ShardNumber(shard)] = InnerAddress(*listener.socket.getsockname()[:2])
        return listener

    async def accept(self, listener: trio.SocketListener) -> Recorded:
        recorded = Recorded(await listener.accept())
        self.opened.append(recorded.stream)
        return recorded

    async def accept_as(self, shard: int, listener: trio.SocketListener) -> tuple[Recorded, bytes]:
        """A connection that somebody who knows the secret has accepted, and its key."""
        recorded = await self.accept(listener)
        own = Identity(ShardNumber(shard), CLUSTER, SECRET)
        return recorded, await recorded.shake_hands(Accepting(own, self.shards, b"\x22" * 32))

    async def connect(self, to: Process) -> Recorded:
        recorded = Recorded(await trio.open_tcp_stream(to.address.host, to.address.port))
        self.opened.append(recorded.stream)
        return recorded

    async def connect_as(self, shard: int, to: Process) -> tuple[Recorded, bytes]:
        """A connection of somebody who knows the secret, and its key."""
        recorded = await self.connect(to)
        own = Identity(ShardNumber(shard), CLUSTER, SECRET)
        return recorded, await recorded.shake_hands(Connecting(own, to.shard, b"\x11" * 32))


class Recorded:
    """A connection on which a test speaks for itself, and what it has sent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.sent = b""

    async def send(self, data: bytes) -> None:
        self.sent += data
        await self.stream.send_all(data)

    async def receive_exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = await self.stream.receive_some(size - len(received))
            assert more, "the connection has ended"
            received += more
        return received

    async def shake_hands(self, handshake: Handshake) -> bytes:
        """The key for the frames."""
        await self.send(handshake.begin())
        while handshake.expects:
            await self.send(handshake.hear(await self.receive_exactly(handshake.expects)))
        assert handshake.session_key is not None
        return handshake.session_key

    def has_ended(self) -> bool:
        """Whether the other side has closed it by now; what has come is thrown away."""
        try:
            while os.read(self.stream.socket.fileno(), 1000):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    async def is_closed(self) -> bool:
        """Wait until the other side has closed it; what comes before that is thrown away."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
        return True
