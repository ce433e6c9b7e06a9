"""What is counted at Kafka's edge: answers, errors by code, connections, and what ended without an answer."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.malformed import Malformed
from fairlog.edge.statistics import ApiStatistics
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.connection import Connection
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router, Started
from fairlog.kafka.wire import Writer

LIST_OFFSETS, API_VERSIONS = 2, 18


def framed(key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih", key, version, 5, -1) + body
    return struct.pack(">i", len(request)) + request


async def talk(router: Router, *frames: bytes) -> bytes:
    """Send these to a connection, and hear it to its end."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection = Connection(
        theirs,
        Client(connection=1, peer="test:1"),
        router,
        frame_bytes_max=1 << 20,
        budget=FrameBudget(),
        answers=AnswerBudget(),
    )
    answers = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        for frame in frames:
            await ours.send_all(frame)
            answers += await ours.receive_some()
        await ours.aclose()
    return answers


async def test_answered_request_is_counted_with_its_bytes_and_its_time(memory):
    """What comes in and goes out, with the frames' lengths, and how long it took."""
    router = Router(memory.broker, ALL)
    frame = framed(API_VERSIONS, 0, b"")
    answers = await talk(router, frame, frame)
    statistics = router.statistics.apis[API_VERSIONS]
    assert (statistics.answered, statistics.failed, statistics.errors) == (2, 0, {})
    assert (statistics.bytes_in, statistics.bytes_out) == (2 * len(frame), len(answers))
    assert statistics.latency.read().count == 2
    assert all(other.answered == 0 for key, other in router.statistics.apis.items() if key != API_VERSIONS)


async def test_error_in_an_answer_is_counted_by_its_code(memory):
    """For each partition; a handler cannot forget to."""
    router = Router(memory.broker, ALL)
    # Replica -1; one topic "no" with the partitions 0 and 1, each with the timestamp -1.
    body = struct.pack(">iih2siiqiq", -1, 1, 2, b"no", 2, 0, -1, 1, -1)
    await talk(router, framed(LIST_OFFSETS, 1, body))
    assert router.statistics.apis[LIST_OFFSETS].errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2}


async def test_request_that_ends_the_connection_is_counted_as_failed(memory, ask):
    """Malformed ones, and those that are hung up on; an API that is not served has its own count."""
    router = Router(memory.broker, ALL)
    with pytest.raises(Malformed):
        await router.start(framed(LIST_OFFSETS, 1, b"\0")[4:], ask.client)
    assert router.statistics.apis[LIST_OFFSETS].failed == 1
    with pytest.raises(HangUp):
        await router.start(framed(73, 0, b"")[4:], ask.client)
    assert router.statistics.not_served == 1


async def test_deferred_answer_that_hangs_up_is_counted_as_failed():
    """A commit whose effect is unknown closes the connection, long after its request was taken."""
    statistics = ApiStatistics("EndTxn")

    async def finish() -> list[bytes]:
        await trio.lowlevel.checkpoint()
        raise HangUp("effect unknown")

    class OneRouter:
        def overlapping_api(self, start: object) -> None:
            return None

        async def start(self, frame: object, client: Client) -> object:
            await trio.lowlevel.checkpoint()
            return Started("EndTxn", 0, 0, Deferred(finish), [], statistics, 0.0)

    assert await talk(OneRouter(), framed(26, 0, b"")) == b""  # type: ignore[arg-type]
    assert (statistics.answered, statistics.failed) == (0, 1)


def test_number_that_is_no_error_code_is_not_counted():
    """Epochs and versions are numbers of the same width."""
    errors: dict[int, int] = {}
    writer = Writer(flexible=False, errors=errors)
    for value in (7, 0, -1, ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD):
        writer.int16(value)
    assert errors == {87: 2}
    assert b"".join(writer.parts()) == struct.pack(">6h", 7, 0, -1, 0, 87, 87)
