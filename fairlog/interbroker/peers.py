"""The connections between the brokers of shards, on one machine or several. Implements `shard.links.Transport`.

    send ─▶ encode, seal ─▶ at once, or by a queue and its writer ┈┈▶ FrameReader ─▶ open, decode ─▶ receive
            └───────────────── outgoing connection of A to B ──┘     └── incoming connection of B from A ──┘

Each direction has a connection of its own: what A sends to B goes over the one that A has opened, so nobody has to
settle which of two is the right one. A side keeps opening it, with a short pause, and asks for the address each time: a
process that was restarted has another port, and a shard may be another node's by now. A peer that connects is there, so
its pause ends at once. A second connection of the same peer takes the place of the first.

What is sent while there is no connection, or no room in its queue, is dropped; so is what was queued when it broke.
`shard.links` says it again, at once if `connected` has it do so. Connections are made as `ways` has it: on one machine
they are what they are, on several there may be TLS around what is drawn here; then all goes by the queue.

Whoever has not proved that it knows the secret (`handshake`) can take up HANDSHAKE_S, one of STRANGERS_MAX places, of
which the oldest is given up for a new one, and 142 bytes, beside what OpenSSL takes for a TLS handshake. Afterwards a
peer that sends something else than frames of this connection is disconnected, with a line in the log.

A tool may connect, too, if it is to be served (`serving_tools`), and so may a node that joins the cluster and wants a
copy of the shard (`giving_copies`): these are none of the peers, and there may be several.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
import trio

from fairlog.cluster.interface import InnerAddress, Notice
from fairlog.edge.frames import FrameReader
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.malformed import Malformed
from fairlog.edge.sending import taken_at_once
from fairlog.interbroker.codec import MESSAGE_BYTES_MAX, decode_untrusted, encode
from fairlog.interbroker.giving_copies import GivesCopies, serve_joining
from fairlog.interbroker.handshake import JOINING, NONCE_BYTES, TOOL, Accepting, Connecting, Identity, Refused
from fairlog.interbroker.sealing import TAG_BYTES, Opener, Sealer
from fairlog.interbroker.serving_tools import WhileAllHold, serve_tool
from fairlog.interbroker.shaking_hands import HANDSHAKE_S, shake_hands
from fairlog.interbroker.ways import InnerStream, Plain, Way, why_it_ended
from fairlog.security.tls import HandshakeFailed, HungUp
from fairlog_types import ShardNumber
from shard.conversation import Message

STRANGERS_MAX = 32
"""Connections whose handshake is not finished."""

PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0
"""Between two attempts to connect: doubled each time."""

START_S = 5.0
"""What a process may take to start, side by side with others: until then it need not be reached."""

QUEUE_BYTES_MAX = 16 << 20
"""Of one peer: what a peer that does not read can take up. A single message may be as large."""

log = structlog.get_logger("fairlog.interbroker")


class Peers:
    """The way from one process to the others, and back."""

    def __init__(
        self,
        shard: ShardNumber,
        cluster_id: str,
        secret: bytes,
        address_of: Callable[[ShardNumber], InnerAddress | None],
        receive: Callable[[ShardNumber, Message], None],
        *,
        way: Way | None = None,
        connected: Callable[[ShardNumber], None] = lambda _shard: None,
        disconnected: Callable[[ShardNumber], None] = lambda _shard: None,
        moved: Callable[[], Notice] | None = None,
        while_all_hold: WhileAllHold | None = None,
        giver: GivesCopies | None = None,
    ) -> None:
        """`address_of` is where a shard's process listens now, None while nobody knows. `receive` gets each message
        and who sent it. `way` is how others are reached; None: without TLS. `connected` is called when messages can be
        sent to a shard, again after each break, and `disconnected` when they cannot: at a break, and after each attempt
        to connect. None of them may raise: that is our bug, and ends `run`. `moved` is the next time that an address
        may have become another one: the connection to the old one is given up then. `while_all_hold` is what tools are
        served with; None: they are not. `giver` gives copies of the shard to nodes that join; None: they get none here.
        """
        self._own = Identity(shard, cluster_id, secret)
        self._address_of = address_of
        self._receive = receive
        self._way = Plain() if way is None else way
        self._connected = connected
        self._disconnected = disconnected
        self._moved = moved
        self._while_all_hold = while_all_hold
        self._giver = giver
        self._outgoing: dict[ShardNumber, _Outgoing] = {}
        """Connections over which messages can be sent."""
        self._incoming: dict[ShardNumber, trio.CancelScope] = {}
        self._strangers: dict[trio.CancelScope, None] = {}
        """The oldest first."""
        self._came: dict[ShardNumber, trio.Event] = {}
        """Set when the shard connects; another one each time."""
        self._lines = LogLimiter(trio.current_time)

    def send(self, shard: ShardNumber, message: Message) -> None:
        """See `Transport.send`: never waits, and does not raise."""
        outgoing = self._outgoing.get(shard)
        if outgoing is None:
            return
        body = encode(message)
        if len(body) > MESSAGE_BYTES_MAX:
            self._warn(f"shard {shard}", "a message is too large to be sent", bytes=len(body), most=MESSAGE_BYTES_MAX)
        elif not outgoing.put(body):
            self._warn(
                f"shard {shard}",
                "messages are dropped",
                reason=f"the shard does not read: {QUEUE_BYTES_MAX} bytes wait for it",
                action="they are sent again",
            )

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        shards: Sequence[ShardNumber],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept the connections of `shards`, and keep one to each; until cancelled. Closes `listeners` at the end.

        `shards` may name this one, which is left out. Started once connections are accepted.
        """
        others = frozenset(shards) - {self._own.shard}
        self._came = {shard: trio.Event() for shard in others}

        async def accepted(stream: trio.SocketStream) -> None:
            await self._serve(stream, others)

        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, accepted, listeners)
            task_status.started()
            for shard in others:
                nursery.start_soon(self._keep_connected, shard)

    # To others.

    async def _keep_connected(self, shard: ShardNumber) -> None:
        pause_s, away_since_s = PAUSE_MIN_S, trio.current_time()
        while True:
            came = self._came[shard] = trio.Event()
            reason = await self._connect_and_write(shard)
            self._disconnected(shard)
            if reason is None:
                pause_s, away_since_s = PAUSE_MIN_S, trio.current_time()
            elif trio.current_time() - away_since_s >= START_S:
                self._warn(f"shard {shard}", "a shard cannot be reached", reason=reason, action="trying again")
            await trio.sleep(PAUSE_MIN_S)
            with trio.move_on_after(pause_s - PAUSE_MIN_S):
                await came.wait()
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _connect_and_write(self, shard: ShardNumber) -> str | None:
        """Write to the shard until the connection ends: None then; why not, if there was none."""
        address = self._address_of(shard)
        if address is None:
            return "it is not known where its process listens"
        if self._moved is None:
            return await self._connect_and_write_to(shard, address)
        reason = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_moved, shard, address, self._moved, nursery.cancel_scope)
            reason = await self._connect_and_write_to(shard, address)
            nursery.cancel_scope.cancel()
        return reason

    async def _leave_when_moved(
        self, shard: ShardNumber, address: InnerAddress, moved: Callable[[], Notice], scope: trio.CancelScope
    ) -> None:
        while True:
            notice = moved()
            if self._address_of(shard) not in (address, None):
                scope.cancel()
            await notice.wait()

    async def _connect_and_write_to(self, shard: ShardNumber, address: InnerAddress) -> str | None:
        stream: InnerStream | None = None
        try:
            handshake = Connecting(self._own, shard, secrets.token_bytes(NONCE_BYTES))
            with trio.move_on_after(HANDSHAKE_S):
                stream = await self._way.connect(address)
                await shake_hands(stream, handshake)
            if stream is None or handshake.session_key is None:
                return f"no connection and handshake within {HANDSHAKE_S:g} s"
            await self._write(shard, stream, handshake.session_key)
        except (Refused, HandshakeFailed) as failure:
            event = "the process at a shard's address was refused"
            if isinstance(failure, HandshakeFailed):
                event = "TLS handshake with a shard's node failed"
            self._warn(f"shard {shard}", event, address=str(address), reason=str(failure))
            return str(failure)
        except (OSError, trio.BrokenResourceError) as error:
            return why_it_ended(error)
        finally:
            if stream is not None:
                await trio.aclose_forcefully(stream)
        return None

    async def _write(self, shard: ShardNumber, stream: InnerStream, session_key: bytes) -> None:
        """Until the connection ends, which is seen at once: the peer never sends anything on it."""
        outgoing = self._outgoing[shard] = _Outgoing(stream, Sealer(session_key))
        log.info("connected to a shard", peer=shard)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outgoing.write)
                self._connected(shard)
                with suppress(trio.BrokenResourceError):
                    await stream.receive_some(1)
                nursery.cancel_scope.cancel()
        finally:
            del self._outgoing[shard]
        self._warn(f"shard {shard}", "the connection to a shard has ended", peer=shard, action="connecting again")

    # From others.

    async def _serve(self, stream: trio.SocketStream, others: frozenset[ShardNumber]) -> None:
        host = _host_of(stream)
        tools = set[ShardNumber]() if self._while_all_hold is None else {TOOL}
        joining = set[ShardNumber]() if self._giver is None else {JOINING}
        inside: InnerStream | None = None
        handshake = Accepting(self._own, others | tools | joining, secrets.token_bytes(NONCE_BYTES))
        try:
            with trio.move_on_after(HANDSHAKE_S) as scope:
                if len(self._strangers) >= STRANGERS_MAX:
                    next(iter(self._strangers)).cancel()
                self._strangers[scope] = None
                try:
                    inside = await self._way.accept(stream)
                    if inside is None:
                        return
                    await shake_hands(inside, handshake)
                finally:
                    del self._strangers[scope]
            if inside is None or handshake.session_key is None:
                self._warn(host, "a connection to the brokers' listener was closed", reason="no handshake in time")
                return
            if handshake.peer not in (TOOL, JOINING):
                await self._read(handshake.peer, inside, Opener(handshake.session_key))
                return
            assert handshake.answer_key is not None
            session_key, answer_key = handshake.session_key, handshake.answer_key
            if handshake.peer == JOINING:
                assert self._giver is not None
                await serve_joining(inside, session_key=session_key, answer_key=answer_key, giver=self._giver)
                return
            assert self._while_all_hold is not None
            await serve_tool(
                inside, session_key=session_key, answer_key=answer_key, while_all_hold=self._while_all_hold
            )
        except Refused as refused:
            if not others:  # the shard's owner was expected here, and it is on another node by now
                log.debug("a connection to the brokers' listener was refused", peer=host, reason=str(refused))
                return
            self._warn(host, "a connection to the brokers' listener was refused", peer=host, reason=str(refused))
        except HungUp:
            pass  # as one that connects while the shard's owner changes, and is heard when it has given up
        except HandshakeFailed as failure:
            self._warn(host, "TLS handshake of another node failed", peer=host, reason=str(failure))
        except Malformed as malformed:
            self._warn(host, "malformed message of a shard or tool", reason=str(malformed), action="connection closed")
        except trio.BrokenResourceError:
            pass
        except OSError as error:
            self._warn(host, "a connection to the brokers' listener has failed", peer=host, reason=str(error))
        finally:
            await trio.aclose_forcefully(stream)

    async def _read(self, shard: ShardNumber, stream: InnerStream, opener: Opener) -> None:
        """Until the connection ends, or another one of the same shard takes its place."""
        frames = FrameReader(stream, frame_bytes_max=TAG_BYTES + MESSAGE_BYTES_MAX)
        if shard in self._incoming:
            self._incoming[shard].cancel()
        self._came[shard].set()
        with trio.CancelScope() as scope:
            self._incoming[shard] = scope
            try:
                while (frame := await frames.next_frame()) is not None:
                    self._receive(shard, decode_untrusted(opener.open_untrusted(bytes(frame))))
            finally:
                if self._incoming.get(shard) is scope:
                    del self._incoming[shard]

    def _warn(self, of: str, event: str, **fields: object) -> None:
        more = self._lines.admit(of, event)
        if more is not None:
            log.warning(event, **fields, **more)


class _Outgoing:
    """An outgoing connection, and what waits to be sent on it."""

    def __init__(self, stream: InnerStream, sealer: Sealer) -> None:
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        """That takes bytes as they are; None if they are encrypted first."""
        self._sealer = sealer
        self._queue: list[bytes] = []
        self._bytes = 0
        """In the queue, and under way to the system."""
        self._filled = trio.Event()

    def put(self, body: bytes) -> bool:
        """Send a message, or queue what the system does not take of it at once; False if there is no room for it."""
        if self._bytes and self._bytes + len(body) > QUEUE_BYTES_MAX:
            return False
        frame = self._sealer.seal(body)
        if not self._bytes and self._socket is not None:
            with suppress(OSError):  # `write` finds that the connection is broken
                frame = frame[taken_at_once(self._socket.fileno(), (frame,)) :]
            if not frame:
                return True
        self._queue.append(frame)
        self._bytes += len(frame)
        self._filled.set()
        return True

    async def write(self) -> None:
        """Send what is queued, until the connection breaks or this is cancelled."""
        with suppress(trio.BrokenResourceError):  # who waits for the end of the stream sees it, too
            while True:
                await self._filled.wait()
                self._filled = trio.Event()
                data, self._queue = b"".join(self._queue), []
                await self._stream.send_all(data)
                self._bytes -= len(data)


def _host_of(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return "gone"
