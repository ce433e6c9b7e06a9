"""When each of many groups is due next, and a task that sleeps until the first of them is.

A heap with lazy deletion: a group whose deadline is brought forward is pushed once more, and what it was pushed for
before is stale. Deadlines are never put off here, since heartbeats do that all the time: a group that is called too
early does nothing, and says when it is due next. So heartbeats touch neither the heap nor the task.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import trio

STALE_MAX = 1_000
"""So many stale entries the heap may have, beside as many as there are groups, before it is made anew."""


class Deadlines:
    """The deadlines of groups, by group id."""

    def __init__(self) -> None:
        self._at_ms: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """(ms, group id); what `_at_ms` does not confirm is stale."""
        self._sooner = trio.Event()

    def bring_forward(self, group_id: str, due_ms: float) -> None:
        """The group is due at this time of `clock_ms`, unless it is due earlier already; infinite: it need not be."""
        if due_ms >= self._at_ms.get(group_id, math.inf):
            return
        self._at_ms[group_id] = due_ms
        heapq.heappush(self._heap, (due_ms, group_id))
        if len(self._heap) > 2 * len(self._at_ms) + STALE_MAX:
            self._heap = [(at_ms, each) for each, at_ms in self._at_ms.items()]
            heapq.heapify(self._heap)
        if self._heap[0][0] == due_ms:
            self._sooner.set()

    def forget(self, group_id: str) -> None:
        """The group is gone."""
        self._at_ms.pop(group_id, None)

    async def run(self, call: Callable[[str, int], None]) -> None:
        """Call with the id of each group that is due, and the time, until cancelled. It has no deadline then."""
        while True:
            now_ms = clock_ms()
            while self._heap and self._heap[0][0] <= now_ms:
                due_ms, group_id = heapq.heappop(self._heap)
                if self._at_ms.get(group_id) == due_ms:
                    del self._at_ms[group_id]
                    call(group_id, now_ms)
            self._sooner = trio.Event()
            with trio.move_on_at(self._heap[0][0] / 1000 if self._heap else math.inf):
                await self._sooner.wait()


def clock_ms() -> int:
    """The clock of groups: it never goes backwards, unlike the wall's.

    Rounded, so that who sleeps until `ms / 1000` finds it to be `ms`, and not the least bit less.
    """
    return round(trio.current_time() * 1000)
