"""The admin listener on real sockets: bounded, and never the node's undoing."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from fairlog.admin_http.server import AdminServer
from fairlog_types import CorruptStorage

BIG = b"x" * (16 << 20)
"""More than the sockets' buffers take."""


FAULTS: dict[str, Exception] = {
    "/fault": ZeroDivisionError("a fault of ours"),
    "/assertion": AssertionError("an invariant is broken"),
    "/damage": CorruptStorage("byte 7 of a data log"),
    "/damage-in-a-group": ExceptionGroup("of a nursery", [ValueError("first"), CorruptStorage("byte 7 of a data log")]),
}


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] in FAULTS:
        raise FAULTS[scope["path"]]
    body = BIG if scope["path"] == "/big" else b"hello"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(*, connections_max: int = 64) -> AsyncGenerator[Any, None]:
    """An admin server over `application`; gives a function that connects to it."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(AdminServer(application, connections_max=connections_max).serve, listeners)
        try:
            yield functools.partial(trio.open_tcp_stream, "127.0.0.1", port)
        finally:
            nursery.cancel_scope.cancel()


def request(path: str, *, host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def answer(stream: trio.SocketStream) -> bytes:
    """What comes until the body `hello`, or until the end."""
    received = b""
    while not received.endswith(b"hello"):
        part = await stream.receive_some()
        if not part:
            break
        received += part
    return received


async def ended(stream: trio.SocketStream) -> None:
    """Until nothing comes any more."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass


async def served_again(connect: Any) -> bool:
    """Try until a new connection is served; the caller bounds the time."""
    while True:
        async with await connect() as stream:
            try:
                await stream.send_all(request("/"))
                if await answer(stream):
                    return True
            except trio.BrokenResourceError:
                pass
        await trio.sleep(0.01)


async def test_server_answers_one_request_after_the_other_on_a_connection() -> None:
    """Keep-alive, as browsers and scrapers use it."""
    with trio.fail_after(10):
        async with serving() as connect, await connect() as stream:
            for _ in range(3):
                await stream.send_all(request("/"))
                received = await answer(stream)
                assert received.startswith(b"HTTP/1.1 200")
                assert b"server:" not in received.lower()


async def test_connections_beyond_the_bound_are_closed_and_the_others_served() -> None:
    """Memory and file descriptors of the node are not a client's to fill."""
    with trio.fail_after(10):
        async with serving(connections_max=2) as connect, await connect() as one, await connect() as two:
            for stream in (one, two):
                await stream.send_all(request("/"))
                assert await answer(stream)
            async with await connect() as third:
                with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 (sending, or waiting for an answer)
                    await third.send_all(request("/"))
                    if not await third.receive_some():
                        raise trio.BrokenResourceError
            await one.send_all(request("/"))
            assert await answer(one)
            await two.aclose()
            assert await served_again(connect)


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, b"GET\r\n\r\n", b"x" * 70_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff"]
)
async def test_garbage_closes_its_connection_alone(garbage: bytes) -> None:
    """Whatever the bytes are, the next client is served."""
    with trio.fail_after(10):
        async with serving() as connect:
            async with await connect() as stream:
                await stream.send_all(garbage)
                await stream.send_eof()
                await ended(stream)
            async with await connect() as stream:
                await stream.send_all(request("/"))
                assert await answer(stream)


async def test_fault_of_the_application_ends_one_request(capfd: pytest.CaptureFixture[str]) -> None:
    """It is said in the log, and the listener lives on."""
    with trio.fail_after(10):
        async with serving() as connect:
            async with await connect() as stream:
                await stream.send_all(request("/fault"))
                assert b" 500 " in (await answer(stream)).partition(b"\r\n")[0]
            async with await connect() as stream:
                await stream.send_all(request("/"))
                assert await answer(stream)
    assert "a fault of ours" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("path", "fatal"),
    [("/assertion", AssertionError), ("/damage", CorruptStorage), ("/damage-in-a-group", CorruptStorage)],
)
async def test_broken_assertion_and_damage_pass_through_to_the_node(path: str, fatal: type[Exception]) -> None:
    """Regression: whoever asked over HTTP had the only answer, and the node went on with what cannot be trusted."""
    with trio.fail_after(10), pytest.RaisesGroup(fatal, flatten_subgroups=True):
        async with serving() as connect, await connect() as stream:
            await stream.send_all(request(path))
            await trio.sleep_forever()


async def test_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    """hypercorn shields its sending: the end closes the socket under it."""
    with trio.fail_after(10):
        async with serving() as connect:
            stream = await connect()
            await stream.send_all(request("/big"))
            await stream.receive_some(10)
        await trio.aclose_forcefully(stream)


async def test_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed, and its place is free again."""
    monkeypatch.setattr("fairlog.admin_http.server.SEND_PATIENCE_S", 0.05)
    with trio.fail_after(10):
        async with serving(connections_max=1) as connect:
            deaf = await connect()
            await deaf.send_all(request("/big"))
            assert await served_again(connect)
            await trio.aclose_forcefully(deaf)


async def test_client_that_never_ends_its_head_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps nobody's place."""
    monkeypatch.setattr("fairlog.admin_http.server.IDLE_S", 0.1)
    with trio.fail_after(10):
        async with serving() as connect, await connect() as stream:
            with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 (closed, it is seen at one of these)
                while True:
                    await stream.send_all(b"G")
                    with trio.move_on_after(0.02):
                        if not await stream.receive_some():
                            raise trio.BrokenResourceError


@pytest.mark.parametrize(
    "asked",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABk\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ],
    ids=["http2", "h2c", "websocket"],
)
async def test_other_protocol_is_not_spoken_and_holds_no_connection(asked: bytes) -> None:
    """A silent connection of HTTP/2 would never be timed: as many as there may be would keep everybody out."""
    with trio.fail_after(10):
        async with serving(connections_max=1) as connect, await connect() as stream:
            await stream.send_all(asked)
            assert not (await answer(stream)).startswith(b"HTTP/1.1 101")
            assert await served_again(connect)


async def test_strangers_write_no_more_than_ten_tracebacks_in_a_minute() -> None:
    """What follows the wish for a web socket is not of its protocol, which hypercorn has no answer for."""
    asked = (
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + b"\xff" * 100
    )
    with trio.fail_after(20), capture_logs() as logged:
        async with serving() as connect:
            for _ in range(25):
                async with await connect() as stream:
                    await stream.send_all(asked)
                    await ended(stream)
    lines = Counter((each["event"], each.get("reason")) for each in logged)
    assert lines
    assert max(lines.values()) <= 10, lines
