"""Frames: how bytes are cut into them, and the room that all of them share."""

from __future__ import annotations

import struct
import tracemalloc
import weakref
from contextlib import suppress

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from fairlog.edge.frame_budget import UNCOUNTED_BYTES, FrameBudget
from fairlog.edge.frames import FrameReader
from fairlog.edge.malformed import Malformed
from fairlog.edge.memory_budget import MemoryBudget
from fairlog.edge.statistics import ApiStatistics
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client
from fairlog.kafka.connection import Connection
from fairlog.kafka.router import Started
from tests.kafka.serving import FRAME_BYTES_MAX, LARGE, EchoRouter, Peer, framed


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


# --- the budget of frames ------------------------------------------------------------------------------------------

GROWN = LARGE - UNCOUNTED_BYTES + 4
"""What a large frame's buffer takes of the budget, whose length came with the first of it."""


async def large_peers(nursery, count, budget):
    peers = []
    for number in range(count):
        ours, theirs = memory_stream_pair()
        router = EchoRouter()
        connection = Connection(
            ours, Client(number, "peer"), router, frame_bytes_max=2 * LARGE, budget=budget, answers=AnswerBudget()
        )
        peers.append(Peer(theirs, router, connection))
        nursery.start_soon(peers[-1].serve)
    return peers


async def test_frame_that_has_begun_holds_what_was_read_first_once(nursery):
    """In its own buffer: the one that it came in is gone, whatever time the rest takes."""

    class Chunk(bytearray):
        """Bytes cannot be looked at by a weak reference, nor can what derives from them."""

    class Stream(trio.abc.ReceiveStream):
        read: weakref.ref[Chunk] | None = None

        async def receive_some(self, max_bytes=None):
            if self.read is not None:
                await trio.sleep_forever()
            chunk = Chunk(framed(bytes(FRAME_BYTES_MAX))[: UNCOUNTED_BYTES // 2])
            self.read = weakref.ref(chunk)
            return chunk

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    stream = Stream()
    nursery.start_soon(FrameReader(stream, frame_bytes_max=FRAME_BYTES_MAX).next_frame)
    await wait_all_tasks_blocked()
    assert stream.read is not None
    assert stream.read() is None


async def test_frame_announced_takes_no_room_before_it_comes(nursery, autojump_clock):
    """A hundred lengths cost four hundred bytes to say, and shall not keep the room from those who send."""
    budget = FrameBudget(LARGE)
    *announcing, honest = await large_peers(nursery, 101, budget)
    for each in announcing:
        await each.stream.send_all(framed(bytes(LARGE))[:100])
    await trio.testing.wait_all_tasks_blocked()
    started_s = trio.current_time()
    await honest.send(bytes(LARGE))
    assert len(await honest.receive()) == LARGE
    assert trio.current_time() == started_s


async def test_frames_beyond_the_budget_go_one_at_a_time(nursery, autojump_clock):
    """The first goes ahead to its end, the others wait, small ones pass by; all of the budget comes back."""
    budget = FrameBudget(LARGE // 2)
    one, two, small = await large_peers(nursery, 3, budget)
    await one.stream.send_all(framed(bytes(LARGE))[:-1])
    await trio.testing.wait_all_tasks_blocked()
    assert budget.free == LARGE // 2 - GROWN
    nursery.start_soon(two.send, bytes(LARGE))
    await trio.testing.wait_all_tasks_blocked()
    assert (two.router.started, budget.free) == ([], LARGE // 2 - GROWN)
    await small.send(b"small")
    assert await small.receive() == b"small"
    await one.stream.send_all(b"\0")
    assert len(await one.receive()) == LARGE
    assert len(await two.receive()) == LARGE
    assert budget.free == LARGE // 2


@pytest.mark.parametrize("drips", [False, True])
async def test_frames_not_gone_on_with_are_cut_off_while_others_wait(nursery, autojump_clock, drips):
    """A thousand who hold what they can hold up others for some seconds, and not for thirty each."""
    budget = FrameBudget(4 * LARGE)
    *hoarding, honest = await large_peers(nursery, 12, budget)
    for each in hoarding:
        nursery.start_soon(each.stream.send_all, framed(bytes(LARGE))[: LARGE // 2])
    if drips:
        nursery.start_soon(drip, hoarding)
    await trio.testing.wait_all_tasks_blocked()
    started_s = trio.current_time()
    with capture_logs() as lines:
        nursery.start_soon(honest.send, bytes(LARGE))
        assert len(await honest.receive(40)) == LARGE
    assert trio.current_time() - started_s < 15
    assert any("while others wait for memory" in line.get("reason", "") for line in lines)
    nursery.cancel_scope.cancel()


async def drip(peers):
    while True:
        await trio.sleep(1)
        for each in peers:
            with suppress(trio.BrokenResourceError):
                await each.stream.send_all(b"\0")


async def test_frame_over_a_slow_line_is_taken(nursery, autojump_clock):
    """What keeps up the least rate takes as long as it needs, while others wait and while they do not."""
    budget = FrameBudget(LARGE)
    slow, other = await large_peers(nursery, 2, budget)
    nursery.start_soon(send_slowly, slow, framed(bytes(LARGE)), 300 << 10)
    await trio.sleep(1)
    nursery.start_soon(other.send, bytes(LARGE))
    assert len(await slow.receive(60)) == LARGE
    assert len(await other.receive(60)) == LARGE
    assert budget.free == LARGE


async def send_slowly(peer, data, bytes_per_s):
    for start in range(0, len(data), 10_000):
        await peer.stream.send_all(data[start : start + 10_000])
        await trio.sleep(10_000 / bytes_per_s)


async def test_waiting_for_room_is_not_the_clients_fault(nursery, autojump_clock, monkeypatch):
    """The node may be at work on what holds the room for longer than a client may be silent."""
    budget = FrameBudget(LARGE // 4)
    busy, waiting = await large_peers(nursery, 2, budget)

    async def start(frame, client):
        await trio.sleep(100)
        return Started("Echo", 0, 0, [b"done"], [], ApiStatistics("Echo"), 0.0)

    monkeypatch.setattr(busy.router, "start", start)
    await busy.send(bytes(LARGE))
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(waiting.send, bytes(LARGE))
    assert await busy.receive(200) == b"done"
    assert len(await waiting.receive(200)) == LARGE


async def test_room_waited_for_in_vain_is_not_spent(autojump_clock):
    """Whoever is cancelled while waiting takes nothing, and does not hold up those behind."""
    budget, got = MemoryBudget(10), []

    async def take(size, patience_s):
        def attempt():
            if size > budget.free:
                return False
            budget.free -= size
            got.append(size)
            return True

        with trio.move_on_after(patience_s):
            await budget.take(attempt)

    await take(6, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, 8, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, 4, 5)
    assert (got, budget.free) == ([6, 4], 0)


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
