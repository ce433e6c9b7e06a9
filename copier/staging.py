"""A large group, copied in stages: what each stage writes, without any I/O.

One LMDB transaction holds in memory what it has not committed, and while it lasts nothing else is copied. So what
is larger than `STAGED_FROM_BYTES` is written in stages of some `STAGE_BYTES`, behind the ends of its logs, where
nobody looks; and then made visible by the one that writes the marks::

    A  ──────▏a1 a2│a3 a4│              ──────────────────▶│
    B  ───▏        │     │b1 b2 b3│     ─────────────────▶ │  ends, marks, windows, offsets, markers: at once
             1st     2nd      3rd                 the last one

Staged is what transactions have placed in logs of journal mode. Markers, committed offsets and changes of state are
small and go with the last LMDB transaction, as does a log that has other items between its parts.

Keeps invariant 7: what is staged is seen when `apply` publishes it. See docs/decisions/0039-staged-copy.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from copier.plan import Group
from fairlog_types import LogId, LogKind
from partition.placed import WITHOUT_RECORDS, PlacedTransaction

STAGED_FROM_BYTES = 32 * 2**20
"""A few stages at least, or it is not worth the commits; and so much memory a copy may take."""

STAGE_BYTES = 8 * 2**20
"""As a chunk's: so long does the next chunk wait."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one stage writes of one item: its batches from `first` up to, and without, `end`."""

    item: PlacedTransaction
    first: int
    end: int


def is_large(group: Group, weight_bytes: int) -> bool:
    """Is the group, of that weight, copied in stages?"""
    return weight_bytes >= STAGED_FROM_BYTES and bool(_staged_parts(group))


def _staged_parts(group: Group) -> list[PlacedTransaction]:
    """What of the group is staged: log by log, in each log's order."""
    parts: dict[LogId, list[PlacedTransaction]] = {}
    others: set[LogId] = set()
    for item in group:
        if isinstance(item, PlacedTransaction) and item.log.kind == LogKind.TOPIC.value:
            parts.setdefault(item.log, []).append(item)
        elif not isinstance(item, WITHOUT_RECORDS):
            others.add(item.log)
    return [item for log, items in parts.items() if log not in others for item in items if item.batches]


class Staging:
    """How far one large group has come."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._parts = _staged_parts(group)
        self._at = _Place(0, 0)
        """Where the next stage begins."""
        self._behind = self._at
        """Where it ends."""
        self.sizes_bytes: dict[LogId, array[int]] = {part.log: array("q") for part in self._parts}
        """Of the logs that are staged: the sizes of the batches that were written, in order."""

    def stage(self) -> list[Piece]:
        """What comes next: one batch at least, then up to `STAGE_BYTES`. Nothing if all is written.

        The same, until it `was_written`: a stage that has failed may be tried again.
        """
        pieces: list[Piece] = []
        part_number, first = self._at
        total_bytes = 0
        for part in self._parts[part_number:]:
            end = first
            while end < len(part.batches):
                total_bytes += part.batches[end].frame_bytes
                if total_bytes > STAGE_BYTES and (pieces or end > first):
                    break
                end += 1
            if end > first:
                pieces.append(Piece(part, first, end))
            if end < len(part.batches):
                self._behind = _Place(part_number, end)
                return pieces
            part_number, first = part_number + 1, 0
        self._behind = _Place(part_number, 0)
        return pieces

    def was_written(self, sizes_bytes: Mapping[LogId, Iterable[int]]) -> None:
        """The stage is committed. `sizes_bytes`: what it has written to each log, batch by batch."""
        self._at = self._behind
        for log, sizes in sizes_bytes.items():
            self.sizes_bytes[log].extend(sizes)


class _Place(NamedTuple):
    part: int
    batch: int
    """Of the part."""
