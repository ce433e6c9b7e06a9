"""Retention's counters, for `fairlog.metrics`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetentionStatistics:
    """What retention has done since the node's start; counts up in place."""

    deleted_bytes: int = 0
    """Of batches that were too old or too many, about."""
    cleanings: int = 0
    cleaned_read_bytes: int = 0
    cleaned_removed_records: int = 0
    cleaned_removed_bytes: int = 0
    postponed_rounds: int = 0
    """Ended early, because the disk or the map was full."""
