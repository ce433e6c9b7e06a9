"""One client's connection: the preamble, then a request, its answer, the next request.

Requests of one connection are carried out one after the other, in one task; a client that wants two at once opens two
connections. After a stop the request in progress is carried out and answered, and no other is begun. Frames and their
limits are the same as for Kafka's protocol (`fairlog/edge/frames.py`). A client that does not read its answer is
disconnected after the same time as a client that does not send a frame.

While a request is carried out nothing is read, so the end of the stream is not seen either, and a commit may wait for
minutes. Then the connection asks the system each second, so it does not wait for a client that has gone. This does not
undo what the request has begun.

Whatever is wrong with a request, the worst result is a refusal, or one log line and a closed connection, with the two
exceptions that stop the node (`fairlog/edge/fatal.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter

import structlog
import trio

from fairlog.broker import Broker
from fairlog.edge.fatal import raise_if_fatal
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import FRAME_BYTES_PER_S, FRAME_SILENCE_S, OPENING_BYTES, FrameReader
from fairlog.edge.hanging_up import HANG_UP_CHECK_S, has_hung_up, peer_socket
from fairlog.edge.malformed import Malformed
from fairlog.edge.statistics import ApiStatistics
from fairlog.native import signing_in
from fairlog.native.calls import Call, Client, Op
from fairlog.native.messages import (
    FRAME_BYTES_MAX,
    PREAMBLE,
    Arguments,
    HangUp,
    Refused,
    Request,
    encode_refusal,
    encode_result,
    parse_request_untrusted,
)
from fairlog.security.sign_in import FRAME_BYTES_MAX as SMALL_FRAME_BYTES_MAX
from fairlog.security.sign_in import SignIn
from fairlog_types import StorageFailure

log = structlog.get_logger()

OPENING = PREAMBLE[:OPENING_BYTES]

SIGN_IN = "sign-in"
"""The one op that is carried out before the client has shown who it is, on a listener that asks."""

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Served:
    """What all connections of a node have in common."""

    broker: Broker
    ops: Mapping[str, tuple[Op, ApiStatistics]]
    serials: Iterator[int]
    """Numbers the requests of all connections."""
    sign_ins: ApiStatistics


class NativeConnection:
    """Serves one stream until either side ends it. Implements `fairlog.edge.protocols.Served`."""

    def __init__(
        self,
        served: Served,
        stream: trio.abc.Stream,
        received: bytes,
        client: Client,
        budget: FrameBudget,
        sign_in: SignIn | None = None,
    ) -> None:
        """`received` is what was already read from the stream, from its beginning on. With a `sign_in`, the client has
        to sign in before anything else.
        """
        self._sign_in = sign_in
        self._served = served
        self._stream = stream
        self._socket = peer_socket(stream)
        self._received = received
        self._client = client
        self._budget = budget
        self._stopping = False
        self._waiting = trio.CancelScope()
        self._may_interrupt = True
        """Only a wait for the client is interrupted by `stop`."""

    async def serve(self) -> None:
        """Serve until the client closes or breaks the protocol, or `stop` is called; then close the stream.

        Cancelled: closes at once; the request in progress has had its effect or not.
        """
        try:
            with self._waiting:
                await self._converse()
        except Malformed as error:
            self._closed("malformed request", str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception as error:
            raise_if_fatal(error)
            # The barrier between a fault in one op and the other clients: say it loudly, close this one.
            event = "a request failed by a fault of the node"
            more = self._admit_line(event)
            if more is not None:
                log.exception(event, peer=self._client.peer, connection=self._client.connection, **more)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def stop(self) -> None:
        """Take no further request; answer the one in progress, then close."""
        self._stopping = True
        if self._may_interrupt:
            self._waiting.cancel()

    async def _converse(self) -> None:
        rest = await self._greet()
        if rest is None:
            return
        frame_bytes_max = FRAME_BYTES_MAX if self._sign_in is None else SMALL_FRAME_BYTES_MAX
        frames = FrameReader(self._stream, frame_bytes_max=frame_bytes_max, budget=self._budget, received=rest)
        try:
            while not self._stopping:
                frame = await frames.next_frame()
                if frame is None or self._stopping:
                    return
                self._may_interrupt = False
                goes_on = await self._answer(frame)
                self._may_interrupt = True
                del frame
                frames.release()
                if not goes_on:
                    return
                if self._sign_in is not None and self._sign_in.has_signed_in:
                    frames.limit(FRAME_BYTES_MAX)
        finally:
            frames.release()

    async def _greet(self) -> bytes | None:
        """Exchange preambles. Returns the bytes after the client's; None if it has another version, or has gone."""
        received = self._received
        with trio.move_on_after(FRAME_SILENCE_S) as patience:
            while len(received) < len(PREAMBLE):
                more = await self._stream.receive_some()
                if not more:
                    return None
                received += more
        if patience.cancelled_caught:
            raise Malformed(f"nothing for {FRAME_SILENCE_S} s within the preamble")
        await self._send(PREAMBLE)
        if not received.startswith(PREAMBLE):
            self._closed("another version of the native protocol", repr(received[: len(PREAMBLE)]))
            return None
        return received[len(PREAMBLE) :]

    async def _answer(self, frame: bytes | bytearray | memoryview) -> bool:
        """Carry out a request and answer it. Returns whether the connection stays open."""
        started_s = perf_counter()
        try:
            request = parse_request_untrusted(frame)
        except Malformed as error:
            self._closed("malformed request", str(error))
            await self._send_frame(encode_refusal(None, "bad-request", str(error)))
            return False
        if request.op == SIGN_IN:
            return await self._answer_sign_in(request, len(frame), started_s)
        if self._sign_in is not None and (refusal := self._sign_in.refusal()) is not None:
            self._closed("request without an answer", refusal)
            await self._send_frame(encode_refusal(request.id, "not-signed-in", refusal))
            return False
        entry = self._served.ops.get(request.op)
        if entry is None:
            sentence = f"there is no op {request.op[:60]!r}; this node has {', '.join((*self._served.ops, SIGN_IN))}"
            await self._send_frame(encode_refusal(request.id, "unknown-op", sentence))
            return True
        op, statistics = entry
        statistics.note_request(len(frame))
        try:
            answer = await self._carry_out_unless_gone(op, request, statistics)
        except Exception:
            statistics.failed += 1
            raise
        if self._served.broker.has_ended():
            return False  # what is known here may not be so any more: another node answers
        if isinstance(answer, HangUp):
            statistics.failed += 1
            self._closed("request without an answer", str(answer))
            return False
        if answer is None:
            event = "request given up: its client is gone"
            more = self._admit_line(event)
            if more is not None:
                log.info(event, api=statistics.name, peer=self._client.peer, **more)
            return False
        statistics.note_answer(len(answer), started_s)
        log.debug("request", api=statistics.name, answer_bytes=len(answer), connection=self._client.connection)
        await self._send_frame(answer)
        return True

    async def _answer_sign_in(self, request: Request, frame_bytes: int, started_s: float) -> bool:
        """Carry out one step of signing in. Returns whether the connection stays open."""
        statistics = self._served.sign_ins
        statistics.note_request(frame_bytes)
        try:
            result = await signing_in.step(self._sign_in, Arguments(request.op, request.arguments))
            answer = encode_result(request, result)
            if self._sign_in is not None:
                self._client.principal = self._sign_in.principal
        except Refused as refused:
            statistics.note_refusal(refused.kind)
            answer = encode_refusal(request.id, refused.kind, refused.sentence, refused.more)
        statistics.note_answer(len(answer), started_s)
        await self._send_frame(answer)
        return self._sign_in is None or not self._sign_in.is_over

    async def _carry_out_unless_gone(
        self, op: Op, request: Request, statistics: ApiStatistics
    ) -> bytes | HangUp | None:
        """The answer; None if the client has gone and the request is given up: it has had its effect or not."""
        if self._socket is None:
            return await self._carry_out(op, request, statistics)
        answer: bytes | HangUp | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, self._socket, nursery.cancel_scope)
            answer = await self._carry_out(op, request, statistics)
            nursery.cancel_scope.cancel()
        return answer

    async def _carry_out(self, op: Op, request: Request, statistics: ApiStatistics) -> bytes | HangUp:
        broker, client = self._served.broker, self._client
        if broker.access is not None:
            if not broker.is_alone:
                await broker.cluster.notice()
            client.rights = broker.access.rights(client.principal, client.host, client.rights)
        call = Call(
            broker,
            Arguments(request.op, request.arguments),
            client,
            next(self._served.serials),
        )
        broker.coordinator.place_due()
        try:
            return encode_result(request, await op.carry_out(call))
        except HangUp as hang_up:
            return hang_up
        except Refused as refused:
            kind, sentence, more = refused.kind, refused.sentence, refused.more
        except StorageFailure as failure:
            kind, sentence, more = "storage", str(failure), None
        statistics.note_refusal(kind)
        return encode_refusal(request.id, kind, sentence, more)

    async def _send_frame(self, body: bytes) -> None:
        await self._send(_LENGTH.pack(len(body)) + body)

    async def _send(self, data: bytes) -> None:
        """Raises Malformed if the client does not read it in time."""
        patience_s = FRAME_SILENCE_S + len(data) / FRAME_BYTES_PER_S
        with trio.move_on_after(patience_s) as patience:
            await self._stream.send_all(data)
        if patience.cancelled_caught:
            raise Malformed(f"an answer of {len(data)} bytes is not read within {patience_s:.0f} s")

    def _closed(self, event: str, reason: str) -> None:
        more = self._admit_line(event)
        if more is not None:
            log.warning(
                event, reason=reason, action="connection closed", protocol="native", peer=self._client.peer, **more
            )

    def _admit_line(self, event: str) -> Mapping[str, int] | None:
        return self._client.admit_line(event)


async def _cancel_when_gone(peer: trio.socket.SocketType, waiting: trio.CancelScope) -> None:
    while True:
        await trio.sleep(HANG_UP_CHECK_S)
        if has_hung_up(peer):
            waiting.cancel()
