"""The memory that all frames together may take.

A frame is refused by its own length, but a thousand connections may each send the largest allowed frame. So the growth
of a frame's buffer, beyond the first `UNCOUNTED_BYTES`, is taken from one budget, and returned when the request has
been handled. Only received bytes count: announcing a large request costs a client nothing, and costs others nothing
either. While the budget is used up, the bytes wait in the client's and the kernel's buffers, and clients that have
begun a frame and do not continue are disconnected sooner (`memory_budget`).

With this alone, many clients might each have half a frame and wait for each other. So one frame at a time may exceed
the budget, to its end: the memory is bounded by the budget and one frame. Small frames do not wait; their memory is
bounded by the number of connections.
"""

from __future__ import annotations

import trio

from fairlog.edge.memory_budget import BYTES_PER_S, PRESSED_S, MemoryBudget

UNCOUNTED_BYTES = 128 << 10
"""Of each frame: what is received at once with its length, and as much again. Of a thousand connections, 128 MiB."""

FRAMES_BYTES_MAX = 512 << 20
"""Of one node. Kafka's own bound of this kind, `queued.max.request.bytes`, is off by default."""


class FrameBudget(MemoryBudget):
    """So many bytes for all frames."""

    def __init__(self, bytes_max: int = FRAMES_BYTES_MAX) -> None:
        super().__init__(bytes_max)
        self.ahead: FrameRoom | None = None
        """The frame that goes on though there is no room."""


class FrameRoom:
    """What one connection's frame has taken."""

    def __init__(self, budget: FrameBudget) -> None:
        self._budget = budget
        self._held = 0
        self._patience: trio.CancelScope | None = None
        self.cut_off = False
        """Its client was late, and others waited."""

    @property
    def is_scarce(self) -> bool:
        """Whether others wait for room: then small steps tell soonest who does not go on."""
        return self._budget.is_waited_for

    async def grow(self, size: int) -> None:
        """Wait for room for so many bytes more; then it is the client's turn to send them."""
        budget = self._budget
        budget.turn_over(self)

        def attempt() -> bool:
            if size > budget.free and budget.ahead is not self:
                if budget.ahead is not None:
                    return False
                budget.ahead = self
            budget.free -= size
            self._held += size
            return True

        if budget.ahead is self:
            attempt()
        else:
            await budget.take(attempt)
        budget.turn(self, trio.current_time() + PRESSED_S + size / BYTES_PER_S, self._cut)

    def waits_in(self, patience: trio.CancelScope) -> None:
        """What is cancelled if the client is late and others wait; `cut_off` tells it from the scope's own deadline."""
        self._patience = patience

    def filled(self) -> None:
        """The frame is all here: it is the node's turn."""
        self._budget.turn_over(self)

    def release(self) -> None:
        """The frame has been handled, or never will be."""
        budget, held = self._budget, self._held
        budget.turn_over(self)
        self._held = 0
        if budget.ahead is self:
            budget.ahead = None
        if held:
            budget.give_back(held)

    def _cut(self) -> None:
        assert self._patience is not None, "a turn begins before the client is waited for"
        self.cut_off = True
        self._patience.cancel()
