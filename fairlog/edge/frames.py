"""Cuts a connection's bytes into frames: an int32 length, and that many bytes.

A frame that is too large is refused by its length, before memory is allocated for it. For other frames the buffer is
doubled, by a MiB at most, as their bytes arrive, so it is at most twice the received size (and 64 KiB).
All connections share one budget for this (`frame_budget`). A client that has begun a frame and falls silent, or
drips, is disconnected; sooner while others wait for its memory.

The first bytes also tell which protocol a client speaks: where Kafka's have the length of a small frame, another
protocol opens with letters, which would be a length of a gigabyte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable, Collection

import trio

from fairlog.edge.frame_budget import UNCOUNTED_BYTES, FrameBudget, FrameRoom
from fairlog.edge.malformed import Malformed
from fairlog.security.tls_stream import TlsStream

Buffer = bytes | bytearray | memoryview

FRAME_SILENCE_S = 30
"""A client that has begun a frame and then sends nothing for so long holds memory for nothing. Kafka's clients give a
request up after as long (`request.timeout.ms`)."""

FRAME_BYTES_PER_S = 256 << 10
"""Nor may it drip: a frame has the same 30 seconds in all, and a second more for each so many bytes of it."""

OPENING_BYTES = 3
"""Of a connection: what tells another protocol from Kafka's."""

_TLS_OPENING = b"\x16\x03"
"""Of a TLS handshake: in Kafka's protocol the length of a first request of 352 MiB."""

_BEGINNING_BYTES = 8
"""Of a large frame, for whoever decides whether its rest is taken."""

_RECEIVE_BYTES = UNCOUNTED_BYTES // 2
_GROWTH = memoryview(bytes(1 << 20))
"""What a frame's buffer grows by, at most; made once, since making it takes as long as adding it."""

_LENGTH = struct.Struct(">i")


class OtherProtocol(Exception):
    """The connection speaks another protocol than the one that this reader's frames are of."""

    def __init__(self, received: bytes) -> None:
        super().__init__(received)
        self.received = received
        """All that was read of the stream, its opening included."""


class FrameReader:
    """Cuts a byte stream into frames, whose buffers grow with what is received, not with what is announced."""

    def __init__(
        self,
        stream: trio.abc.ReceiveStream,
        *,
        frame_bytes_max: int,
        budget: FrameBudget | None = None,
        received: bytes = b"",
        openings: Collection[bytes] = (),
        before_large: Callable[[Buffer], Awaitable[None]] | None = None,
    ) -> None:
        """Without a `budget` frames do not wait for room: for clients.

        `received` is what was read of the stream already. A stream that begins with one of `openings`
        (`OPENING_BYTES` each, the length of a frame of a gigabyte) speaks another protocol. `before_large` is awaited
        with the beginning of each frame that is counted, before room is taken for its rest: for who cannot use it yet.
        """
        self._before_large = before_large
        self._room = None if budget is None else FrameRoom(budget)
        """Of the frame that is being received or handled."""
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._frame_bytes_max = frame_bytes_max
        self._openings = openings
        """Of other protocols; none behind the first frame."""
        self._rest = memoryview(received)

    def limit(self, frame_bytes_max: int) -> None:
        """From the next frame on, so large ones are taken."""
        self._frame_bytes_max = frame_bytes_max

    async def next_frame(self) -> Buffer | None:
        """The next frame without its length; None if the peer has closed between two frames.

        Waits for a frame to begin as long as it takes, and for its rest as long as `FRAME_SILENCE_S` says.
        Raises Malformed for a length that is negative or too large, and for an end, or too long a wait, within a frame;
        OtherProtocol instead of the first frame; trio.BrokenResourceError if the connection breaks. Cancelled, the
        stream may be in the middle of a frame.
        """
        while len(self._rest) < _LENGTH.size:
            received = await (self._more_of_a_length() if self._rest else self._receive_some())
            if not received:
                if self._rest:
                    raise Malformed("the connection ended within a frame's length")
                return None
            self._rest = memoryview(bytes(self._rest) + received if self._rest else received)
            del received  # else it would be held here, uncounted, for as long as the rest of a large frame takes
        if self._openings:
            if bytes(self._rest[:OPENING_BYTES]) in self._openings:
                raise OtherProtocol(bytes(self._rest))
            if bytes(self._rest[: len(_TLS_OPENING)]) == _TLS_OPENING:
                raise Malformed("the client speaks TLS, and this listener does not")
            self._openings = ()
        (length,) = _LENGTH.unpack_from(self._rest)
        if not 0 <= length <= self._frame_bytes_max:
            raise Malformed(f"a frame of {length} bytes; at most {self._frame_bytes_max} are taken")
        end = _LENGTH.size + length
        if len(self._rest) >= end:
            frame = self._rest[_LENGTH.size : end]
            # An idle connection shall not hold on to a receive buffer for the sake of no bytes.
            self._rest = self._rest[end:] if len(self._rest) > end else memoryview(b"")
            return frame
        return await self._receive_frame(length, self._room if length > UNCOUNTED_BYTES else None)

    @property
    def has_begun_next(self) -> bool:
        """Whether some of the next frame is here already, so that asking for it may not wait."""
        return len(self._rest) > 0

    def release(self) -> None:
        """The last frame has been handled, or never will be: others may take its room in the budget."""
        if self._room is not None:
            self._room.release()

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

    async def _receive_frame(self, length: int, room: FrameRoom | None) -> Buffer:
        """A frame that is not all here yet. What it waits for room is not its client's fault."""
        started_s = trio.current_time()
        filled = len(self._rest) - _LENGTH.size
        frame = bytearray(self._rest[_LENGTH.size :])
        self._rest = memoryview(b"")
        before_large = None if room is None else self._before_large
        while filled < length:
            if before_large is not None and filled > _RECEIVE_BYTES:
                asked_s = trio.current_time()
                await before_large(frame[:_BEGINNING_BYTES])
                started_s += trio.current_time() - asked_s
                before_large = None
            if filled == len(frame):
                step = _RECEIVE_BYTES if room is not None and room.is_scarce else max(filled, _RECEIVE_BYTES)
                growth = _GROWTH[: min(step, length - filled)]
                if room is not None and filled > _RECEIVE_BYTES:
                    asked_s = trio.current_time()
                    await room.grow(len(growth))
                    started_s += trio.current_time() - asked_s
                frame += growth
            received = None
            silent_at = trio.current_time() + FRAME_SILENCE_S
            late_at = started_s + FRAME_SILENCE_S + filled / FRAME_BYTES_PER_S
            # A bytearray cannot grow while there are views of it.
            with (
                trio.move_on_at(min(silent_at, late_at)) as patience,
                memoryview(frame) as view,
                view[filled:] as empty,
            ):
                if room is not None:
                    room.waits_in(patience)
                received = await self._receive_into(empty)
            if room is not None and room.cut_off:
                raise Malformed(f"too slow after {filled} of a frame's {length} bytes, while others wait for memory")
            if received is None and late_at < silent_at:
                raise Malformed(f"only {filled} of a frame's {length} bytes in {late_at - started_s:.0f} s")
            if received is None:
                raise Malformed(f"nothing for {FRAME_SILENCE_S} s after {filled} of a frame's {length} bytes")
            if received == 0:
                raise Malformed(f"the connection ended after {filled} of a frame's {length} bytes")
            filled += received
        if room is not None:
            room.filled()
        return frame

    async def _receive_into(self, empty: memoryview) -> int:
        if self._socket is not None:
            try:
                return await self._socket.recv_into(empty)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
        if isinstance(self._stream, TlsStream):
            return await self._stream.receive_into(empty)
        received = await self._stream.receive_some(min(len(empty), _RECEIVE_BYTES))
        empty[: len(received)] = received
        return len(received)
