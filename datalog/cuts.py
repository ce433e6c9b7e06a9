"""Past cuts: when one is stored, and which one a reader with a limit gets.

A *cut* is a set of end offsets, one per log, that contains each transaction whole or not at all. Every commit leaves a
cut (invariant 7), so the newest is always available. A reader that is far behind and wants only some records needs an
older one. Older cuts are stored in the *cut index*, sparsely:

    cut      1     2     3     4          a row (log, cut) → the log's end, for the logs that have
    log A   10    25     ·    40          grown since the previous cut; where there is none (·), the
    log B    ·     7     9     ·          newest row of an older cut applies

Cuts are numbered in order. Row 0 is written when a log is created: it ends at 0. So all cuts are known for a log that
still has row 0. For other logs (older than the index, compacted, or with a later start by now) nothing is known before
the oldest row. This is no loss if the reader's start is at or after that row's offset; a reader that starts before it
gets no older cut.

A row is written for *every* log that has grown since the last cut, or the new cut would tear a transaction. These logs
are kept in memory (`Unindexed`), and found again when the environment is opened: those whose end differs from their
newest row.

*End* is the last stable offset: in a log of journal mode the high watermark. In a log of marker mode a hung transaction
holds it back, also for the records of decided transactions. There cuts may contain part of a transaction; they only say
how far `read_committed` readers can read.

Pure: no I/O. The rows are in `datalog.layout`, written by `datalog.writer` and read by `datalog.reader`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlog_types import LogId, Offset

RECORDS_PER_CUT = 1_000
"""Records between two cuts in a burst, and so the amount by which a limit is rounded up: a tenth of a micro-batch of
10,000, the smallest sensible one.
"""

SECONDS_PER_CUT = 0.1
"""Time between two cuts with fewer records, and so the amount by which a limit is rounded up at a low rate.
Micro-batches take longer.
"""


class Cut(NamedTuple):
    """One row: at this cut, and until the log's next row, the log ended at this offset."""

    number: int
    end: Offset


@dataclass(slots=True)
class Unindexed:
    """The logs and records that were committed since the last cut of the index."""

    next_number: int
    grown: set[LogId] = field(default_factory=set[LogId])
    """Logs that have grown since their newest row."""
    records: int = 0
    since_s: float = -math.inf
    """Time of the last cut; the first one of a run is due at once."""

    def is_due(self, more_records: int, now_s: float) -> bool:
        """Whether a block that has added this many records should leave a cut in the index."""
        return self.records + more_records >= RECORDS_PER_CUT or now_s - self.since_s >= SECONDS_PER_CUT

    def add(self, logs: Collection[LogId], records: int) -> None:
        """A block was committed that left no cut."""
        self.grown.update(logs)
        self.records += records

    def begin_again(self, now_s: float) -> None:
        """A block was committed that left a cut."""
        self.next_number += 1
        self.grown.clear()
        self.records = 0
        self.since_s = now_s


@dataclass(frozen=True, slots=True)
class LogCuts:
    """One log, as input of a search."""

    start: Offset
    """Where the reader starts."""
    end: Offset
    """The log's end now."""
    oldest: Cut | None
    """Of its rows; None if it has none."""
    newest: Cut | None


def find_cut(logs: Sequence[LogCuts], *, records_max: int, end_at: Callable[[int, int], Offset]) -> list[Offset]:
    """The ends of the newest cut that has at most `records_max` records after the starts, in the order of `logs`.

    If no such cut has any records, it is the oldest cut that has some, so a reader makes progress as long as there is
    something to read. The current state is the newest cut. No end is before its log's start.

    `end_at(index, cut)` looks up the end of `logs[index]` at a cut that is not older than the log's oldest row. It is
    called for the logs that are still undecided, in each of about log2(number of cuts) steps.
    """
    now = [max(log.start, log.end) for log in logs]
    behind = [index for index, log in enumerate(logs) if log.start < log.end]
    oldest = [log.oldest for log in (logs[index] for index in behind)]
    newest = [log.newest.number for log in (logs[index] for index in behind) if log.newest is not None]
    known = [row for row in oldest if row is not None]
    if _records(logs, now) <= records_max or len(known) < len(behind):
        return now
    # Before its oldest row a log is not known, which is no loss where that lies before the start.
    not_before = [row.number for index, row in zip(behind, known, strict=True) if row.end > logs[index].start]
    first = max(not_before, default=min(row.number for row in known))
    # `small` has records_max at most, `large` more; the one before the first is taken to have none.
    small, small_ends = first - 1, [log.start for log in logs]
    large, large_ends = max(newest) + 1, now
    while large - small > 1:
        middle = (small + large) // 2
        ends = list(small_ends)
        for index in behind:
            log = logs[index]
            assert log.oldest is not None
            if small_ends[index] != large_ends[index] and middle >= log.oldest.number:
                ends[index] = max(log.start, end_at(index, middle))
        if _records(logs, ends) <= records_max:
            small, small_ends = middle, ends
        else:
            large, large_ends = middle, ends
    return small_ends if _records(logs, small_ends) else large_ends


def _records(logs: Sequence[LogCuts], ends: Sequence[Offset]) -> int:
    return sum(end - log.start for log, end in zip(logs, ends, strict=True))
