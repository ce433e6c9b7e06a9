"""Whether commits beside an open transaction are seen later than others. Pure; no clock but the history's.

The *delay* of a record that was committed: from the answer to the commit until a consumer of committed records of its
partition first has it (0 if it had it before). A record is *beside* an open transaction if, when its commit was
answered, another transaction had been open for `OPEN_US` that sent to the same partition. The two medians are compared,
so the machine's speed falls out; those of transactions and those of plain records each for themselves, since a commit
is seen later than a plain record anyway.

They are shown and not judged, as they are the machine's: what is judged is in tests/history/held.py.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from statistics import median

from tests.history.operations import Isolation, Kind, Outcome
from tests.history.versions import Versions

OPEN_US = 200_000
"""A transaction that is open for longer is one that others might wait for; shorter ones are everywhere."""
SAMPLES_MIN = 20
"""Of fewer records no median is compared."""
SMALLEST_US = 1_000
"""Medians below this count as this: ratios of nothing say nothing."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Medians in microseconds, and of how many records, of one sort."""

    beside_us: float | None
    beside_count: int
    alone_us: float | None
    alone_count: int

    @property
    def ratio(self) -> float | None:
        """How much longer it takes beside an open transaction; None if there are too few records to say."""
        if self.beside_us is None or self.alone_us is None or min(self.beside_count, self.alone_count) < SAMPLES_MIN:
            return None
        return max(self.beside_us, SMALLEST_US) / max(self.alone_us, SMALLEST_US)


@dataclass(frozen=True, slots=True)
class AllDelays:
    """Of the records of transactions, and of those outside of any."""

    transactions: Delays
    plain: Delays


def delays(versions: Versions) -> AllDelays:
    """How long it took until records were seen."""
    first = first_seen(versions)
    open_at = _long_open(versions)
    found: dict[tuple[bool, bool], list[int]] = {}
    """By whether it is of a transaction, and beside one that is open."""
    for operation in versions.history.operations:
        if operation.outcome is not Outcome.OK or operation.end_us is None:
            continue
        for send in operation.sends():
            seen_us = first.get(send.value)
            if seen_us is not None:
                others = open_at.get(send.partition, _Intervals()).at(operation.end_us, operation.line)
                sort = operation.kind is Kind.TXN, others
                found.setdefault(sort, []).append(max(0, seen_us - operation.end_us))
    return AllDelays(*(_of(found.get((sort, True), []), found.get((sort, False), [])) for sort in (True, False)))


def _of(beside: list[int], alone: list[int]) -> Delays:
    return Delays(median(beside) if beside else None, len(beside), median(alone) if alone else None, len(alone))


class _Intervals:
    """When transactions were open in one partition, as (start, end, line), by start."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int]] = []
        self._ends_max: list[int] = []

    def sort(self) -> None:
        self.spans.sort()
        self._ends_max = []
        for _start, end, _line in self.spans:
            self._ends_max.append(max(end, self._ends_max[-1]) if self._ends_max else end)

    def at(self, time_us: int, line: int) -> bool:
        """Whether another than `line` was open at this time, and had been for a while."""
        index = bisect_right(self.spans, (time_us - OPEN_US, 1 << 62, 0)) - 1
        while index >= 0 and self._ends_max[index] > time_us:
            _start, end, owner = self.spans[index]
            if end > time_us and owner != line:
                return True
            index -= 1
        return False


def first_seen(versions: Versions) -> dict[str, int]:
    """By value: when a consumer of committed records first had it. Readings to the end do not count."""
    first: dict[str, int] = {}
    for reader in versions.history.operations:
        if reader.end_us is None or reader.kind is Kind.FINAL or reader.isolation is not Isolation.COMMITTED:
            continue
        for poll in reader.polls():
            for _offset, value in poll.records:
                if first.get(value, reader.end_us) >= reader.end_us:
                    first[value] = reader.end_us
    return first


def _long_open(versions: Versions) -> dict[str, _Intervals]:
    """By partition. One whose end is not known is open until the history ends."""
    operations = versions.history.operations
    last_us = max((each.end_us or each.start_us for each in operations), default=0)
    found: dict[str, _Intervals] = {}
    for operation in operations:
        end_us = operation.end_us if operation.end_us is not None else last_us
        if operation.kind is Kind.TXN and end_us - operation.start_us > OPEN_US:
            for partition in {send.partition for send in operation.sends()}:
                found.setdefault(partition, _Intervals()).spans.append((operation.start_us, end_us, operation.line))
    for intervals in found.values():
        intervals.sort()
    return found
