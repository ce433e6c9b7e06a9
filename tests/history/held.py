"""Whether commits wait for the end of another transaction (invariant 8), told without a clock. Pure.

No bound on a delay holds on every machine: one that stands still delays all. So time is counted in what the broker does
meanwhile. A record is *beside* an open transaction if that one sends to the same partition, was begun before the
record's own operation, and is the last of those to end. It is judged if, between the moment at which its commit was
asked for (of a plain record: at which it was sent) and that at which the other's commit was,

    `ANSWERS` other commits or plain records were asked for, in whatever partition, and answered, and
    then a cut was taken (docs/history-checker.md): a reader was told of the ends of all partitions.

By then the broker has done what others asked for later. If no consumer of committed records has the record when the
other's commit is asked for, it was *late*. Only transactions that were committed count as open: a broker that is
restarted aborts those that are open, so of these alone is it certain that they were open all the time. With markers a
transaction can hold only what stands behind it, which offsets tell.

One stop of the copy makes many records late, so they are not what is counted: a *pair* is such a transaction and a
partition, and it was held if most of the records beside it there were late. If most pairs were held, and there are
`PAIRS_MIN` of them, transactions wait for each other. Records of transactions and plain ones are judged each for
themselves, as a broker may hold one sort and not the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.history.anomalies import HELD, Anomaly
from tests.history.latency import first_seen
from tests.history.operations import Kind, Mode, Operation, Outcome, Send
from tests.history.versions import Versions

ANSWERS = 10
"""By then all but some 1 % of the records are seen, on a machine that is full of other work (docs)."""
PAIRS_MIN = 5
"""Of fewer nothing is said."""


@dataclass(slots=True)
class Pair:
    """A transaction that was left open, and a partition to which it sends."""

    line: int
    """The transaction's."""
    partition: str
    records: int = 0
    """That were judged beside it."""
    late: int = 0
    first_late: tuple[int, str] | None = None
    """Line and value of a record."""

    @property
    def held(self) -> bool:
        return self.late * 2 > self.records


@dataclass(frozen=True, slots=True)
class Beside:
    """What came of all pairs, of one sort of records."""

    pairs: Sequence[Pair]

    @property
    def held(self) -> Sequence[Pair]:
        return [pair for pair in self.pairs if pair.held]

    @property
    def records(self) -> int:
        return sum(pair.records for pair in self.pairs)

    @property
    def late(self) -> int:
        return sum(pair.late for pair in self.pairs)

    @property
    def judged(self) -> bool:
        """Whether there are enough of them to say anything."""
        return len(self.pairs) >= PAIRS_MIN


@dataclass(frozen=True, slots=True)
class AllBeside:
    """Of the records of transactions, and of those outside of any."""

    transactions: Beside
    plain: Beside


def beside_open(versions: Versions) -> AllBeside:
    """Judge each record that was sent beside a transaction that was open for long enough."""
    first = first_seen(versions)
    progress = _Progress(versions)
    open_in = _open_in(versions)
    found: dict[tuple[Kind, int, str], Pair] = {}
    for operation in versions.history.operations:
        if operation.outcome is not Outcome.OK or operation.commit_us is None:
            continue
        for send in operation.sends():
            can_be_seen_us = progress.after(operation.commit_us, send.partition)
            other = open_in[send.partition].last_to_end(operation.start_us) if send.partition in open_in else None
            if other is None or other.commit_us is None or other.commit_us <= can_be_seen_us:
                continue
            if versions.history.mode is Mode.MARKERS and not _stands_behind(versions, send, other):
                continue
            pair = found.setdefault((operation.kind, other.line, send.partition), Pair(other.line, send.partition))
            pair.records += 1
            if first.get(send.value, other.commit_us) >= other.commit_us:
                pair.late += 1
                pair.first_late = pair.first_late or (operation.line, send.value)
    return AllBeside(*(Beside([found[key] for key in found if key[0] is kind]) for kind in (Kind.TXN, Kind.SEND)))


def held(found: AllBeside) -> Iterator[Anomaly]:
    """An anomaly for each pair that was held, if most were."""
    for what, beside in (("records of transactions", found.transactions), ("plain records", found.plain)):
        if not beside.judged or len(beside.held) * 2 <= len(beside.pairs):
            continue
        for pair in beside.held:
            assert pair.first_late is not None
            line, value = pair.first_late
            yield Anomaly(
                HELD,
                f"{pair.late} of {pair.records} {what} in {pair.partition}, {value!r} the first of them, were not seen"
                f" until the commit of the transaction of line {pair.line} was asked for, which was open beside them",
                (pair.line, line),
            )


class _Progress:
    """When a broker has done enough for a record to be seen, and to be looked for."""

    def __init__(self, versions: Versions) -> None:
        operations = [each for each in versions.history.operations if each.outcome is Outcome.OK]
        whole = [(each.end_us, each.start_us, each) for each in operations if each.end_us is not None]
        self._answers = sorted((end, each.commit_us) for end, _start, each in whole if each.commit_us is not None)
        cuts = [(start, end, each.ends) for end, start, each in whole if each.kind is Kind.POLL and each.ends]
        partitions = {partition for _start, _end, ends in cuts for partition in ends}
        self._cuts = {
            partition: _Cuts((start, end) for start, end, ends in cuts if partition in ends) for partition in partitions
        }

    def after(self, time_us: int, partition: str) -> float:
        """When so much that was asked for after this time was answered, and then a cut with this partition taken."""
        count = 0
        for index in range(bisect_right(self._answers, (time_us, 0)), len(self._answers)):
            answered_us, asked_us = self._answers[index]
            count += asked_us > time_us
            if count == ANSWERS:
                return self._cuts[partition].first_from(answered_us) if partition in self._cuts else float("inf")
        return float("inf")


class _Cuts:
    """Cuts by time, as (start, end)."""

    def __init__(self, cuts: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(cuts)
        self._starts = [start for start, _end in ordered]
        self._ends: list[float] = [float("inf")]
        """Of the cuts from each one on, when the first was whole; backwards while it is made."""
        for _start, end in reversed(ordered):
            self._ends.append(min(end, self._ends[-1]))
        self._ends.reverse()

    def first_from(self, time_us: int) -> float:
        """When the first one was whole of those that began at this time or later."""
        return self._ends[bisect_left(self._starts, time_us)]


class _Open:
    """The committed transactions that send to one partition, by when they were begun."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._last: list[Operation] = []
        """Of those up to each one, the one whose commit was asked for last."""

    def add(self, operation: Operation) -> None:
        """They come in the order in which they were begun."""
        last = self._last[-1] if self._last else operation
        self._starts.append(operation.start_us)
        self._last.append(max(last, operation, key=lambda each: each.commit_us or 0))

    def last_to_end(self, begun_before_us: int) -> Operation | None:
        index = bisect_left(self._starts, begun_before_us)
        return self._last[index - 1] if index else None


def _open_in(versions: Versions) -> dict[str, _Open]:
    found: dict[str, _Open] = {}
    for operation in versions.history.operations:
        if operation.kind is Kind.TXN and operation.outcome is Outcome.OK:
            for partition in {send.partition for send in operation.sends()}:
                found.setdefault(partition, _Open()).add(operation)
    return found


def _stands_behind(versions: Versions, send: Send, other: Operation) -> bool:
    """Whether the record came to its partition behind a record of the other transaction: with markers, offsets tell."""
    _partition, offset = versions.places.get(send.value, (send.partition, -1))
    places = (versions.places.get(each.value) for each in other.sends() if each.partition == send.partition)
    return any(place is not None and place[1] < offset for place in places)
