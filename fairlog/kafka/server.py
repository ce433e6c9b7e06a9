"""Accepts connections, numbers them, and ends them in order.

Ordinals grow with each accepted connection, over all listeners: by them the coordinator knows which of two connections
of one producer is the newer (invariant 10).

A listener with TLS begins with a handshake (`fairlog.security.tls`), and the same follows on the stream inside.

A connection may speak another protocol on the same port (`fairlog/edge/protocols.py`): it counts like any other, and
ends with the others.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog
import trio

from fairlog.broker import Broker
from fairlog.edge.connection_limits import ConnectionLimits, ReachedLimit
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import OPENING_BYTES
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.protocols import ListenerProtocol, Served
from fairlog.kafka.api import Client
from fairlog.kafka.connection import Connection
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router
from fairlog.listening import Door
from fairlog.security.acls import plain_address
from fairlog.security.desk import SignInDesk, SignInRules
from fairlog.security.key_set import KeySet
from fairlog.security.made_up import MADE_UP_SALTS, SECRETS
from fairlog.security.mechanisms import OAUTHBEARER
from fairlog.security.tls import HandshakeFailed, TlsListener
from fairlog.security.tls_stream import TlsStream
from fairlog.security.token_exchange import TokenExchange
from fairlog.security.tokens import TokenRules
from fairlog.security.users import USERS
from fairlog.security_settings import OauthSettings

log = structlog.get_logger()

_PASSING_REFUSALS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2): the system lacks a resource that may become free. Clients that want to connect wait in its
queue.
"""

_ACCEPT_AGAIN_S = 0.1

_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 120),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 8),
)
"""A peer that vanished silently is detected within four minutes. Linux's own default is two hours; in that time the
connections of a client that loses its line again and again could use up all connections.
"""

_UNSENT_IN_SYSTEM = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1 << 20)
"""So much may lie in the system beyond what is on its way; it is in no budget of ours. trio allows 16 KB, so that a
large answer goes out in many pieces, each with a turn of the event loop."""


_REASONS = {
    ReachedLimit.LISTENER: "the listener has as many as requests.connections_max_by_listener allows",
    ReachedLimit.ADDRESS: "the address has as many as requests.connections_max_per_ip allows",
    ReachedLimit.RATE: "more come in a second than requests.connection_rate_max allows",
    ReachedLimit.QUOTA: "more come from the address in a second than its quota allows",
}


class Server:
    """Kafka's protocol over TCP, for one node."""

    def __init__(self, broker: Broker, protocols: Sequence[ListenerProtocol] = ()) -> None:
        """`protocols` are the other protocols on the same port."""
        self._router = Router(broker, ALL)
        self._protocols = {protocol.opening: protocol for protocol in protocols}
        self._frame_bytes_max = broker.settings.requests.request_bytes_max
        self._broker = broker
        self._budget = FrameBudget()
        self._lines = LogLimiter(trio.current_time)
        self._accepted = 0
        self.statistics = self._router.statistics
        sasl = broker.settings.sasl
        self._keys = KeySet(broker.settings.oauth.jwks) if OAUTHBEARER in sasl.mechanisms else None
        self._desk = SignInDesk(
            SignInRules(sasl.mechanisms, sasl.secrets_without_tls, sasl.max_reauth_ms),
            partial(broker.cluster.access, USERS),
            lambda: broker.cluster.access(SECRETS).get(MADE_UP_SALTS),
            self.statistics.sign_ins,
            None if self._keys is None else partial(TokenExchange, self._keys, _token_rules(broker.settings.oauth)),
        )
        self.fetch_sessions = self._router.fetch_sessions
        self._limits = ConnectionLimits()
        self._refused = 0
        """Connections that were refused since there are too many; 0 if there are not."""
        self._accept_failures = 0
        """Failed attempts since no connection can be accepted; 0 if connections can be accepted."""
        self._connections: set[Served | _Handshake] = set()
        self._accepting = trio.CancelScope()

    async def serve(
        self,
        doors: Sequence[Door],
        *,
        task_status: trio.TaskStatus[Sequence[Door]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop` was called and the last request in flight is answered.

        The caller can bound this time by cancelling: connections are then closed as they are.
        """
        async with trio.open_nursery() as connections:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    if any(door.listener.protocol.asks_who_it_is for door in doors):
                        accepting.start_soon(self._follow_users)
                        if self._keys is not None:
                            accepting.start_soon(self._keys.run)
                    accepting.start_soon(self._broker.quotas.follow)
                    for door in doors:
                        accepting.start_soon(self._accept_from, door, connections)
                    task_status.started(doors)

    def stop(self) -> None:
        """Accept no connection and read no request any more."""
        self._accepting.cancel()
        for connection in self._connections:
            connection.stop()

    async def _follow_users(self) -> None:
        """Close the connections of users who are deleted, or get another password, until cancelled."""
        while True:
            changed = self._broker.cluster.changed()
            self._desk.look_again()
            await changed.wait()

    async def _accept_from(self, door: Door, connections: trio.Nursery) -> None:
        """Accept connections until cancelled. `trio.serve_listeners` does the same, but writes to stderr at each
        refusal.
        """
        async with door.socket:
            while True:
                try:
                    stream = await door.socket.accept()
                except OSError as error:
                    if error.errno not in _PASSING_REFUSALS:
                        raise
                    if self._accept_failures == 0:  # once, as with those that are too many
                        log.error("no connection can be accepted", reason=os.strerror(error.errno))  # noqa: TRY400
                    self._accept_failures += 1
                    await trio.sleep(_ACCEPT_AGAIN_S)
                else:
                    if self._accept_failures:
                        log.info("connections are accepted again", attempts=self._accept_failures)
                        self._accept_failures = 0
                    connections.start_soon(self._serve_and_close, stream, door)

    async def _serve_and_close(self, stream: trio.SocketStream, door: Door) -> None:
        try:
            await self._serve_stream(stream, door)
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve_stream(self, stream: trio.SocketStream, door: Door) -> None:
        self._accepted += 1
        self.statistics.accepted += 1
        ordinal, peer = self._accepted, _peer_name(stream.socket)
        connections_max = self._broker.settings.requests.connections_max
        if len(self._connections) >= connections_max:
            more = self._lines.admit("", "too many connections") if self._refused == 0 else None
            if more is not None:  # once, not for each attempt of clients that try again and again
                log.warning("too many connections", peer=peer, connections_max=connections_max, **more)
            self._refused += 1
            self.statistics.refused[ReachedLimit.NODE.value] += 1
            await trio.aclose_forcefully(stream)
            return
        host = plain_address(peer.rpartition(":")[0])
        if (limit := self._reached_limit(door.listener.name, host)) is not None:
            event = "connection refused"
            more = self._lines.admit(host, event)
            if more is not None:
                log.warning(
                    event,
                    reason=_REASONS[limit],
                    action="connection closed",
                    peer=peer,
                    listener=door.listener.name,
                    **more,
                )
            self.statistics.refused[limit.value] += 1
            await trio.aclose_forcefully(stream)
            return
        if self._refused:
            more = self._lines.admit("", "connections are taken again")
            if more is not None:
                refused = self._refused
                log.info("connections are taken again", refused=refused, connections_max=connections_max, **more)
            self._refused = 0
        # trio sets TCP_NODELAY on every stream.
        for level, option, value in (*_KEEPALIVE, _UNSENT_IN_SYSTEM):
            stream.setsockopt(level, option, value)
        client = Client(connection=ordinal, peer=peer, listener=door.listener, lines=self._lines)
        self.statistics.connected += 1
        self._limits.opened(door.listener.name, host, trio.current_time())
        try:
            secured = stream if door.tls is None else await self._secured(stream, door.tls, client)
            if secured is None:
                return
            if door.listener.protocol.asks_who_it_is:
                await self._serve_who_signs_in(secured, client)
            else:
                await self._serve_client(secured, client)
        finally:
            self.statistics.connected -= 1
            self._limits.closed(door.listener.name, host)

    def _reached_limit(self, listener: str, host: str) -> ReachedLimit | None:
        """Why one more connection from this address is not taken; None if it is, and counts from now on."""
        now_s = trio.current_time()
        limit = self._limits.refusal(self._broker.settings.requests, listener, host, now_s)
        meters = self._broker.quotas.connections
        if limit is None and meters is not None:
            quota = meters.limits.of_address(host)
            if quota is not None and meters.admit(quota, 1, now_s) > 0:
                return ReachedLimit.QUOTA
        return limit

    async def _secured(self, stream: trio.SocketStream, tls: TlsListener, client: Client) -> TlsStream | None:
        """Do the TLS handshake, and note whom the client's certificate shows; None if there is none with it."""
        handshake = _Handshake()
        self._connections.add(handshake)
        try:
            if self._accepting.cancel_called:  # accepted in the step of `stop`
                handshake.stop()
            with handshake.life:
                secured = await tls.secured(stream, signs_in=client.listener.protocol.asks_who_it_is)
                if secured is None:
                    return None
                secret, client.principal = secured
                return secret
        except HandshakeFailed as failure:
            self.statistics.handshakes_failed += 1
            event = "TLS handshake failed"
            more = client.admit_line(event)
            if more is not None:
                log.warning(
                    event,
                    reason=str(failure),
                    action="connection closed",
                    peer=client.peer,
                    listener=client.listener.name,
                    **more,
                )
        finally:
            self._connections.discard(handshake)
        return None

    async def _serve_who_signs_in(self, stream: trio.abc.Stream, client: Client) -> None:
        def report(event: str, fields: Mapping[str, object]) -> None:
            more = client.admit_line(event)
            if more is not None:
                log.warning(event, peer=client.peer, connection=client.connection, **fields, **more)

        client.sign_in = sign_in = self._desk.open(client.listener, report)
        try:
            with sign_in.scope:
                sign_in.begin()
                await self._serve_client(stream, client)
        finally:
            self._desk.close(sign_in)

    async def _serve_client(self, stream: trio.abc.Stream, client: Client) -> None:
        connection = Connection(
            stream,
            client,
            self._router,
            frame_bytes_max=self._frame_bytes_max,
            budget=self._budget,
            answers=self._router.answers,
            openings=self._protocols,
        )
        received = await self._serve_until_stopped(connection)
        if received is not None:
            protocol = self._protocols[received[:OPENING_BYTES]]
            spoken = protocol.connection(
                stream,
                received,
                ordinal=client.connection,
                peer=client.peer,
                budget=self._budget,
                lines=self._lines,
                listener=client.listener,
                principal=client.principal,
                sign_in=client.sign_in,
            )
            await self._serve_until_stopped(spoken)

    async def _serve_until_stopped(self, connection: Served) -> bytes | None:
        self._connections.add(connection)
        try:
            return None if self._accepting.cancel_called else await connection.serve()
        finally:
            self._connections.discard(connection)


def _token_rules(oauth: OauthSettings) -> TokenRules:
    audiences = tuple(name.strip() for name in oauth.audience.split(","))
    return TokenRules(oauth.issuer, audiences, oauth.principal_claim, oauth.clock_skew_s)


class _Handshake:
    """A connection that is not served yet: it counts like one that is, and ends at once with the server."""

    def __init__(self) -> None:
        self.life = trio.CancelScope()

    def stop(self) -> None:
        self.life.cancel()


def _peer_name(peer: trio.socket.SocketType) -> str:
    try:
        name: Any = peer.getpeername()
    except OSError:
        return "(gone)"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
