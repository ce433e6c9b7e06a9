"""What is asked of which log. Pure.

Every data log is dense, and its batches are as they were produced, with documented exceptions: they all stand here, and
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from datalog.batch import parse_stored_header
from datalog.layout import LogRecord


@dataclass(frozen=True, slots=True)
class LogRules:
    """What a data log's batches must keep."""

    holes_before: int = 0
    """Before this offset compaction may have taken records and batches: offsets only grow there, a transaction may have
    holes, and a batch is not what its journal has. From here on all is dense and whole."""
    timestamp_is_bound: bool = False
    """The batch with the largest timestamp is gone, and the log record has an upper bound of what is left."""
    markers: bool = False
    """Transactions end with control batches, and their batches stand among others (`fairlog.transactions=markers`)."""


def rules_of(record: LogRecord, *, markers: bool) -> LogRules:
    """The rules for the log of that record, in a topic of that mode."""
    return LogRules(record.holes_before, record.index_behind, markers)


parse_kept_header = parse_stored_header
"""Reads the header of a batch in a data log. A compacted one has fewer records than offsets."""
