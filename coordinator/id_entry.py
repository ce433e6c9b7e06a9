"""One transactional id in memory: its producer, when it was used, and who waits for it."""

from __future__ import annotations

import trio

from coordinator.producer import Producer
from fairlog_types import JournalPosition


class IdEntry:
    """One transactional id. Times by the clock of the event loop, which does not jump."""

    __slots__ = (
        "appended",
        "began_ms",
        "busy",
        "in_doubt",
        "journal",
        "opened_s",
        "prepared_s",
        "producer",
        "used_s",
        "waiting",
    )

    def __init__(self, producer: Producer, journal: int) -> None:
        self.producer = producer
        self.journal = journal
        self.appended = JournalPosition(0)
        """Behind the id's last record."""
        self.busy = False
        """A request has its turn."""
        self.in_doubt = False
        """A commit has failed while it was written: what is known of it is not on disk."""
        self.opened_s: float | None = None
        """When the last transaction of this run began."""
        self.began_ms: int | None = None
        """The same by the wall clock, in milliseconds since 1970."""
        self.prepared_s: float | None = None
        """When its PREPARE_COMMIT was written; None if it was not."""
        self.used_s = trio.current_time()
        """The last request; it may lie before the start of the run."""
        self.waiting: trio.lowlevel.ParkingLot | None = None


async def park(entry: IdEntry) -> None:
    """Wait until something changes for this id."""
    if entry.waiting is None:
        entry.waiting = trio.lowlevel.ParkingLot()
    await entry.waiting.park()


def wake(entry: IdEntry) -> None:
    """Let all who wait look again."""
    lot, entry.waiting = entry.waiting, None
    if lot is not None:
        lot.unpark_all()


def ms_since(then_s: float) -> float:
    """Milliseconds since a time of the event loop."""
    return round((trio.current_time() - then_s) * 1000, 2)


def open_ms_of(entry: IdEntry) -> float | None:
    """The age of the open transaction, or of the last one; None if none has begun in this run."""
    return None if entry.opened_s is None else ms_since(entry.opened_s)
