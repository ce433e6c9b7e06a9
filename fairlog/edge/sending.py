"""Sending without a turn of the event loop, as almost always the system takes what is sent at once; and what of an
answer is still to be sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import trio

from fairlog.edge.frames import Buffer

_BUFFERS_PER_SEND = 512
"""Below Linux's IOV_MAX of 1024."""


def taken_at_once(fd: int, buffers: Sequence[Buffer]) -> int:
    """How many of the bytes the system has taken without waiting, 0 if it has no room. Raises OSError.

    `fd` is a socket's that does not block.
    """
    try:
        return os.writev(fd, buffers)
    except BlockingIOError:
        return 0


class Unsent:
    """Buffers that are sent in order, without joining them all; the rest can be copied at any moment."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.bytes_left = sum(map(len, buffers))
        self._hold(buffers)

    def first(self) -> Sequence[Buffer]:
        """The first buffers that are left, as many as one call can send."""
        return self._buffers[self._first : self._first + _BUFFERS_PER_SEND]

    def sent(self, size: int) -> None:
        """So many bytes of them are sent."""
        self.bytes_left -= size
        self._skip(size)

    def take(self, bytes_max: int) -> bytes:
        """A copy of the next bytes, which are sent with it: all that are left, or `bytes_max`."""
        taken: list[Buffer] = []
        length = 0
        while self.bytes_left and length < bytes_max:
            part = memoryview(self._buffers[self._first])[: bytes_max - length]
            taken.append(part)
            length += len(part)
            self.sent(len(part))
        return b"".join(taken)

    async def copy(self) -> None:
        """Replace the views that are left by copies, which are made in a thread. More may be sent meanwhile."""
        copies = await trio.to_thread.run_sync(_copied, self._buffers[self._first :])
        self._hold(copies)
        self._skip(sum(map(len, copies)) - self.bytes_left)

    def _hold(self, buffers: Sequence[Buffer]) -> None:
        self._buffers: list[Buffer] = [buffer for buffer in buffers if len(buffer)]
        self._first = 0

    def _skip(self, size: int) -> None:
        while size:
            buffer = self._buffers[self._first]
            if size < len(buffer):
                self._buffers[self._first] = memoryview(buffer)[size:]
                return
            size -= len(buffer)
            self._buffers[self._first] = b""
            self._first += 1


def _copied(buffers: Sequence[Buffer]) -> list[Buffer]:
    return [bytes(buffer) if isinstance(buffer, memoryview) else buffer for buffer in buffers]
