"""A kept connection is used again while it is sound, by one at a time; else another is made."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import cast

import cbor2
import pytest

from fairlog_client_security import ClientSecurity
from pyspark_fairlog import connections
from pyspark_fairlog.connections import IDLE_S, borrowed, close_all
from pyspark_fairlog.native import PREAMBLE, Native


class FakeNative:
    def __init__(self) -> None:
        self.is_idle = True
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.is_idle = False


class Fakes:
    """Makes connections, and says what time it is."""

    def __init__(self) -> None:
        self.made: list[FakeNative] = []
        self.now_s = 0.0

    def connect(self, bootstrap: str, security: ClientSecurity) -> Native:
        self.made.append(FakeNative())
        return cast("Native", self.made[-1])

    def borrow(self, bootstrap: str = "here:1") -> AbstractContextManager[Native]:
        return borrowed(bootstrap, connect=self.connect, clock=lambda: self.now_s)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    monkeypatch.setattr(connections, "_kept", {})
    return Fakes()


def test_sound_connection_is_used_again_for_its_own_nodes_only(fakes: Fakes) -> None:
    """One for each list of nodes."""
    for bootstrap in ("here:1", "here:1", "there:2", "here:1"):
        with fakes.borrow(bootstrap):
            pass
    assert [native.closed for native in fakes.made] == [False, False]


def test_connection_that_the_node_has_closed_is_not_used_again(fakes: Fakes) -> None:
    """It is closed on this side, too."""
    with fakes.borrow():
        pass
    fakes.made[0].is_idle = False
    with fakes.borrow() as native:
        assert native is cast("object", fakes.made[1])
    assert [native.closed for native in fakes.made] == [True, False]


def test_connection_that_broke_while_it_was_borrowed_is_not_kept(fakes: Fakes) -> None:
    """Whoever asks again connects anew."""

    def ask() -> None:
        with fakes.borrow():
            fakes.made[0].is_idle = False
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        ask()
    assert fakes.made[0].closed
    with fakes.borrow():
        pass
    assert [native.closed for native in fakes.made] == [True, False]


def test_connection_whose_answer_makes_no_sense_is_not_kept(fakes: Fakes) -> None:
    """It looks sound, since the answer was read to its end; but who has sent it is no node, or of another release."""
    with pytest.raises(ConnectionError), fakes.borrow():
        raise ConnectionError("the field 'already' of the node's answer is 3, and no bool")
    assert fakes.made[0].closed


def test_connection_that_was_idle_for_long_is_not_used_again(fakes: Fakes) -> None:
    """A firewall may have forgotten it, which cannot be seen."""
    for passed_s in (0, IDLE_S, IDLE_S + 1):
        fakes.now_s += passed_s
        with fakes.borrow():
            pass
    assert [native.closed for native in fakes.made] == [True, False]


def test_two_who_ask_at_once_have_a_connection_each_and_one_is_kept(fakes: Fakes) -> None:
    """What is borrowed is nobody else's."""
    with fakes.borrow() as first, fakes.borrow() as second:
        assert first is not second
    assert sorted(native.closed for native in fakes.made) == [False, True]


def test_child_of_a_fork_does_not_use_its_parents_connection(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests and its parent's would mix. Nor does it close what is its parent's."""
    with fakes.borrow():
        pass
    parent = os.getpid()
    monkeypatch.setattr(connections.os, "getpid", lambda: parent + 1)
    close_all()
    with fakes.borrow():
        pass
    assert [native.closed for native in fakes.made] == [False, False]


@pytest.fixture
def node() -> Iterator[tuple[str, list[socket.socket]]]:
    """A listener that greets, and answers each request with nothing; its address, and the connections it has."""
    streams: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            streams.append(stream)
            threading.Thread(target=converse, args=(stream,)).start()

    def converse(stream: socket.socket) -> None:
        stream.sendall(stream.recv(len(PREAMBLE)))
        while head := stream.recv(4):
            number, _, _ = cbor2.loads(stream.recv(struct.unpack(">I", head)[0]))
            body = cbor2.dumps([number, "ok", {"topics": []}])
            stream.sendall(struct.pack(">I", len(body)) + body)
        stream.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", streams
        listener.shutdown(socket.SHUT_RDWR)
    accepting.join()
    close_all()


def test_real_connection_is_idle_between_requests_and_not_behind_the_nodes_end(
    node: tuple[str, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a node's side is seen without asking it."""
    monkeypatch.setattr(connections, "_kept", {})
    address, streams = node
    for _ in range(3):
        with borrowed(address) as native:
            assert native.topics() == {}
    assert len(streams) == 1
    streams[0].shutdown(socket.SHUT_RDWR)
    with borrowed(address) as native:
        assert native.topics() == {}
    assert len(streams) == 2
    assert native.is_idle
    native.close()
    assert not native.is_idle
