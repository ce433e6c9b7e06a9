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

In a node of several shards each has such an index, and a cut is taken over all of them (`shard.kept_cuts`). It has the
same number in each, and a shard keeps a list of these *common* cuts. Where it has lost the rows of one with the power,
it has lost the entry of the list as well: such a cut is of no use, and the search takes the next older one. A node that
had one shard at first has older cuts of its own, which were taken while the logs of all others did not exist.

*End* is the last stable offset: in a log of journal mode the high watermark. In a log of marker mode a hung transaction
holds it back, also for the records of decided transactions. There cuts may contain part of a transaction; they only say
how far `read_committed` readers can read.

Pure: no I/O. The rows are in `datalog.layout`, written by `datalog.writer` and read by `datalog.reader`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
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

    def kept_common(self, number: int, grown: Collection[LogId]) -> None:
        """A block was committed that has put the common cut with that number; these logs have grown since."""
        self.next_number = number + 1
        self.grown.clear()
        self.grown.update(grown)

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


@dataclass(frozen=True, slots=True)
class KnownCuts:
    """What one shard knows about the cuts of some logs."""

    oldest_common: int
    """The number of its oldest common cut, 0 if it has none."""
    newest: int
    """The number of its newest cut, 0 if it has none."""
    newest_own: int
    """The number of the newest cut that it took alone, before there were common ones; 0 if it took none."""
    by_log: Mapping[LogId, LogCuts]
    at_oldest_common: Mapping[LogId, Offset]
    """Where those of these logs ended at that cut that were known then; empty if it has none."""


@dataclass(frozen=True, slots=True)
class EndsAtCut:
    """Where some logs of one shard ended at a cut."""

    number: int
    """Of the requested cut. Of common ones: of the newest that it knows and that is not newer; 0 if it knows none."""
    by_log: Mapping[LogId, Offset]
    """Logs that were not known yet at that cut are missing."""


class Lookup(NamedTuple):
    """What a search asks for: the ends of these logs (indexes) at a cut."""

    number: int
    logs: Sequence[int]


class LookedUp(NamedTuple):
    """What it is answered."""

    number: int
    """Of the newest cut that can be used, of those that are not newer than the requested one; 0 if there is none."""
    ends: Sequence[Offset | None]
    """Of the requested logs; None for one that was not known yet at that cut."""


class RowsAreGone(Exception):
    """Rows of the index were deleted during the search: what was found so far is worth nothing."""


class FoundCut(NamedTuple):
    """The result of a search."""

    ends: list[Offset]
    is_now: bool
    """It is the current state, and no older cut."""


def search(logs: Sequence[LogCuts], *, records_max: int, newest: int) -> Generator[Lookup, LookedUp, FoundCut]:
    """Find the newest cut that has at most `records_max` records after the starts; ends in the order of `logs`.

    If no such cut has any records, it is the oldest cut that has some, so a reader makes progress as long as there is
    something to read. The current state is the newest cut. No end is before its log's start. The newest of the others
    that can be used has the number `newest` at most.

    Each step asks for the logs that are still undecided; there are about log2(number of cuts) steps. Raises
    RowsAreGone.
    """
    now = [max(log.start, log.end) for log in logs]
    behind = [index for index, log in enumerate(logs) if log.start < log.end]
    first_rows = [row for index in behind if (row := logs[index].oldest) is not None]
    if _records(logs, now) <= records_max or len(first_rows) < len(behind):
        return FoundCut(now, is_now=True)
    # Before its oldest row a log is not known, which is no loss where that lies before the start.
    not_before = [row.number for index, row in zip(behind, first_rows, strict=True) if row.end > logs[index].start]
    first = max(not_before, default=min(row.number for row in first_rows))
    # `small` has records_max at most, `large` more; the one before the first is taken to have none.
    small, small_ends = first - 1, [log.start for log in logs]
    large, large_ends, large_is_now = newest + 1, now, True
    while large - small > 1:
        middle = (small + large) // 2
        asked = [
            index
            for index, row in zip(behind, first_rows, strict=True)
            if small_ends[index] != large_ends[index] and middle >= row.number
        ]
        number, found = yield Lookup(middle, asked)
        if number <= small:
            small = middle
            continue
        ends = list(small_ends)
        for index, end in zip(asked, found, strict=True):
            row = logs[index].oldest
            if end is not None:
                ends[index] = max(logs[index].start, end)
            elif row is not None and number >= row.number:
                raise RowsAreGone
        if _records(logs, ends) <= records_max:
            small, small_ends = middle, ends
        else:
            large, large_ends, large_is_now = number, ends, False
    return FoundCut(small_ends, is_now=False) if _records(logs, small_ends) else FoundCut(large_ends, large_is_now)


def find_cut(logs: Sequence[LogCuts], *, records_max: int, end_at: Callable[[int, int], Offset]) -> list[Offset]:
    """The ends that `search` finds where each cut that is asked for can be used.

    `end_at(index, cut)` looks up the end of `logs[index]` at a cut that is not older than the log's oldest row.
    """
    newest = max((log.newest.number for log in logs if log.newest is not None), default=0)
    searching = search(logs, records_max=records_max, newest=newest)
    try:
        lookup = next(searching)
        while True:
            ends = [end_at(index, lookup.number) for index in lookup.logs]
            lookup = searching.send(LookedUp(lookup.number, ends))
    except StopIteration as stopped:
        found: FoundCut = stopped.value
        return found.ends


def _records(logs: Sequence[LogCuts], ends: Sequence[Offset]) -> int:
    return sum(end - log.start for log, end in zip(logs, ends, strict=True))
