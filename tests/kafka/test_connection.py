"""Connections: order, pipelining, and what happens to those who do wrong, and to those who go."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client
from fairlog.kafka.connection import IN_FLIGHT_MAX, Connection
from fairlog_types import CorruptStorage
from tests.kafka.serving import FRAME_BYTES_MAX, EchoRouter, Peer, framed

# --- order and pipelining --------------------------------------------------------------------------


async def test_requests_are_answered_in_order(peer):
    """An answer that is ready waits for those in front of it."""
    await peer.send(b"one", b"wait two", b"ready three", b"wait four", b"ready five")
    assert await peer.receive() == b"one"
    await trio.testing.wait_all_tasks_blocked()
    assert peer.router.started == [b"one", b"wait two", b"ready three", b"wait four", b"ready five"]
    peer.router.gate.set()
    assert [await peer.receive() for _ in range(4)] == [b"<wait two>", b"ready three", b"<wait four>", b"ready five"]


@pytest.mark.parametrize("first", [b"wait", b"alone"])
@pytest.mark.parametrize("second", [b"wait", b"alone", b"other"])
async def test_request_is_started_when_those_before_it_are_answered(peer, first, second):
    """So it sees what they have done; those that may overlap each other are started at once."""
    await peer.send(first, second)
    await trio.testing.wait_all_tasks_blocked()
    assert peer.router.started == ([first, second] if first == second == b"wait" else [first])
    peer.router.gate.set()
    assert await peer.receive() == b"<%s>" % first
    assert await peer.receive() == (second if second == b"other" else b"<%s>" % second)


async def test_request_that_overlaps_waits_for_the_ones_that_do_not(peer):
    """Of four requests the third waits for the first two, and the last one for it."""
    peer.router.finished = steps = peer.router.started
    requests = [b"wait 1", b"wait 2", b"alone 3", b"wait 4"]
    await peer.send(*requests)
    await trio.testing.wait_all_tasks_blocked()
    assert steps == [b"wait 1", b"wait 2"]
    peer.router.gate.set()
    assert [await peer.receive() for _ in requests] == [b"<%s>" % each for each in requests]
    assert steps == [*requests[:2] * 2, b"alone 3", b"alone 3", b"wait 4", b"wait 4"]


async def test_large_request_takes_no_room_before_its_turn(nursery, autojump_clock):
    """A Fetch may wait for minutes. Of what was sent after it no more than the beginning is read meanwhile."""
    budget = FrameBudget()
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    connection = Connection(
        ours, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=budget, answers=AnswerBudget()
    )
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    free = budget.free
    nursery.start_soon(peer.send, b"alone", bytes(FRAME_BYTES_MAX))
    await trio.sleep(3600)
    assert (router.started, budget.free) == ([b"alone"], free)
    router.gate.set()
    assert await peer.receive() == b"<alone>"
    assert len(await peer.receive()) == FRAME_BYTES_MAX


async def test_connection_stopped_starts_no_request_that_waits_for_its_turn(peer):
    """What was not started is as good as not sent."""
    await peer.send(b"alone", b"too late")
    await trio.testing.wait_all_tasks_blocked()
    peer.connection.stop()
    peer.router.gate.set()
    assert [await peer.receive() for _ in range(2)] == [b"<alone>", None]
    assert peer.router.started == [b"alone"]


async def test_request_without_an_answer_is_skipped(peer):
    """acks=0: nothing comes, and the next answer is the next request's; each has its line in the log at debug."""
    with capture_logs() as lines:
        await peer.send(b"none", b"one", b"none", b"two")
        assert [await peer.receive() for _ in range(2)] == [b"one", b"two"]
    assert [line["answer_bytes"] for line in lines if line["event"] == "request"] == [0, 3, 0, 3]


async def test_client_that_pipelines_without_end_is_not_read_without_end(peer):
    """When IN_FLIGHT_MAX answers are outstanding, no further request is started (back-pressure)."""
    count = IN_FLIGHT_MAX * 3
    await peer.send(*(b"wait %d" % index for index in range(count)))
    await trio.testing.wait_all_tasks_blocked()
    # One is with the writer, IN_FLIGHT_MAX in the queue, one in the reader's hand.
    assert len(peer.router.started) == IN_FLIGHT_MAX + 2
    peer.router.gate.set()
    assert [await peer.receive() for _ in range(count)] == [b"<wait %d>" % index for index in range(count)]


# --- those who do wrong, and those who go ----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "event", "reason"),
    [
        (b"malformed", "malformed request", "Fetch v12: the frame ends within a number"),
        (b"hang up", "request without an answer", "API 99 is not served"),
        (b"fault", "a request failed by a fault of the node", None),
        (b"wait and hang up", "request without an answer", "effect unknown"),
        (b"wait for a fault", "an answer failed by a fault of the node", None),
    ],
)
async def test_request_that_goes_wrong_closes_its_connection_with_one_line(peer, body, event, reason):
    """One log line that says who and why; the connection ends, and nothing else does."""
    peer.router.gate.set()
    with capture_logs() as lines:
        await peer.send(b"before", body)
        assert await peer.receive() == b"before"
        assert await peer.receive() is None
    told = [line for line in lines if line["log_level"] != "debug"]
    assert [line["event"] for line in told] == [event]
    assert told[0]["peer"] == "peer:1"
    if reason:
        assert told[0]["reason"] == reason


@pytest.mark.parametrize(
    ("body", "fatal"),
    [
        (b"assertion", AssertionError),
        (b"wait for an assertion", AssertionError),
        (b"damage in a nursery", CorruptStorage),
    ],
)
async def test_broken_assertion_and_damage_pass_through_to_the_node(body, fatal):
    """They are not one client's trouble: what serves the connection fails, loudly, and with it the node."""
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    router.gate.set()
    connection = Connection(
        ours, Client(1, "peer:1"), router, frame_bytes_max=100, budget=FrameBudget(), answers=AnswerBudget()
    )
    await theirs.send_all(framed(body))
    with pytest.RaisesGroup(fatal, allow_unwrapped=False, flatten_subgroups=True):
        await connection.serve()


async def test_client_that_goes_takes_its_waiting_answers_along(peer):
    """A closed connection leaves no task behind that waits for an answer nobody will read."""
    await peer.send(b"wait for ever")
    await trio.testing.wait_all_tasks_blocked()
    await peer.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (peer.ended, peer.router.finished) == (True, [])


FULL_QUEUE = [b"wait for ever"] * (IN_FLIGHT_MAX + 2)
"""One is with the writer, IN_FLIGHT_MAX in the queue, one in the reader's hand."""


@pytest.mark.parametrize(
    ("started", "unread"),
    [(FULL_QUEUE, []), (FULL_QUEUE, [b"wait for ever"] * 10), ([b"alone"], [b"another"] * 3)],
    ids=["full queue", "full queue and more", "request that waits for its turn"],
)
async def test_client_that_goes_while_nothing_is_read_is_noticed(nursery, monkeypatch, started, unread):
    """The end of the stream is not seen then: the system is asked."""
    monkeypatch.setattr("fairlog.kafka.connection.HANG_UP_CHECK_S", 0.01)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    theirs = await trio.open_tcp_stream(*listener.socket.getsockname())
    router = EchoRouter()
    stream = await listener.accept()
    connection = Connection(
        stream,
        Client(1, "peer:1"),
        router,
        frame_bytes_max=FRAME_BYTES_MAX,
        budget=FrameBudget(),
        answers=AnswerBudget(),
    )
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    await peer.send(*started, *unread)
    while len(router.started) < len(started):
        await trio.testing.wait_all_tasks_blocked(0.001)
    await theirs.aclose()
    with trio.fail_after(5):
        while not peer.ended:
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert (router.started, router.finished) == (started, [])
    await listener.aclose()


async def test_connection_stopped_finishes_what_is_in_flight(peer):
    """A stop takes no new request, answers what was started, and closes."""
    await peer.send(b"wait one", b"wait two")
    await trio.testing.wait_all_tasks_blocked()
    peer.connection.stop()
    await peer.send(b"too late")
    await trio.testing.wait_all_tasks_blocked()
    peer.router.gate.set()
    assert [await peer.receive() for _ in range(3)] == [b"<wait one>", b"<wait two>", None]
    assert b"too late" not in peer.router.started


async def test_broker_that_has_ended_answers_nothing(peer):
    """What was under way may have had its effect or not: the connection is closed."""
    await peer.send(b"wait one")
    await trio.testing.wait_all_tasks_blocked()
    peer.router.ended = True
    peer.router.gate.set()
    assert await peer.receive() is None
    assert peer.router.finished == [b"wait one"]


async def test_connection_idle_is_stopped_at_once(peer):
    """With nothing in flight there is nothing to wait for."""
    peer.connection.stop()
    assert await peer.receive() is None
