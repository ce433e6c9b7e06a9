"""Links between brokers, and from clients to brokers, that can be cut and joined: proxies in front of each broker.

Every address that a broker advertises is a proxy's. The proxy reads who calls from the client id in the first
request's header: brokers of Kafka have their number in it (`broker-1-fetcher-0`, `raft-client-1`, `1`), and nodes of
Fairlog theirs (`fairlog-NAME.node-1`); everybody else is a client. Over a link that is cut nothing passes, in both
directions, and nothing ends: connections stay open and silent, as when a network loses packets. What was on its way
arrives when the link is joined. New connections are accepted, and are silent as well.

One thread runs all of them, in a trio loop of its own.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import trio

CLIENT = 0
"""Who calls, if it is neither a broker nor a node."""

_CHUNK_BYTES = 1 << 16
_NODE = re.compile(r"fairlog-.*\.node-(\d+)$")
_BROKER = re.compile(r"(?:broker-(\d+)-|raft-client-(\d+)$|(\d+)$)")
_JOIN_S = 30.0


def node(number: int) -> int:
    """Who calls, if it is this node of a Fairlog cluster, of whichever."""
    return -number


class Links:
    """The proxies of one cluster. `start` before the brokers; `close` after them."""

    def __init__(self, brokers: range, listeners: tuple[str, ...]) -> None:
        """A proxy for each of the `brokers` (their node ids) and each of its `listeners` (their names)."""
        self._sockets = {
            (broker, listener): socket.create_server(("127.0.0.1", 0), backlog=128)
            for broker in brokers
            for listener in listeners
        }
        self._brokers = brokers
        self._upstreams: dict[tuple[int, str], int] = {}
        self._cut: set[tuple[int, int]] = set()
        self._changed = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._running = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), name="links", daemon=True)

    def port(self, broker: int, listener: str) -> int:
        """Where others reach this listener."""
        return self._sockets[broker, listener].getsockname()[1]

    def start(self, upstreams: Mapping[tuple[int, str], int]) -> None:
        """Pass on to these ports: one for each (broker, listener)."""
        self._upstreams = dict(upstreams)
        self._thread.start()
        self._running.wait()

    def cut(self, one: int, other: int) -> None:
        """Cut the link between two brokers, or CLIENT or a `node` and a broker, whoever of them calls."""
        self._change(lambda: self._cut.update({(one, other), (other, one)}))

    def isolate(self, broker: int, *, also: Literal["clients", "nobody"] = "nobody") -> None:
        """Cut all links of this broker to other brokers; with "clients", to clients too."""
        for other in self._brokers:
            if other != broker:
                self.cut(broker, other)
        if also == "clients":
            self.cut(CLIENT, broker)

    def join(self, one: int, other: int) -> None:
        """Join a link that was cut."""
        self._change(lambda: self._cut.difference_update({(one, other), (other, one)}))

    def join_all(self) -> None:
        """Join all links that are cut."""
        self._change(self._cut.clear)

    def close(self) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
            self._thread.join(_JOIN_S)
        for each in self._sockets.values():
            each.close()

    def _change(self, change: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            change()
            self._changed.set()
            self._changed = trio.Event()
            done.set()

        assert self._token is not None, "the links were never started"
        self._token.run_sync_soon(run)
        done.wait(_JOIN_S)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                for (broker, listener), server in self._sockets.items():
                    server.setblocking(False)
                    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(server))
                    nursery.start_soon(self._accept, nursery, accepting, broker, self._upstreams[broker, listener])
                self._running.set()

    async def _accept(self, nursery: trio.Nursery, listener: trio.SocketListener, broker: int, upstream: int) -> None:
        while True:
            caller = await listener.accept()
            nursery.start_soon(self._connection, caller, broker, upstream)

    async def _connection(self, caller: trio.SocketStream, broker: int, upstream: int) -> None:
        async with caller:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                first, who = await _first_request(caller)
                await self._joined(who, broker)
                callee = await trio.open_tcp_stream("127.0.0.1", upstream)
                async with callee:
                    await callee.send_all(first)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, caller, callee, (who, broker), nursery.cancel_scope)
                        nursery.start_soon(self._pump, callee, caller, (who, broker), nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, link: tuple[int, int], scope: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(_CHUNK_BYTES):
                await self._joined(*link)
                await sink.send_all(data)
            await self._joined(*link)
        scope.cancel()

    async def _joined(self, who: int, broker: int) -> None:
        while (who, broker) in self._cut:
            await self._changed.wait()


async def _first_request(caller: trio.SocketStream) -> tuple[bytes, int]:
    """What has come when the first request's header is whole, and who sent it: a broker, a `node`, or CLIENT."""
    received = b""
    while len(received) < 14 or len(received) < 14 + max(0, _client_id_bytes(received)):
        data = await caller.receive_some(_CHUNK_BYTES)
        if not data:
            raise trio.BrokenResourceError
        received += data
    client_id = received[14 : 14 + max(0, _client_id_bytes(received))].decode("utf-8", errors="replace")
    if (of_node := _NODE.match(client_id)) is not None:
        return received, node(int(of_node[1]))
    match = _BROKER.match(client_id)
    return received, int(next(filter(None, match.groups()))) if match else CLIENT


def _client_id_bytes(request: bytes) -> int:
    """size int32, api key int16, version int16, correlation id int32, then the client id's length as int16."""
    return struct.unpack_from(">h", request, 12)[0]
