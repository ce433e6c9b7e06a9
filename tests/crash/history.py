"""What the load writer did and was told, and the values by which each of its records is known again. Pure.

Every value names its writer, so a record that is found in a log can be traced to the one transaction or the
one plain send that made it, whatever the broker did in between:

    t|<writer>|<transaction>|<partition>|<index>|<count>|<pad>   index-th of the transaction's count records there
    p|<writer>|<number>|<partition>                              a record outside any transaction

The pad's length follows from the numbers before it, so a value that was cut or mixed up is none of the load's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What the client knows of a transaction or a plain record."""

    OPEN = "open"
    """Nobody has asked to commit it (yet, or ever)."""
    ASKED = "asked"
    """The commit, or the plain record, was sent and not answered: effect unknown."""
    DONE = "done"
    """Answered: it is committed, or written."""
    REFUSED = "refused"
    """Aborted by request, or answered with an error of the "no effect" kind."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of the load: how many records it put into each partition."""

    writer: str
    number: int
    counts: Mapping[int, int]
    outcome: Outcome

    def values(self, partition: int) -> list[bytes]:
        return [transactional_value(self, partition, index) for index in range(self.counts.get(partition, 0))]


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """One record outside any transaction. `offset` is what the node answered, if it did."""

    writer: str
    number: int
    partition: int
    outcome: Outcome
    offset: int | None = None

    @property
    def value(self) -> bytes:
        return f"p|{self.writer}|{self.number}|{self.partition}".encode()


@dataclass(slots=True)
class History:
    """All that the load did. Values are replaced as outcomes become known, never changed."""

    transactions: dict[tuple[str, int], Transaction] = field(default_factory=dict[tuple[str, int], Transaction])
    plain: dict[tuple[str, int], PlainRecord] = field(default_factory=dict[tuple[str, int], PlainRecord])

    @classmethod
    def of(cls, *, transactions: Iterable[Transaction] = (), plain: Iterable[PlainRecord] = ()) -> History:
        return cls(
            {(each.writer, each.number): each for each in transactions},
            {(each.writer, each.number): each for each in plain},
        )

    def snapshot(self) -> History:
        """As it is now; single dictionary copies, so safe while writers in other threads go on."""
        return History(self.transactions.copy(), self.plain.copy())

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in (*self.transactions.values(), *self.plain.values()))


@dataclass(frozen=True, slots=True)
class TransactionalTag:
    """What a transactional value says of itself."""

    writer: str
    transaction: int
    partition: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class PlainTag:
    """What a plain value says of itself."""

    writer: str
    number: int
    partition: int


def transactional_value(transaction: Transaction, partition: int, index: int) -> bytes:
    count = transaction.counts[partition]
    pad = _pad(transaction.number, partition, index)
    return f"t|{transaction.writer}|{transaction.number}|{partition}|{index}|{count}|{pad}".encode()


def _pad(number: int, partition: int, index: int) -> str:
    """0 to about 2,000 bytes, so that journals fill up and roll."""
    return "x" * ((number * 7919 + partition * 104_729 + index * 1_299_709) % 2003)


@functools.lru_cache(maxsize=1 << 18)
def parse_value(value: bytes | None) -> TransactionalTag | PlainTag | None:
    """Whose record this is; None if it is none of the load's (a control record, say)."""
    if value is None:
        return None
    match value.decode("utf-8", errors="replace").split("|"):
        case ["t", writer, *numbers, pad] if len(numbers) == 4 and all(number.isdecimal() for number in numbers):
            tag = TransactionalTag(writer, *map(int, numbers))
            return tag if pad == _pad(tag.transaction, tag.partition, tag.index) else None
        case ["p", writer, *numbers] if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            return PlainTag(writer, *map(int, numbers))
        case _:
            return None
