"""The way from an engine's threads back to the event loop: many calls, one wake-up.

A thread puts calls into a deque and wakes the loop once for all that lie there (`run_sync_soon(..., idempotent=True)`),
as the journals' flusher does. Calls run in the order in which they were put. After `close` none runs any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio


class ToLoop:
    """Made and closed on the loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._calls: deque[Callable[[], None]] = deque()
        self._closed = False

    def put(self, call: Callable[[], None]) -> None:
        """Have it called on the loop, soon. From any thread, the loop's included."""
        self._calls.append(call)
        with suppress(trio.RunFinishedError):  # the loop is gone, and so is everybody who waited
            self._token.run_sync_soon(self._run, idempotent=True)

    def failed(self, bug: BaseException) -> None:
        """A thread has ended by a mistake of ours, and nobody would be told anything any more: stop the loop."""

        def stop() -> None:
            raise bug

        self.put(stop)

    def close(self) -> None:
        """Forget what was put, and what still will be."""
        self._closed = True
        self._calls.clear()

    def _run(self) -> None:
        while self._calls and not self._closed:
            self._calls.popleft()()
