"""Native connections over real sockets: preambles, frames, hostile clients, the stop; and Kafka's beside them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import cbor2
import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from fairlog.edge import hanging_up
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import FRAME_SILENCE_S
from fairlog.edge.log_limiter import LogLimiter
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.messages import FRAME_BYTES_MAX
from fairlog.native.protocol import NativeProtocol
from fairlog_types import CorruptStorage
from tests.native.talking import Talker, frame

LANE = {"sink": "totals", "query": "q", "run": "r", "batch": 0, "partition": 0, "attempt": 0}
BATCH = {name: LANE[name] for name in ("sink", "query", "run", "batch")}
GOLDEN_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 5, -1)
"""ApiVersions v0, as Kafka's clients begin."""


async def ask_kafka(stream: trio.SocketStream) -> None:
    talker = Talker(stream)
    await stream.send_all(GOLDEN_VERSIONS)
    (length,) = struct.unpack(">I", await talker.receive(4))
    assert (await talker.receive(length))[:6] == struct.pack(">ih", 5, 0)


async def test_owner_that_was_deposed_says_nothing_more(memory, nursery):
    """Not even of what it knows: another node answers by now, and this one closes the connection."""
    has_ended = False
    broker = replace(memory.broker, has_ended=lambda: has_ended)
    server = Server(broker, [NativeProtocol(broker)])
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, [Door(listener)])
    async with await trio.open_tcp_stream(*listener.socket.getsockname()[:2]) as stream:
        talker = Talker(stream)
        assert await talker.greet() == b"FLG1"
        assert "topics" in await talker.ask("topics")
        has_ended = True
        await stream.send_all(frame(cbor2.dumps([2, "topics", {}])))
        assert await talker.is_closed()
    server.stop()


async def test_commits_that_were_answered_are_placed_before_a_request_begins(memory, talker):
    """So it sees them, whatever it is about."""
    before = memory.coordinator.placings_due
    await talker.ask("topics")
    assert memory.coordinator.placings_due == before + 1


# --- the preamble -------------------------------------------------------------------------------------


async def test_both_protocols_are_spoken_on_one_port(server, connect, talker):
    """Neither disturbs the other; both count as connections of the listener."""
    kafka = await connect()
    for _ in range(3):
        await ask_kafka(kafka)
        assert await talker.ask("topics") == {"topics": [["orders", 2], ["totals", 1]]}
    assert server.statistics.connected == 2


@pytest.mark.parametrize("cuts", [(1,), (3,), (4,), (1, 2, 3, 5, 9)])
async def test_preamble_and_frames_may_come_in_any_pieces(server, connect, cuts):
    """Also byte by byte, and with requests right behind the preamble."""
    data = b"FLG1" + frame(cbor2.dumps([7, "topics", {}]))
    stream = await connect()
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        await stream.send_all(data[start:end])
        await wait_all_tasks_blocked(0.005)
    talker = Talker(stream)
    assert await talker.receive(4) == b"FLG1"
    assert (await talker.answer())[:2] == [7, "ok"]


@pytest.mark.parametrize("preamble", [b"FLG2", b"FLG0", b"FLG\0"])
async def test_other_version_hears_which_one_is_spoken(server, connect, preamble):
    """And is closed: what comes behind it could mean anything."""
    with capture_logs() as lines:
        talker = Talker(await connect())
        assert await talker.greet(preamble + frame(cbor2.dumps([1, "topics", {}]))) == b"FLG1"
        assert await talker.is_closed()
    assert [line["event"] for line in lines] == ["another version of the native protocol"]


@pytest.mark.parametrize(
    "opening", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"FLAG", b"flg1"]
)
async def test_other_protocols_are_refused_as_ever(server, connect, opening):
    """Without a word, and with one line in the log."""
    with capture_logs() as lines:
        talker = Talker(await connect())
        await talker.stream.send_all(opening)
        assert await talker.is_closed()
    assert [line["event"] for line in lines] == ["malformed request"]


async def test_preamble_within_a_kafka_connection_is_malformed(server, connect):
    """A protocol is chosen once, at the beginning."""
    stream = await connect()
    await ask_kafka(stream)
    with capture_logs() as lines:
        await stream.send_all(b"FLG1")
        assert await Talker(stream).is_closed()
    assert "a frame of 117940" in next(line["reason"] for line in lines if line["event"] == "malformed request")


# --- wrong frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xff\xff", "no request contains"),
        (b"", "the frame ends within an item"),
        (b"\x81" * 100_000, "nested more than 8 deep"),
        (cbor2.dumps({"op": "topics"}), r"a request is \[id, op, {arguments}\], not a map of 1"),
        (cbor2.dumps([1, "topics"]), "not an array of 2"),
        (cbor2.dumps(["1", "topics", {}]), "not an array of 3"),
        (cbor2.dumps([True, "topics", {}]), "not an array of 3"),
        (cbor2.dumps([-1, "topics", {}]), "request id -1"),
        (cbor2.dumps([1, "topics", {}]) * 2, "more than one CBOR item"),
    ],
)
async def test_malformed_request_is_told_so_and_closed(server, connect, talker, body, why):
    """With the id null: it could not be read. Others are served on."""
    other = Talker(await connect())
    await other.greet()
    await talker.stream.send_all(frame(body))
    answered, kind, sentence = await talker.answer()
    assert (answered, kind) == (None, "bad-request")
    assert re.search(why, sentence), sentence
    assert await talker.is_closed()
    assert await other.ask("topics")


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1, 0x464C4731])
async def test_frame_that_is_too_large_is_refused_by_its_length(server, talker, length):
    """Before room is made for it."""
    with capture_logs() as lines:
        await talker.stream.send_all(struct.pack(">I", length))
        assert await talker.is_closed()
    assert [line["event"] for line in lines] == ["malformed request"]


async def test_client_that_ends_within_a_frame_is_closed(server, connect, talker):
    """One who dies while he sends."""
    await talker.stream.send_all(frame(cbor2.dumps([1, "topics", {}]))[:-1])
    await talker.stream.send_eof()
    assert await talker.is_closed()


@pytest.fixture
async def alone(memory, nursery):
    """A connection over memory streams; `budget` has its room."""
    ours, theirs = memory_stream_pair()
    budget = FrameBudget()
    connection = NativeProtocol(memory.broker).connection(
        ours, b"FLG", ordinal=1, peer="peer:1", budget=budget, lines=LogLimiter(trio.current_time)
    )
    nursery.start_soon(connection.serve)
    talker = Talker(theirs)
    talker.connection, talker.budget = connection, budget
    return talker


async def test_client_that_falls_silent_in_the_preamble_is_cut_off(alone, autojump_clock):
    """What it began it has to end."""
    started = trio.current_time()
    assert await alone.stream.receive_some() == b""
    assert trio.current_time() - started == pytest.approx(FRAME_SILENCE_S)


async def test_client_that_drips_a_frame_is_cut_off_and_its_room_given_back(alone, autojump_clock):
    """A large frame holds what others wait for."""
    await alone.greet(b"1")
    await alone.stream.send_all(struct.pack(">I", FRAME_BYTES_MAX) + bytes(200_000))
    with trio.move_on_after(600) as patience:
        while True:
            try:
                await alone.stream.send_all(b"x")
            except trio.BrokenResourceError:
                break
            await wait_all_tasks_blocked()
            assert alone.budget.free < FrameBudget().free or alone.connection._stream is None
            await trio.sleep(10)
    assert not patience.cancelled_caught
    assert alone.budget.free == FrameBudget().free


async def test_idle_connection_stays(alone, autojump_clock):
    """Between two requests a client may take its time."""
    await alone.greet(b"1")
    await trio.sleep(80_000)
    assert await alone.ask("topics")


async def test_client_that_does_not_read_its_answer_is_cut_off(memory, autojump_clock):
    """It would hold the answer for ever."""
    ours, theirs = lockstep_stream_pair()
    connection = NativeProtocol(memory.broker).connection(
        ours, b"FLG1", ordinal=1, peer="p", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
    )
    started = trio.current_time()
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            assert await theirs.receive_some() == b"FLG1"
            await theirs.send_all(frame(cbor2.dumps([1, "topics", {}])))
    assert ["is not read within 30 s" in line.get("reason", "") for line in lines] == [False, True]
    assert trio.current_time() - started == pytest.approx(FRAME_SILENCE_S, rel=0.01)


async def test_thousand_connections_left_behind_cost_nobody_anything(server, talker):
    """Opened, greeted or half greeted, in the middle of a frame, and never heard of again; then all gone."""
    beginnings = [b"", b"FL", b"FLG1", b"FLG1\0\0", b"FLG1" + struct.pack(">I", 1 << 20) + b"\x83"]
    streams = []
    for number in range(1000):
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(beginnings[number % len(beginnings)])
        streams.append(stream)
    for _ in range(20):
        assert await talker.ask("topics")
    for stream in streams:
        await trio.aclose_forcefully(stream)
    with trio.fail_after(10):
        while server.statistics.connected > 1:
            await wait_all_tasks_blocked(0.01)
    assert await talker.ask("topics")


# --- requests in order, faults, the stop -------------------------------------------------------------------


async def test_requests_sent_at_once_are_answered_in_their_order(server, talker, memory):
    """A slow one does not let a fast one overtake it."""
    memory.coordinator.gate = trio.Event()
    await talker.ask("join", **LANE)
    requests = [
        [11, "commit", BATCH | {"winners": [[0, 0, 5]]}],
        [12, "topics", {}],
        [13, "no such op", {}],
        [14, "join", {}],
    ]
    await talker.stream.send_all(b"".join(frame(cbor2.dumps(each)) for each in requests))
    await wait_all_tasks_blocked(0.02)
    memory.coordinator.gate.set()
    answers = [await talker.answer() for _ in requests]
    assert [(answered, kind) for answered, kind, _ in answers] == [
        (11, "ok"), (12, "ok"), (13, "unknown-op"), (14, "bad-request"),
    ]  # fmt: skip


@pytest.mark.parametrize("behind", [b"", frame(cbor2.dumps([6, "abort", BATCH]))])
async def test_stop_answers_the_commit_under_way_and_begins_nothing_else(server, talker, connect, memory, behind):
    """The driver hears that its batch is committed; the idle are closed at once; the next request was never begun."""
    idle = Talker(await connect())
    await idle.greet()
    memory.coordinator.gate = trio.Event()
    await talker.ask("join", **LANE)
    commit = [5, "commit", BATCH | {"winners": [[0, 0, 5]]}]
    await talker.stream.send_all(frame(cbor2.dumps(commit)) + behind)
    with trio.fail_after(5):
        await memory.coordinator.commit_begun.wait()
    server.stop()
    assert await idle.is_closed()
    memory.coordinator.gate.set()
    assert (await talker.answer())[:2] == [5, "ok"]
    assert await talker.is_closed()
    assert "abort" not in [name for name, *_ in memory.coordinator.calls]


async def test_client_gone_in_the_middle_of_a_commit_does_not_stop_it(server, talker, connect, memory, monkeypatch):
    """It asks again, on another connection, and hears that the batch is committed already."""
    noticed = trio.Event()

    def has_hung_up(peer):
        gone = hanging_up.has_hung_up(peer)
        if gone:
            noticed.set()
        return gone

    monkeypatch.setattr("fairlog.native.connection.HANG_UP_CHECK_S", 0.005)
    monkeypatch.setattr("fairlog.native.connection.has_hung_up", has_hung_up)
    memory.coordinator.gate = trio.Event()
    await talker.ask("join", **LANE)
    commit = BATCH | {"winners": [[0, 0, 5]]}
    await talker.stream.send_all(frame(cbor2.dumps([5, "commit", commit])))
    with trio.fail_after(5):
        await memory.coordinator.commit_begun.wait()
    await trio.aclose_forcefully(talker.stream)
    with trio.fail_after(5):
        await noticed.wait()
    memory.coordinator.gate.set()
    again = Talker(await connect())
    await again.greet()
    assert await again.ask("commit", **commit) == {"already": True, "placements": [["orders", 0, 0, 5]]}


@pytest.mark.parametrize("behind", [b"", frame(cbor2.dumps([6, "abort", BATCH]))])
async def test_client_gone_while_its_question_waits_is_noticed(server, talker, memory, monkeypatch, behind):
    """The question is given up, and none behind it is begun: nothing is held for somebody who is not there."""
    begun, given_up = trio.Event(), trio.Event()

    async def joined_never(lane):
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            given_up.set()

    monkeypatch.setattr("fairlog.native.connection.HANG_UP_CHECK_S", 0.005)
    monkeypatch.setattr(memory.coordinator, "join_batch", joined_never)
    await talker.stream.send_all(frame(cbor2.dumps([5, "join", LANE])) + behind)
    with trio.fail_after(5):
        await begun.wait()
        await trio.aclose_forcefully(talker.stream)
        await given_up.wait()
        while server.statistics.connected:
            await wait_all_tasks_blocked(0.001)
    assert "abort" not in [name for name, *_ in memory.coordinator.calls]


async def test_client_that_waits_for_its_answer_is_looked_after_and_left_alone(server, talker, memory, monkeypatch):
    """However often it is asked whether it is there, and whatever it has sent meanwhile."""
    looked: list[bool] = []
    often = trio.Event()

    def has_hung_up(peer):
        looked.append(hanging_up.has_hung_up(peer))
        if len(looked) == 20:
            often.set()
        return looked[-1]

    monkeypatch.setattr("fairlog.native.connection.HANG_UP_CHECK_S", 0.001)
    monkeypatch.setattr("fairlog.native.connection.has_hung_up", has_hung_up)
    memory.coordinator.gate = trio.Event()
    await talker.ask("join", **LANE)
    await talker.stream.send_all(frame(cbor2.dumps([5, "commit", BATCH | {"winners": [[0, 0, 5]]}])))
    with trio.fail_after(5):
        await memory.coordinator.commit_begun.wait()
        await talker.stream.send_all(frame(cbor2.dumps([6, "topics", {}])))
        await often.wait()
    memory.coordinator.gate.set()
    assert [(await talker.answer())[:2] for _ in range(2)] == [[5, "ok"], [6, "ok"]]
    assert not any(looked)


async def test_fault_of_ours_closes_one_connection(server, talker, connect, memory, monkeypatch):
    """Loudly, without an answer, and without harm to others."""
    monkeypatch.setattr(memory.coordinator, "sinks", lambda: 1 / 0)
    other = Talker(await connect())
    await other.greet()
    with capture_logs() as lines:
        await talker.stream.send_all(frame(cbor2.dumps([1, "sinks", {}])))
        assert await talker.is_closed()
    assert [line["event"] for line in lines] == ["a request failed by a fault of the node"]
    assert await other.ask("topics")
    counted = {each.name: each.failed for each in server.native.statistics}
    assert counted == dict.fromkeys(counted, 0) | {"native sinks": 1}


@pytest.mark.parametrize("fault", [AssertionError("an invariant"), CorruptStorage("byte 7")])
async def test_broken_assertion_and_damage_stop_the_node(memory, fault, monkeypatch):
    """Nothing in memory can be trusted any more."""

    def broken():
        raise fault

    monkeypatch.setattr(memory.coordinator, "sinks", broken)
    ours, theirs = memory_stream_pair()
    connection = NativeProtocol(memory.broker).connection(
        ours, b"FLG1", ordinal=1, peer="p", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
    )
    await theirs.send_all(frame(cbor2.dumps([1, "sinks", {}])))
    with pytest.raises(type(fault)):
        await connection.serve()


async def test_what_is_asked_is_counted(server, talker):
    """Requests, refusals by their kind, bytes both ways."""
    await talker.ask("topics")
    await talker.ask("cut", topics=["nowhere"])
    counted = {each.name: each for each in server.native.statistics}
    topics, cut = counted["native topics"], counted["native cut"]
    assert (topics.answered, topics.refusals, topics.bytes_in) == (1, {}, 4 + len(cbor2.dumps([1, "topics", {}])))
    assert (cut.answered, cut.refusals) == (1, {"unknown-topic": 1})
