"""Does the cut index say where logs have ended? Pure.

A row that points behind the log's end, or before the row that precedes it, would hand out a cut that never was. That
each cut holds transactions whole cannot be seen from the rows of one log, and is for the tests to show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from datalog.cuts import Cut
from datalog.layout import LogRecord
from fairlog.verify.findings import Violation


def check_cut(
    name: str, record: LogRecord, cut: Cut, before: Cut | None, common: Collection[int], oldest_common: float
) -> Iterator[Violation]:
    """One row of the log's, and the one before it, None if there is none.

    `common` are all cuts over all shards, `oldest_common` is the first of them (infinite if there is none).
    """
    if cut.end > record.last_stable_offset:
        yield Violation(
            name, f"ends at {cut.end} at cut {cut.number}, and can be read up to {record.last_stable_offset} only", 7
        )
    if before is not None and cut.end < before.end:
        yield Violation(name, f"ends at {cut.end} at cut {cut.number}, and at {before.end} at cut {before.number}", 7)
    if cut.number == 0 and cut.end:
        yield Violation(name, f"begins with {cut.end} in the cut index, and not with 0", 7)
    if cut.number > oldest_common and cut.number not in common:
        yield Violation(name, f"has a row of cut {cut.number}, which was not taken over all shards", 7)


def check_common_cut(name: str, number: int, before: int, newest: int) -> Iterator[Violation]:
    """One cut over all shards: the cut that it names as the one before it, and the one that stands before it."""
    if not newest <= before < number:
        yield Violation(name, f"cut {number} comes after cut {newest}, and says that it comes after cut {before}", 7)
