"""`fairlog sink …`: what is asked, what is shown, and what is refused; against a node of a few lines."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cbor2
import pytest

Fairlog = Callable[..., tuple[int, str, str]]

TOTALS = {
    "sink": "totals",
    "query": "b7a4f5d0",
    "run": "5c1e",
    "batch": 41,
    "placements": [["orders", 0, 120, 5], ["orders", 1, 80, 1]],
    "open_lanes": ["fairlog.lane.0.totals"],
    "used_ms": 1_760_000_000_000,
}
NEW = {"sink": "new", "query": "q", "run": None, "batch": None, "placements": [], "open_lanes": [], "used_ms": 0}


class FakeNode:
    """Greets, then answers each request with what `answer` makes of it; bytes are sent as they are."""

    def __init__(self, answer: Callable[[Any], Any], greeting: bytes) -> None:
        self.requests: list[Any] = []
        self._answer, self._greeting = answer, greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return
        with stream, stream.makefile("rb") as reading:
            assert reading.read(4) == b"FLG1"
            stream.sendall(self._greeting)
            if not self._greeting:
                return
            while len(length := reading.read(4)) == 4:
                request = cbor2.loads(reading.read(int.from_bytes(length, "big")))
                self.requests.append(request[1:])
                answer = self._answer(request)
                if isinstance(answer, bytes):
                    stream.sendall(answer)
                    return
                body = cbor2.dumps(answer)
                stream.sendall(struct.pack(">I", len(body)) + body)


StartNode = Callable[..., FakeNode]


@pytest.fixture
def start_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartNode]:
    """Starts a fake node, which the commands find by FAIRLOG_BOOTSTRAP."""
    nodes: list[FakeNode] = []

    def start(answer: Callable[[Any], Any] = lambda _request: b"", greeting: bytes = b"FLG1") -> FakeNode:
        nodes.append(FakeNode(answer, greeting))
        monkeypatch.setenv("FAIRLOG_BOOTSTRAP", nodes[-1].address)
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def sinks(*found: dict[str, object]) -> Callable[[Any], Any]:
    return lambda request: [request[0], "ok", {"sinks": list(found)}]


def test_sink_list_shows_whose_each_is_and_how_far(start_node: StartNode, fairlog: Fairlog) -> None:
    """A line for each; what is not there yet is a dash."""
    node = start_node(sinks(NEW, TOTALS))
    code, out, err = fairlog("sink", "list")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[1][:4] == ["new", "q", "-", "0"]
    assert rows[2] == ["totals", "b7a4f5d0", "41", "1", "2025-10-09", "08:53:20", "UTC"]
    assert node.requests == [["sinks", {}]]


def test_sink_list_without_sinks_says_so(start_node: StartNode, fairlog: Fairlog) -> None:
    """And not an empty table."""
    start_node(sinks())
    assert fairlog("sink", "list") == (0, "there are no sinks\n", "")


def test_sink_list_as_json_has_every_field(start_node: StartNode, fairlog: Fairlog) -> None:
    """For programs."""
    start_node(sinks(TOTALS))
    code, out, _ = fairlog("sink", "list", "--json")
    placements = [
        {"topic": "orders", "partition": 0, "base_offset": 120, "count": 5},
        {"topic": "orders", "partition": 1, "base_offset": 80, "count": 1},
    ]
    assert (code, json.loads(out)) == (0, [TOTALS | {"placements": placements}])


def test_sink_describe_shows_where_the_last_batch_is(start_node: StartNode, fairlog: Fairlog) -> None:
    """Its query and run, its writers, and the places."""
    start_node(sinks(NEW, TOTALS))
    code, out, err = fairlog("sink", "describe", "totals")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["query", "b7a4f5d0"] in rows
    assert ["last", "batch", "41"] in rows
    assert ["open", "lanes", "fairlog.lane.0.totals"] in rows
    assert ["orders", "0", "120", "124", "5"] in rows


def test_sink_describe_before_the_first_batch_shows_no_places(start_node: StartNode, fairlog: Fairlog) -> None:
    """There are none."""
    start_node(sinks(NEW))
    code, out, _ = fairlog("sink", "describe", "new")
    assert (code, "first offset" in out, out.splitlines()[2].split()) == (0, False, ["run", "-"])


def test_sink_describe_of_an_unknown_one_is_refused(start_node: StartNode, fairlog: Fairlog) -> None:
    """By its name."""
    start_node(sinks(TOTALS))
    assert fairlog("sink", "describe", "total") == (1, "", "fairlog: there is no sink total\n")


def test_sink_forget_asks_for_that_one(start_node: StartNode, fairlog: Fairlog) -> None:
    """And says what it means."""
    node = start_node(lambda request: [request[0], "ok", {}])
    code, out, err = fairlog("sink", "forget", "totals")
    assert (code, err, node.requests) == (0, "", [["forget", {"sink": "totals"}]])
    assert out == "totals is deleted: the next query that writes to it starts anew\n"


@pytest.mark.parametrize("kind", ["in-use", "unknown-sink", "storage"])
def test_refusal_of_the_node_is_shown_as_it_is(start_node: StartNode, fairlog: Fairlog, kind: str) -> None:
    """The sentence is the node's."""
    start_node(lambda request: [request[0], kind, "what, and what to do"])
    assert fairlog("sink", "forget", "totals") == (1, "", "fairlog: what, and what to do\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection"),
        (b"\0\0", "closed the connection"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"\0\0\0\x01\xff", "is not CBOR"),
        ([7, "ok", {}], "sent an answer that does not belong to the request"),
        ("what", "sent an answer that does not belong to the request"),
        ([1, "ok", {"sinks": [{"sink": "s"}]}], "unexpected answer, expected a list of sinks"),
        ([1, "ok", {"sinks": [], "others": [[2, "host"]]}], "unexpected answer, expected a broker's id, host and port"),
        ([1, "ok", {"sinks": [TOTALS | {"placements": [["orders"]]}]}], "unexpected answer, expected a list of sinks"),
    ],
)
def test_answer_that_is_none_is_one_sentence(start_node: StartNode, fairlog: Fairlog, answer: object, why: str) -> None:
    """Not a traceback."""
    start_node(lambda _request: answer)
    code, out, err = fairlog("sink", "list")
    assert (code, out, why in err, err.count("\n")) == (1, "", True, 1), err


@pytest.mark.parametrize("greeting", [b"", b"HTTP", b"FLG2"])
def test_broker_that_is_no_node_is_told_apart(start_node: StartNode, fairlog: Fairlog, greeting: bytes) -> None:
    """Kafka closes the connection; others say something else."""
    start_node(greeting=greeting)
    code, _, err = fairlog("sink", "list")
    assert (code, "Fairlog node" in err) == (1, True), err


def test_broker_that_is_not_there_is_one_sentence(fairlog: Fairlog) -> None:
    """With the address."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    code, _, err = fairlog("sink", "list", "--bootstrap", f"127.0.0.1:{port}")
    assert (code, f"cannot reach a broker at 127.0.0.1:{port}" in err) == (1, True)
