"""A sink as the coordinator keeps it: its state, its lock, and the group journal of its records."""

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
        """The position after the sink's last record."""
        self.lock = trio.Lock()
        """Held while a batch is joined, committed or aborted, or the sink is forgotten."""
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
        """Wake all tasks that wait for a change."""
        self._waiting.unpark_all()
