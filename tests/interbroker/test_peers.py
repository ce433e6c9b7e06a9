"""Processes send each other messages over TCP, and bear with whoever else connects. The clock is not the wall's."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import pytest
import structlog
import trio
from trio.testing import MockClock

from fairlog.edge.frames import Buffer
from fairlog.edge.sending import taken_at_once
from fairlog.interbroker import peers
from fairlog.interbroker.codec import MESSAGE_BYTES_MAX, decode_untrusted, encode
from fairlog.interbroker.peers import HANDSHAKE_S, PAUSE_MAX_S, PAUSE_MIN_S, QUEUE_BYTES_MAX, START_S, STRANGERS_MAX
from fairlog.interbroker.sealing import Opener, Sealer
from fairlog_types import ShardNumber
from shard.commands import Failed
from shard.conversation import Hello, Reply, Welcome
from tests.interbroker.messages import EXAMPLES
from tests.interbroker.processes import SECRET, Directory, Process


@pytest.fixture
def clock(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Stands still as long as sockets have something to say, and then jumps to the next deadline.

    A machine under load may let them wait for longer. No handshake shall end because of that, so it has no deadline.
    """
    monkeypatch.setattr(peers, "HANDSHAKE_S", math.inf)
    mock_clock.autojump_threshold = 0.005
    return mock_clock


@pytest.fixture
async def directory(clock: MockClock, nursery: trio.Nursery) -> AsyncGenerator[Directory]:
    directory = Directory(nursery)
    yield directory
    directory.close()


@pytest.fixture
async def pair(directory: Directory) -> tuple[Process, Process]:
    """Two processes that are connected in both directions."""
    a, b = Process(directory, 0), Process(directory, 1)
    await a.start()
    await b.start()
    assert (await a.connected(), await b.connected()) == (1, 0)
    return a, b


async def pass_by(seconds: int) -> None:
    """One after the other, so that a machine that lets sockets wait takes one from them, and not all."""
    for _ in range(seconds):
        await trio.sleep(1)


async def test_message_arrives_with_its_sender_and_in_order(clock: MockClock, pair: tuple[Process, Process]) -> None:
    """All kinds of messages, in both directions."""
    a, b = pair
    for message in EXAMPLES:
        a.peers.send(b.shard, message)
        b.peers.send(a.shard, message)
    for message in EXAMPLES:
        assert await b.receive() == (0, message)
        assert await a.receive() == (1, message)


async def test_three_processes_reach_each_other(clock: MockClock, nursery: trio.Nursery) -> None:
    """Each message gets to the shard that it is for, and to no other."""
    directory = Directory(nursery, shards=3)
    processes = [Process(directory, shard) for shard in range(3)]
    for process in processes:
        await process.start()
    for process in processes:
        assert {await process.connected(), await process.connected()} == {*directory.shards} - {process.shard}
    for sender in processes:
        for receiver in processes:
            if sender is not receiver:
                sender.peers.send(receiver.shard, Welcome(sender.shard, receiver.shard))
    for receiver in processes:
        came = {await receiver.receive(), await receiver.receive()}
        assert came == {(s.shard, Welcome(s.shard, receiver.shard)) for s in processes if s is not receiver}
        assert receiver.has_received() == 0
    directory.close()


async def test_process_that_comes_back_on_another_port_is_found(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """What is sent meanwhile is dropped; `connected` tells when sending helps again."""
    a, b = pair
    await b.stop()
    await trio.testing.wait_all_tasks_blocked(0.01)
    a.peers.send(b.shard, Hello(1))
    again = Process(directory, 1)
    await again.start()
    assert again.address != b.address
    assert await a.connected() == 1
    a.peers.send(b.shard, Hello(2))
    assert await again.receive() == (0, Hello(2))
    assert await again.connected() == 0


async def test_end_of_a_process_is_told_at_once_and_each_attempt_in_vain(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    a, b = pair
    while a.has_disconnected():
        await a.disconnected()  # before both had begun to listen
    await b.stop()
    now_s = trio.current_time()
    assert await a.disconnected() == 1
    assert trio.current_time() - now_s < PAUSE_MIN_S / 2
    await trio.sleep(20)
    assert await a.disconnected() == 1


async def test_process_that_is_away_for_longer_than_a_start_takes_is_named_in_the_log(
    clock: MockClock, pair: tuple[Process, Process]
) -> None:
    _, b = pair
    with structlog.testing.capture_logs() as lines:
        await b.stop()
        await trio.sleep(START_S - 1)
        assert "a shard cannot be reached" not in {line["event"] for line in lines}
        await trio.sleep(1 + PAUSE_MAX_S)
        assert "a shard cannot be reached" in {line["event"] for line in lines}


async def test_process_that_comes_back_late_is_found(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """However long it was away, and at once: it connects, and so is there."""
    a, b = pair
    await b.stop()
    await trio.sleep(20)
    clock.autojump_threshold = math.inf
    again = Process(directory, 1)
    await again.start()
    assert await again.connected() == 0
    for _ in range(9):  # less than PAUSE_MAX_S / 2 in all
        await trio.testing.wait_all_tasks_blocked(0.01)
        clock.jump(0.05)
    assert await a.connected() == 1


async def test_process_without_an_address_is_asked_for_until_it_has_one(clock: MockClock, directory: Directory) -> None:
    """At the start nobody knows where the others listen."""
    a, b = Process(directory, 0), Process(directory, 1)
    await b.start(told=False)
    await a.start(told=False)
    await trio.sleep(10)
    assert a.has_connected() == b.has_connected() == 0
    directory.addresses[b.shard] = b.address
    assert await a.connected() == 1


async def test_sending_without_a_connection_drops_the_message(clock: MockClock, directory: Directory) -> None:
    """Before it runs, and to a shard that there is not; nothing is raised."""
    a = Process(directory, 0)
    a.peers.send(ShardNumber(1), Hello(1))
    a.peers.send(ShardNumber(99), Hello(1))


async def test_message_is_sent_in_the_step_of_the_call(
    clock: MockClock, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has it before anyone else runs."""
    a, b = pair
    taken: list[int] = []

    def noted(fd: int, buffers: Sequence[Buffer]) -> int:
        taken.append(taken_at_once(fd, buffers))
        return taken[-1]

    monkeypatch.setattr(peers, "taken_at_once", noted)
    a.peers.send(b.shard, Hello(1))
    a.peers.send(b.shard, Hello(2))
    assert [size > 0 for size in taken] == [True, True]
    assert [await b.receive(), await b.receive()] == [(0, Hello(1)), (0, Hello(2))]


@pytest.mark.parametrize("takes", [0, 10], ids=["nothing", "a part"])
async def test_what_the_system_does_not_take_at_once_follows_in_order(
    clock: MockClock, pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    """A frame that was sent in part is completed before the next one, which would have had room."""
    a, b = pair

    def take_less(fd: int, buffers: Sequence[Buffer]) -> int:
        monkeypatch.undo()
        return os.write(fd, bytes(buffers[0])[:takes]) if takes else 0

    monkeypatch.setattr(peers, "taken_at_once", take_less)
    for number in range(100):
        a.peers.send(b.shard, Hello(number))
    assert [await b.receive() for _ in range(100)] == [(0, Hello(number)) for number in range(100)]


async def test_wrong_secret_is_told_and_nothing_gets_through(clock: MockClock, directory: Directory) -> None:
    """Neither side is connected, and the log says why, in a few lines however often it is tried."""
    with structlog.testing.capture_logs() as lines:
        a, b = Process(directory, 0), Process(directory, 1, secret=b"t" * 32)
        await a.start()
        await b.start()
        await pass_by(55)
    assert a.has_connected() == b.has_connected() == 0
    told = [line for line in lines if line["event"] == "the process at a shard's address was refused"]
    assert "does not know the secret" in told[0]["reason"]
    assert "broker-secret" in told[0]["reason"]
    assert 2 <= len(told) <= 20
    assert len(lines) < 60


async def test_process_of_another_cluster_is_told_by_both(clock: MockClock, directory: Directory) -> None:
    """Both say which cluster the other one belongs to."""
    with structlog.testing.capture_logs() as lines:
        a, b = Process(directory, 0), Process(directory, 1, cluster="another")
        await a.start()
        await b.start()
        await pass_by(20)
    assert a.has_connected() == b.has_connected() == 0
    for event in ("the process at a shard's address was refused", "a connection to the brokers' listener was refused"):
        reasons = {line["reason"] for line in lines if line["event"] == event}
        assert any("belongs to the cluster 'another'" in reason for reason in reasons)
        assert any("and this process to 'another'" in reason for reason in reasons)


@pytest.mark.parametrize("garbage", [b"\0", b"GET / HTTP/1.1\r\n\r\n", b"FLIB\0\2" + bytes(200), b"\xff" * 100_000])
async def test_garbage_is_disconnected_and_the_others_go_on(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process], garbage: bytes
) -> None:
    """Whoever speaks something else is not answered."""
    a, b = pair
    stranger = await directory.connect(a)
    with suppress(trio.BrokenResourceError):
        await stranger.send(garbage)
        await stranger.stream.send_eof()
    assert await stranger.is_closed()
    b.peers.send(a.shard, Hello(1))
    assert await a.receive() == (1, Hello(1))


@pytest.mark.parametrize("size", [0, 3, 6, 50, 110])
async def test_handshake_that_does_not_go_on_is_given_up(
    clock: MockClock,
    directory: Directory,
    pair: tuple[Process, Process],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    """After five seconds, wherever it hangs."""
    a, _ = pair
    clock.autojump_threshold = math.inf
    monkeypatch.setattr(peers, "HANDSHAKE_S", HANDSHAKE_S)
    recorded, _ = await directory.connect_as(1, a)
    stranger = await directory.connect(a)
    await stranger.send(recorded.sent[:size])
    await trio.testing.wait_all_tasks_blocked(0.01)
    clock.jump(HANDSHAKE_S - 0.1)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not stranger.has_ended()
    clock.jump(0.2)
    assert await stranger.is_closed()


async def test_peer_that_does_not_answer_is_given_up(
    clock: MockClock, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs within the handshake holds up nobody; it is tried again."""
    clock.autojump_threshold = math.inf
    monkeypatch.setattr(peers, "HANDSHAKE_S", HANDSHAKE_S)
    listener = await directory.listen_as(1)
    a = Process(directory, 0)
    await a.start()
    silent = await directory.accept(listener)
    await trio.testing.wait_all_tasks_blocked(0.01)
    clock.jump(HANDSHAKE_S - 0.1)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not silent.has_ended()
    clock.jump(0.2)
    assert await silent.is_closed()
    clock.autojump_threshold = 0.005
    await directory.accept(listener)


async def test_strangers_are_bounded_in_number(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """The oldest is given up for a new one, so that they cannot keep the others out."""
    a, b = pair
    clock.autojump_threshold = math.inf
    strangers = [await directory.connect(a) for _ in range(STRANGERS_MAX + 1)]
    assert await strangers[0].is_closed()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert [each.has_ended() for each in strangers[1:]] == [False] * STRANGERS_MAX
    recorded, key = await directory.connect_as(1, a)
    await recorded.send(Sealer(key).seal(encode(Hello(7))))
    assert await a.receive() == (1, Hello(7))
    assert b.has_received() == 0


async def test_handshake_that_is_replayed_is_refused(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """Who has recorded a whole connection, with its frames, gets nothing through with it."""
    a, _ = pair
    recorded, key = await directory.connect_as(1, a)
    await recorded.send(Sealer(key).seal(encode(Hello(7))))
    assert await a.receive() == (1, Hello(7))
    replayed = await directory.connect(a)
    with structlog.testing.capture_logs() as lines:
        await replayed.send(recorded.sent)
        assert await replayed.is_closed()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert a.has_received() == 0
    assert "does not know the secret" in lines[0]["reason"]


WRONG_FRAMES = {
    "huge length": lambda _: b"\x7f\xff\xff\xff",
    "negative length": lambda _: b"\xff\xff\xff\xff",
    "a byte more than is taken": lambda _: struct.pack(">I", MESSAGE_BYTES_MAX + 17),
    "too short": lambda _: struct.pack(">I", 3) + b"abc",
    "other key": lambda _: Sealer(b"k" * 32).seal(encode(Hello(1))),
    "no message": lambda key: Sealer(key).seal(b"\x80"),
    "no CBOR": lambda key: Sealer(key).seal(b"\xff"),
}


@pytest.mark.parametrize("wrong", WRONG_FRAMES.values(), ids=WRONG_FRAMES.keys())
async def test_frame_that_is_not_one_ends_the_connection(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process], wrong
) -> None:
    """Also of somebody who knows the secret: one line in the log, and nothing is received."""
    a, _ = pair
    recorded, key = await directory.connect_as(1, a)
    with structlog.testing.capture_logs() as lines:
        await recorded.send(wrong(key))
        assert await recorded.is_closed()
    assert a.has_received() == 0
    assert [line["event"] for line in lines][:1] == ["malformed message of a shard or tool"]


async def test_second_connection_of_a_shard_takes_the_place_of_the_first(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """A process that was restarted is heard, though its old connection seems to be alive."""
    a, _ = pair
    first, _ = await directory.connect_as(1, a)
    second, key = await directory.connect_as(1, a)
    assert await first.is_closed()
    await second.send(Sealer(key).seal(encode(Hello(7))))
    assert await a.receive() == (1, Hello(7))


async def test_peer_that_does_not_read_takes_bounded_memory(clock: MockClock, directory: Directory) -> None:
    """What does not fit into the queue is dropped; what arrives is whole, in order, and goes on afterwards."""
    listener = await directory.listen_as(1)
    a = Process(directory, 0)
    await a.start()
    reader, key = await directory.accept_as(1, listener)
    assert await a.connected() == 1
    megabyte = "x" * (1 << 20)
    with structlog.testing.capture_logs() as lines:
        for number in range(100):
            a.peers.send(ShardNumber(1), Reply(1, 1, number, Failed(megabyte)))
            await trio.lowlevel.checkpoint()
    assert "messages are dropped" in {line["event"] for line in lines}
    opener = Opener(key)
    arrived: list[int] = []

    async def next_message():
        length = int.from_bytes(await reader.receive_exactly(4), "big")
        return decode_untrusted(opener.open_untrusted(await reader.receive_exactly(length)))

    taken = QUEUE_BYTES_MAX >> 20
    while len(arrived) < taken - 1:
        arrived.append((await next_message()).number)
    assert arrived == sorted(arrived)
    await trio.testing.wait_all_tasks_blocked(0.01)
    a.peers.send(ShardNumber(1), Hello(7))
    while (message := await next_message()) != Hello(7):
        arrived.append(message.number)
    assert arrived == sorted(arrived)
    assert len(arrived) < 40, "the queue, and what the system's buffers have taken"


async def test_message_that_is_too_large_is_dropped_and_told(clock: MockClock, pair: tuple[Process, Process]) -> None:
    """The largest goes through, one byte more does not; what follows does."""
    a, b = pair
    room = MESSAGE_BYTES_MAX - len(encode(Reply(1, 1, 1, Failed("x" * 100_000)))) + 100_000
    with structlog.testing.capture_logs() as lines:
        a.peers.send(b.shard, Reply(1, 1, 1, Failed("x" * (room + 1))))
    assert [line["event"] for line in lines] == ["a message is too large to be sent"]
    largest = Reply(1, 1, 1, Failed("x" * room))
    a.peers.send(b.shard, largest)
    assert await b.receive() == (0, largest)


async def test_peer_that_sends_on_an_outgoing_connection_is_disconnected(
    clock: MockClock, directory: Directory
) -> None:
    """Each direction has a connection of its own, so nothing comes back on this one."""
    listener = await directory.listen_as(1)
    a = Process(directory, 0)
    await a.start()
    peer, _ = await directory.accept_as(1, listener)
    assert await a.connected() == 1
    await peer.send(b"x")
    assert await peer.is_closed()


async def test_listener_is_not_open_after_the_end(
    clock: MockClock, directory: Directory, pair: tuple[Process, Process]
) -> None:
    """A stopped process leaves nothing behind."""
    a, _ = pair
    await a.stop()
    with pytest.raises(OSError, match="connect"):
        await directory.connect(a)


def test_secret_of_the_tests_is_as_long_as_a_real_one() -> None:
    """So that nothing here depends on its length."""
    assert len(SECRET) == 32
