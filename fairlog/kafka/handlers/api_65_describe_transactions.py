"""DescribeTransactions: the state of transactional ids, and where their last committed transactions are.

Behaviour
- An id that is unknown, or has expired, is TRANSACTIONAL_ID_NOT_FOUND.
- An id that is named more than once is answered once. Other clients are served in between.
- The partitions are those of the open transaction, or of the one being decided.
- Beyond Kafka: each state carries a tagged field (`PLACEMENTS_TAG`) with the last committed transactions and the
  offsets of their records, from the group journal's COMMITTED frames. Kafka's clients skip tags that they do not know;
  `fairlog txn show` reads this one with `decode_placements`.
- Partitions of topics that the client may not describe are left out.
- A transactional id that another broker coordinates is NOT_COORDINATOR.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio

from coordinator.answers import CommittedTransaction, Description
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_TOPIC, DESCRIBE_TRANSACTIONAL_ID, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import code_of_id_elsewhere, is_elsewhere
from fairlog.kafka.topic_lookup import partition_name
from fairlog.kafka.transaction_states import kafka_state
from fairlog.kafka.wire import Buffer, Reader, Writer
from fairlog_types import Placement

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0

PLACEMENTS_TAG = 10_000
"""Kafka numbers the tags of a structure from 0 up; this leaves it room."""


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """`count` records of a committed transaction in one partition, from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class PlacedTransaction:
    """A committed transaction, and where its records are."""

    producer_id: int
    producer_epoch: int
    number: int
    """The transaction's number in this epoch, from 0."""
    records: tuple[PlacedRecords, ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]


def decode(reader: Reader, version: int) -> DescribeTransactionsRequest:  # noqa: ARG001 (there is one version)
    request = DescribeTransactionsRequest(reader.array(reader.string))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeTransactionsRequest) -> Answer:
    writer, coordinator = context.writer(), context.broker.coordinator

    def state(transactional_id: str) -> None:
        description = coordinator.describe(transactional_id)
        refused = denied(context, DESCRIBE_TRANSACTIONAL_ID, transactional_id)
        if refused is not None:
            _write_error(writer, transactional_id, refused)
        elif is_elsewhere(context.broker, transactional_id):
            _write_error(writer, transactional_id, code_of_id_elsewhere(context.broker, transactional_id))
        elif description is None:
            _write_error(writer, transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        else:
            _write_state(writer, context, description)

    asked = dict.fromkeys(request.transactional_ids)
    writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for transactional_id in asked:
        state(transactional_id)
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


def _write_error(writer: Writer, transactional_id: str, error: ErrorCode) -> None:
    # Zeros as Kafka sends them; kio, for one, cannot read a time before 1970.
    writer.int16(error)
    writer.string(transactional_id)
    writer.string("")
    writer.int32(0)
    writer.int64(0)
    writer.int64(0)
    writer.int16(0)
    writer.array((), writer.string)
    writer.end_of_fields()


def _write_state(writer: Writer, context: Context, description: Description) -> None:
    topics: dict[str, list[int]] = {}
    for log in description.logs:
        name, partition = partition_name(context.broker, log)
        if may(context, DESCRIBE_TOPIC, name):
            topics.setdefault(name, []).append(partition)

    def topic(entry: tuple[str, Sequence[int]]) -> None:
        writer.string(entry[0])
        writer.int32_array(entry[1])
        writer.end_of_fields()

    writer.int16(ErrorCode.NONE)
    writer.string(description.transactional_id)
    writer.string(kafka_state(description))
    writer.int32(description.timeout_ms)
    writer.int64(-1 if description.started_ms is None else description.started_ms)
    writer.int64(description.producer_id)
    writer.int16(description.epoch)
    writer.array(topics.items(), topic)
    placed = _place(context, description.committed)
    writer.tagged_fields([(PLACEMENTS_TAG, encode_placements(placed))] if placed else ())


def _place(context: Context, committed: Iterable[CommittedTransaction]) -> list[PlacedTransaction]:
    def records(placement: Placement) -> PlacedRecords:
        return PlacedRecords(*partition_name(context.broker, placement.log), placement.base_offset, placement.count)

    return [
        PlacedTransaction(
            transaction.txid.producer_id,
            transaction.txid.epoch,
            transaction.txid.number,
            tuple(
                placed for placed in map(records, transaction.placements) if may(context, DESCRIBE_TOPIC, placed.topic)
            ),
        )
        for transaction in committed
    ]


def encode_placements(transactions: Iterable[PlacedTransaction]) -> bytes:
    """The value of the tagged field: an array in Kafka's flexible encoding, without tags of its own."""
    writer = Writer(flexible=True)

    def records(entry: PlacedRecords) -> None:
        writer.string(entry.topic)
        writer.int32(entry.partition)
        writer.int64(entry.base_offset)
        writer.int64(entry.count)

    def transaction(entry: PlacedTransaction) -> None:
        writer.int64(entry.producer_id)
        writer.int16(entry.producer_epoch)
        writer.int64(entry.number)
        writer.array(entry.records, records)

    writer.array(transactions, transaction)
    return b"".join(writer.parts())


def decode_placements(value: Buffer) -> tuple[PlacedTransaction, ...]:
    """Read what `encode_placements` wrote, oldest first. Raises Malformed on anything else."""
    reader = Reader(value, flexible=True)

    def records() -> PlacedRecords:
        return PlacedRecords(reader.string(), reader.int32(), reader.int64(), reader.int64())

    def transaction() -> PlacedTransaction:
        return PlacedTransaction(reader.int64(), reader.int16(), reader.int64(), reader.array(records))

    return reader.array(transaction)


API = Api(
    65, "DescribeTransactions", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_TRANSACTIONAL_ID, DESCRIBE_TOPIC)
)
