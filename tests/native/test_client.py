"""Spark's client against a broker in memory, and against peers that are none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import cbor2
import pytest
import trio

from coordinator.lane_ids import is_lane
from pyspark_fairlog.native import (
    Committed,
    CutPartition,
    Native,
    NativeError,
    NoAnswerYet,
    Offsets,
    Partitions,
    Placement,
    TopicPattern,
    Topics,
)

T = TypeVar("T")
BATCH = {"sink": "totals", "query": "q", "run": "r", "batch": 0}


async def with_client(server, work: Callable[[Native], T]) -> T:
    """Let `work` use a client, in a thread."""

    def connected() -> T:
        host, port = server.address
        with Native.connect(f"{host}:{port}", timeout_s=5) as native:
            return work(native)

    return await trio.to_thread.run_sync(connected)


async def test_batch_goes_through_the_client(server):
    """join, commit, commit again, join again; offsets with it."""

    def work(native: Native) -> None:
        assert is_lane(native.join(**BATCH, partition=0, attempt=0) or "")
        offsets = Offsets("spark", (("orders", 0, 17),))
        placed = (Placement("orders", 0, 0, 5),)
        assert native.commit(**BATCH, winners=[(0, 0, 5)], offsets=offsets) == Committed(False, placed)
        assert native.commit(**BATCH, winners=[(0, 0, 5)], offsets=offsets) == Committed(True, placed)
        assert native.join(**BATCH, partition=0, attempt=0) is None
        (sink,) = native.sinks()
        assert (sink.sink, sink.query, sink.run, sink.batch, sink.placements) == ("totals", "q", None, 0, placed)
        native.abort(sink="totals", query="q", run="r", batch=1)
        native.forget("totals")
        assert native.sinks() == []

    await with_client(server, work)


async def test_cuts_are_sorted_and_match_whole_names(server, memory):
    """By names, by a pattern (the client's own matching), by partitions."""
    memory.topics.create_now("orders-eu")

    def work(native: Native) -> None:
        def names(selection: Topics | TopicPattern | Partitions, **more: object) -> list[tuple[str, int]]:
            return [(it.topic, it.partition) for it in native.cut(selection, **more)]

        assert native.topics() == {"orders": 2, "orders-eu": 1, "totals": 1}
        assert names(Topics(("totals", "orders"))) == [("orders", 0), ("orders", 1), ("totals", 0)]
        assert names(TopicPattern("orders")) == [("orders", 0), ("orders", 1)]
        assert names(TopicPattern("orders.*|nothing")) == [("orders", 0), ("orders", 1), ("orders-eu", 0)]
        assert names(TopicPattern("nothing")) == []
        assert names(Partitions((("orders", 1),)), starts=[("orders", 1, 0)], limit=5) == [("orders", 1)]
        topic_id = memory.log("orders", 1).topic
        assert native.cut(Partitions((("orders", 1),))) == [CutPartition("orders", 1, 0, 0, 0, topic_id)]
        with pytest.raises(ValueError, match=r"'[(]' is no regular expression"):
            native.cut(TopicPattern("("))

    await with_client(server, work)


async def test_topic_deleted_between_list_and_cut_is_no_error(server, memory, monkeypatch):
    """The pattern is matched anew; a topic that is asked for by its name stays one."""
    listed = iter([{"orders": 2, "gone": 1}, {"orders": 2}])

    def work(native: Native) -> None:
        monkeypatch.setattr(Native, "topics", lambda _self: next(listed))
        assert len(native.cut(TopicPattern(".*"))) == 2
        with pytest.raises(NativeError) as refused:
            native.cut(Topics(("gone",)))
        assert (refused.value.kind, refused.value.sentence) == ("unknown-topic", "there is no topic gone")
        assert str(refused.value) == "there is no topic gone (unknown-topic)"
        assert len(native.cut(Topics(("orders",)))) == 2

    await with_client(server, work)


async def test_request_that_is_too_large_is_refused_here(server, monkeypatch):
    """And not sent: the node would close the connection."""
    monkeypatch.setattr("pyspark_fairlog.native.FRAME_BYTES_MAX", 1000)

    def work(native: Native) -> None:
        with pytest.raises(NativeError, match="at most 1000 are taken") as refused:
            native.cut(Topics(("x" * 1000,)))
        assert refused.value.kind == "bad-request"
        assert native.topics()

    await with_client(server, work)


# --- peers that are no node -----------------------------------------------------------------------------------


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that listens and does as `behave` says; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            stream, _ = listener.accept()
            with stream:
                behave(stream)

        thread = threading.Thread(target=serve)
        thread.start()
        yield "{}:{}".format(*listener.getsockname())
        thread.join()


def answering(*parts: bytes) -> Callable[[socket.socket], None]:
    """Greets, then answers each request with one of these."""

    def behave(stream: socket.socket) -> None:
        stream.recv(4)
        stream.sendall(b"FLG1")
        for part in parts:
            stream.recv(1 << 16)
            stream.sendall(part)
        stream.recv(1 << 16)

    return behave


def framed(item: object) -> bytes:
    body = cbor2.dumps(item)
    return struct.pack(">I", len(body)) + body


def closes(stream: socket.socket) -> None:
    stream.recv(4)


def waits(stream: socket.socket) -> None:
    stream.recv(4)
    stream.recv(1)


def answers_otherwise(stream: socket.socket) -> None:
    stream.recv(4)
    stream.sendall(b"HTTP")


@pytest.mark.parametrize(
    ("behave", "timeout_s", "why"),
    [
        (closes, 30, "does not answer as a Fairlog node does: the node has closed the connection"),
        (answers_otherwise, 30, r"answers b'HTTP' and not b'FLG1'"),
        (waits, 0.2, r"does not answer as a Fairlog node does: no answer within 0.2 s"),
    ],
)
def test_peer_that_is_no_node_is_told_apart(behave, timeout_s, why):
    """By a ConnectionError whose sentence says what it is about."""
    with peer(behave) as address, pytest.raises(ConnectionError, match=f"{address} {why}"):
        Native.connect(address, timeout_s=timeout_s)


def test_name_that_no_host_can_have_is_said():
    """Python's codec for host names would say it in its own words."""
    with pytest.raises(ConnectionError, match=r"^cannot reach a\.\.b:1: that is no name of a host$"):
        Native.connect("a..b:1")


def test_next_address_is_tried():
    """All that is wrong is said, if none answers."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        taken = unused.getsockname()[1]
    with peer(answering()) as address, Native.connect(f"127.0.0.1:{taken}, {address}"):
        pass
    with pytest.raises(ConnectionError, match=f"^cannot reach 127.0.0.1:{taken}: .*; cannot reach 127.0.0.1:{taken}"):
        Native.connect(f"127.0.0.1:{taken},127.0.0.1:{taken}")


@pytest.mark.parametrize("bootstrap", ["", "host:", "host:99999", "host:1:2", "a,,b", "http://host:1"])
def test_bootstrap_that_is_no_list_of_addresses_is_refused(bootstrap):
    """The sentence has the form."""
    with pytest.raises(ValueError, match="write HOST:PORT"):
        Native.connect(bootstrap)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the node has closed the connection"),
        (b"\0\0", "the node has closed the connection"),
        (struct.pack(">I", 1 << 30), "a frame of 1073741824 bytes is announced"),
        (struct.pack(">I", 1) + b"\xff", "sends no CBOR"),
        (framed([2, "ok", {}]), "has answered another request"),
        (framed([1, "ok", []]), "has answered another request"),
        (framed("what"), "has answered another request"),
        (framed([1, "ok", {}]), "the field 'topics' of the node's answer is None, and no list"),
        (framed([1, "ok", {"topics": [["t"]]}]), "a row of 'topics' in the node's answer is"),
        (framed([1, "ok", {"topics": [[1, 1]]}]), "a row of 'topics' in the node's answer is"),
    ],
)
def test_answer_that_is_none_is_a_connection_error(answer, why):
    """And the connection is of no more use where the answers may not fit the requests any more."""

    def behave(stream: socket.socket) -> None:
        stream.recv(4)
        stream.sendall(b"FLG1")
        stream.recv(1 << 16)
        stream.sendall(answer)

    with peer(behave) as address, Native.connect(address) as native, pytest.raises(ConnectionError, match=why):
        native.topics()


def test_connection_that_failed_says_so_ever_after():
    """An answer that comes late must not be taken for the next request's."""
    with peer(answering(b"")) as address, Native.connect(address) as native:
        native.answer_s = 0.2
        with pytest.raises(NoAnswerYet, match=r"topics at .*: no answer within 0.2 s"):
            native.topics()
        with pytest.raises(ConnectionError, match="is closed; connect anew"):
            native.topics()


def test_refusal_is_an_error_with_its_kind():
    """Also one that could not say which request it is about."""
    answers = framed([1, "in-use", "ask again"]), framed([None, "bad-request", "byte 0"])
    with peer(answering(*answers)) as address, Native.connect(address) as native:
        with pytest.raises(NativeError, match=r"ask again \(in-use\)"):
            native.forget("s")
        with pytest.raises(NativeError, match=r"byte 0 \(bad-request\)"):
            native.forget("s")
