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

How frames are cut, what they may take, and who is cut off stands in `fairlog/edge/frames.py`. A connection that opens
with another protocol's bytes is left as it is, and handed back.

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
from collections.abc import Collection, Sequence

import structlog
import trio

from fairlog.edge.fatal import raise_if_fatal
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import FrameReader, OtherProtocol
from fairlog.edge.malformed import Malformed
from fairlog.kafka.api import Answer, Client, Deferred, HangUp
from fairlog.kafka.router import Router, Started
from fairlog.kafka.wire import Buffer

log = structlog.get_logger()

IN_FLIGHT_MAX = 16
"""Requests of one connection that are started and not answered. Idempotent producers use at most 5."""

_HANG_UP_CHECK_S = 1.0
"""Between two questions to the system whether the client of a full queue is still there."""

_JOIN_BYTES_MAX = 64 * 1024
"""Up to this size an answer is joined into one buffer: cheaper than a gather of many small ones."""

_BUFFERS_PER_SEND = 512
"""Below Linux's IOV_MAX of 1024."""

_LENGTH = struct.Struct(">i")


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
        openings: Collection[bytes] = (),
    ) -> None:
        """A stream that begins with one of `openings` is another protocol's."""
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._client = client
        self._router = router
        self._frames = FrameReader(stream, frame_bytes_max=frame_bytes_max, budget=budget, openings=openings)
        self._other: bytes | None = None
        """What was read of a connection that speaks another protocol."""
        self._in_flight = 0
        self._unreleased: deque[Deferred] = deque()
        """Deferred answers that are in the queue, or about to be; the first one's turn it may be."""
        self._queue, self._queued = trio.open_memory_channel[Started](IN_FLIGHT_MAX)
        self._stopping = False
        self._reading = trio.CancelScope()
        self._waits_for_frame = False
        """The only place where `stop` may interrupt the reader."""

    async def serve(self) -> bytes | None:
        """Serve until the client closes, does wrong, or `stop` is called; then close the stream.

        If it begins as another protocol does, it is left open, and the answer is what was read of it; else it is None.
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
                    raise_if_fatal(error)
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
