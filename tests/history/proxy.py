"""A proxy between clients and the node that does to EndTxn and Produce what networks do: late, twice, out of order.

It knows of the protocol only where a request ends (its length) and what it is (its API key). Each client connection has
one of its own to the node. A request that is chosen meets one of these:

    DELAY    it waits for a while, and all behind it on this connection
    LATE     the client's connection is cut; the request reaches the node a while later, on the old connection. By then
             the client has connected again and repeated it, and perhaps gone on to its next transaction: so it is both
             a duplicate and out of order, across connections (KAFKA-17754)
    TWICE    the request reaches the node at once, but its answer never the client, whose connection is cut: so it
             repeats what was done

All three can happen without any proxy, to packets in a network and to a process that is not scheduled. What cannot, a
request of an old connection that arrives on a newer one, it does not do.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import trio

PRODUCE, END_TXN = 0, 26
LATE_MAX_S = 1.0
DELAY_MAX_S = 0.3
_CHUNK_BYTES = 1 << 16


class Meddling(Enum):
    """What a request meets."""

    DELAY = "delay"
    LATE = "late"
    TWICE = "twice"


@dataclass(slots=True)
class Proxy:
    """Listens on a port of its own from `start` to `stop`, in a thread of its own."""

    seed: int
    share: float = 0.02
    """Of the requests that may be chosen, how many are."""
    upstream: tuple[str, int] | None = None
    """The node; known once it has started."""
    counts: Counter[Meddling] = field(default_factory=Counter[Meddling])
    port: int = 0
    _meddles: bool = True
    _held: int = 0
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _connections: set[_Connection] = field(default_factory=set)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve, ready), name="proxy", daemon=True)
        self._thread.start()
        assert ready.wait(10), "the proxy does not start"

    def stop(self) -> None:
        if self._thread is not None:
            self._soon(self._scope.cancel)
            self._thread.join(10)

    def cut_all(self) -> None:
        """Cut all connections, on both sides."""
        self._soon(lambda: [connection.cut() for connection in list(self._connections)])

    def settle(self) -> None:
        """Meddle no more."""
        self._meddles = False

    @property
    def settled(self) -> bool:
        """Whether nothing is held back any more."""
        return not self._meddles and not self._held

    def _soon(self, call: object) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)  # type: ignore[arg-type]

    async def _serve(self, ready: threading.Event) -> None:
        rng = random.Random(self.seed)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        self._token = trio.lowlevel.current_trio_token()
        ready.set()

        async def handle(client: trio.SocketStream) -> None:
            await _Connection(self, client, random.Random(rng.random())).run()

        with self._scope:
            await trio.serve_listeners(handle, listeners)

    def chosen(self, rng: random.Random, api_key: int) -> Meddling | None:
        if not self._meddles or api_key not in (PRODUCE, END_TXN) or rng.random() >= self.share:
            return None
        meddling = rng.choice(list(Meddling))
        self.counts[meddling] += 1
        return meddling

    def hold(self, change: int) -> None:
        self._held += change


class _Connection:
    """A client's connection and the one to the node that it has for itself."""

    def __init__(self, proxy: Proxy, client: trio.SocketStream, rng: random.Random) -> None:
        self._proxy, self._client, self._rng = proxy, client, rng
        self._scope = trio.CancelScope()

    def cut(self) -> None:
        self._scope.cancel()

    async def run(self) -> None:
        assert self._proxy.upstream is not None
        self._proxy._connections.add(self)
        try:
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                async with self._client, await trio.open_tcp_stream(*self._proxy.upstream) as node:
                    with self._scope:
                        await self._join(node)
        finally:
            self._proxy._connections.discard(self)

    async def _join(self, node: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:

            async def answers() -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for data in node:
                        await self._client.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(answers)
            late = None
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                late = await self._requests(node)
            nursery.cancel_scope.cancel()
        if late is not None:
            await self._deliver_late(node, late)

    async def _requests(self, node: trio.SocketStream) -> bytes | None:
        """Pass requests on until one is to be late, and answer that. Empty: passed on, and its answer is lost."""
        received = bytearray()
        async for data in self._client:
            received += data
            while len(received) >= 6 and len(received) >= (size := 4 + struct.unpack_from(">i", received)[0]):
                request = bytes(received[:size])
                del received[:size]
                meddling = self._proxy.chosen(self._rng, struct.unpack_from(">h", request, 4)[0])
                if meddling is Meddling.LATE:
                    return request
                if meddling is Meddling.DELAY:
                    await trio.sleep(self._rng.uniform(0, DELAY_MAX_S))
                await node.send_all(request)
                if meddling is Meddling.TWICE:
                    return b""
        return None

    async def _deliver_late(self, node: trio.SocketStream, request: bytes) -> None:
        """The client is gone; the request is still under way. Its answer reaches nobody."""
        self._proxy.hold(1)
        try:
            await self._client.aclose()
            if request:
                await trio.sleep(self._rng.uniform(0.01, LATE_MAX_S))
                await node.send_all(request)
            with trio.move_on_after(LATE_MAX_S):
                await node.receive_some(_CHUNK_BYTES)
        finally:
            self._proxy.hold(-1)
