"""What the log record says of the batches in sum, and what the time index says of them. Pure.

5 and 6 of docs/formats/data-log.md. An entry (P → b) of the time index promises: every batch before b has a max
timestamp of at most P, and b has a larger one; where compaction was, b may have lost it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from datalog.layout import NO_TIMESTAMP, LogRecord
from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Violation
from fairlog.verify.rules import LogRules


class CountersCheck:
    """Size and largest timestamp of one log."""

    def __init__(self, log_name: str, record: LogRecord, *, rules: LogRules) -> None:
        self._log_name = log_name
        self._timestamp_is_bound = rules.timestamp_is_bound
        self._record = record
        self._size_bytes = 0
        self._max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_at = 0

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        self._size_bytes += batch.size_bytes
        if batch.last_offset < self._record.log_start:
            return iter(())  # it waits to be removed, and has no part in what can be found
        if batch.header.max_timestamp > self._max_timestamp_ms:
            self._max_timestamp_ms = batch.header.max_timestamp
            self._max_timestamp_at = batch.last_offset
        return iter(())

    def finish(self) -> Iterator[Violation]:
        record = self._record
        if record.size_bytes != self._size_bytes:
            what = f"its record counts {record.size_bytes} bytes, its batches have {self._size_bytes}"
            yield Violation(self._log_name, what)
        kept = (self._max_timestamp_ms, self._max_timestamp_at)
        if self._timestamp_is_bound and record.max_timestamp_ms >= kept[0]:
            return
        if (record.max_timestamp_ms, record.max_timestamp_at) != kept:
            what = (
                f"its record has the largest timestamp {record.max_timestamp_ms} at {record.max_timestamp_at}, its "
                f"batches have {kept[0]} at {kept[1]}"
            )
            yield Violation(self._log_name, what)


class TimeIndexCheck:
    """The time index of one log."""

    def __init__(self, log_name: str, entries: Sequence[tuple[int, int]], *, log_start: int, rules: LogRules) -> None:
        """`entries` are (P in ms, key of b), in the order of their keys."""
        self._log_name = log_name
        self._log_start = log_start
        self._holes_before = rules.holes_before
        self._entries = [entry for entry in reversed(entries) if entry[1] >= log_start]
        self._largest_ms = NO_TIMESTAMP
        self._entries_ordered = all(
            before[0] < after[0] and before[1] < after[1] for before, after in pairwise(entries)
        )

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        if batch.last_offset < self._log_start:
            return
        while self._entries and self._entries[-1][1] <= batch.last_offset:
            before_ms, at = self._entries.pop()
            where = f"{self._log_name}, offset {at}"
            if at != batch.last_offset:
                yield from self._missing(at)
            elif self._largest_ms > before_ms or (batch.header.max_timestamp <= before_ms and at >= self._holes_before):
                what = (
                    f"the time index says that timestamps grow beyond {before_ms} here; before it they reach "
                    f"{self._largest_ms}, here {batch.header.max_timestamp}"
                )
                yield Violation(where, what)
        self._largest_ms = max(self._largest_ms, batch.header.max_timestamp)

    def finish(self) -> Iterator[Violation]:
        if not self._entries_ordered:
            yield Violation(self._log_name, "the entries of its time index do not grow")
        for _, at in self._entries:
            yield from self._missing(at)

    def _missing(self, at: int) -> Iterator[Violation]:
        if at >= self._holes_before:
            yield Violation(f"{self._log_name}, offset {at}", "the time index names this batch, and there is none")
