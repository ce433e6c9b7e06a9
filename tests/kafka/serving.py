"""A connection that is served in memory, and the client at its other end."""

from __future__ import annotations

import struct

import trio

from fairlog.edge.frames import FrameReader
from fairlog.edge.malformed import Malformed
from fairlog.edge.statistics import ApiStatistics
from fairlog.kafka.api import Deferred, HangUp
from fairlog.kafka.router import Started
from fairlog_types import CorruptStorage

FRAME_BYTES_MAX = 1_000_000

LARGE = 2 << 20
"""Of a frame, or an answer, that is counted."""


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class EchoRouter:
    """Answers each frame with itself. Others than these do what they are called.

    b"wait…" is deferred until `gate` opens, b"ready…" is answered at once; these may overlap. b"alone…" is deferred as
    well, and overlaps nothing.
    """

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.finished: list[bytes] = []
        self.gate = trio.Event()
        self.ended = False

    def has_ended(self):
        return self.ended

    def overlapping_api(self, start):
        return 0 if bytes(start[:4]) in (b"wait", b"read") else None

    async def start(self, frame, client):
        await trio.lowlevel.checkpoint()
        frame = bytes(frame)
        self.started.append(frame)
        if frame == b"malformed":
            raise Malformed("Fetch v12: the frame ends within a number")
        if frame == b"hang up":
            raise HangUp("API 99 is not served")
        if frame == b"assertion":
            raise AssertionError("an invariant is broken")
        if frame == b"damage in a nursery":
            raise ExceptionGroup("a nursery", [CorruptStorage("byte 7")])
        if frame == b"fault":
            raise ZeroDivisionError("a fault of ours")
        if frame == b"none":
            return Started("Echo", 0, 0, None, [], ApiStatistics("Echo"), 0.0)
        if frame.startswith((b"wait", b"alone")):
            return Started(
                "Echo",
                0,
                0,
                Deferred(lambda: self._finish(frame), keeps_request=True),
                [b"<"],
                ApiStatistics("Echo"),
                0.0,
            )
        return Started("Echo", 0, 0, [frame], [], ApiStatistics("Echo"), 0.0)

    async def _finish(self, frame):
        await self.gate.wait()
        if frame == b"wait and hang up":
            raise HangUp("effect unknown")
        if frame == b"wait for an assertion":
            raise AssertionError("an invariant is broken")
        if frame == b"wait for a fault":
            raise ZeroDivisionError("a fault of ours")
        self.finished.append(frame)
        return [frame, b">"]


class Peer:
    """The client's end of a connection that is being served."""

    def __init__(self, stream, router, connection) -> None:
        self.stream, self.router, self.connection = stream, router, connection
        self.ended = False
        self._frames = FrameReader(stream, frame_bytes_max=2**31 - 1)

    async def serve(self) -> None:
        """The other end, until it has ended."""
        await self.connection.serve()
        self.ended = True

    async def send(self, *bodies: bytes) -> None:
        await self.stream.send_all(b"".join(map(framed, bodies)))

    async def receive(self, patience_s: float = 5) -> bytes | None:
        with trio.fail_after(patience_s):
            frame = await self._frames.next_frame()
        return None if frame is None else bytes(frame)
