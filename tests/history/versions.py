"""What is known of each partition from all that clients saw and were told: the *version order*. Pure.

Nobody sees a partition whole, so its content is put together from every reading and every answer: at which offset
which record stands. Where two of them differ, that is an anomaly, found here while the order is made:

    inconsistent-offset   two records at one offset
    duplicate             one record at two places

The *committed* order has what a consumer of committed records has to see: what one of them saw, and what was answered
with an offset and took effect. The *plain* order has what plain consumers have to see: in journal mode the same; in
marker mode also what any of them saw. Checks of reading speak of these orders, not of offsets as such, because in
marker mode offsets have gaps.

A transaction of unknown outcome took effect if a consumer of committed records (in journal mode: any consumer) has seen
a record of it. From there on it is held to be whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.history.anomalies import DUPLICATE, INCONSISTENT_OFFSET, Anomaly
from tests.history.operations import BadHistory, History, Isolation, Mode, Operation, Outcome, Send


@dataclass(slots=True)
class Order:
    """The known records of one partition by offset, ascending."""

    offsets: list[int]
    values: list[str]

    def between(self, start: int, end: int) -> Sequence[str]:
        """The records from offset `start` up to `end`, exclusive."""
        return self.values[bisect_left(self.offsets, start) : bisect_left(self.offsets, end)]

    def last_before(self, end: int) -> str | None:
        rank = bisect_left(self.offsets, end)
        return self.values[rank - 1] if rank else None

    def first_from(self, start: int) -> str | None:
        rank = bisect_left(self.offsets, start)
        return self.values[rank] if rank < len(self.values) else None


_NOTHING = Order([], [])


@dataclass(slots=True)
class Versions:
    """All partitions of a history."""

    history: History
    senders: dict[str, tuple[Operation, Send]] = field(default_factory=dict[str, tuple[Operation, Send]])
    """Who sent a value."""
    places: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """(partition, offset) of a value, as it was first known."""
    conflicts: list[Anomaly] = field(default_factory=list[Anomaly])
    seen_committed: set[str] = field(default_factory=set[str])
    """Values that count as committed because a consumer saw them."""
    effective: set[int] = field(default_factory=set[int])
    """Lines of the operations whose sends took effect, as far as anybody knows."""
    _committed: dict[str, Order] = field(default_factory=dict[str, Order])
    _plain: dict[str, Order] = field(default_factory=dict[str, Order])

    def order(self, partition: str, isolation: Isolation) -> Order:
        """What consumers of this isolation have to see of a partition."""
        orders = self._committed if isolation is Isolation.COMMITTED else self._plain
        return orders.get(partition, _NOTHING)

    def committed_orders(self) -> Iterator[tuple[str, Order]]:
        return iter(self._committed.items())

    def took_effect(self, operation: Operation) -> bool:
        return operation.line in self.effective

    def sender_of(self, value: str, partition: str) -> Operation | None:
        """The operation that sent the value to this partition; None if none did."""
        found = self.senders.get(value)
        return found[0] if found is not None and found[1].partition == partition else None


def versions_of(history: History) -> Versions:
    """Put the partitions together. Raises BadHistory if a value was sent twice."""
    versions = Versions(history)
    for operation in history.operations:
        for send in operation.sends():
            if send.value in versions.senders:
                first = versions.senders[send.value][0]
                raise BadHistory(f"line {operation.line}: {send.value!r} was sent in line {first.line} already")
            versions.senders[send.value] = operation, send
    plain_only = _place_all(versions)
    _decide(versions)
    _sort(versions, plain_only)
    return versions


def _place_all(versions: Versions) -> set[str]:
    """Note where every value stands, and who disagrees; answers values that only plain consumers of marker mode saw."""
    at: dict[str, dict[int, tuple[str, int]]] = {}
    first_line: dict[str, int] = {}
    journal = versions.history.mode is Mode.JOURNAL
    plain_only: set[str] = set()

    def place(partition: str, offset: int, value: str, line: int) -> None:
        here = at.setdefault(partition, {})
        known = here.setdefault(offset, (value, line))
        if known[0] != value:
            versions.conflicts.append(
                Anomaly(
                    INCONSISTENT_OFFSET,
                    f"{partition} offset {offset} is {known[0]!r} and is {value!r}",
                    (known[1], line),
                )
            )
        before = versions.places.setdefault(value, (partition, offset))
        if before != (partition, offset):
            versions.conflicts.append(
                Anomaly(
                    DUPLICATE,
                    f"{value!r} is at {before[0]} offset {before[1]} and at {partition} offset {offset}",
                    (first_line[value], line),
                )
            )
        else:
            first_line.setdefault(value, line)

    for operation in versions.history.operations:
        counts = journal or operation.isolation is Isolation.COMMITTED
        for poll in operation.polls():
            for offset, value in poll.records:
                if versions.places.get(value) != (poll.partition, offset) or at[poll.partition][offset][0] != value:
                    place(poll.partition, offset, value, operation.line)
                if counts:
                    versions.seen_committed.add(value)
                else:
                    plain_only.add(value)
        for send in operation.sends():
            if send.offset is not None and operation.may_commit:
                place(send.partition, send.offset, send.value, operation.line)
    return plain_only - versions.seen_committed


def _decide(versions: Versions) -> None:
    """Which operations took effect: those that are ok, and of those that may have, what was seen."""
    for operation in versions.history.operations:
        if not operation.may_commit:
            continue
        seen = (send.value in versions.seen_committed for send in operation.sends())
        if operation.outcome is Outcome.OK or any(seen):
            versions.effective.add(operation.line)


def _sort(versions: Versions, plain_only: set[str]) -> None:
    committed: dict[str, dict[int, str]] = {}
    plain: dict[str, dict[int, str]] = {}
    for value, (partition, offset) in versions.places.items():
        sender = versions.senders.get(value)
        if value in versions.seen_committed or (sender is not None and versions.took_effect(sender[0])):
            committed.setdefault(partition, {}).setdefault(offset, value)
        elif value in plain_only:
            plain.setdefault(partition, {}).setdefault(offset, value)
    for partition in committed.keys() | plain.keys():
        of_committed = committed.get(partition, {})
        versions._committed[partition] = order = _ordered(of_committed)
        extra = plain.get(partition)
        versions._plain[partition] = _ordered(extra | of_committed) if extra else order


def _ordered(records: dict[int, str]) -> Order:
    offsets = sorted(records)
    return Order(offsets, [records[offset] for offset in offsets])
