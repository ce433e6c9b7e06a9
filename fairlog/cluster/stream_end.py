"""Where a stream ends, asked once for all who want to know it meanwhile.

Every request of a client may ask. A question that was sent to the engine before a caller came does not serve him, since
something may have been answered to somebody after it; so he shares the next one. An engine that has not answered is not
asked again for a while.
"""

from __future__ import annotations

import trio

from stream.engine import EngineAway, Stream, StreamCutOff, StreamPosition

REST_SECONDS = 1.0
"""For how long an engine that did not answer is not asked."""


class StreamEnd:
    """See the module's head."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._asking = trio.Lock()
        self._callers = 0
        self._answered = 0
        """Up to which caller the end was asked for."""
        self._end: StreamPosition | None = None
        self._rests_until = -1.0

    async def ask(self) -> StreamPosition | None:
        """The end, as it was at this call or later; None if the engine does not say."""
        self._callers += 1
        mine = self._callers
        async with self._asking:
            if self._answered < mine:
                if trio.current_time() < self._rests_until:
                    return None
                asked = self._callers
                try:
                    self._end = await self._stream.end()
                except (EngineAway, StreamCutOff):  # whoever reads the stream finds out that it is gone
                    self.rest()
                    return None
                self._answered = asked
            return self._end

    def rest(self) -> None:
        """The engine has not answered."""
        self._rests_until = trio.current_time() + REST_SECONDS
