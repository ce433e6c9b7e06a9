"""A sink as it is kept: what is known of it, who has it, and where its records go."""

from __future__ import annotations

import trio

from coordinator.sinks.sink import Sink
from fairlog_types import JournalPosition


class SinkEntry:
    """One sink, its group journal, and the lock under which it is changed."""

    __slots__ = ("_waiting", "appended", "journal", "lock", "sink", "used_s")

    def __init__(self, sink: Sink, journal: int) -> None:
        self.sink = sink
        self.journal = journal
        self.appended = JournalPosition(0)
        """Behind the sink's last record."""
        self.lock = trio.Lock()
        """Held by whoever joins, commits, aborts or forgets."""
        self.used_s = trio.current_time()
        """The last request, by the event loop's clock."""
        self._waiting = trio.lowlevel.ParkingLot()

    def touch(self, now_ms: int) -> None:
        """The sink was asked for something."""
        self.used_s = trio.current_time()
        self.sink.used_ms = now_ms

    async def change(self) -> None:
        """Wait until a batch is visible, or recorded as such, or requests are refused. Not under the lock."""
        await self._waiting.park()

    def wake(self) -> None:
        """Let all who wait for a change look again."""
        self._waiting.unpark_all()
