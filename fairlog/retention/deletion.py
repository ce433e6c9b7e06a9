"""Which records may be removed by age and by size: where a log should start. For topics with `cleanup.policy=delete`.

A log loses all records before some offset, never some in its middle. So this walks along the log's units (a batch, or
all batches of one transaction, which is removed whole) from the start, and stops at the first one that has to stay:

    by size   it is removed if without it, and all before it, there are still `bytes_max` or more
    by age    it is removed if its largest timestamp is before `expired_before_ms`

The producers set timestamps. One that lies in the future keeps its unit, *and all later ones*, until that time has
come; one that is too old removes its unit at the next check, but only once all before it are gone. Batches without a
timestamp (negative ones: "not set") have no age of their own. They are removed with the next unit that has one.

Undecided records stay, whatever their age: in a log with markers the start does not pass the last stable offset. There
the batches of one transaction are not adjacent, and the log may lose the first of them alone, as in Kafka.

Kafka does the same with whole segments, which is coarser: it looks at a segment's largest timestamp, and keeps the
segment in which a limit of size falls.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from datalog.interface import Bounds, Unit
from fairlog_types import Offset


@dataclass(frozen=True, slots=True)
class Limits:
    """What a log keeps. None: as much as comes."""

    expired_before_ms: int | None
    """Unix time: what is older goes."""
    bytes_max: int | None

    @property
    def any(self) -> bool:
        return self.expired_before_ms is not None or self.bytes_max is not None


def start_within(limits: Limits, units: Iterable[Unit], bounds: Bounds) -> Offset:
    """Where the log should start: where it does, or behind the last of the `units` that may go.

    `units` are the log's first ones, from its start on.
    """
    start, size_bytes = bounds.log_start, bounds.size_bytes
    for unit in units:
        if unit.last_offset >= bounds.last_stable_offset:
            break
        size_bytes -= unit.size_bytes
        if _is_too_much(limits, size_bytes) or _is_expired(limits, unit):
            start = Offset(unit.last_offset + 1)
        elif limits.expired_before_ms is None or unit.max_timestamp_ms >= 0:
            break
    return start


def _is_too_much(limits: Limits, bytes_left: int) -> bool:
    return limits.bytes_max is not None and bytes_left >= limits.bytes_max


def _is_expired(limits: Limits, unit: Unit) -> bool:
    return limits.expired_before_ms is not None and 0 <= unit.max_timestamp_ms < limits.expired_before_ms
