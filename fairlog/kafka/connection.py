"""One client's connection: frames in, answers out, in order, in bounded memory.

    socket ──▶ FrameReader ──▶ reader task ──▶ Router.start ──┬─ complete, nothing in flight ──▶ socket
                                                              └─ queue of IN_FLIGHT_MAX ──▶ writer task ──▶ socket

A frame is an int32 length and so many bytes. The reader starts one request after the other; a request is
started when its handler has returned. If the answer is complete and no other is in flight, the reader
sends it itself, which saves two task switches for the client that asks one thing at a time. Otherwise it
goes into the queue, whose writer finishes deferred answers when it is their turn. So answers keep the
order of the requests, and five pipelined Produce requests share one flush.

Memory: one frame is held at a time (its records are in a journal when its handler returns), one big answer
(a Fetch is deferred, so it is read when it is its turn), and IN_FLIGHT_MAX answers that wait. A client that
does not read its answers blocks the writer, then fills the queue, then is not read from any more. An idle
connection holds two tasks and no buffer, and may be idle for ever: clients close theirs themselves (Java's after nine
minutes), keepalive finds those that are gone, and `connections_max` bounds the rest.

A frame that is too large is refused by its length, before room is made for it; the room for others is doubled, by
a MiB at most, as their bytes come, so that no more than twice of what was sent is ever held (and 64 KiB). Large ones
of all connections share one budget (`frame_budget`). A client that has begun a frame and falls silent, or drips, is cut
off: what a thousand of them hold would be a gigabyte of frames of which each is small.

While the queue is full nothing is read, so the end of the stream is not seen either. The system is asked about it
then, each second: answers to a client that is gone are not waited for.

Whatever is wrong with a request, the worst that happens is one log line and a closed connection. That holds for
faults of ours in a handler, too, with two exceptions that pass through and stop the node: a broken assertion
(nothing that it holds in memory can be trusted any more) and damaged storage.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Sequence
from typing import cast

import structlog
import trio

from fairlog.kafka.api import Answer, Client, Deferred, HangUp
from fairlog.kafka.frame_budget import LARGE_FRAME_BYTES, FrameBudget
from fairlog.kafka.router import Router, Started
from fairlog.kafka.wire import Buffer, Malformed
from fairlog_types import CorruptStorage

log = structlog.get_logger()

IN_FLIGHT_MAX = 16
"""Requests of one connection that are started and not answered. Idempotent producers use at most 5."""

FRAME_SILENCE_S = 30
"""A client that has begun a frame and then sends nothing for so long holds memory for nothing, and with a large frame
what others wait for. Kafka's clients give a request up after as long (`request.timeout.ms`)."""

FRAME_BYTES_PER_S = 256 << 10
"""Nor may it drip: a frame has the same 30 seconds in all, and a second more for each so many bytes of it."""

_HANG_UP_CHECK_S = 1.0
"""Between two questions to the system whether the client of a full queue is still there."""

_RECEIVE_BYTES = 64 * 1024
_GROWTH = memoryview(bytes(1 << 20))
"""What a frame's buffer grows by, at most; made once, since making it takes as long as adding it."""
_JOIN_BYTES_MAX = 64 * 1024
"""Up to this size an answer is joined into one buffer: cheaper than a gather of many small ones."""

_BUFFERS_PER_SEND = 512
"""Below Linux's IOV_MAX of 1024."""

_LENGTH = struct.Struct(">i")


class FrameReader:
    """Cuts a byte stream into frames, whose buffers grow with what is received, not with what is announced."""

    def __init__(
        self, stream: trio.abc.ReceiveStream, *, frame_bytes_max: int, budget: FrameBudget | None = None
    ) -> None:
        """Without a `budget` large frames do not wait for room: for clients."""
        self._budget = budget
        self._taken = 0
        """From the budget, for the frame that is being received or handled."""
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._frame_bytes_max = frame_bytes_max
        self._rest = memoryview(b"")

    async def next_frame(self) -> Buffer | None:
        """The next frame without its length; None if the peer has closed between two frames.

        Waits for a frame to begin as long as it takes, and for its rest as long as `FRAME_SILENCE_S` says.
        Raises Malformed for a length that is negative or too large, and for an end, or too long a wait, within a frame;
        trio.BrokenResourceError if the connection breaks. Cancelled, the stream may be in the middle of a frame.
        """
        while len(self._rest) < _LENGTH.size:
            received = await (self._more_of_a_length() if self._rest else self._receive_some())
            if not received:
                if self._rest:
                    raise Malformed("the connection ended within a frame's length")
                return None
            self._rest = memoryview(bytes(self._rest) + received if self._rest else received)
        (length,) = _LENGTH.unpack_from(self._rest)
        if not 0 <= length <= self._frame_bytes_max:
            raise Malformed(f"a frame of {length} bytes; at most {self._frame_bytes_max} are taken")
        end = _LENGTH.size + length
        if len(self._rest) >= end:
            frame = self._rest[_LENGTH.size : end]
            # An idle connection shall not hold on to a receive buffer for the sake of no bytes.
            self._rest = self._rest[end:] if len(self._rest) > end else memoryview(b"")
            return frame
        if self._budget is not None and length > LARGE_FRAME_BYTES:
            self._taken = await self._budget.take(length)
        return await self._receive_frame(length)

    @property
    def has_begun_next(self) -> bool:
        """Whether some of the next frame is here already, so that asking for it may not wait."""
        return len(self._rest) > 0

    def release(self) -> None:
        """The last frame has been handled, or never will be: others may take its room in the budget."""
        if self._budget is not None and self._taken:
            self._budget.give_back(self._taken)
            self._taken = 0

    async def _more_of_a_length(self) -> bytes | bytearray:
        with trio.move_on_after(FRAME_SILENCE_S):
            return await self._receive_some()
        raise Malformed(f"nothing for {FRAME_SILENCE_S} s within a frame's length")

    async def _receive_some(self) -> bytes | bytearray:
        """What comes next, empty at the end of the stream."""
        if self._socket is None:
            return await self._stream.receive_some(_RECEIVE_BYTES)
        while True:
            # The client's next request is seldom here already: trying to read it first costs more than it saves.
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return os.read(self._socket.fileno(), _RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def _receive_frame(self, length: int) -> Buffer:
        """A frame that is not all here yet."""
        started_s = trio.current_time()
        filled = len(self._rest) - _LENGTH.size
        frame = bytearray(self._rest[_LENGTH.size :])
        self._rest = memoryview(b"")
        while filled < length:
            if filled == len(frame):
                frame += _GROWTH[: min(max(filled, _RECEIVE_BYTES), length - filled)]
            received = None
            silent_at = trio.current_time() + FRAME_SILENCE_S
            late_at = started_s + FRAME_SILENCE_S + filled / FRAME_BYTES_PER_S
            # A bytearray cannot grow while there are views of it.
            with trio.move_on_at(min(silent_at, late_at)), memoryview(frame) as view, view[filled:] as room:
                received = await self._receive_into(room)
            if received is None and late_at < silent_at:
                raise Malformed(f"only {filled} of a frame's {length} bytes in {late_at - started_s:.0f} s")
            if received is None:
                raise Malformed(f"nothing for {FRAME_SILENCE_S} s after {filled} of a frame's {length} bytes")
            if received == 0:
                raise Malformed(f"the connection ended after {filled} of a frame's {length} bytes")
            filled += received
        return frame

    async def _receive_into(self, room: memoryview) -> int:
        if self._socket is not None:
            try:
                return await self._socket.recv_into(room)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        received = await self._stream.receive_some(min(len(room), _RECEIVE_BYTES))
        room[: len(received)] = received
        return len(received)


class Connection:
    """Serves one stream until either side ends it."""

    def __init__(
        self, stream: trio.abc.Stream, client: Client, router: Router, *, frame_bytes_max: int, budget: FrameBudget
    ) -> None:
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._client = client
        self._router = router
        self._frames = FrameReader(stream, frame_bytes_max=frame_bytes_max, budget=budget)
        self._in_flight = 0
        self._unreleased: deque[Deferred] = deque()
        """Deferred answers that are in the queue, or about to be; the first one's turn it may be."""
        self._queue, self._queued = trio.open_memory_channel[Started](IN_FLIGHT_MAX)
        self._stopping = False
        self._reading = trio.CancelScope()
        self._waits_for_frame = False
        """The only place where `stop` may interrupt the reader."""

    async def serve(self) -> None:
        """Serve until the client closes, does wrong, or `stop` is called; then close the stream.

        Cancelled: closes at once; requests in flight have had their effect or not.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_answers, nursery.cancel_scope)
                drain = await self._read_requests()
                self._queue.close()
                if not drain:
                    nursery.cancel_scope.cancel()
        finally:
            self._frames.release()
            while self._unreleased:
                self._release_first()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def stop(self) -> None:
        """Take no further request; answer what is in flight, without waiting for new data, then close."""
        self._stopping = True
        self._client.end_long_polls()
        if self._waits_for_frame:
            self._reading.cancel()

    async def _read_requests(self) -> bool:
        """Start requests until there are no more. Answers whether those in flight should still be finished."""
        with self._reading:  # one for all frames: it costs as much as decoding a request
            return await self._start_requests()
        return True

    async def _start_requests(self) -> bool:
        while not self._stopping:
            try:
                frame = await self._next_frame()
                if frame is None:
                    return self._stopping
                started = await self._router.start(frame, self._client)
                del frame
                self._frames.release()
                await self._answer(started)
            except Malformed as error:
                self._closed("malformed request", reason=str(error))
                return False
            except HangUp as error:
                self._closed("request without an answer", reason=str(error))
                return False
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            except Exception as error:
                _raise_if_fatal(error)
                # The barrier between a fault in one handler and the other clients: say it loudly, close this one.
                log.exception("a request failed by a fault of the node", **self._who())
                return False
        return True

    async def _next_frame(self) -> Buffer | None:
        """The next frame; None at the end of the stream, or if `stop` was called in the step in which it came."""
        self._waits_for_frame = True
        frame = await self._frames.next_frame()
        self._waits_for_frame = False
        return None if self._stopping else frame

    async def _answer(self, started: Started) -> None:
        if started.answer is None:
            started.statistics.note_silence(started.started_s)
            self._log_request(started, answer_bytes=0)
            return
        if self._in_flight == 0 and not isinstance(started.answer, Deferred):
            await self._send(started, started.answer)
            if self._frames.has_begun_next:
                await trio.lowlevel.checkpoint()  # else waiting for it lets others run
            return
        self._in_flight += 1
        if isinstance(started.answer, Deferred):
            self._unreleased.append(started.answer)
        await trio.lowlevel.checkpoint()
        try:
            self._queue.send_nowait(started)
        except trio.WouldBlock:
            await self._wait_for_the_queue(started)

    async def _wait_for_the_queue(self, started: Started) -> None:
        """Put it there when there is room. Raises BrokenResourceError if the client hangs up before."""
        while True:
            with trio.move_on_after(_HANG_UP_CHECK_S):
                await self._queue.send(started)
                return
            if self._socket is not None and _has_hung_up(self._socket):
                raise trio.BrokenResourceError("the client has closed the connection")

    def _release_first(self) -> None:
        """The first of the deferred answers has been sent, or never will be."""
        deferred = self._unreleased.popleft()
        if deferred.release is not None:
            deferred.release()

    async def _write_answers(self, connection: trio.CancelScope) -> None:
        async with self._queued:
            async for started in self._queued:
                try:
                    answer = started.answer
                    if isinstance(answer, Deferred):
                        answer = started.finished(await answer.finish())
                    assert answer is not None, "requests without an answer are not queued"
                    await self._send(started, answer)
                except HangUp as error:
                    started.statistics.failed += 1
                    self._closed("request without an answer", reason=str(error))
                    connection.cancel()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    connection.cancel()
                except Exception as error:
                    _raise_if_fatal(error)
                    # As in _read_requests.
                    started.statistics.failed += 1
                    log.exception("an answer failed by a fault of the node", api=started.api_name, **self._who())
                    connection.cancel()
                finally:
                    if isinstance(started.answer, Deferred):
                        self._release_first()
                self._in_flight -= 1

    async def _send(self, started: Started, answer: Answer) -> None:
        length = sum(map(len, answer))
        started.statistics.note_answer(length, started.started_s)
        self._log_request(started, answer_bytes=length)
        parts = [_LENGTH.pack(length), *answer]
        if self._socket is None:
            await self._stream.send_all(b"".join(parts))
        elif length <= _JOIN_BYTES_MAX:
            await self._send_joined(self._socket, b"".join(parts))
        else:
            await self._send_gathered(self._socket, parts)

    async def _send_joined(self, socket: trio.socket.SocketType, data: bytes) -> None:
        """Send one buffer: almost always the system takes it at once, and then no turn of the event loop is spent."""
        try:
            sent = os.write(socket.fileno(), data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        if sent < len(data):
            await self._stream.send_all(data[sent:])

    async def _send_gathered(self, socket: trio.socket.SocketType, parts: Sequence[Buffer]) -> None:
        """Send many buffers without joining them."""
        pending = [memoryview(part) for part in parts if len(part)]
        first = 0
        while first < len(pending):
            try:
                sent = await socket.sendmsg(pending[first : first + _BUFFERS_PER_SEND])
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            while sent:
                size = len(pending[first])
                if sent < size:
                    pending[first] = pending[first][sent:]
                    break
                sent -= size
                pending[first] = memoryview(b"")
                first += 1

    def _log_request(self, started: Started, *, answer_bytes: int) -> None:
        log.debug(
            "request",
            api=started.api_name,
            version=started.version,
            answer_bytes=answer_bytes,
            client_id=self._client.client_id,
            connection=self._client.connection,
        )

    def _closed(self, event: str, *, reason: str) -> None:
        log.warning(event, reason=reason, action="connection closed", **self._who())

    def _who(self) -> dict[str, object]:
        return {
            "peer": self._client.peer,
            "client_id": self._client.client_id,
            "software": f"{self._client.software_name} {self._client.software_version}".strip(),
            "connection": self._client.connection,
        }


def _has_hung_up(peer: trio.socket.SocketType) -> bool:
    """Whether the peer sends no more, or cannot be reached: known to the system though there is unread data."""
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _raise_if_fatal(error: Exception) -> None:
    """Pass on what the node must not survive; alone or in a group, as nurseries raise it."""
    if isinstance(error, _FATAL):
        raise error
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            _raise_if_fatal(each)


_FATAL = (AssertionError, CorruptStorage)
