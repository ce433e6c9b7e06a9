"""Which records `consume` is to show: topics, partitions, where to begin and where to end. The same for a node and for
a data directory. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fairlog.cli.errors import ClientError


class Start(Enum):
    """Where to begin in a partition if no offset is given."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for on the command line."""

    topics: tuple[str, ...]
    partitions: frozenset[int] | None
    """Of each topic; None for all."""
    start: Start | int
    """An offset; if negative, so many records before the end."""
    count: int | None
    """Stop after so many records."""
    until_end: bool
    """Stop where the partitions ended when the reading began."""
    committed_only: bool = True
    """Nothing of transactions that are open, or were aborted; a partition ends before the first open one."""


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets of one partition: from `start` up to, and without, `end`."""

    start: int
    end: int


def begin_at(selection: Selection, topic: str, held: Mapping[int, Range]) -> dict[int, Range]:
    """Where to begin in each selected partition of `topic`, and where it ends now.

    `held` is what its partitions hold. Raises ClientError for a partition or an offset that is not there.
    """
    unknown = sorted((selection.partitions or frozenset()) - held.keys())
    if unknown:
        raise ClientError(f"topic {topic} has no partition {unknown[0]}; it has {len(held)}, from 0")
    wanted = sorted(held if selection.partitions is None else selection.partitions)
    return {each: Range(_start(selection.start, topic, each, held[each]), held[each].end) for each in wanted}


def _start(start: Start | int, topic: str, partition: int, held: Range) -> int:
    if start is Start.EARLIEST:
        return held.start
    if start is Start.LATEST:
        return held.end
    assert isinstance(start, int)
    if start < 0:
        return max(held.start, held.end + start)
    if not held.start <= start <= held.end:
        raise ClientError(
            f"partition {partition} of {topic} goes from offset {held.start} to {held.end}, not to {start}"
        )
    return start
