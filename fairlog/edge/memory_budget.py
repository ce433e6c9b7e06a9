"""A budget of memory; when it is used up, clients that hold idle memory are disconnected.

A connection holds memory for one of two reasons: the node is working on it, which ends by itself, or it is the client's
*turn* to send the rest of a request or to read an answer. Turns may take long as long as there is memory for all. When
a connection has to wait for memory, every client whose turn has taken longer than on a line of some minimum speed is
notified (`hurry`), which usually means that it is disconnected. So a thousand clients that hold as much as they can
delay others by some seconds, and memory stays bounded.

    take ─▶ there is room ─▶ taken                 give_back ─▶ the first who waits tries again
         └▶ there is none ─▶ wait, first come, first served; the first one hurries the others, again and again
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

PRESSED_S = 2.0
"""What a turn may take when others wait, besides what its bytes take."""

BYTES_PER_S = 512 << 10
"""What a line has to carry. Slower ones are served as long as nobody waits for room."""

HURRY_S = 0.25
"""Between two looks for those who are late."""


class _Waiting:
    """Somebody for whom there is no room yet."""

    __slots__ = ("attempt", "done", "event")

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self.attempt = attempt
        self.done = False
        self.event = trio.Event()


class MemoryBudget:
    """So many bytes. Belongs to one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.free = bytes_max
        """Bytes that nobody has taken; negative while it is overdrawn."""
        self._waiting: deque[_Waiting] = deque()
        self._turns: dict[object, tuple[float, Callable[[], None]]] = {}
        """Whose turn it is: until when it may last if others wait, and what is done then."""
        self._hurried_s = -math.inf

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    async def take(self, attempt: Callable[[], bool]) -> None:
        """Return once `attempt` has answered that it took what it wants; it is called again when there is more room.

        Cancelled: it has taken it or not, and who is behind goes on.
        """
        if not self._waiting and attempt():
            return
        entry = _Waiting(attempt)
        self._waiting.append(entry)
        try:
            while not entry.done:
                first = self._waiting[0] is entry
                if first:
                    self.hurry()
                with trio.move_on_after(HURRY_S if first else math.inf):
                    await entry.event.wait()
                    if not entry.done:
                        entry.event = trio.Event()  # it has become the first
        finally:
            if not entry.done:
                self._waiting.remove(entry)
                self._wake()

    def give_back(self, size: int) -> None:
        self.free += size
        self._wake()

    def turn(self, whose: object, until_s: float, hurry: Callable[[], None]) -> None:
        """It is this client's turn. If others wait when `until_s` (trio's clock) is over, `hurry` is called."""
        self._turns[whose] = until_s, hurry

    def turn_over(self, whose: object) -> None:
        """It is not any more, or never was."""
        self._turns.pop(whose, None)

    def hurry(self) -> None:
        """There is no room: call upon those who are late."""
        now_s = trio.current_time()
        if now_s < self._hurried_s + HURRY_S:
            return
        self._hurried_s = now_s
        late = [whose for whose, (until_s, _) in self._turns.items() if until_s < now_s]
        for whose in late:
            _, hurry = self._turns.pop(whose)
            hurry()

    def _wake(self) -> None:
        """Those who fit now go on, in their order."""
        while self._waiting and self._waiting[0].attempt():
            entry = self._waiting.popleft()
            entry.done = True
            entry.event.set()
        if self._waiting:
            self._waiting[0].event.set()
