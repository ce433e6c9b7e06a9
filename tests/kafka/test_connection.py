"""Connections: frames, order, pipelining, limits, and what happens to those who do wrong."""

from __future__ import annotations

import errno
import functools
import struct
import tracemalloc
from contextlib import suppress

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import LARGE_FRAME_BYTES, FrameBudget
from fairlog.edge.frames import FrameReader
from fairlog.edge.malformed import Malformed
from fairlog.edge.statistics import ApiStatistics
from fairlog.kafka.answer_budget import SHORT_ANSWER_BYTES, AnswerBudget, AnswerRoom
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.connection import IN_FLIGHT_MAX, Connection
from fairlog.kafka.router import Started
from fairlog.kafka.server import Server
from fairlog_types import CorruptStorage

FRAME_BYTES_MAX = 1_000_000


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class EchoRouter:
    """Answers each frame with itself. b"wait…" is deferred until `gate` opens; others do what they are called."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.finished: list[bytes] = []
        self.gate = trio.Event()

    async def start(self, frame, client):
        await trio.lowlevel.checkpoint()
        frame = bytes(frame)
        self.started.append(frame)
        if frame == b"malformed":
            raise Malformed("Fetch v12: the frame ends within a number")
        if frame == b"hang up":
            raise HangUp("API 99 is not served")
        if frame == b"assertion":
            raise AssertionError("an invariant is broken")
        if frame == b"damage in a nursery":
            raise ExceptionGroup("a nursery", [CorruptStorage("byte 7")])
        if frame == b"fault":
            raise ZeroDivisionError("a fault of ours")
        if frame == b"none":
            return Started("Echo", 0, 0, None, [], ApiStatistics("Echo"), 0.0)
        if frame.startswith(b"wait"):
            return Started("Echo", 0, 0, Deferred(lambda: self._finish(frame)), [b"<"], ApiStatistics("Echo"), 0.0)
        return Started("Echo", 0, 0, [frame], [], ApiStatistics("Echo"), 0.0)

    async def _finish(self, frame):
        await self.gate.wait()
        if frame == b"wait and hang up":
            raise HangUp("effect unknown")
        if frame == b"wait for an assertion":
            raise AssertionError("an invariant is broken")
        if frame == b"wait for a fault":
            raise ZeroDivisionError("a fault of ours")
        self.finished.append(frame)
        return [frame, b">"]


class Peer:
    """The client's end of a connection that is being served."""

    def __init__(self, stream, router, connection) -> None:
        self.stream, self.router, self.connection = stream, router, connection
        self.ended = False
        self._frames = FrameReader(stream, frame_bytes_max=2**31 - 1)

    async def serve(self) -> None:
        """The other end, until it has ended."""
        await self.connection.serve()
        self.ended = True

    async def send(self, *bodies: bytes) -> None:
        await self.stream.send_all(b"".join(map(framed, bodies)))

    async def receive(self) -> bytes | None:
        with trio.fail_after(5):
            frame = await self._frames.next_frame()
        return None if frame is None else bytes(frame)


@pytest.fixture
async def peer(nursery, autojump_clock):
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    connection = Connection(ours, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=FrameBudget())
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    return peer


# --- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 5, 64, 70_000, 10**6])
async def test_frames_are_cut_however_the_bytes_arrive(chunk):
    """Frames of any size come out whole, from one byte at a time to many frames at once."""
    bodies = [b"", b"a", b"bc" * 10, b"d" * (100 if chunk < 10 else 200_000), b"e", b""]
    data = b"".join(map(framed, bodies))
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def send():
            for start in range(0, len(data), chunk):
                await theirs.send_all(data[start : start + chunk])
            await theirs.send_eof()

        nursery.start_soon(send)
        reader = FrameReader(ours, frame_bytes_max=FRAME_BYTES_MAX)
        for body in bodies:
            assert bytes(await reader.next_frame()) == body
        assert await reader.next_frame() is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">i", FRAME_BYTES_MAX + 1), "at most 1000000 are taken"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (b"\0\0", "ended within a frame's length"),
        (struct.pack(">i", 100) + b"short", "after 5 of a frame's 100 bytes"),
    ],
)
async def test_frame_that_cannot_be_is_refused(data, why):
    """Too large, negative, another protocol, cut short: refused by the length, before room is made."""
    ours, theirs = memory_stream_pair()
    await theirs.send_all(data)
    await theirs.send_eof()
    with pytest.raises(Malformed, match=why):
        await FrameReader(ours, frame_bytes_max=FRAME_BYTES_MAX).next_frame()


async def test_frame_of_the_largest_size_is_taken():
    """The limit is the largest that fits."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, framed(bytes(FRAME_BYTES_MAX)))
        frame = await FrameReader(ours, frame_bytes_max=FRAME_BYTES_MAX).next_frame()
    assert len(frame) == FRAME_BYTES_MAX


async def test_frame_of_several_mib_comes_as_it_was_sent():
    """Its buffer grows many times, the last times by less than it has."""
    body = bytes(range(251)) * 20_000
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, framed(body))
        assert bytes(await FrameReader(ours, frame_bytes_max=len(body)).next_frame()) == body


async def test_frame_announced_takes_no_memory_before_it_comes(nursery):
    """What is held grows with what was sent: a length costs four bytes to say."""
    ours, theirs = memory_stream_pair()
    reader = FrameReader(ours, frame_bytes_max=100 << 20)
    tracemalloc.start()
    try:
        nursery.start_soon(reader.next_frame)
        await theirs.send_all(struct.pack(">i", 100 << 20) + bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    nursery.cancel_scope.cancel()


# --- the budget of large frames ------------------------------------------------------------------------------------


async def test_budget_is_given_in_the_order_of_asking():
    """Who asks for little does not overtake who asks for much; all that is taken comes back."""
    budget, got = FrameBudget(10), []

    async def take(name, length):
        share = await budget.take(length)
        got.append((name, share))

    async with trio.open_nursery() as nursery:
        for name, length in [("first", 6), ("much", 20), ("little", 1)]:
            nursery.start_soon(take, name, length)
            await trio.testing.wait_all_tasks_blocked()
        assert got == [("first", 6)]
        budget.give_back(6)
        await trio.testing.wait_all_tasks_blocked()
        assert got == [("first", 6), ("much", 10)]
        budget.give_back(10)
    assert (got[2], budget.free) == (("little", 1), 9)


async def test_budget_waited_for_in_vain_is_not_spent(autojump_clock):
    """Whoever is cancelled while waiting takes nothing, and does not hold up those behind."""
    budget, got = FrameBudget(10), []

    async def take(length, patience_s):
        with trio.move_on_after(patience_s):
            got.append(await budget.take(length))

    assert await budget.take(6) == 6
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, 8, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, 4, 5)
    assert (got, budget.free) == ([4], 0)


LARGE = LARGE_FRAME_BYTES + 1


async def large_peers(nursery, count, budget):
    peers = []
    for number in range(count):
        ours, theirs = memory_stream_pair()
        router = EchoRouter()
        connection = Connection(ours, Client(number, "peer"), router, frame_bytes_max=2 * LARGE, budget=budget)
        peers.append(Peer(theirs, router, connection))
        nursery.start_soon(peers[-1].serve)
    return peers


async def test_large_frames_wait_for_the_budget(nursery):
    """One at a time, if the budget is for one; small frames pass by; all of the budget comes back."""
    budget = FrameBudget(LARGE + 10)
    one, two, small = await large_peers(nursery, 3, budget)
    await one.stream.send_all(framed(bytes(LARGE))[:-1])
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(two.send, bytes(LARGE))
    await trio.testing.wait_all_tasks_blocked()
    assert (two.router.started, budget.free) == ([], 10)
    await small.send(b"small")
    assert await small.receive() == b"small"
    await one.stream.send_all(b"\0")
    assert len(await one.receive()) == LARGE
    assert len(await two.receive()) == LARGE
    assert budget.free == LARGE + 10


async def test_large_frame_of_a_silent_client_gives_its_budget_back(nursery, autojump_clock):
    """Neither one who falls silent nor one who goes keeps others from sending; the silent one is cut off."""
    budget = FrameBudget(LARGE)
    silent, gone, last = await large_peers(nursery, 3, budget)
    await silent.stream.send_all(framed(bytes(LARGE))[:100])
    await trio.testing.wait_all_tasks_blocked()
    await gone.stream.send_all(framed(bytes(LARGE))[:100])
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(last.send, bytes(LARGE))
    await trio.testing.wait_all_tasks_blocked()
    with capture_logs() as lines:
        assert await silent.stream.receive_some() == b""
        await gone.stream.aclose()
        assert len(await last.receive()) == LARGE
    assert any("nothing for 30 s after 96 of" in line.get("reason", "") for line in lines)
    assert budget.free == LARGE


async def test_large_frame_that_drips_gives_its_budget_back(nursery, autojump_clock):
    """Never silent and never done: whoever holds a share of the budget has to make use of it."""
    budget = FrameBudget(LARGE)
    dripping, last = await large_peers(nursery, 2, budget)
    started_s = trio.current_time()
    await dripping.stream.send_all(framed(bytes(LARGE))[:100])
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(last.send, bytes(LARGE))
    with capture_logs() as lines, trio.fail_after(60):
        while not dripping.ended:
            await trio.sleep(10)
            with suppress(trio.BrokenResourceError):
                await dripping.stream.send_all(b"\0")
        assert len(await last.receive()) == LARGE
    assert any("bytes in 30 s" in line.get("reason", "") for line in lines)
    assert trio.current_time() - started_s < 60
    assert budget.free == LARGE


async def test_large_frame_over_a_slow_line_is_taken(nursery, autojump_clock):
    """What keeps up the least rate takes as long as it needs."""
    budget = FrameBudget(LARGE)
    (slow,) = await large_peers(nursery, 1, budget)
    frame = framed(bytes(LARGE))
    for start in range(0, len(frame), LARGE // 7):
        await slow.stream.send_all(frame[start : start + LARGE // 7])
        await trio.sleep(4)
    assert len(await slow.receive()) == LARGE
    assert budget.free == LARGE


@pytest.mark.parametrize("begun", [framed(bytes(1000))[:2], framed(bytes(1000))[:4], framed(bytes(500_000))[:-1]])
async def test_small_frame_of_a_silent_client_is_given_up(peer, autojump_clock, begun):
    """A thousand clients that each keep back a byte of a megabyte would hold a gigabyte for ever."""
    started_s = trio.current_time()
    with capture_logs() as lines, trio.fail_after(60):
        await peer.stream.send_all(begun)
        assert await peer.stream.receive_some() == b""
    assert [line["event"] for line in lines] == ["malformed request"]
    assert "nothing for 30 s" in lines[0]["reason"]
    assert trio.current_time() - started_s == pytest.approx(30)


async def test_small_frame_that_drips_is_given_up(peer, autojump_clock):
    """Never silent and never done."""
    started_s = trio.current_time()
    with capture_logs() as lines, trio.fail_after(60):
        await peer.stream.send_all(framed(bytes(1000))[:100])
        while not peer.ended:
            await trio.sleep(1)
            with suppress(trio.BrokenResourceError):
                await peer.stream.send_all(b"\0")
    assert "of a frame's 1000 bytes in 30 s" in lines[0]["reason"]
    assert trio.current_time() - started_s < 32


async def test_connection_idle_between_frames_stays_open(peer, autojump_clock):
    """Clients keep connections for when they have something to say; a bound is for what is begun."""
    for _ in range(2):
        await trio.sleep(24 * 3600)
        await peer.send(b"still here")
        assert await peer.receive() == b"still here"


def test_answers_are_short_while_others_hold_the_budget():
    """Nobody waits for those who do not read; what they hold comes back when it is sent."""
    budget = AnswerBudget(10 * SHORT_ANSWER_BYTES)
    hoarder, other = AnswerRoom(budget), AnswerRoom(budget)
    assert hoarder.take(20 * SHORT_ANSWER_BYTES) == 10 * SHORT_ANSWER_BYTES
    hoarder.keep(9 * SHORT_ANSWER_BYTES + 1)
    assert other.take(5 * SHORT_ANSWER_BYTES) == SHORT_ANSWER_BYTES
    other.keep(SHORT_ANSWER_BYTES)
    assert (budget.free, other.take(1)) == (-1, 0)
    hoarder.release()
    other.release()
    assert budget.free == 10 * SHORT_ANSWER_BYTES


@pytest.mark.parametrize("goes", [False, True])
async def test_room_of_an_answer_comes_back_when_it_is_sent_or_never_will_be(peer, monkeypatch, goes):
    """Not before: the answer is in memory until the client has read it."""
    released = []

    async def finish():
        return [b"answer"]

    async def start(frame, client):
        await trio.lowlevel.checkpoint()
        return Started("Echo", 0, 0, Deferred(finish, lambda: released.append(frame)), [], ApiStatistics("Echo"), 0.0)

    monkeypatch.setattr(peer.router, "start", start)

    async def never_send(data):
        await trio.sleep_forever()

    if goes:
        monkeypatch.setattr(peer.connection._stream, "send_all", never_send)
    await peer.send(b"fetch")
    if goes:
        await trio.testing.wait_all_tasks_blocked()
        assert released == []
        await peer.stream.aclose()
    else:
        assert await peer.receive() == b"answer"
    await trio.testing.wait_all_tasks_blocked()
    assert len(released) == 1


@pytest.mark.parametrize("requests", [3, IN_FLIGHT_MAX + 2])
async def test_answers_whose_turn_never_comes_are_released(monkeypatch, autojump_clock, requests):
    """Each once: the first, which waits, those in the queue behind it, and the one that finds the queue full."""
    released, started = [], []

    async def finish():
        await trio.sleep_forever()

    async def start(frame, client):
        await trio.lowlevel.checkpoint()
        started.append(len(started))
        return Started(
            "Echo",
            0,
            0,
            Deferred(finish, functools.partial(released.append, started[-1])),
            [],
            ApiStatistics("Echo"),
            0.0,
        )

    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    monkeypatch.setattr(router, "start", start)
    connection = Connection(ours, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=FrameBudget())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        await theirs.send_all(framed(b"join") * requests)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(started), released) == (requests, [])
        if requests < IN_FLIGHT_MAX:
            await theirs.aclose()
        else:  # the reader waits for room in the queue, and does not see the end
            nursery.cancel_scope.cancel()
    assert released == started


# --- order and pipelining --------------------------------------------------------------------------


async def test_requests_are_answered_in_order(peer):
    """An answer that is ready waits for those in front of it."""
    await peer.send(b"one", b"wait two", b"three", b"wait four", b"five")
    assert await peer.receive() == b"one"
    await trio.testing.wait_all_tasks_blocked()
    assert peer.router.started == [b"one", b"wait two", b"three", b"wait four", b"five"]
    peer.router.gate.set()
    assert [await peer.receive() for _ in range(4)] == [b"<wait two>", b"three", b"<wait four>", b"five"]


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
    connection = Connection(ours, Client(1, "peer:1"), router, frame_bytes_max=100, budget=FrameBudget())
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


@pytest.mark.parametrize("unread_requests", [0, 10])
async def test_client_that_goes_while_the_queue_is_full_is_noticed(nursery, monkeypatch, unread_requests):
    """Nothing is read any more, so the end of the stream is not: the system is asked."""
    monkeypatch.setattr("fairlog.kafka.connection._HANG_UP_CHECK_S", 0.01)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    theirs = await trio.open_tcp_stream(*listener.socket.getsockname())
    router = EchoRouter()
    stream = await listener.accept()
    connection = Connection(stream, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=FrameBudget())
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    # One is with the writer, IN_FLIGHT_MAX in the queue, one in the reader's hand.
    await peer.send(*[b"wait for ever"] * (IN_FLIGHT_MAX + 2 + unread_requests))
    while len(router.started) < IN_FLIGHT_MAX + 2:
        await trio.testing.wait_all_tasks_blocked(0.001)
    await theirs.aclose()
    with trio.fail_after(5):
        while not peer.ended:
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert (len(router.started), router.finished) == (IN_FLIGHT_MAX + 2, [])
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


async def test_connection_idle_is_stopped_at_once(peer):
    """With nothing in flight there is nothing to wait for."""
    peer.connection.stop()
    assert await peer.receive() is None


# --- over sockets ----------------------------------------------------------------------------------


@pytest.fixture
async def server(memory, nursery):
    server = Server(memory.broker)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, listeners)
    address = listeners[0].socket.getsockname()

    async def connect():
        return await trio.open_tcp_stream(*address[:2])

    server.connect = connect
    yield server
    server.stop()


async def ask_versions(stream) -> bytes:
    """Asks for ApiVersions v0; the answer's frame."""
    await stream.send_all(framed(struct.pack(">hhih", 18, 0, 5, -1)))
    with trio.fail_after(5):
        return bytes(await FrameReader(stream, frame_bytes_max=2**31 - 1).next_frame())


async def test_server_answers_over_tcp(server):
    """A client that speaks only through a socket gets its answer."""
    async with await server.connect() as stream:
        assert (await ask_versions(stream))[:6] == struct.pack(">ih", 5, 0)


async def test_large_frames_go_both_ways_over_tcp(server, memory, batch):
    """A large Produce is received and a large Fetch is sent, whole, in many pieces."""
    memory.topics.create_now("t")
    sent = batch(size=1_000_000)
    produce = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, 1, 1000, 1) + struct.pack(">h1sii", 1, b"t", 1, 0)
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 0, 1, 10**7, 0, 1)
    fetch += struct.pack(">h1siiqi", 1, b"t", 1, 0, 0, 10**7)
    async with await server.connect() as stream:
        reader = FrameReader(stream, frame_bytes_max=2**31 - 1)
        for _ in range(5):
            await stream.send_all(framed(produce + struct.pack(">i", len(sent)) + sent))
            with trio.fail_after(5):
                assert (await reader.next_frame())[19:21] == b"\0\0"  # no error
        await stream.send_all(framed(fetch))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            answer = bytes(await reader.next_frame())
    stored = b"".join(memory.leaders.logs[memory.log("t")])
    assert len(stored) == 5_000_000
    assert answer.endswith(stored)


async def test_malformed_bytes_over_tcp_harm_nobody_else(server):
    """The one who sent them is cut off; the others go on."""
    async with await server.connect() as good, await server.connect() as bad:
        await ask_versions(good)
        with capture_logs() as lines:
            await bad.send_all(b"GET / HTTP/1.1\r\n\r\n")
            with trio.fail_after(5):
                assert await bad.receive_some() == b""
        assert [line["event"] for line in lines] == ["malformed request"]
        await ask_versions(good)


async def test_connections_are_numbered_in_the_order_they_come(server):
    """Ordinals grow: a younger connection of a producer can be told from an older one (invariant 10)."""
    async with await server.connect() as one, await server.connect() as two:
        await ask_versions(one)
        await ask_versions(two)
        ordinals = sorted(connection._client.connection for connection in server._connections)
        assert ordinals == [1, 2]


async def test_connections_beyond_the_limit_are_closed(server):
    """With one log line for all of them, and one when it is over; those that are there are served on."""
    server._connections_max = 1
    async with await server.connect() as one:
        await ask_versions(one)
        with capture_logs() as lines:
            async with await server.connect() as two:
                with trio.fail_after(5):
                    assert await two.receive_some() == b""
            async with await server.connect() as three:
                with trio.fail_after(5):
                    assert await three.receive_some() == b""
        assert [line["event"] for line in lines] == ["too many connections"]
        await ask_versions(one)
    await trio.testing.wait_all_tasks_blocked()
    with capture_logs() as lines:
        async with await server.connect() as four:
            await ask_versions(four)
    told = [line for line in lines if line["log_level"] != "debug"]
    assert [(line["event"], line["refused"]) for line in told] == [("connections are taken again", 2)]


async def test_want_of_file_descriptors_is_said_once(server, monkeypatch, caplog):
    """With one line of ours when it begins and one when it is over, however often it was tried between."""
    refusals = [errno.EMFILE] * 3
    accept = trio.SocketListener.accept

    async def refuse(listener):
        if refusals:
            raise OSError(refusals.pop(), "no file descriptors")
        return await accept(listener)

    async with await server.connect() as one:
        await ask_versions(one)
        monkeypatch.setattr(trio.SocketListener, "accept", refuse)
        with capture_logs() as lines, trio.fail_after(5):
            for _ in range(2):
                async with await server.connect() as stream:  # the first was accepted by the call that was under way
                    await ask_versions(stream)
            await ask_versions(one)
    told = [line for line in lines if line["log_level"] != "debug"]
    assert [line["event"] for line in told] == ["no connection can be accepted", "connections are accepted again"]
    assert (told[0]["log_level"], told[1]["attempts"]) == ("error", 3)
    assert caplog.records == []


async def test_accept_that_fails_for_good_ends_the_server(memory, monkeypatch):
    """A listener that is broken is no passing want."""

    async def broken(listener):
        raise OSError(errno.EINVAL, "not a socket that listens")

    monkeypatch.setattr(trio.SocketListener, "accept", broken)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="listens"), flatten_subgroups=True):
        await Server(memory.broker).serve(listeners)


async def test_server_stopped_answers_a_long_poll_at_once(memory):
    """A consumer that waits for new data for a minute does not hold up the stop of a node."""
    memory.topics.create_now("t")
    server = Server(memory.broker)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 60_000, 1, 10**7, 0, 1)
    fetch += struct.pack(">h1siiqi", 1, b"t", 1, 0, 0, 10**7)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            stream = await trio.open_tcp_stream(*listeners[0].socket.getsockname()[:2])
            await stream.send_all(framed(fetch))
            await trio.testing.wait_all_tasks_blocked(0.02)
            server.stop()
        async with stream:
            reader = FrameReader(stream, frame_bytes_max=2**31 - 1)
            assert bytes(await reader.next_frame())[:4] == struct.pack(">i", 6)
            assert await reader.next_frame() is None


async def test_server_stopped_ends_by_itself(memory):
    """After stop, serve returns when the last connection is done; nobody can connect any more."""
    server = Server(memory.broker)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            stream = await trio.open_tcp_stream(*address[:2])
            await ask_versions(stream)
            server.stop()
    async with stream:
        assert await stream.receive_some() == b""
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(*address[:2])
