"""Judges what is in the logs by what the client was told: invariants 1 to 7 of docs/invariants.md. Pure.

`check` takes a history and the records of all partitions as one consistent cut, and answers every violation
it finds, each with the number of its invariant. `check_growth` compares two readings of the same partitions:
what was once readable stays what and where it was.

How much must be there depends on when the logs were read, and `Reading` says it:

    AT_REST      by a consumer, after every outcome was known and reading came to the end: all that was answered
    AT_CRASH     from the data logs of a killed node: what is answered may still wait in the journals; but what is
                 there must be a consistent cut, of committed records only
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.crash.history import History, Outcome, PlainTag, Transaction, TransactionalTag, parse_value


class Reading(Enum):
    """When the logs were read, hence what may be missing."""

    AT_REST = "at rest"
    AT_CRASH = "at the crash"


@dataclass(frozen=True, slots=True)
class Found:
    """A record as it was read."""

    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, by its number in docs/invariants.md."""

    invariant: int
    text: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}: {self.text}"


Logs = Mapping[int, Sequence[Found]]
"""The records of each partition, in the order in which they were read."""


def check(history: History, logs: Logs, reading: Reading, *, marked: Collection[int] = ()) -> list[Violation]:
    """All violations of invariants 1 to 7 in `logs`, in no particular order; empty if all is well.

    `marked` are the partitions of marker mode, whose `logs` hold what is committed: there offsets have gaps, and a
    transaction's records stand where they were written, with others' in between.
    """
    found = _index(logs)
    return [
        *_only_what_was_committed(history, logs),
        *_dense(logs, marked),
        *_once(found),
        *_contiguous_and_in_order(found, marked),
        *_whole(history, found, reading),
        *_plain_where_answered(history, found, reading),
        *_in_commit_order(found),
    ]


def check_growth(before: Logs, after: Logs) -> list[Violation]:
    """A later reading of the same partitions begins with the earlier one (invariant 5: what was seen stays)."""
    violations: list[Violation] = []
    for partition, earlier in before.items():
        later = after.get(partition, ())
        for index, record in enumerate(earlier):
            now = later[index] if index < len(later) else None
            if now != record:
                violations.append(Violation(5, f"partition {partition}: {record} was read before, now it is {now}"))
                break
    return violations


def check_offsets(logs: Logs, offsets: Mapping[str, int | None]) -> list[Violation]:
    """Invariant 7 for offsets in transactions: a writer's group stands behind the last of its transactions there.

    `offsets` has the committed offset of each group whose writer commits them, None if it has none; read with the
    logs as one consistent cut.
    """
    newest: dict[str, int] = {}
    for keys in _index(logs).order.values():
        for writer, number in keys:
            newest[writer] = max(number, newest.get(writer, number))
    expected = {group: newest[group] + 1 if group in newest else None for group in offsets}
    return [
        Violation(7, f"group {group} stands at {offset}, and its transactions at {expected[group]}")
        for group, offset in offsets.items()
        if offset != expected[group]
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a record of the load was found: the `position`-th in its partition."""

    partition: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Index:
    transactional: Mapping[tuple[str, int], Mapping[int, Sequence[tuple[TransactionalTag, _Place]]]]
    """By (writer, transaction), by partition, in order of reading."""
    plain: Mapping[tuple[str, int], Sequence[_Place]]
    order: Mapping[int, Sequence[tuple[str, int]]]
    """(writer, transaction) of each transactional record of a partition, in order of reading."""
    ends: Mapping[int, int]
    """The offset behind the last record of each partition that has one."""


def _index(logs: Logs) -> _Index:
    transactional: dict[tuple[str, int], dict[int, list[tuple[TransactionalTag, _Place]]]] = {}
    plain: dict[tuple[str, int], list[_Place]] = defaultdict(list)
    order: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for partition, records in logs.items():
        for position, record in enumerate(records):
            place = _Place(partition, position, record.offset)
            match parse_value(record.value):
                case TransactionalTag() as tag:
                    key = (tag.writer, tag.transaction)
                    transactional.setdefault(key, {}).setdefault(partition, []).append((tag, place))
                    order[partition].append(key)
                case PlainTag() as tag:
                    plain[tag.writer, tag.number].append(place)
                case None:
                    pass  # `_only_what_was_committed` names it
    ends = {partition: records[-1].offset + 1 for partition, records in logs.items() if records}
    return _Index(transactional, plain, order, ends)


def _only_what_was_committed(history: History, logs: Logs) -> Iterator[Violation]:
    """Invariant 1, and of 5 the part that an error without effect has none."""
    for partition, records in logs.items():
        for record in records:
            tag = parse_value(record.value)
            if tag is None:
                yield Violation(1, f"partition {partition} offset {record.offset}: not a record of the load: {record}")
                continue
            if tag.partition != partition:
                yield Violation(1, f"partition {partition} offset {record.offset} holds {record.value!r}")
            if isinstance(tag, TransactionalTag):
                transaction = history.transactions.get((tag.writer, tag.transaction))
                outcome = transaction.outcome if transaction else None
                expected = transaction.counts.get(partition, 0) if transaction else 0
                if (expected, True) != (tag.count, tag.index < tag.count):
                    yield Violation(1, f"partition {partition} offset {record.offset}: never sent: {record.value!r}")
            else:
                plain = history.plain.get((tag.writer, tag.number))
                outcome = plain.outcome if plain else None
            if outcome is None:
                yield Violation(1, f"partition {partition} offset {record.offset}: never sent: {record.value!r}")
            elif outcome is Outcome.OPEN:
                yield Violation(1, f"partition {partition} offset {record.offset}: never committed: {record.value!r}")
            elif outcome is Outcome.REFUSED:
                yield Violation(5, f"partition {partition} offset {record.offset}: was refused: {record.value!r}")


def _dense(logs: Logs, marked: Collection[int]) -> Iterator[Violation]:
    """Invariant 2; of a marked partition what is left of it."""
    for partition, records in logs.items():
        if partition in marked:
            for earlier, later in itertools.pairwise(records):
                if later.offset <= earlier.offset:
                    yield Violation(2, f"partition {partition}: offset {later.offset} behind {earlier.offset}")
                    break
            continue
        for expected, record in enumerate(records):
            if record.offset != expected:
                yield Violation(2, f"partition {partition}: offset {record.offset} where {expected} was due")
                break


def _once(found: _Index) -> Iterator[Violation]:
    """Invariant 4: replaying and copying again repeats nothing."""
    for (writer, number), partitions in found.transactional.items():
        for partition, records in partitions.items():
            indexes = [tag.index for tag, _place in records]
            if len(set(indexes)) != len(indexes):
                yield Violation(4, f"transaction {writer}/{number} is repeated in partition {partition}: {indexes}")
    for (writer, number), places in found.plain.items():
        if len(places) > 1:
            yield Violation(4, f"plain record {writer}/{number} is repeated: {places}")


def _contiguous_and_in_order(found: _Index, marked: Collection[int]) -> Iterator[Violation]:
    """Invariant 3; in a marked partition the order alone."""
    for (writer, number), partitions in found.transactional.items():
        for partition, records in partitions.items():
            positions = [place.position for _tag, place in records]
            indexes = [tag.index for tag, _place in records]
            if partition not in marked and positions != list(range(positions[0], positions[0] + len(positions))):
                yield Violation(3, f"transaction {writer}/{number} is torn apart in partition {partition}: {positions}")
            if indexes != sorted(indexes):
                yield Violation(3, f"transaction {writer}/{number} is out of order in partition {partition}: {indexes}")


def _whole(history: History, found: _Index, reading: Reading) -> Iterator[Violation]:
    """Invariants 5 and 7: of each transaction all or nothing, and all if its commit was answered."""
    for key, transaction in history.transactions.items():
        counts = {p: len(records) for p, records in found.transactional.get(key, {}).items()}
        if counts == {p: count for p, count in transaction.counts.items() if count}:
            continue
        name = f"transaction {transaction.writer}/{transaction.number}"
        if counts:
            invariant = 5 if reading is Reading.AT_REST and transaction.outcome is Outcome.DONE else 7
            yield Violation(invariant, f"{name} is there in part: {counts} of {_counts(transaction)}")
        elif transaction.outcome is Outcome.DONE and reading is Reading.AT_REST:
            yield Violation(5, f"{name} was answered as committed and is nowhere: {_counts(transaction)}")


def _counts(transaction: Transaction) -> dict[int, int]:
    return dict(transaction.counts)


def _plain_where_answered(history: History, found: _Index, reading: Reading) -> Iterator[Violation]:
    """Invariant 5 for plain records: answered means there, at the offset that was answered.

    At the crash one may still be on its way into the data logs: then it lies behind all that they hold.
    """
    for key, record in history.plain.items():
        if record.outcome is not Outcome.DONE:
            continue
        places = found.plain.get(key, ())
        assert record.offset is not None, "it was answered"
        if reading is Reading.AT_CRASH and not places and record.offset >= found.ends.get(record.partition, 0):
            continue
        if not any(place.partition == record.partition and place.offset == record.offset for place in places):
            name = f"plain record {record.writer}/{record.number}"
            yield Violation(5, f"{name} was answered at offset {record.offset} of {record.partition}; found: {places}")


def _in_commit_order(found: _Index) -> Iterator[Violation]:
    """Invariant 6. A writer is a group of its own and commits one after the other, so its numbers only grow."""
    for partition, keys in found.order.items():
        newest: dict[str, int] = {}
        for writer, number in keys:
            if number < newest.get(writer, number):
                yield Violation(
                    6, f"partition {partition}: transaction {writer}/{number} comes behind {writer}/{newest[writer]}"
                )
            newest[writer] = max(number, newest.get(writer, number))
