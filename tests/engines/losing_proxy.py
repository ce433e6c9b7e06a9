"""A proxy between client and node that, when told to, loses a request, or the answer to it, and all that comes after.

It has an address for each process of the node, and loses what comes first at any of them.

The client's connection stays open and silent until the node's is cut: so whoever stops the node then has, for certain,
a client whose request was not done, or was done without its knowing.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

WAIT_S = 60.0


class LosingProxy:
    """Listens at `address`, which is one for each process with commas between them, while it is used as a context."""

    def __init__(self, processes: int = 1) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
        self.address = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self._listeners)
        self._upstreams: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._api_key: int | None = None
        self._loses_request = False
        self._arrived = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> LosingProxy:
        for number in range(len(self._listeners)):
            self._start(self._accept, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._listeners:
            _close(each)
        self.cut()
        for thread in self._threads:
            thread.join(WAIT_S)

    def pass_on_to(self, address: str) -> None:
        """Where the node listens, in the order of its processes. To be called before any client connects."""
        parted = (each.rpartition(":") for each in address.split(","))
        self._upstreams = [(host, int(port)) for host, _, port in parted]

    def lose_answer_to(self, api_key: int) -> None:
        """Lose the answer to the next request of this kind."""
        self._lose(api_key, request=False)

    def lose_request(self, api_key: int) -> None:
        """Lose the next request of this kind: the node never sees it."""
        self._lose(api_key, request=True)

    def _lose(self, api_key: int, *, request: bool) -> None:
        with self._lock:
            self._arrived.clear()
            self._api_key, self._loses_request = api_key, request

    def wait_until_lost(self) -> None:
        """Return when such a request has come, and the node has answered it if it is the answer that is lost."""
        assert self._arrived.wait(WAIT_S), "no such request came"

    def cut(self) -> None:
        """Cut all connections."""
        for each in self._sockets:
            _close(each)

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, number: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listeners[number].accept()
                try:
                    node = socket.create_connection(self._upstreams[number])
                except OSError:
                    _close(client)
                    continue
                self._sockets += [client, node]
                connection = _Connection(client, node)
                self._start(self._requests, connection)
                self._start(self._answers, connection)

    def _requests(self, connection: _Connection) -> None:
        for frame in _frames(connection.client):
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            with self._lock:
                if api_key == self._api_key:
                    self._api_key = None
                    if self._loses_request:
                        connection.silent = True
                        self._arrived.set()
                    else:
                        connection.loses = correlation_id
            if not connection.silent:
                with suppress(OSError):
                    connection.node.sendall(frame)
        _close(connection.node)

    def _answers(self, connection: _Connection) -> None:
        lost = False
        for frame in _frames(connection.node):
            if struct.unpack_from(">i", frame, 4)[0] == connection.loses:
                lost = True
                self._arrived.set()
            if not lost:
                with suppress(OSError):
                    connection.client.sendall(frame)
        _close(connection.client)


class _Connection:
    """A client's connection and the one to the node that it has for itself."""

    def __init__(self, client: socket.socket, node: socket.socket) -> None:
        self.client, self.node = client, node
        self.loses: int | None = None
        """The correlation id of the request whose answer is lost."""
        self.silent = False
        """Whether requests are lost from now on."""


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole frames, length and all, until the connection ends."""
    received = bytearray()
    while True:
        try:
            data = source.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        received += data
        while len(received) >= 4 and len(received) >= (size := 4 + struct.unpack_from(">i", received)[0]):
            yield bytes(received[:size])
            del received[:size]


def _close(each: socket.socket) -> None:
    """Wake whoever waits for it, too."""
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
