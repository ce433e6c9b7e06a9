"""Where committed transactions' records are, as DescribeTransactions of Fairlog tells it beside Kafka's fields.

Each transaction state carries the tagged field 10000, of the type *bytes*. They are CBOR: a list with one entry
per committed transaction, oldest first:

    [transaction id, committed at, [[topic, partition, base offset, record count], …]]

a text ("producer id.epoch.number"), Unix time in ms or null if unknown, and per partition a text and three
integers. Clients that do not know a tagged field skip it (KIP-482), so the answer stays Kafka's; the number is
far above those that Kafka hands out from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cbor2


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A transaction's records in one partition: `record_count` of them from `base_offset`."""

    topic: str
    partition: int
    base_offset: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.record_count - 1


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A committed transaction, and where all its records are."""

    transaction: str
    committed_ms: int | None
    parts: tuple[PlacedPart, ...]


def decode_placements_untrusted(encoded: bytes) -> tuple[CommittedTransaction, ...]:
    """Read the tagged field; nothing at all is no transactions. Raises ValueError."""
    if not encoded:
        return ()
    try:
        content: object = cbor2.loads(encoded)
    except cbor2.CBORDecodeError as error:
        raise ValueError(f"the placements are not CBOR: {error}") from error
    return tuple(_transaction(entry) for entry in _items(content))


def _transaction(entry: object) -> CommittedTransaction:
    match _items(entry):
        case [str(transaction), int() | None as committed_ms, parts]:
            return CommittedTransaction(transaction, committed_ms, tuple(_part(part) for part in _items(parts)))
        case _:
            raise ValueError(f"{entry!r} is not a committed transaction")


def _part(entry: object) -> PlacedPart:
    match _items(entry):
        case [str(topic), int(partition), int(base_offset), int(record_count)]:
            return PlacedPart(topic, partition, base_offset, record_count)
        case _:
            raise ValueError(f"{entry!r} is not a placement")


def _items(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")  # noqa: TRY004, the peer's mistake and not the caller's
    return value  # pyright: ignore[reportUnknownVariableType]
