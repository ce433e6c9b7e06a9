"""Answers that are kept for a moment, so that many clients cost no more than one.

How it works. An answer is made when a client asks and the last one is too old; clients that ask meanwhile wait for the
same one. It is fresh for `fresh_s`, and longer if it was expensive: making answers takes at most COST_SHARE of the
time, however often clients ask and however large the node is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")

COST_SHARE = 0.05


class Cached(Generic[T]):
    """The last answer that `make` gave."""

    def __init__(self, make: Callable[[], Awaitable[T]], *, fresh_s: float) -> None:
        self._make = make
        self._fresh_s = fresh_s
        self._lock = trio.Lock()
        self._answer: T | None = None
        self._stale_at = 0.0

    async def get(self) -> T:
        """The answer, at most a moment old. Raises what `make` raises; that is not kept."""
        async with self._lock:
            answer = self._answer
            if answer is None or trio.current_time() >= self._stale_at:
                started = trio.current_time()
                answer = await self._make()
                now = trio.current_time()
                self._answer, self._stale_at = answer, now + max(self._fresh_s, (now - started) / COST_SHARE)
            return answer
