"""DescribeTransactions' answer, read with the node's own reader because kio cannot.

kio refuses an answer with a tagged field that its schema does not have, and Fairlog's has one: the places of the
last committed transactions (`fairlog.kafka.handlers.api_65_describe_transactions`). It also reads the start time
as a point in time, of which the -1 of an id without an open transaction is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlog.kafka.handlers.api_65_describe_transactions import PLACEMENTS_TAG, PlacedTransaction, decode_placements
from fairlog.kafka.wire import Buffer, Reader


@dataclass(frozen=True, slots=True)
class TransactionState:
    """One transactional id as the broker describes it."""

    error_code: int
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    """Unix time in ms, -1 without an open transaction."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[str, int], ...]
    """Topic and partition of the open transaction's partitions."""
    committed: tuple[PlacedTransaction, ...]
    """The last committed transactions, oldest first; none from a broker that is not Fairlog."""


def decode_answer_untrusted(body: Buffer) -> Sequence[TransactionState]:
    """Read an answer, from behind its header, in version 0. Raises `wire.Malformed`."""
    reader = Reader(body, flexible=True)

    def topic() -> list[tuple[str, int]]:
        name = reader.string()
        partitions = reader.array(reader.int32)
        reader.end_of_fields()
        return [(name, partition) for partition in partitions]

    def state() -> TransactionState:
        described = (
            reader.int16(),
            reader.string(),
            reader.string(),
            reader.int32(),
            reader.int64(),
            reader.int64(),
            reader.int16(),
            tuple(partition for partitions in reader.array(topic) for partition in partitions),
        )
        tagged = dict(reader.tagged_fields())
        placements = tagged.get(PLACEMENTS_TAG)
        return TransactionState(*described, () if placements is None else decode_placements(placements))

    reader.int32()  # throttle time
    states = reader.array(state)
    reader.end_of_fields()
    return states
