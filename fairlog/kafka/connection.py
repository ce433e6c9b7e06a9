"""One client's connection: frames in, answers out, in order, in bounded memory.

    socket ──▶ FrameReader ──▶ reader task ──▶ Router.start ──┬─ complete, nothing in flight ──▶ socket
                                                              └─ queue of IN_FLIGHT_MAX ──▶ writer task ──▶ socket

A frame is an int32 length and that many bytes. The reader starts one request after the other; a request is started
when its handler has returned. If the answer is complete and no other is in flight, the reader sends it itself, which
saves two task switches for a client that asks one thing at a time. Otherwise it goes into the queue, whose writer
finishes deferred answers when it is their turn. So answers keep the order of the requests.

A request is started when all earlier ones are answered, as in Kafka, so that it sees their effects (invariant 13). The
exception is Produce after Produce: their effects come in order when they are started, and the rest is waiting for the
disk. So five pipelined Produce requests share one flush. While a request waits for its turn, only its frame is read,
and of a large frame only its beginning.

Memory: a connection holds one frame at a time (its records are in a journal when its handler returns), one big answer
(a Fetch is deferred, and waits alone), and IN_FLIGHT_MAX answers, or requests, that wait. If a client does not read its
answers, the writer blocks, then the queue fills, then the connection stops reading. All connections' answers share one
budget (`answer_budget`) with the waiting requests, except small ones: a client that does not read is disconnected when
others need the memory, and while there is none, connections with a large answer to come do not read. A Fetch's large
batches may be lent by the data logs (`datalog.loans`), and are sent from there; what a client has not taken after
`LOAN_S` is copied, and the loan ends. An idle connection holds two tasks and no buffer, and may be idle for ever:
clients close theirs themselves (Java's after nine minutes), keepalive finds those that are gone, and `connections_max`
bounds the rest.

`fairlog/edge/frames.py` cuts frames, limits their memory, and disconnects slow clients. A connection that opens with
another protocol's bytes is left as it is, and handed back.

A client that is above its quota is *muted*: its next request is not started, though its frame may be here (KIP-219).

While the queue is full, or a request waits for its turn, the connection does not read, so it does not see the end of
the stream either. Then it asks the system each second, so that answers to a client that is gone do not wait.

Whatever is wrong with a request, the worst result is one log line, if its client has not caused many (see
`fairlog/edge/log_limiter.py`), and a closed connection. This includes our own faults in a handler, with two exceptions
that pass through and stop the node: a broken assertion (the state in memory can no longer be trusted) and damaged
storage.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog
import trio

from fairlog.edge.fatal import raise_if_fatal
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import FrameReader, OtherProtocol
from fairlog.edge.hanging_up import HANG_UP_CHECK_S, has_hung_up, peer_socket
from fairlog.edge.malformed import Malformed
from fairlog.edge.sending import Unsent, taken_at_once
from fairlog.kafka.answer_budget import SMALL_ANSWER_BYTES, AnswerBudget, AnswerRoom
from fairlog.kafka.api import Answer, Client, Deferred, HangUp
from fairlog.kafka.router import Router, Started
from fairlog.kafka.wire import Buffer
from fairlog.security import sign_in
from fairlog.security.tls_stream import ENCRYPTED_BYTES

log = structlog.get_logger()

IN_FLIGHT_MAX = 16
"""Requests of one connection that are started and not answered. Idempotent producers use at most 5."""

_JOIN_BYTES_MAX = 64 * 1024
"""Up to this size an answer is joined into one buffer: cheaper than a gather of many small ones."""

_ELEMENTS_BYTES_MAX = 16 << 20
"""The size of the elements of a request as objects; there are at most `fairlog.kafka.wire.ELEMENTS_MAX`."""

_BYTES_AS_OBJECTS = 16
"""The bytes that one byte of a request may take when it is decoded. Ten were measured with Fetch's shortest elements,
which have 16 bytes; others have eight.
"""

_WAITING_UNCOUNTED_BYTES = 16 << 10
"""The uncounted part of one connection's requests that are kept until they are answered: a Fetch of five hundred
partitions. There is one at a time, unless they overlap, and Produce is not kept. For a thousand connections these are
256 MiB of objects.
"""

_GONE_WHILE_MUTED_S = 10.0
"""A client that wants no answers may send its requests and go: those that are muted for less are carried out."""

_LENGTH = struct.Struct(">i")


class _Unreleased(NamedTuple):
    """What an answer holds until it has been sent, or will never be sent."""

    handler: Callable[[], None] | None
    room: AnswerRoom | None
    request: AnswerRoom | None = None
    """The budget that the waiting request takes; None if it is not counted, or no longer needed."""
    uncounted_bytes: int = 0
    """The bytes of the waiting request that are not counted."""

    def release(self) -> None:
        if self.handler is not None:
            self.handler()
        for room in (self.room, self.request):
            if room is not None:
                room.release()


class Connection:
    """Serves one stream until either side ends it."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        client: Client,
        router: Router,
        *,
        frame_bytes_max: int,
        budget: FrameBudget,
        answers: AnswerBudget,
        openings: Collection[bytes] = (),
    ) -> None:
        """All share `budget` and `answers`. A stream that begins with one of `openings` is another protocol's."""
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        """For sending; None if the bytes have to go through the stream, as under TLS."""
        self._peer = peer_socket(stream)
        """For asking whether the client is still there."""
        self._client = client
        self._log_debug = log.bind().debug  # `log` itself binds for each line, also for those that nobody wants
        self._router = router
        self._frame_bytes_max = frame_bytes_max
        self._is_limited = client.sign_in is not None
        """Whether frames are small, because nobody has signed in."""
        self._frames = FrameReader(
            stream,
            frame_bytes_max=min(frame_bytes_max, sign_in.FRAME_BYTES_MAX) if self._is_limited else frame_bytes_max,
            budget=budget,
            openings=openings,
            before_large=self._wait_for_turn,
        )
        self._other: bytes | None = None
        """The bytes read from a connection that speaks another protocol."""
        self._in_flight = 0
        self._overlapping: int | None = None
        """The API of all requests in flight, if they may overlap each other."""
        self._all_answered: trio.Event | None = None
        """Set when nothing is in flight any more; None as long as no request waits for that."""
        self._answers = answers
        self._unreleased: deque[_Unreleased] = deque()
        """What the answers hold that are in the queue, or about to be; it may be the first one's turn."""
        self._uncounted_bytes = 0
        """The uncounted bytes of the requests among them."""
        self._queue, self._queued = trio.open_memory_channel[Started](IN_FLIGHT_MAX)
        self._stopping = False
        self._reading = trio.CancelScope()
        self._serving = trio.CancelScope()
        """Reader and writer, once they run."""
        self._waits_for_frame = False
        """The only place where `stop` may interrupt the reader."""

    async def serve(self) -> bytes | None:
        """Serve until the client closes or breaks the protocol, or `stop` is called; then close the stream.

        If the stream begins as another protocol does, it is left open, and the bytes read from it are returned;
        otherwise None. Cancelled: closes at once; requests in flight have had their effect or not.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._serving = nursery.cancel_scope
                nursery.start_soon(self._write_answers)
                drain = await self._read_requests()
                self._queue.close()
                if not drain:
                    nursery.cancel_scope.cancel()
        finally:
            self._frames.release()
            while self._unreleased:
                self._unreleased.popleft().release()
            if self._other is None:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(self._stream)
        return self._other

    def stop(self) -> None:
        """Take no further request; answer what is in flight, without waiting for new data, then close."""
        self._stopping = True
        self._client.end_long_polls()
        if self._waits_for_frame:
            self._reading.cancel()

    async def _read_requests(self) -> bool:
        """Start requests until there are no more. Returns whether those in flight should still be finished."""
        with self._reading:  # one for all frames: it costs as much as decoding a request
            return await self._start_requests()
        return True

    async def _start_requests(self) -> bool:
        while not self._stopping:
            try:
                frame = await self._next_frame()
                if frame is None:
                    return self._stopping
                await self._wait_for_turn(frame)
                if self._stopping:
                    return True
                started = await self._router.start(frame, self._client)
                frame_bytes = len(frame)
                del frame
                self._frames.release()
                await self._answer(started, frame_bytes)
                if self._client.sign_in is not None:
                    self._client.sign_in.answered()
                    if self._client.sign_in.is_over:
                        return True
                    self._lift_limit(self._client.sign_in)
                if self._answers.exhausted and any(each.room or each.request for each in self._unreleased):
                    await self._answers.settled()
            except OtherProtocol as other:
                self._other = other.received
                return False
            except Malformed as error:
                self._closed("malformed request", reason=str(error))
                return False
            except HangUp as error:
                self._closed("request without an answer", reason=str(error))
                return False
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            except Exception as error:
                raise_if_fatal(error)
                # The barrier between a fault in one handler and the other clients: say it loudly, close this one.
                event = "a request failed by a fault of the node"
                more = self._client.admit_line(event)
                if more is not None:
                    log.exception(event, **self._who(), **more)
                return False
        return True

    def _lift_limit(self, signing_in: sign_in.SignIn) -> None:
        if self._is_limited and signing_in.has_signed_in:
            self._is_limited = False
            self._frames.limit(self._frame_bytes_max)

    async def _next_frame(self) -> Buffer | None:
        """The next frame; None at the end of the stream, or if `stop` was called in the step in which it came."""
        self._waits_for_frame = True
        frame = await self._frames.next_frame()
        self._waits_for_frame = False
        return None if self._stopping else frame

    async def _wait_for_turn(self, start: Buffer) -> None:
        """Wait until the request that begins so may be started. Raises BrokenResourceError if the client disconnects
        before.
        """
        api = self._router.overlapping_api(start)
        while self._in_flight and (api is None or api != self._overlapping):
            self._all_answered = trio.Event()
            with trio.move_on_after(HANG_UP_CHECK_S):
                await self._all_answered.wait()
                continue
            self._raise_if_hung_up()
        if self._client.muted_until and not self._stopping:
            await self._wait_until_unmuted()
        self._overlapping = api

    async def _wait_until_unmuted(self) -> None:
        """Wait as long as the client is above its quota; shorter if quotas change, or `stop` is called. Raises
        BrokenResourceError if the client has disconnected, and this takes long.
        """
        client, quotas, waited = self._client, self._router.quotas, self._waits_for_frame
        patient_until = trio.current_time() + _GONE_WHILE_MUTED_S
        self._waits_for_frame = True
        while (left_s := client.muted_until - trio.current_time()) > 0 and quotas.changes == client.muted_under:
            await trio.sleep(min(left_s, HANG_UP_CHECK_S))
            if trio.current_time() >= patient_until:
                self._raise_if_hung_up()
        client.muted_until = 0.0
        self._waits_for_frame = waited

    async def _answer(self, started: Started, frame_bytes: int) -> None:
        if started.answer is None:
            started.statistics.note_silence(started.started_s)
            self._log_request(started, answer_bytes=0)
            return
        if self._in_flight == 0 and not isinstance(started.answer, Deferred):
            room = self._room_for(started.answer)
            try:
                await self._send(started, started.answer, room)
            finally:
                if room is not None:
                    room.release()
            if self._frames.has_begun_next:
                await trio.lowlevel.checkpoint()  # else waiting for it lets others run
            return
        self._in_flight += 1
        if isinstance(started.answer, Deferred):
            request, uncounted_bytes = None, 0
            if started.answer.keeps_request:
                if self._uncounted_bytes + frame_bytes > _WAITING_UNCOUNTED_BYTES:
                    request = self._room_for_request(frame_bytes)
                else:
                    uncounted_bytes = frame_bytes
                    self._uncounted_bytes += frame_bytes
            self._unreleased.append(_Unreleased(started.answer.release, started.answer.room, request, uncounted_bytes))
        else:
            room = self._room_for(started.answer)
            if room is not None:
                room.waits(functools.partial(self._hurry, room))
            self._unreleased.append(_Unreleased(None, room))
        await trio.lowlevel.checkpoint()
        try:
            self._queue.send_nowait(started)
        except trio.WouldBlock:
            await self._wait_for_the_queue(started)

    async def _wait_for_the_queue(self, started: Started) -> None:
        """Put the answer into the queue when there is space. Raises BrokenResourceError if the client disconnects
        before.
        """
        while True:
            with trio.move_on_after(HANG_UP_CHECK_S):
                await self._queue.send(started)
                return
            self._raise_if_hung_up()

    def _raise_if_hung_up(self) -> None:
        if self._peer is not None and has_hung_up(self._peer):
            raise trio.BrokenResourceError("the client has closed the connection")

    def _room_for(self, answer: Answer) -> AnswerRoom | None:
        """A complete answer's part of the budget for answers; None if it is not counted."""
        length = sum(map(len, answer))
        if length <= SMALL_ANSWER_BYTES:
            return None
        room = AnswerRoom(self._answers)
        room.keep(length)
        return room

    def _room_for_request(self, frame_bytes: int) -> AnswerRoom:
        """The memory of a request that waits to be answered: its text, and an object for each of its elements."""
        room = AnswerRoom(self._answers)
        room.keep(min(_BYTES_AS_OBJECTS * frame_bytes, frame_bytes + _ELEMENTS_BYTES_MAX))
        room.waits(functools.partial(self._hurry, room))
        return room

    def _hurry(self, room: AnswerRoom, behind: _Unreleased | None = None) -> None:
        """A large answer waits behind one that is not sent yet, and others have no room: the earlier one must not wait.
        The same applies to a counted request that is not answered yet.

        Disconnects the client if it is `behind` the same one as the last time, unless the client is reading a counted
        answer, which may be long: the budget of that answer limits its read rate.
        """
        first = self._unreleased[0]
        self._client.end_long_poll()
        if first is behind and (first.room is None or not first.room.is_being_sent):
            self._cut()
        else:
            room.waits(functools.partial(self._hurry, room, first))

    def _cut(self) -> None:
        """The client reads too slowly, and others have no room for answers."""
        self._closed("answer not read", reason="others wait for the memory that it holds")
        self._serving.cancel()

    async def _write_answers(self) -> None:
        async with self._queued:
            async for started in self._queued:
                try:
                    answer = started.answer
                    if isinstance(answer, Deferred):
                        answer = started.finished(await answer.finish())
                    assert answer is not None, "requests without an answer are not queued"
                    if self._unreleased[0].room is None:
                        self._unreleased[0] = self._unreleased[0]._replace(room=self._room_for(answer))
                    await self._send(started, answer, self._unreleased[0].room)
                except HangUp as error:
                    started.statistics.failed += 1
                    self._closed("request without an answer", reason=str(error))
                    self._serving.cancel()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._serving.cancel()
                except Exception as error:
                    raise_if_fatal(error)
                    # As in _read_requests.
                    started.statistics.failed += 1
                    event = "an answer failed by a fault of the node"
                    more = self._client.admit_line(event)
                    if more is not None:
                        log.exception(event, api=started.api_name, **self._who(), **more)
                    self._serving.cancel()
                finally:
                    done = self._unreleased.popleft()
                    self._uncounted_bytes -= done.uncounted_bytes
                    done.release()
                self._in_flight -= 1
                if self._in_flight == 0 and self._all_answered is not None:
                    self._all_answered.set()
                    self._all_answered = None

    async def _send(self, started: Started, answer: Answer, room: AnswerRoom | None) -> None:
        """Raises HangUp if the broker is to say nothing any more, trio.BrokenResourceError."""
        if self._router.has_ended():
            raise HangUp("another node owns the shard by now, or has to become its owner")
        if room is not None:
            room.sending(self._cut)
        length = sum(map(len, answer))
        started.statistics.note_answer(length, started.started_s)
        self._log_request(started, answer_bytes=length)
        parts = [_LENGTH.pack(length), *answer]
        if self._socket is None:
            await self._send_through_stream(Unsent(parts), room)
        elif length <= _JOIN_BYTES_MAX:
            data = b"".join(parts)
            if room is not None:
                room.repay()
            await self._send_joined(self._socket, data)
        else:
            await self._send_gathered(self._socket, Unsent(parts), room)

    async def _send_joined(self, socket: trio.socket.SocketType, data: bytes) -> None:
        """Send one buffer."""
        try:
            sent = taken_at_once(socket.fileno(), (data,))
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        if sent < len(data):
            await self._stream.send_all(data[sent:])

    async def _send_through_stream(self, unsent: Unsent, room: AnswerRoom | None) -> None:
        """Send many buffers in pieces, which are copied: what TLS makes of one waits until the client has read it."""
        if room is None or not room.borrows:
            await self._send_pieces(unsent, room)
            return
        broken: trio.BrokenResourceError | trio.ClosedResourceError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_repay_in_time, unsent, room)
            try:
                await self._send_pieces(unsent, room)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                broken = error  # and not in a group
            nursery.cancel_scope.cancel()
        if broken is not None:
            raise broken

    async def _send_pieces(self, unsent: Unsent, room: AnswerRoom | None) -> None:
        sent = 0
        while unsent.bytes_left:
            piece = unsent.take(ENCRYPTED_BYTES)
            await self._stream.send_all(piece)
            sent += len(piece)
            if room is not None:
                room.sent(sent)

    async def _send_gathered(self, socket: trio.socket.SocketType, unsent: Unsent, room: AnswerRoom | None) -> None:
        """Send many buffers without joining them. Here, too, one attempt may do.

        If the client does not take what is lent in time, the rest is copied.
        """
        all_sent = 0
        while unsent.bytes_left:
            buffers = unsent.first()
            try:
                sent = 0 if all_sent else taken_at_once(socket.fileno(), buffers)
                with trio.move_on_at(math.inf if room is None else room.repay_by_s):
                    sent = sent or await socket.sendmsg(buffers)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            if room is not None and not sent:
                await _repay(unsent, room)
            unsent.sent(sent)
            all_sent += sent
            if room is not None:
                room.sent(all_sent)

    def _log_request(self, started: Started, *, answer_bytes: int) -> None:
        self._log_debug(
            "request",
            api=started.api_name,
            version=started.version,
            answer_bytes=answer_bytes,
            client_id=self._client.client_id,
            connection=self._client.connection,
        )

    def _closed(self, event: str, *, reason: str) -> None:
        more = self._client.admit_line(event)
        if more is not None:
            log.warning(event, reason=reason, action="connection closed", **self._who(), **more)

    def _who(self) -> dict[str, object]:
        return {
            "peer": self._client.peer,
            "client_id": self._client.client_id,
            "software": f"{self._client.software_name} {self._client.software_version}".strip(),
            "connection": self._client.connection,
        }


async def _repay_in_time(unsent: Unsent, room: AnswerRoom) -> None:
    await trio.sleep_until(room.repay_by_s)
    await _repay(unsent, room)


async def _repay(unsent: Unsent, room: AnswerRoom) -> None:
    """The client has not taken all that is lent in time: copy the rest."""
    await unsent.copy()
    room.repay()
