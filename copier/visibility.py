"""Who waits for which offset: the high watermarks of the node's logs, and the tasks that wait for them.

The copier tells it what has become visible; `Copier.copied` waits here. Waiting costs one heap entry per
task, so a chunk wakes exactly the tasks whose offset it has reached, whatever else is waiting.

Used on the event loop only. No I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count

import trio

from fairlog_types import LogId, Offset, StorageFailure


class LogForgotten(Exception):
    """The log was deleted while somebody waited for a record of it to become visible."""

    def __init__(self, log: LogId) -> None:
        super().__init__(f"{log} was deleted")
        self.log = log


class Visibility:
    """High watermarks, and waiting for them."""

    def __init__(self) -> None:
        self._high_watermarks: dict[LogId, Offset] = {}
        self._waiting: dict[LogId, list[tuple[Offset, int, trio.Event]]] = {}
        """Per log a heap: the smallest offset is reached first."""
        self._arrivals = count()
        """Tells apart two that wait for the same offset; events cannot be compared."""
        self._forgotten: set[LogId] = set()
        """Grows by deletions only; a topic that is made anew has another id."""
        self._failed: StorageFailure | None = None

    def reached(self, high_watermarks: Mapping[LogId, Offset]) -> None:
        """These logs are visible up to, and without, these offsets: wake whoever has waited for that."""
        self._high_watermarks.update(high_watermarks)
        for log, high_watermark in high_watermarks.items():
            heap = self._waiting.get(log)
            if heap is None:
                continue
            while heap and heap[0][0] <= high_watermark:
                heapq.heappop(heap)[2].set()
            if not heap:
                del self._waiting[log]

    async def wait(self, log: LogId, offset: Offset) -> None:
        """Return once the log's high watermark is at least `offset`; a log never heard of stands at 0.

        Raises StorageFailure if copying has stopped before, LogForgotten if the log was deleted. Cancelling
        leaves nothing behind but an entry that the log's next records remove.
        """
        if self._high_watermarks.get(log, 0) < offset:
            self._check(log)
            event = trio.Event()
            heapq.heappush(self._waiting.setdefault(log, []), (offset, next(self._arrivals), event))
            await event.wait()
            if self._high_watermarks.get(log, 0) < offset:
                self._check(log)
        else:
            # Not a whole checkpoint: a commit's tail waits for its logs one after the other, and they come together.
            await trio.lowlevel.checkpoint_if_cancelled()

    def _check(self, log: LogId) -> None:
        if log in self._forgotten:
            raise LogForgotten(log)
        if self._failed is not None:
            raise StorageFailure(str(self._failed)) from self._failed

    def forget(self, log: LogId) -> None:
        """The log is gone: whoever waits for it gets LogForgotten, now and later."""
        self._forgotten.add(log)
        self._high_watermarks.pop(log, None)
        self._wake(log)

    def fail(self, failure: StorageFailure) -> None:
        """Nothing becomes visible any more: whoever waits gets StorageFailure, now and later."""
        self._failed = failure
        for log in list(self._waiting):
            self._wake(log)

    def _wake(self, log: LogId) -> None:
        for _, _, event in self._waiting.pop(log, []):
            event.set()
