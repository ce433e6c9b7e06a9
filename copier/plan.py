"""What is copied next, and in which order: the copier's decisions, without any I/O.

Two questions are answered here, each by one function; how much goes into one LMDB transaction, and who may go past
whom, is for `backlog` to say:

- `merge`: a restart finds, in every local journal, the items that were placed but not yet copied. In which
  order may they be copied? What was placed in several logs under one apply number is taken when it stands at the
  head of all of them, so that its parts stay one group::

      A:  p1   T1   T2           merge:  p1 · q1 · (T1 of A) · (T2 of A, T2 of B) · q2
      B:  q1   T2   q2

- `plan`: of the groups in a chunk, what is written per log? All batches, but of the windows, of the starts and of the
  marks only the last, because a chunk becomes visible as a whole.

A *group* is a tuple of placed items that becomes visible together: the local parts of one transaction, those of
several that were committed as one (they follow each other in each log), or a single item. The part of a log of marker
mode is the marker: with it the transaction's batches there, which were copied one by one, become stable.

Keeps invariant 3 (an item is never split), 4 (items that the copied-through mark has passed are left out),
6 (the order within a log is the journal's) and 7 (groups are not split, but see `merge`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeGuard

from fairlog_types import ApplyNumber, JournalPosition, LogId, Offset, ProducerId
from partition.placed import (
    WITHOUT_RECORDS,
    BatchRef,
    Placed,
    PlacedBatch,
    PlacedMarker,
    PlacedStart,
    PlacedTransaction,
)
from partition.producer_window import ProducerWindow

Group = tuple[Placed, ...]
"""Items that become visible together; those of one log in its journal's order."""

_Part = PlacedTransaction | PlacedMarker

ITEM_WEIGHT_BYTES = 512
"""What an item weighs beside its frames: a chunk of many tiny batches takes its time too. An item costs
about as much as copying a few hundred bytes more, measured with 100-byte batches."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What one chunk writes to one log."""

    log: LogId
    data: tuple[PlacedBatch | PlacedTransaction | PlacedMarker, ...]
    """In the journal's order; empty if only state has changed."""
    windows: Mapping[ProducerId, ProducerWindow | None]
    """The last window of each producer that the chunk touches; None for one that is forgotten by then."""
    start: Offset | None
    """The log begins here, if it does not begin later; None if the chunk does not say."""
    copied_through: JournalPosition
    replay_from: JournalPosition


def merge(per_log: Mapping[LogId, Sequence[Placed]]) -> list[Group]:
    """Bring what the journals hold, each in its own order, into one order for the node.

    Every item appears once, and each log's items in the order given. The parts that were placed under one apply
    number, those of a transaction or of several that were committed as one, form one group. Ties go to the smaller
    apply number, so the order among transactions is that of their placing.

    One case splits a group. If a crash destroys some of the APPLYs of T1 and T2, coordinators of
    different groups may place the missing parts in another order than that of the surviving ones; if
    the next crash comes before these are copied, T1 precedes T2 in one journal and follows it in
    another. No order can keep both whole, so the one that was placed first is taken in pieces. Nobody
    sees them apart: reads begin only when what recovery found is copied (`Copier.drain`), and no cut is kept before.
    """
    runs_missing: dict[ApplyNumber, int] = {}
    for items in per_log.values():
        for run in _runs(items):
            if _is_part(run[0]):
                number = run[0].apply_number
                runs_missing[number] = runs_missing.get(number, 0) + 1

    groups: list[Group] = []
    rest = {log: _runs(items) for log, items in per_log.items()}
    at_head: dict[ApplyNumber, list[Group]] = {}
    whole: list[ApplyNumber] = []

    def advance(log: LogId) -> None:
        """Take this log's items up to its next parts, which then stand at the head."""
        for run in rest[log]:
            if not _is_part(run[0]):
                groups.append(run)
                continue
            number = run[0].apply_number
            at_head.setdefault(number, []).append(run)
            runs_missing[number] -= 1
            if not runs_missing[number]:
                heapq.heappush(whole, number)
            return

    for log in per_log:
        advance(log)
    while at_head:
        runs = at_head.pop(heapq.heappop(whole) if whole else min(at_head))
        groups.append(tuple(chain.from_iterable(runs)))
        for run in runs:
            advance(run[0].log)
    return groups


def _runs(items: Iterable[Placed]) -> Iterator[Group]:
    """Cut what a journal has placed: the parts that follow each other under one apply number, and single items.

    What stands between two such parts goes with them. That is little: a crash took the second one, and the restart
    wrote a discard, or the marker of an abort, before it placed that again.
    """
    run: list[Placed] = []
    behind: list[Placed] = []
    number: ApplyNumber | None = None
    for item in items:
        if not _is_part(item):
            if run:
                behind.append(item)
            else:
                yield (item,)
            continue
        if item.apply_number == number:
            run += behind
        else:
            if run:
                yield tuple(run)
            yield from ((single,) for single in behind)
            run, number = [], item.apply_number
        behind = []
        run.append(item)
    if run:
        yield tuple(run)
    yield from ((single,) for single in behind)


def _is_part(item: Placed) -> TypeGuard[_Part]:
    """Does the item become visible together with others? An abort is no such thing: nobody reads what it ends."""
    return isinstance(item, PlacedTransaction) or (isinstance(item, PlacedMarker) and item.committed)


def weight_bytes(group: Group) -> int:
    """How much of a chunk's room the group takes: its frames, and a flat sum per item."""
    total = 0
    for item in group:
        total += ITEM_WEIGHT_BYTES
        if isinstance(item, PlacedBatch):
            total += item.batch.frame_bytes
        elif isinstance(item, PlacedTransaction):
            total += sum(batch.frame_bytes for batch in item.batches)
    return total


def logs_of(groups: Iterable[Group]) -> set[LogId]:
    """The logs that the groups touch."""
    return {item.log for group in groups for item in group}


def plan(groups: Iterable[Group], copied_through: Mapping[LogId, JournalPosition]) -> list[LogPlan]:
    """Sort a chunk by log, leaving out what is copied already.

    `copied_through` are the marks that the data logs hold, as read in the write block that will follow the
    plan. What a mark has passed is left out (invariant 4), so writing the plan of the same groups again
    changes nothing. A log without a mark was dropped: its items are left out, too, and the rest of their
    groups is not.
    """
    items_of: dict[LogId, list[Placed]] = {}
    for group in groups:
        for item in group:
            mark = copied_through.get(item.log)
            if mark is not None and not is_copied(item, mark):
                items_of.setdefault(item.log, []).append(item)
    return [_plan_log(log, items) for log, items in items_of.items()]


def is_copied(item: Placed, copied_through: JournalPosition) -> bool:
    """Has the mark passed the item?"""
    return item.end <= copied_through


def _plan_log(log: LogId, items: Sequence[Placed]) -> LogPlan:
    data: list[PlacedBatch | PlacedTransaction | PlacedMarker] = []
    windows: dict[ProducerId, ProducerWindow | None] = {}
    start: Offset | None = None
    end = JournalPosition(0)
    for item in items:
        assert item.end > end, f"{log}: what ends at {item.end} was placed behind what ends at {end}"
        end = item.end
        if not isinstance(item, WITHOUT_RECORDS):
            data.append(item)
            if item.window is None:
                continue
        elif isinstance(item, PlacedStart):
            start = item.offset if start is None else max(start, item.offset)
            continue
        windows[item.producer_id] = item.window
    return LogPlan(log, tuple(data), windows, start, copied_through=end, replay_from=items[-1].replay_from)


def batches_at(item: PlacedBatch | PlacedTransaction) -> Iterator[tuple[Offset, BatchRef]]:
    """The item's batches with the base offset of each: consecutive, from the item's own base (invariant 3)."""
    if isinstance(item, PlacedBatch):
        yield item.base_offset, item.batch
        return
    offset = item.base_offset
    for batch in item.batches:
        yield offset, batch
        offset = Offset(offset + batch.record_count)
