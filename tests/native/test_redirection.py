"""Spark's client is sent to the broker of a sink, or to one that takes cuts: against peers of a few lines."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import cbor2
import pytest

from pyspark_fairlog.native import REDIRECTED_MAX, Native, NativeError, Topics


class Peer:
    """Serves one connection behind the other; `elsewhere` is whom it names, None: it carries out what it is asked."""

    def __init__(self) -> None:
        self.elsewhere: Peer | None = None
        self.is_cut_off = False
        """It hangs up when it is asked anything."""
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
                        if self.is_cut_off:
                            break
                        answer: list[object] = [number, "ok", {"partitions": []} if op == "cut" else {}]
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


def test_cuts_and_sinks_may_be_at_different_brokers(new_peer: Callable[[], Peer]) -> None:
    """Where one of them is says nothing about the others."""
    first, second, third = new_peer(), new_peer(), new_peer()
    with Native.connect(f"{first.host}:{first.port}", timeout_s=5) as native:
        first.elsewhere = second
        assert native.cut(Topics(("t",))) == []
        first.elsewhere = third
        native.forget("totals")
        assert native.cut(Topics(("t",))) == []
    assert (first.asked, second.asked, third.asked) == (["cut", "forget"], ["cut", "cut"], ["forget"])


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
    """It may be another one by then."""
    first, second = new_peer(), new_peer()
    first.elsewhere = second
    second.close()
    with Native.connect(f"{first.host}:{first.port}", timeout_s=5) as native:
        with pytest.raises(ConnectionError, match=f"cannot reach 127.0.0.1:{second.port}"):
            native.forget("totals")
        assert not native.is_idle


def asked_until_answered(peers: Sequence[Peer], tries: int) -> None:
    """Over a new connection each time: the last one of so many tries is answered, and no other."""
    bootstrap = ",".join(f"{peer.host}:{peer.port}" for peer in peers)
    for tries_left in reversed(range(tries)):
        with Native.connect(bootstrap, timeout_s=5) as native:
            if tries_left:
                with pytest.raises(ConnectionError):
                    native.cut(Topics(("t",)))
            else:
                assert native.cut(Topics(("t",))) == []


def test_who_connects_anew_begins_behind_the_broker_that_hung_up(new_peer: Callable[[], Peer]) -> None:
    """It goes round the list, and stays with the one that answers."""
    first, second, third = peers = new_peer(), new_peer(), new_peer()
    first.is_cut_off = second.is_cut_off = True
    asked_until_answered(peers, 3)
    asked_until_answered(peers, 1)
    assert [len(peer.asked) for peer in peers] == [1, 1, 2]
    first.is_cut_off, third.is_cut_off = False, True
    asked_until_answered(peers, 2)
    assert [len(peer.asked) for peer in peers] == [2, 1, 3]


def test_node_whose_other_port_hangs_up_is_passed_by(new_peer: Callable[[], Peer]) -> None:
    """The first port of a node that is cut off sends clients to the node's own port of a shard."""
    door, port, other = new_peer(), new_peer(), new_peer()
    door.elsewhere = port
    port.is_cut_off = True
    asked_until_answered([door, other], 2)
    assert [len(peer.asked) for peer in (door, port, other)] == [1, 1, 1]
