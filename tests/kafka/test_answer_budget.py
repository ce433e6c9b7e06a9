"""The room that all answers share: who waits for it, who is cut off, and when it comes back."""

from __future__ import annotations

import functools

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.statistics import ApiStatistics
from fairlog.kafka.answer_budget import BATCH_BYTES, SHORT_ANSWER_BYTES, AnswerBudget, AnswerRoom
from fairlog.kafka.api import Client, Deferred
from fairlog.kafka.connection import IN_FLIGHT_MAX, Connection
from fairlog.kafka.router import Started
from tests.kafka.serving import FRAME_BYTES_MAX, LARGE, EchoRouter, Peer, framed


async def test_answers_are_short_while_others_hold_the_budget(autojump_clock):
    """Nobody waits as long as there is some of the reserve; what others hold comes back when it is sent."""
    budget = AnswerBudget(10 * SHORT_ANSWER_BYTES, reserve_bytes=SHORT_ANSWER_BYTES)
    hoarder, other = AnswerRoom(budget), AnswerRoom(budget)
    assert await hoarder.take(20 * SHORT_ANSWER_BYTES) == 20 * SHORT_ANSWER_BYTES - 10 * SHORT_ANSWER_BYTES
    hoarder.keep(9 * SHORT_ANSWER_BYTES + 1)
    assert await other.take(5 * SHORT_ANSWER_BYTES) == SHORT_ANSWER_BYTES
    other.keep(SHORT_ANSWER_BYTES)
    assert (budget.free, await other.take(1)) == (-1, 0)
    hoarder.release()
    other.release()
    assert budget.free == 10 * SHORT_ANSWER_BYTES


async def test_short_answers_are_counted_for_a_whole_batch_until_they_are_read(autojump_clock):
    """The first batch comes whole: a thousand that are granted at once may not read a thousand batches."""
    budget = AnswerBudget(BATCH_BYTES, reserve_bytes=2 * BATCH_BYTES)
    hoarder, *readers, late = (AnswerRoom(budget) for _ in range(4))
    await hoarder.take(BATCH_BYTES)
    hoarder.keep(BATCH_BYTES)
    for room in readers:
        assert await room.take(3 * BATCH_BYTES) == SHORT_ANSWER_BYTES
    with trio.move_on_after(1) as waiting:
        await late.take(3 * BATCH_BYTES)
    assert waiting.cancelled_caught
    readers[0].keep(SHORT_ANSWER_BYTES)
    assert await late.take(3 * BATCH_BYTES) == SHORT_ANSWER_BYTES


async def test_answers_beyond_the_reserve_wait_until_who_does_not_read_is_cut_off(autojump_clock):
    """That takes seconds, also if he reads a byte now and then; who reads what a line carries stays."""
    budget = AnswerBudget(2 << 20, reserve_bytes=0)
    cut = []
    deaf, slow, reading = AnswerRoom(budget), AnswerRoom(budget), AnswerRoom(budget)
    for room, name in ((deaf, "deaf"), (reading, "reading")):
        await room.take(1 << 20)

        def cut_off(room=room, name=name):
            cut.append(name)
            room.release()

        room.sending(cut_off)

    async def read():
        for sent in range(0, 1 << 20, 300 << 10):
            await trio.sleep(1)
            reading.sent(sent)
            deaf.sent(sent // 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with trio.fail_after(4):
            assert await slow.take(1 << 20) > 0
    assert cut == ["deaf"]


async def test_answers_that_nobody_waits_for_room_with_hurry_others_as_well(autojump_clock):
    """Descriptions and committed offsets are made without asking; who holds all the room for nothing gives it up."""
    budget, cut = AnswerBudget(1000), []
    deaf, large = AnswerRoom(budget), AnswerRoom(budget)
    deaf.keep(1000)
    deaf.sending(lambda: cut.append("deaf"))
    await trio.sleep(3600)
    assert not cut
    large.keep(1)
    assert cut == ["deaf"]


async def test_who_does_not_read_is_not_cut_off_for_what_is_asked_and_not_needed(autojump_clock):
    """A dozen consumers may ask for 50 MiB each in the same moment, and there are a few new records for them."""
    budget, cut = AnswerBudget(10 << 20), []
    slow, *reading = (AnswerRoom(budget) for _ in range(21))
    slow.keep(1000)
    slow.sending(lambda: cut.append("slow"))
    await trio.sleep(3600)
    for each in reading:
        await each.take(1 << 20)
    for each in reading:
        each.keep(1000)
    assert (cut, budget.free) == ([], (10 << 20) - 21 * 1000)
    await AnswerRoom(budget).take(10 << 20)
    assert cut == ["slow"]


async def test_answer_with_something_in_hand_does_not_wait(autojump_clock):
    """It would wait for others who wait as well; what it has is sent."""
    budget = AnswerBudget(SHORT_ANSWER_BYTES, reserve_bytes=0)
    one = AnswerRoom(budget)
    assert await one.take(SHORT_ANSWER_BYTES) == SHORT_ANSWER_BYTES
    assert budget.free == 0
    assert await one.take(10) == 0


async def test_wait_for_more_records_is_ended_while_others_have_no_room(autojump_clock):
    """Who asks for more than there is may hold an answer for minutes; not when its memory is needed."""
    budget, hurried = AnswerBudget(1000, reserve_bytes=0), []
    polling, other = AnswerRoom(budget), AnswerRoom(budget)
    await polling.take(1000)
    polling.waits(lambda: (hurried.append(trio.current_time()), polling.release()))
    assert await other.take(1) == 1
    assert len(hurried) == 1


@pytest.mark.parametrize("queued", [False, True])
async def test_client_that_does_not_read_is_cut_off_when_others_need_the_room(nursery, autojump_clock, queued):
    """Not before: as long as there is room it may take its time."""
    answers = AnswerBudget(2 * LARGE, reserve_bytes=0)
    ours, theirs = memory_stream_pair()
    ours.send_stream.send_all_hook = trio.sleep_forever
    connection = Connection(
        ours, Client(1, "peer"), EchoRouter(), frame_bytes_max=2 * LARGE, budget=FrameBudget(), answers=answers
    )
    connection._router.gate.set()
    peer = Peer(theirs, connection._router, connection)
    nursery.start_soon(peer.serve)
    await peer.send(*([b"wait"] if queued else []), b"ready" + bytes(LARGE - 5))
    await trio.sleep(3600)
    assert not peer.ended
    AnswerRoom(answers).keep(LARGE)
    with capture_logs() as lines, trio.fail_after(10):
        await AnswerRoom(answers).take(1)
    assert [line["event"] for line in lines] == ["answer not read"]
    await trio.testing.wait_all_tasks_blocked()
    assert peer.ended


async def test_who_reads_a_long_answer_is_not_cut_off_for_the_one_behind_it(nursery, autojump_clock):
    """Consumers ask for a topic's description while a Fetch of 50 MiB is on its way, for some seconds."""
    answers = AnswerBudget(LARGE, reserve_bytes=0)
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    router.gate.set()
    connection = Connection(
        ours, Client(1, "peer"), router, frame_bytes_max=2 * LARGE, budget=FrameBudget(), answers=answers
    )

    async def send_slowly():  # sixteen pieces, in more than the two seconds that every answer has
        await trio.sleep(0.2)

    ours.send_stream.send_all_hook = send_slowly
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    await peer.send(b"wait" + bytes(LARGE), bytes(LARGE))
    await trio.testing.wait_all_tasks_blocked()
    assert answers.exhausted
    with capture_logs() as lines:
        await AnswerRoom(answers).take(1)
    assert not peer.ended
    assert "answer not read" not in [line["event"] for line in lines]


def connected(answers: AnswerBudget) -> Peer:
    """A client of an echo whose answers take their room there; `wait` is answered when `router.gate` opens."""
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    connection = Connection(
        ours, Client(1, "peer"), router, frame_bytes_max=2 * LARGE, budget=FrameBudget(), answers=answers
    )
    return Peer(theirs, router, connection)


@pytest.mark.parametrize("queued", [False, True])
async def test_large_answers_of_any_kind_are_counted(nursery, autojump_clock, queued):
    """Ready, and not read: with a budget for one, the connection is not read from behind the next."""
    answers = AnswerBudget(LARGE, reserve_bytes=LARGE // 2)
    peer = connected(answers)
    nursery.start_soon(peer.serve)
    if queued:
        nursery.start_soon(peer.send, b"wait", *[b"ready" + bytes(LARGE - 5)] * 5)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(peer.router.started), answers.free) == (3, -LARGE)
        peer.router.gate.set()
        await peer.receive()
        for _ in range(5):
            assert len(await peer.receive()) == LARGE
    else:
        await peer.send(bytes(LARGE))
        assert len(await peer.receive()) == LARGE
    await trio.testing.wait_all_tasks_blocked()
    assert answers.free == LARGE


async def test_large_requests_that_wait_for_their_turn_are_counted(nursery, autojump_clock):
    """Sixteen Fetches of 100 MiB of topics each, behind one that waits for five minutes, would be a gigabyte."""
    answers = AnswerBudget(20 * LARGE, reserve_bytes=0)
    peer = connected(answers)
    nursery.start_soon(peer.serve)
    nursery.start_soon(peer.send, *[b"wait" + bytes(LARGE)] * 10)
    await trio.testing.wait_all_tasks_blocked()
    assert answers.exhausted
    assert len(peer.router.started) == 3
    peer.router.gate.set()
    for _ in range(10):
        assert len(await peer.receive()) > LARGE
    await trio.testing.wait_all_tasks_blocked()
    assert answers.free == 20 * LARGE


async def test_client_whose_large_requests_wait_is_cut_off_when_others_need_the_room(nursery, autojump_clock):
    """Behind something that may take minutes, as a group's rebalance."""
    answers = AnswerBudget(10 * LARGE, reserve_bytes=0)
    peer = connected(answers)
    nursery.start_soon(peer.serve)
    await peer.send(b"wait", b"wait" + bytes(LARGE))
    await trio.sleep(3600)
    assert not peer.ended
    AnswerRoom(answers).keep(LARGE)
    with trio.fail_after(10):
        await AnswerRoom(answers).take(1)
    await trio.testing.wait_all_tasks_blocked()
    assert (peer.ended, answers.free) == (True, 9 * LARGE - 1)


async def test_requests_that_wait_are_counted_beyond_a_few_of_each_connection(nursery, autojump_clock):
    """Sixteen of 128 KiB, each as small as frames that pass by, take twenty MiB as objects."""
    small, others = 4 << 10, 100 << 10
    answers = AnswerBudget(100 << 20)
    ours, theirs = memory_stream_pair()
    router = EchoRouter()
    connection = Connection(
        ours, Client(1, "peer"), router, frame_bytes_max=LARGE, budget=FrameBudget(), answers=answers
    )
    peer = Peer(theirs, router, connection)
    nursery.start_soon(peer.serve)
    for _ in range(2):  # what passes by is as much again when they are answered
        router.gate = trio.Event()
        await peer.send(*[b"wait" + bytes(small - 4)] * 4)
        await trio.testing.wait_all_tasks_blocked()
        assert answers.free == 100 << 20
        await peer.send(*[b"wait" + bytes(others - 4)] * 11)
        await trio.testing.wait_all_tasks_blocked()
        assert answers.free == (100 << 20) - 11 * 16 * others
        await peer.send(b"wait")
        await trio.testing.wait_all_tasks_blocked()
        assert answers.free == (100 << 20) - 11 * 16 * others - 16 * 4
        router.gate.set()
        for _ in range(16):
            assert await peer.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert answers.free == 100 << 20


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
    connection = Connection(
        ours, Client(1, "peer:1"), router, frame_bytes_max=FRAME_BYTES_MAX, budget=FrameBudget(), answers=AnswerBudget()
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        await theirs.send_all(framed(b"wait") * requests)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(started), released) == (requests, [])
        if requests < IN_FLIGHT_MAX:
            await theirs.aclose()
        else:  # the reader waits for room in the queue, and does not see the end
            nursery.cancel_scope.cancel()
    assert released == started
