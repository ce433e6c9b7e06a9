"""The admin listener: HTTP from hypercorn, connections and their end from us.

    socket ──▶ at most CONNECTIONS_MAX ──▶ (TLS) ──▶ hypercorn's TCPServer (h11) ──▶ Guard ──▶ the application

hypercorn's own `serve` would open the sockets, accept any number of connections, and at the end wait for each client
that does not read its answer. So its part here is one connection: `TCPServer`, which speaks HTTP on a given stream. The
sockets, the number of connections and the end are ours (docs/decisions/0030-admin-listener.md). So is TLS, which is
that of all listeners (`fairlog.security.tls`): hypercorn gets a stream whose handshake is done.

A failure on a connection ends that connection with a log line, at most ten a minute for each address, and nothing else:
the admin listener must not take the node down. But damaged storage, or a broken assertion, that the application meets
concerns the node, whatever the request was (fairlog/edge/fatal.py). hypercorn would log it and continue, so `_watched`
looks first, and `serve` raises it. The listener is up before recovery begins and until the last file is closed, so that
`/health` can say so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlog.admin_http.assets import Asset
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.edge.fatal import fatal_in
from fairlog.edge.log_limiter import LogLimiter
from fairlog.security.tls import HandshakeFailed, TlsListener
from fairlog.security.tls_stream import TlsStream

log = structlog.get_logger()

CONNECTIONS_MAX = 64
"""A browser holds up to six; a scraper, one."""

SEND_PATIENCE_S = 30
"""A peer that does not read its answer for so long is gone."""

IDLE_S = 15
"""Between two requests, and for the whole head of a request."""


_HTTP_1 = b"HTTP/1.1 "
_SWITCHES = b"HTTP/1.1 101 "
"""How answers begin that are HTTP/1.1's; and the one after which another protocol is spoken."""


_FAILED = "admin connection failed"
_PEER: ContextVar[str] = ContextVar("address of the connection that is served")


class MakesApp(Protocol):
    """Makes what is served of what a node shows, and lets callers change; `assets` are the console."""

    def __call__(
        self, *, token: str, asks: bool, statistics: AdminStatistics, assets: Mapping[str, Asset]
    ) -> ASGIApp: ...


class _QuietLogger(Logger):
    """hypercorn's words into our log; it has an exception to tell of, or nothing."""

    def __init__(self, config: Config) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.access_log_format = config.access_log_format
        self.access_logger = None
        self.error_logger = None
        self._lines = LogLimiter(trio.current_time)

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        more = self._lines.admit(_PEER.get(), _FAILED)
        if more is not None:
            log.exception(_FAILED, reason=message, **more)


class _PatientStream:
    """A stream as TCPServer uses it, that does not wait for ever, and does not linger when its peer has gone.

    TCPServer would: it goes on reading when nobody takes its answer, and waits for the next request, IDLE_S long, when
    nobody is there to send one. `terminated`, in a context that is this connection's alone, tells it better.

    hypercorn would also change to HTTP/2 or to a web socket when a client asks for it, and not time a connection of
    HTTP/2 that is silent. Such a connection is closed before it is answered: HTTP/1.1 is all that is needed here.
    """

    def __init__(
        self,
        stream: trio.SocketStream | TlsStream,
        context: WorkerContext,
        life: trio.CancelScope,
    ) -> None:
        """`life` is cancelled to end the connection."""
        self._life = life
        self._stream = stream
        self._context = context
        self._has_answered = False

    async def send_all(self, data: bytes) -> None:
        if data.startswith(_SWITCHES) or not (self._has_answered or data.startswith(_HTTP_1)):
            self._life.cancel()
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("only HTTP/1.1 is spoken here")
        self._has_answered = True
        with trio.move_on_after(SEND_PATIENCE_S) as patience:
            await self._stream.send_all(data)
        if patience.cancelled_caught:
            await self._context.terminated.set()
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError(f"the answer was not read for {SEND_PATIENCE_S} s")

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        received, broken = b"", None
        try:
            received = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            broken = error
        if not received:
            await self._context.terminated.set()
        if broken is not None:
            raise broken
        return received

    async def aclose(self) -> None:
        await self._stream.aclose()


class _PlainStream(_PatientStream):
    """One without TLS, which TCPServer knows by what the other one has."""

    def __init__(self, stream: trio.SocketStream, context: WorkerContext, life: trio.CancelScope) -> None:
        super().__init__(stream, context, life)
        self._plain = stream
        self.socket = stream.socket

    async def send_eof(self) -> None:
        await self._plain.send_eof()


class _SecretStream(_PatientStream):
    """One with TLS, whose handshake is done."""

    def __init__(self, stream: TlsStream, context: WorkerContext, life: trio.CancelScope) -> None:
        super().__init__(stream, context, life)
        self.transport_stream = stream.transport_stream

    async def do_handshake(self) -> None:
        await trio.lowlevel.checkpoint()

    def selected_alpn_protocol(self) -> None:
        """None was offered: HTTP/1.1 it is."""


class AdminServer:
    """HTTP for one application, on listeners that somebody else opens and closes."""

    def __init__(
        self,
        app: ASGIApp,
        tls: TlsListener | None = None,
        statistics: AdminStatistics | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`tls` makes connections secret; None: there is no TLS. `statistics` count."""
        self._tls = tls
        self._statistics = statistics or AdminStatistics()
        self._app = ASGIWrapper(self._watched(app))  # pyright: ignore[reportArgumentType]
        self._config = _config()
        self._connections_max = connections_max
        self._streams: set[trio.SocketStream] = set()
        self._lines = LogLimiter(trio.current_time)
        self._fatal: Exception | None = None
        self._has_failed = trio.Event()

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; then every connection is closed as it is.

        Raises what the application has met and the node must not survive, in a group.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_when_cancelled)
            nursery.start_soon(self._raise_what_is_fatal)
            await trio.serve_listeners(
                self._serve_stream, list(listeners), handler_nursery=nursery, task_status=task_status
            )

    async def _close_when_cancelled(self) -> None:
        """hypercorn shields its sending from cancellation: it ends when the socket under it does."""
        try:
            await trio.sleep_forever()
        finally:
            for stream in self._streams:
                stream.socket.close()

    def _watched(self, app: ASGIApp) -> ASGIApp:
        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                if self._fatal is None:
                    self._fatal = fatal_in(error)
                if self._fatal is not None:
                    self._has_failed.set()
                raise

        return watched

    async def _raise_what_is_fatal(self) -> None:
        await self._has_failed.wait()
        assert self._fatal is not None
        raise self._fatal

    async def _serve_stream(self, stream: trio.SocketStream) -> None:
        if len(self._streams) >= self._connections_max:
            more = self._lines.admit("", "too many admin connections")
            if more is not None:
                log.warning("too many admin connections", connections_max=self._connections_max, **more)
            await trio.aclose_forcefully(stream)
            return
        self._streams.add(stream)
        context = WorkerContext(None)
        peer, _ = _peer(stream)
        _PEER.set(peer)
        try:
            with trio.CancelScope() as life:
                if self._tls is None:
                    patient = _PlainStream(stream, context, life)
                elif (secret := await self._secured(stream, self._tls)) is not None:
                    patient = _SecretStream(secret, context, life)
                else:
                    return
                await TCPServer(
                    self._app,
                    self._config,
                    context,
                    ConnectionState({}),
                    patient,  # pyright: ignore[reportArgumentType]
                )
        except Exception:
            # hypercorn's own, or the socket's: what the application raises does not come by here.
            more = self._lines.admit(peer, _FAILED)
            if more is not None:
                log.exception(_FAILED, **more)
        finally:
            self._streams.discard(stream)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _secured(self, stream: trio.SocketStream, tls: TlsListener) -> TlsStream | None:
        """Do the handshake; None if there is none, which is counted and logged."""
        try:
            secured = await tls.secured(stream, signs_in=True)
            return None if secured is None else secured[0]
        except HandshakeFailed as failure:
            self._statistics.handshakes_failed += 1
            address, port = _peer(stream)
            event = "TLS handshake failed"
            more = self._lines.admit(address, event)
            if more is not None:
                log.warning(
                    event,
                    reason=str(failure),
                    action="connection closed",
                    peer=f"{address}:{port}",
                    listener="admin",
                    **more,
                )
        return None


def _peer(stream: trio.SocketStream) -> tuple[str, int]:
    try:
        return stream.socket.getpeername()[:2]
    except OSError:
        return "(gone)", 0


@asynccontextmanager
async def open_admin_server(
    app: ASGIApp,
    listeners: Sequence[trio.SocketListener],
    tls: TlsListener | None = None,
    statistics: AdminStatistics | None = None,
) -> AsyncGenerator[None, None]:
    """Serve for as long as the block lasts. `tls` and `statistics` as of `AdminServer`."""
    async with trio.open_nursery() as nursery:
        await nursery.start(AdminServer(app, tls, statistics).serve, listeners)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


def _config() -> Config:
    config = Config()
    config.logger_class = _QuietLogger
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_S
    config.h2_max_concurrent_streams = 8
    config.websocket_max_message_size = 1024
    return config
