"""Spark's client is sent to the broker of a sink: against peers of a few lines."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import cbor2
import pytest

from pyspark_fairlog.native import REDIRECTED_MAX, Native, NativeError


class Peer:
    """Serves one connection behind the other; `elsewhere` is whom it names, None: it carries out what it is asked."""

    def __init__(self) -> None:
        self.elsewhere: Peer | None = None
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._stream: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def hang_up(self) -> None:
        assert self._stream is not None
        self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self._stream, _ = self._listener.accept()
                with self._stream as stream, stream.makefile("rb") as reading:
                    stream.sendall(reading.read(4))
                    while len(length := reading.read(4)) == 4:
                        number, op, _ = cbor2.loads(reading.read(struct.unpack(">I", length)[0]))
                        self.asked.append(op)
                        answer: list[object] = [number, "ok", {}]
                        if self.elsewhere is not None:
                            there = {"host": self.elsewhere.host, "port": self.elsewhere.port}
                            answer = [number, "not-coordinator", "elsewhere", there]
                        body = cbor2.dumps(answer)
                        stream.sendall(struct.pack(">I", len(body)) + body)


@pytest.fixture
def new_peer() -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def new() -> Peer:
        peers.append(Peer())
        return peers[-1]

    yield new
    for peer in peers:
        peer.close()


def test_later_requests_about_the_sink_go_to_its_broker(new_peer: Callable[[], Peer]) -> None:
    """The first one is asked once. When the other connection breaks, the client is of no more use."""
    first, second = new_peer(), new_peer()
    first.elsewhere = second
    with Native.connect(f"{first.host}:{first.port}", timeout_s=5) as native:
        for _ in range(3):
            native.forget("totals")
        assert (first.asked, second.asked) == (["forget"], ["forget"] * 3)
        assert native.is_idle
        second.hang_up()
        with pytest.raises(ConnectionError):
            native.forget("totals")
        assert not native.is_idle


def test_client_is_not_sent_on_without_end(new_peer: Callable[[], Peer]) -> None:
    """Two brokers that each name the other one are asked so often."""
    first, second, third = new_peer(), new_peer(), new_peer()
    first.elsewhere, second.elsewhere, third.elsewhere = second, third, second
    with (
        Native.connect(f"{first.host}:{first.port}", timeout_s=5) as native,
        pytest.raises(NativeError) as refused,
    ):
        native.forget("totals")
    assert refused.value.kind == "not-coordinator"
    assert len(first.asked) + len(second.asked) + len(third.asked) == REDIRECTED_MAX + 1


def test_broker_that_cannot_be_reached_is_asked_for_anew(new_peer: Callable[[], Peer]) -> None:
    """It may be another one by then: whoever asks again begins with the first address."""
    first, second = new_peer(), new_peer()
    first.elsewhere = second
    second.close()
    with Native.connect(f"{first.host}:{first.port}", timeout_s=5) as native:
        with pytest.raises(ConnectionError, match=f"cannot reach 127.0.0.1:{second.port}"):
            native.forget("totals")
        assert not native.is_idle
