"""A correct broker in memory with clients that use it in every way a history knows, seeded: what it records is clean.

It does nothing but keep the promises: in journal mode a commit puts all records of a transaction in place at once; in
marker mode each record stands where it was sent, a control record behind them takes an offset, and consumers of
committed records stop at the first record of an open transaction. Clients take turns, so their operations overlap. Some
crash, in the middle of a transaction or while they wait for the answer to a commit, and a new process takes over.

`record` answers the events of a history (docs/formats/history.md), without its first line.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.history.operations import Mode

Event = dict[str, Any]
INPUT, OUTPUTS = "in/0", ("out/0", "out/1", "out/2")
PARTITIONS = (INPUT, *OUTPUTS)
CONSUMER_GROUP = "transformers"


class Fate(Enum):
    """What became of the transaction that a record is of."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """One that runs."""

    fate: Fate = Fate.OPEN
    sends: list[tuple[str, str, int | None]] = field(default_factory=list[tuple[str, str, int | None]])
    """(partition, value, offset)."""


@dataclass(slots=True)
class Record:
    """A place in a partition; without a value it is a control record."""

    value: str | None
    transaction: Transaction | None

    @property
    def open(self) -> bool:
        return self.transaction is not None and self.transaction.fate is Fate.OPEN


class Model:
    """The broker, and the history so far."""

    def __init__(self, mode: Mode, rng: random.Random) -> None:
        self.mode, self.rng = mode, rng
        self.logs: dict[str, list[Record]] = {partition: [] for partition in PARTITIONS}
        self.group_position = 0
        """What the group of the transformers has committed, in INPUT."""
        self.events: list[Event] = []
        self._stable = dict.fromkeys(PARTITIONS, 0)
        self._time_us = 0
        self._operations: dict[str, Iterator[int]] = {}
        self._values: dict[str, Iterator[int]] = {}

    # --- the history ---

    def event(self, process: str, op: int, kind: str, **details: Any) -> None:
        self._time_us += self.rng.randint(1, 3000)
        self.events.append({"time_us": self._time_us, "process": process, "op": op, "type": kind, **details})

    def next_op(self, process: str) -> int:
        return next(self._operations.setdefault(process, itertools.count()))

    def new_value(self, process: str) -> str:
        return f"{process}.{next(self._values.setdefault(process, itertools.count()))}"

    # --- the broker ---

    def send(self, transaction: Transaction, partition: str, value: str) -> None:
        offset = None
        if self.mode is Mode.MARKERS:
            offset = len(self.logs[partition])
            self.logs[partition].append(Record(value, transaction))
        transaction.sends.append((partition, value, offset))

    def send_plain(self, partition: str, value: str) -> int:
        self.logs[partition].append(Record(value, None))
        return len(self.logs[partition]) - 1

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.fate = Fate.COMMITTED if commit else Fate.ABORTED
        if self.mode is Mode.MARKERS:
            for partition in {partition for partition, _value, _offset in transaction.sends}:
                self.logs[partition].append(Record(None, transaction))
        elif commit:
            for partition, value, _offset in transaction.sends:
                self.logs[partition].append(Record(value, transaction))

    def end_of(self, partition: str, *, plain: bool) -> int:
        """How far a consumer may read."""
        records = self.logs[partition]
        if plain:
            return len(records)
        stable = self._stable[partition]
        while stable < len(records) and not records[stable].open:
            stable += 1
        self._stable[partition] = stable
        return stable

    def read(self, partition: str, start: int, end: int, *, plain: bool) -> list[list[Any]]:
        return [
            [offset, record.value]
            for offset, record in enumerate(self.logs[partition][start:end], start)
            if record.value is not None
            and (plain or record.transaction is None or record.transaction.fate is not Fate.ABORTED)
        ]


Turns = Iterator[None]
"""A client: runs one step at each turn, for ever."""


def record(mode: Mode, seed: int, turns: int) -> list[Event]:
    """The events of a history of so many steps, and of the readings to the end behind them."""
    rng = random.Random(seed)
    model = Model(mode, rng)
    clients = [
        *(_writer(model, f"w{number}") for number in range(3)),
        _plain_writer(model),
        _transformer(model),
        *(_reader(model, f"r{number}", plain=number % 2 == 1) for number in range(4)),
        _cutter(model),
        *(_asker(model, f"asker{number}", plain=number % 2 == 1) for number in range(2)),
    ]
    for _turn in range(turns):
        next(rng.choice(clients))
    for records in model.logs.values():
        for each in records[:]:
            if each.open and each.transaction is not None:
                model.end(each.transaction, commit=False)
    for plain in (False, True):
        _final(model, plain=plain)
    return model.events


def _micro(transaction: Transaction, polls: list[list[Any]], *, answered: bool) -> list[list[Any]]:
    return [
        *polls,
        *(
            ["send", partition, value, *([offset] if answered and offset is not None else [])]
            for partition, value, offset in transaction.sends
        ),
    ]


def _writer(model: Model, group: str) -> Turns:
    """Transactions of a group, by one process after the other; sends only."""
    for life in itertools.count():
        process = f"{group}-{life}"
        crashed = False
        while not crashed:
            planned = [
                (partition, model.new_value(process))
                for partition in model.rng.choices(OUTPUTS, k=model.rng.randint(1, 5))
            ]
            crashed = yield from _transaction(model, process, group, planned, [])
            yield


def _transaction(
    model: Model, process: str, group: str, planned: list[tuple[str, str]], polls: list[list[Any]], **details: Any
) -> Iterator[None]:
    """Run one transaction. Returns whether the process crashed."""
    op = model.next_op(process)
    transaction = Transaction()
    model.event(
        process,
        op,
        "invoke",
        f="txn",
        group=group,
        micro=[["send", partition, value] for partition, value in planned],
        **details,
    )
    fate = model.rng.random()
    for partition, value in planned:
        yield
        if fate < 0.04:
            model.end(transaction, commit=False)  # as the coordinator does when the next process asks for the id
            return True
        model.send(transaction, partition, value)
    yield
    if fate < 0.2:
        model.end(transaction, commit=False)
        model.event(process, op, "fail", micro=_micro(transaction, polls, answered=True))
        return False
    model.event(process, op, "commit", micro=_micro(transaction, polls, answered=False))
    yield
    if fate < 0.3:
        model.end(transaction, commit=fate < 0.25)
        if fate < 0.27:
            model.event(process, op, "info", micro=_micro(transaction, polls, answered=True))
        return True
    model.end(transaction, commit=True)
    yield
    model.event(process, op, "ok", micro=_micro(transaction, polls, answered=True))
    return False


def _plain_writer(model: Model) -> Turns:
    process = "plain"
    while True:
        op = model.next_op(process)
        planned = [
            (partition, model.new_value(process))
            for partition in model.rng.choices(PARTITIONS, k=model.rng.randint(1, 3))
        ]
        model.event(process, op, "invoke", f="send", micro=[["send", *each] for each in planned])
        yield
        known = model.rng.random() < 0.9
        micro = [["send", *each, model.send_plain(*each)] for each in planned if known or model.rng.random() < 0.5]
        yield
        if known:
            model.event(process, op, "ok", micro=micro)
        else:
            model.event(process, op, "info")


def _transformer(model: Model) -> Turns:
    """Consumes INPUT in transactions, and commits how far it has come in them."""
    for life in itertools.count():
        process = f"transformer-{life}"
        crashed = False
        _assign(model, process, {INPUT: model.group_position})
        while not crashed:
            yield
            position = model.group_position
            end = min(model.end_of(INPUT, plain=False), position + model.rng.randint(1, 4))
            polls = [["poll", INPUT, found]] if (found := model.read(INPUT, position, end, plain=False)) else []
            planned = [(model.rng.choice(OUTPUTS), model.new_value(process)) for _record in found]
            before = len(model.events)
            crashed = yield from _transaction(
                model, process, "transformer", planned, polls, consumer_group=CONSUMER_GROUP
            )
            if found and _committed(model, planned):
                model.group_position = found[-1][0] + 1
            elif not crashed and len(model.events) > before:
                _assign(model, process, {INPUT: model.group_position})


def _committed(model: Model, planned: list[tuple[str, str]]) -> bool:
    partition, value = planned[0]
    return any(
        each.value == value and each.transaction is not None and each.transaction.fate is Fate.COMMITTED
        for each in model.logs[partition]
    )


def _assign(model: Model, process: str, positions: dict[str, int | None]) -> None:
    op = model.next_op(process)
    model.event(process, op, "invoke", f="assign", positions=positions)
    model.event(process, op, "ok")


def _reader(model: Model, process: str, *, plain: bool) -> Turns:
    """Tails some partitions; now and then other ones, or from elsewhere."""
    positions: dict[str, int] = {}
    isolation = "plain" if plain else "committed"
    while True:
        if not positions or model.rng.random() < 0.05:
            revoked, positions = list(positions), {}
            for partition in model.rng.sample(PARTITIONS, model.rng.randint(1, len(PARTITIONS))):
                end = model.end_of(partition, plain=plain)
                positions[partition] = model.rng.choice([0, end, model.rng.randint(0, end)])
            op = model.next_op(process)
            model.event(process, op, "invoke", f="assign", revoked=revoked, positions=positions.copy())
            model.event(process, op, "ok")
            yield
        op = model.next_op(process)
        model.event(process, op, "invoke", f="poll", isolation=isolation)
        yield
        micro = []
        for partition, start in positions.items():
            end = min(model.end_of(partition, plain=plain), start + model.rng.randint(0, 8))
            if end > start:
                positions[partition] = end
                if found := model.read(partition, start, end, plain=plain):
                    micro.append(["poll", partition, found])
        model.event(process, op, "ok", micro=micro)
        yield


def _cutter(model: Model) -> Turns:
    """Reads all partitions on to their ends, in one answer."""
    process = "cutter"
    positions = dict.fromkeys(PARTITIONS, 0)
    _assign(model, process, dict(positions))
    while True:
        yield
        op = model.next_op(process)
        model.event(process, op, "invoke", f="poll")
        yield
        ends = {partition: model.end_of(partition, plain=False) for partition in PARTITIONS}
        micro = [["poll", p, model.read(p, positions[p], ends[p], plain=False)] for p in PARTITIONS]
        positions = ends
        model.event(process, op, "ok", micro=micro, ends=ends)


def _asker(model: Model, process: str, *, plain: bool) -> Turns:
    """Asks where all partitions end."""
    while True:
        op = model.next_op(process)
        model.event(process, op, "invoke", f="end", isolation="plain" if plain else "committed")
        yield
        model.event(process, op, "ok", ends={p: model.end_of(p, plain=plain) for p in PARTITIONS})
        yield


def _final(model: Model, *, plain: bool) -> None:
    process = "final-plain" if plain else "final-committed"
    op = model.next_op(process)
    model.event(process, op, "invoke", f="final", isolation="plain" if plain else "committed")
    ends = {partition: model.end_of(partition, plain=plain) for partition in PARTITIONS}
    micro = [["poll", p, model.read(p, 0, ends[p], plain=plain)] for p in PARTITIONS]
    model.event(process, op, "ok", micro=micro, ends=ends)
