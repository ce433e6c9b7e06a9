"""What all large frames together may take of the node's memory.

A frame is refused by its own length, but a thousand connections may each send the largest that is allowed. So
whoever is about to receive a large frame takes its length from one budget, and waits, first come, first served,
while it is spent; the bytes wait in the client's and the kernel's buffers meanwhile. The budget gets it back when the
request has been handled. The whole length is taken before the first byte, although memory is only used as the bytes
come: were it taken by and by, all might end up waiting for each other, each with half a frame. Small frames pass by:
what they take is bounded by the number of connections.
"""

from __future__ import annotations

from collections import deque

import trio

LARGE_FRAME_BYTES = 1 << 20
"""Larger frames are counted. Kafka's producers send at most this much by default (`max.request.size`)."""

LARGE_FRAMES_BYTES_MAX = 512 << 20
"""Of one node. Kafka's own bound of this kind, `queued.max.request.bytes`, is off by default."""


class FrameBudget:
    """So many bytes, taken and given back. Belongs to one event loop."""

    def __init__(self, bytes_max: int = LARGE_FRAMES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._free = bytes_max
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def free(self) -> int:
        """Bytes that nobody has taken."""
        return self._free

    async def take(self, length: int) -> int:
        """Wait for room for a frame of `length` bytes; the bytes to give back later.

        A frame larger than the whole budget takes all of it. Cancelled: nothing is taken.
        """
        share = min(length, self._bytes_max)
        if not self._waiting and share <= self._free:
            self._free -= share
            return share
        entry = share, trio.Event()
        self._waiting.append(entry)
        try:
            await entry[1].wait()
        except trio.Cancelled:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self.give_back(0)  # those behind may fit where this one did not
            else:
                self.give_back(share)
            raise
        return share

    def give_back(self, share: int) -> None:
        """What `take` has answered; wakes those who fit now, in their order."""
        self._free += share
        while self._waiting and self._waiting[0][0] <= self._free:
            length, granted = self._waiting.popleft()
            self._free -= length
            granted.set()
