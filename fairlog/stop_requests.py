"""When signals ask a node to stop, and when they ask again.

Asked again, a node does not wait for what is in flight. But one request may come as several signals: `timeout` sends
SIGTERM to its program and then to the group that this is in, and a terminal's ^C reaches a whole group. So signals
that come within a moment are one request.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator

import trio

ONE_REQUEST_S = 0.3


async def stop_requests(signals: AsyncIterator[int]) -> AsyncGenerator[None]:
    """Yield once for each request."""
    last_s = -math.inf
    async for _ in signals:
        now_s = trio.current_time()
        if now_s - last_s > ONE_REQUEST_S:
            last_s = now_s
            yield
