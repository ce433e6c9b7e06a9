"""Which ranges of offsets a query reads: decided from a cut of the node, without asking anything.

A *cut* says of each partition where its log begins (`first`), what could be read at that moment (`high`), and where the
cut is (`end`). Of every transaction the records below a cut's ends are all or none, and any two cuts of a node are one
after the other. So what lies between two cuts holds whole transactions only, and of two cuts the smaller offset of each
partition is the earlier cut: that is why an available-now run may end at the smaller of its target and a limited cut.

Where records are missing that a query has a claim to (its topic was deleted, or deleted and made anew, which its id
tells, or without one an offset above its end; or its offset is below the log's start), the functions here go on at the
next sound place and say so in sentences. Whether these are an error or a warning is `failOnDataLoss`, and the caller's
affair.

Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyspark_fairlog.native import CutPartition
from pyspark_fairlog.options import Bound, Edge, Offsets, OptionRefused, Partition
from pyspark_fairlog.positions import Position

Cut = Mapping[Partition, CutPartition]


class Range(NamedTuple):
    """Offsets of one partition, from `start` up to and without `end`."""

    partition: Partition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Planned:
    """Where to go on or what to read, and what a query misses by it, in sentences."""

    ranges: tuple[Range, ...]
    losses: tuple[str, ...]


def cut_of(partitions: Iterable[CutPartition]) -> dict[Partition, CutPartition]:
    return {Partition(each.topic, each.partition): each for each in partitions}


def highs(cut: Cut) -> Offsets:
    return {partition: each.high for partition, each in cut.items()}


def ends(cut: Cut) -> Offsets:
    return {partition: each.end for partition, each in cut.items()}


def resolve(name: str, bound: Bound, cut: Cut) -> Offsets:
    """The offsets that the option `name` means: an edge of the cut for all partitions, or what it says of each.

    Raises OptionRefused if it names a partition that the query does not read, names not all that it does, or
    an offset that the partition has not come to.
    """
    if isinstance(bound, Edge):
        return {partition: _edge(bound, each) for partition, each in cut.items()}
    if bound.keys() != cut.keys():
        missing = ", ".join(map(str, sorted(cut.keys() - bound.keys())))
        strange = ", ".join(map(str, sorted(bound.keys() - cut.keys())))
        told = [f"it does not say where {missing} begins or ends"] if missing else []
        told += [f"the query does not read {strange}"] if strange else []
        raise OptionRefused(
            f"the option {name} must name all partitions that the query reads, and no other: {'; '.join(told)}"
        )
    found: Offsets = {}
    for partition, offset in bound.items():
        found[partition] = _edge(offset, cut[partition]) if isinstance(offset, Edge) else offset
        if found[partition] > cut[partition].high:
            raise OptionRefused(
                f"the option {name} says {offset} of {partition}, which ends at {cut[partition].high}; "
                "give an offset that it has come to, or −1 for its end"
            )
    return found


def going_on(start: Position, cut: Cut) -> Planned:
    """Where a stream that has come to `start` goes on: for each partition of the cut a range up to its high.

    A partition that is not in `start` is new, and begins at its first record.
    """
    ranges: list[Range] = []
    losses = [_gone(partition) for partition in sorted(start.offsets.keys() - cut.keys())]
    for partition, each in sorted(cut.items()):
        at = start.offsets.get(partition, 0)
        if partition in start.offsets and start.is_of_another(each):
            losses.append(_another(partition, at))
            at = each.first
        elif at > each.high:
            losses.append(_made_anew(partition, at, each))
            at = each.first
        elif at < each.first:
            losses.append(_below(partition, at, each))
            at = each.first
        ranges.append(Range(partition, at, each.high))
    return Planned(tuple(ranges), tuple(losses))


def within(ranges: Iterable[Range], limit: Mapping[Partition, int]) -> tuple[Range, ...]:
    """The ranges, ending no later than `limit` says; one that it does not name, or that begins beyond it, is empty.

    A new partition that it does not name is left out: it is not in that cut.
    """
    return tuple(
        part._replace(end=max(part.start, min(part.end, limit[part.partition])))
        for part in ranges
        if part.partition in limit
    )


def to_read(start: Position, end: Position, cut: Cut) -> Planned:
    """The ranges between two positions of a stream, or of a batch, as far as the node still has them.

    The same positions give the same ranges whenever this is asked, but for what is deleted in the meantime: a new
    partition begins at 0, and one that was made anew in between, which its topic's id or an end below its start tells,
    begins at 0, too. What the end has passed over, with `failOnDataLoss` set to false, is told here: a partition that
    it has no more, and one that is another's now.
    """
    ranges: list[Range] = []
    losses = [_gone(partition) for partition in sorted(start.offsets.keys() - end.offsets.keys())]
    for partition, until in sorted(end.offsets.items()):
        at = start.offsets.get(partition, 0)
        if at > until or (partition in start.offsets and _differ(start, end, partition.topic)):
            losses.append(_another(partition, at))
            at = 0
        each = cut.get(partition)
        if each is None or end.is_of_another(each):
            if at < until:
                losses.append(_gone(partition) if each is None else _another(partition, at))
            continue
        if until > each.high:
            losses.append(_made_anew(partition, until, each))
            until = each.high
        if at < min(each.first, until):
            losses.append(_below(partition, at, each))
            at = each.first
        if at < until:
            ranges.append(Range(partition, at, until))
    return Planned(tuple(ranges), tuple(losses))


def split(ranges: Sequence[Range], count_min: int | None) -> tuple[Range, ...]:
    """Split the ranges into at least `count_min`, in proportion to their sizes, none empty.

    Fewer come out only if there are not as many offsets.
    """
    if count_min is None or len(ranges) >= count_min:
        return tuple(ranges)
    pieces = [1] * len(ranges)
    by_size = [(-float(each.size), at) for at, each in enumerate(ranges)]
    heapq.heapify(by_size)
    for _ in range(count_min - len(ranges) if ranges else 0):
        # The range whose pieces are largest gets one more.
        at = by_size[0][1]
        if pieces[at] == ranges[at].size:
            break
        pieces[at] += 1
        heapq.heapreplace(by_size, (-ranges[at].size / pieces[at], at))
    return tuple(piece for each, count in zip(ranges, pieces, strict=True) for piece in _pieces(each, count))


def _pieces(whole: Range, count: int) -> Iterable[Range]:
    bounds = [whole.start + whole.size * at // count for at in range(count + 1)]
    return (Range(whole.partition, start, end) for start, end in pairwise(bounds) if start < end)


def _edge(edge: Edge, each: CutPartition) -> int:
    return each.first if edge is Edge.EARLIEST else each.high


def _differ(start: Position, end: Position, topic: str) -> bool:
    before, after = start.topic_ids.get(topic), end.topic_ids.get(topic)
    return before is not None and after is not None and before != after


def _gone(partition: Partition) -> str:
    return f"{partition} is not there any more: its topic was deleted, or the query was changed and does not read it"


def _another(partition: Partition, offset: int) -> str:
    return f"{partition} is another one than the query had read, up to {offset}: its topic was deleted and made anew"


def _made_anew(partition: Partition, offset: int, each: CutPartition) -> str:
    return (
        f"{partition} ends at {each.high}, and the query had come to {offset}: the topic was deleted and made anew, "
        "or the node's data are not those that were read"
    )


def _below(partition: Partition, offset: int, each: CutPartition) -> str:
    return (
        f"the records {offset} to {each.first - 1} of {partition} are deleted, by retention or by request: "
        f"it begins at {each.first}"
    )
