"""The server over sockets: its listeners, its limits, and how it stops."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import replace

import pytest
import trio
from structlog.testing import capture_logs

from fairlog.config_values import CountsByName
from fairlog.edge.frames import FrameReader
from fairlog.edge.log_limiter import LINES_MAX
from fairlog.kafka.connection import Connection
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.protocol import NativeProtocol
from fairlog.security.principal import ANONYMOUS
from fairlog.security.quota_changes import Change
from fairlog.security.quotas import QuotaKey, entity_untrusted
from tests.kafka.serving import framed


@pytest.fixture
async def server(memory, nursery):
    server = Server(memory.broker)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, [Door(each) for each in listeners])
    address = listeners[0].socket.getsockname()

    async def connect():
        return await trio.open_tcp_stream(*address[:2])

    server.connect, server.address = connect, address[:2]
    yield server
    server.stop()


async def ask_versions(stream) -> bytes:
    """Asks for ApiVersions v0; the answer's frame."""
    await stream.send_all(framed(struct.pack(">hhih", 18, 0, 5, -1)))
    with trio.fail_after(30):
        return bytes(await FrameReader(stream, frame_bytes_max=2**31 - 1).next_frame())


async def test_server_answers_over_tcp(server):
    """A client that speaks only through a socket gets its answer."""
    async with await server.connect() as stream:
        assert (await ask_versions(stream))[:6] == struct.pack(">ih", 5, 0)


@pytest.fixture
def streams(monkeypatch):
    """The server's ends of all connections."""
    streams = []

    class Noting(Connection):
        def __init__(self, stream, *rest, **more):
            streams.append(stream)
            super().__init__(stream, *rest, **more)

    monkeypatch.setattr("fairlog.kafka.server.Connection", Noting)
    return streams


async def test_system_takes_much_of_an_answer_and_not_all(server, streams):
    """trio would allow it no more than 16 KB beyond what is on its way to the client, and the system all there is."""
    async with await server.connect() as stream:
        await ask_versions(stream)
        assert streams[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 1 << 20


async def test_peer_that_vanishes_is_found_out_in_minutes(server, streams):
    """Linux would ask after two hours whether it is still there."""
    async with await server.connect() as stream:
        await ask_versions(stream)
        assert streams[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, interval_s, probes = (
            streams[0].getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle_s + interval_s * probes <= 240


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
            with trio.fail_after(30):
                assert (await reader.next_frame())[19:21] == b"\0\0"  # no error
        await stream.send_all(framed(fetch))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30):
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
            with trio.fail_after(30):
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
    live = server._broker.live_settings
    await live.alter("7", lambda _own: {"max.connections": "1"}, validate_only=False)
    async with await server.connect() as one:
        await ask_versions(one)
        with capture_logs() as lines:
            async with await server.connect() as two:
                with trio.fail_after(30):
                    assert await two.receive_some() == b""
            async with await server.connect() as three:
                with trio.fail_after(30):
                    assert await three.receive_some() == b""
        assert [line["event"] for line in lines] == ["too many connections"]
        await ask_versions(one)
    with trio.fail_after(30):
        while server._connections:  # noqa: ASYNC110 (the system says when it is closed)
            await trio.sleep(0.001)
    with capture_logs() as lines:
        async with await server.connect() as four:
            await ask_versions(four)
    told = [line for line in lines if line["log_level"] != "debug"]
    assert [(line["event"], line["refused"]) for line in told] == [("connections are taken again", 2)]


async def refused_at(server, source: str = "127.0.0.1") -> bool:
    """Whether one more connection is closed at once; it is closed here otherwise."""
    host, port = server.address
    with trio.fail_after(30):
        async with await trio.open_tcp_stream(host, port, local_address=source) as stream:
            try:
                await ask_versions(stream)
            except (trio.BrokenResourceError, TypeError):
                return True
    return False


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"max.connections.per.ip": "1"}, "address"),
        ({"max.connections.per.ip": "5", "max.connections.per.ip.overrides": "127.0.0.1:1,10.0.0.1:7"}, "address"),
    ],
)
async def test_connections_of_one_address_are_limited_and_others_are_served(server, changes, limit):
    """They are counted, and lines about them are few."""
    await server._broker.live_settings.alter("7", lambda _own: changes, validate_only=False)
    async with await server.connect() as one:
        await ask_versions(one)
        with capture_logs() as lines:
            for _ in range(LINES_MAX + 2):
                assert await refused_at(server)
        told = [line for line in lines if line["event"] == "connection refused"]
        assert len(told) == LINES_MAX
        assert "requests.connections_max_per_ip" in told[0]["reason"]
        assert server.statistics.refused == {limit: LINES_MAX + 2}
        assert not await refused_at(server, "127.0.0.2")
    with trio.fail_after(30):
        while server._limits._by_address:  # noqa: ASYNC110 (the system says when it is closed)
            await trio.sleep(0.001)
    assert not await refused_at(server)


async def test_connections_of_one_listener_are_limited(memory, nursery):
    memory.settings = replace(
        memory.settings,
        requests=replace(memory.settings.requests, connections_max_by_listener=CountsByName((("PLAINTEXT", 1),))),
    )
    server = Server(memory.broker)
    sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, [Door(each) for each in sockets])
    server.address = sockets[0].socket.getsockname()[:2]
    async with await trio.open_tcp_stream(*server.address) as one:
        await ask_versions(one)
        assert await refused_at(server, "127.0.0.2")
        assert server.statistics.refused == {"listener": 1}
    server.stop()


async def test_new_connections_in_a_second_are_limited(server):
    """Ten seconds' worth may come at once."""
    await server._broker.live_settings.alter(
        "7", lambda _own: {"max.connection.creation.rate": "1"}, validate_only=False
    )
    assert [await refused_at(server) for _ in range(12)] == [False] * 10 + [True] * 2
    assert server.statistics.refused == {"rate": 2}


async def test_new_connections_of_an_address_have_a_quota(server, memory):
    """The one of the address, or the default; a refused one counts no more."""
    quotas = memory.quotas
    changes = [
        Change(entity_untrusted({"ip": "127.0.0.1"}), {QuotaKey.CONNECTIONS: 1}),
        Change(entity_untrusted({"ip": None}), {QuotaKey.CONNECTIONS: 2}),
    ]
    await quotas.change(changes, validate_only=False, by=ANONYMOUS)
    assert [await refused_at(server) for _ in range(12)] == [False] * 10 + [True] * 2
    assert [await refused_at(server, "127.0.0.2") for _ in range(21)] == [False] * 20 + [True]
    assert server.statistics.refused == {"quota": 3}
    await quotas.change([Change(changes[0].entity, {QuotaKey.CONNECTIONS: 100})], validate_only=False, by=ANONYMOUS)
    assert not await refused_at(server)


async def test_muted_connection_is_heard_again_when_its_time_is_over_or_quotas_change(server, memory, batch):
    """The answer comes at once, with the throttle time; what is sent then waits."""
    memory.topics.create_now("t")
    sent = batch(size=20_000)
    produce = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, 1, 1000, 1) + struct.pack(">h1siii", 1, b"t", 1, 0, len(sent))
    entity = entity_untrusted({"client-id": None})
    await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: 1000})], validate_only=False, by=ANONYMOUS)
    async with await server.connect() as stream:
        reader = FrameReader(stream, frame_bytes_max=2**31 - 1)
        await stream.send_all(framed(produce + sent))
        with trio.fail_after(30):
            answer = bytes(await reader.next_frame())
        (throttle_ms,) = struct.unpack(">i", answer[-4:])
        assert 10_000 < throttle_ms < 10_200
        await stream.send_all(framed(struct.pack(">hhih", 18, 0, 6, -1)))
        with trio.move_on_after(0.2) as waiting:
            await reader.next_frame()
        assert waiting.cancelled_caught
        await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: None})], validate_only=False, by=ANONYMOUS)
        with trio.fail_after(5):
            assert bytes(await reader.next_frame())[:4] == struct.pack(">i", 6)
        await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: 1})], validate_only=False, by=ANONYMOUS)
        await stream.send_all(framed(produce + sent))
        with trio.fail_after(5):
            await reader.next_frame()
        await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: None})], validate_only=False, by=ANONYMOUS)
        await stream.send_all(framed(struct.pack(">hhih", 18, 0, 7, -1)))  # it asks when the quota is gone already
        with trio.fail_after(5):
            assert bytes(await reader.next_frame())[:4] == struct.pack(">i", 7)


async def test_muted_client_that_wants_no_answers_and_goes_is_heard_all_the_same(server, memory, batch):
    """What it has sent before, if that is soon."""
    memory.topics.create_now("t")
    sent = batch(size=1_030_000)
    head = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, 0, 1000, 1)
    produce = head + struct.pack(">h1siii", 1, b"t", 1, 0, len(sent)) + sent
    entity = entity_untrusted({"client-id": None})
    await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: 100_000})], validate_only=False, by=ANONYMOUS)
    async with await server.connect() as stream:
        await stream.send_all(framed(produce))
        await stream.send_all(framed(head + struct.pack(">h1siii", 1, b"t", 1, 0, 130) + batch(size=130)))
    with trio.fail_after(10):
        while len(memory.leaders.logs.get(memory.log("t"), ())) < 2:  # noqa: ASYNC110 (nobody is told)
            await trio.sleep(0.01)
    assert memory.quotas.throttles.requests["Produce"] >= 1


async def test_muted_client_that_has_gone_takes_no_room_for_long(server, memory, batch, monkeypatch):
    monkeypatch.setattr("fairlog.kafka.connection._GONE_WHILE_MUTED_S", 0.1)
    monkeypatch.setattr("fairlog.kafka.connection.HANG_UP_CHECK_S", 0.05)
    memory.topics.create_now("t")
    sent = batch(size=20_000)
    produce = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, 1, 1000, 1) + struct.pack(">h1siii", 1, b"t", 1, 0, len(sent))
    entity = entity_untrusted({"client-id": None})
    await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: 1})], validate_only=False, by=ANONYMOUS)
    async with await server.connect() as stream:
        await stream.send_all(framed(produce + sent) + framed(struct.pack(">hhih", 18, 0, 6, -1)))
        await FrameReader(stream, frame_bytes_max=2**31 - 1).next_frame()
    with trio.fail_after(10):
        while server._connections:  # noqa: ASYNC110 (the system says when it is closed)
            await trio.sleep(0.01)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_muted_connection_does_not_hold_up_the_stop(memory, batch, is_answered):
    """Whether the request that mutes it is answered before the stop, or while the next one waits for that answer."""
    memory.topics.create_now("t")
    memory.leaders.held = not is_answered
    sent = batch(size=20_000)
    produce = struct.pack(">hhihhhii", 0, 3, 5, -1, -1, -1, 1000, 1) + struct.pack(">h1siii", 1, b"t", 1, 0, len(sent))
    entity = entity_untrusted({"client-id": None})
    await memory.quotas.change([Change(entity, {QuotaKey.PRODUCER: 1})], validate_only=False, by=ANONYMOUS)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            server = Server(memory.broker)
            sockets = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(server.serve, [Door(each) for each in sockets])
            async with await trio.open_tcp_stream(*sockets[0].socket.getsockname()[:2]) as stream:
                await stream.send_all(framed(produce + sent) + framed(struct.pack(">hhih", 18, 0, 6, -1)))
                frames = FrameReader(stream, frame_bytes_max=2**31 - 1)
                if is_answered:
                    await frames.next_frame()
                await trio.testing.wait_all_tasks_blocked(0.05)
                server.stop()
                memory.leaders.release()
                if not is_answered:
                    await frames.next_frame()
                assert await stream.receive_some() == b""


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
        with capture_logs() as lines, trio.fail_after(30):
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
        await Server(memory.broker).serve([Door(each) for each in listeners])


async def test_server_stopped_answers_a_long_poll_at_once(memory):
    """A consumer that waits for new data for a minute does not hold up the stop of a node."""
    memory.topics.create_now("t")
    server = Server(memory.broker)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 60_000, 1, 10**7, 0, 1)
    fetch += struct.pack(">h1siiqi", 1, b"t", 1, 0, 0, 10**7)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [Door(each) for each in listeners])
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
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [Door(each) for each in listeners])
            stream = await trio.open_tcp_stream(*address[:2])
            await ask_versions(stream)
            server.stop()
    async with stream:
        assert await stream.receive_some() == b""
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(*address[:2])


async def send_and_wait_for_the_end(address, data: bytes) -> None:
    async with await trio.open_tcp_stream(*address[:2]) as stream:
        await stream.send_all(data)
        with trio.fail_after(30):
            while await stream.receive_some():
                pass


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (framed(struct.pack(">hhih", 1, 99, 5, -1)), "request without an answer"),
        (framed(struct.pack(">hhih", 1, 12, 5, -1)), "malformed request"),
        (b"FLG9", "another version of the native protocol"),
    ],
    ids=["not served", "malformed", "native"],
)
async def test_client_that_connects_again_and_again_does_not_fill_the_log(memory, nursery, data, event):
    """Ten lines a minute say what one address does wrong, over all its connections; the rest is counted."""
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    (listener,) = listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(server.serve, [Door(each) for each in listeners])
    with capture_logs() as lines:
        for _ in range(LINES_MAX + 5):
            await send_and_wait_for_the_end(listener.socket.getsockname(), data)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [event] * LINES_MAX
    server.stop()
