"""AddPartitionsToTxn: the transaction will write to these partitions; the first such request begins it.

Behaviour
- A request that the coordinator refuses (above all from a fenced producer) gets the coordinator's error, whatever the
  partitions are.
- All or none: if one partition does not exist, the others are OPERATION_NOT_ATTEMPTED and nothing has begun. Only a
  partition that is deleted at that moment is refused alone.
- A partition that does not exist is TRANSACTION_ABORTABLE, where Kafka answers UNKNOWN_TOPIC_OR_PARTITION: clients
  repeat the request without end (docs/decisions/0003-deleted-topics.md).
- A partition that its broker does not lead yet is CONCURRENT_TRANSACTIONS, on which clients repeat the request after
  20 ms: another broker hears of a new topic a moment after it is made.
- A partition whose shard refuses writes, because its disk has failed, is KAFKA_STORAGE_ERROR: clients abort. Those that
  the shard does not lead are added.
- If the broker has aborted the transaction and the client has not: the code on which this client asks for a new epoch,
  aborts, or stops (`must_abort.py`).
- A transactional id that another broker coordinates is NOT_COORDINATOR; while the engine of several machines is away,
  it is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 has PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH in earlier versions; 3 is flexible.
- 4 and 5 are sent by Kafka's brokers to a coordinator. They name several transactions, each either to add partitions,
  or (*verify only*) to ask whether it has them: TRANSACTION_ABORTABLE if not. The producers are not identified by the
  connections of these requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import trio

from coordinator.answers import Refusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ACT_AS_BROKER, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import ADD_PARTITIONS, must_abort_code
from fairlog.kafka.ownership import code_of_id_elsewhere, is_elsewhere, may_soon_be_led
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import LogId, ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 3
_SEVERAL_FROM = 4


@dataclass(frozen=True, slots=True)
class Transaction:
    """The partitions for one transaction."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    topics: tuple[tuple[str, tuple[int, ...]], ...]
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    transactions: tuple[Transaction, ...]
    """Exactly one before version 4."""


Partition = tuple[str, int]


def decode(reader: Reader, version: int) -> AddPartitionsToTxnRequest:
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def transaction() -> Transaction:
        transactional_id, producer_id = reader.string(), ProducerId(reader.int64())
        epoch, verify_only = ProducerEpoch(reader.int16()), reader.boolean()
        topics = reader.array(topic)
        reader.end_of_fields()
        return Transaction(transactional_id, producer_id, epoch, topics, verify_only)

    if version >= _SEVERAL_FROM:
        transactions = reader.array(transaction)
    else:
        transactional_id, producer_id = reader.string(), ProducerId(reader.int64())
        transactions = (Transaction(transactional_id, producer_id, ProducerEpoch(reader.int16()), reader.array(topic)),)
    reader.end_of_fields()
    return AddPartitionsToTxnRequest(transactions)


async def handle(context: Context, request: AddPartitionsToTxnRequest) -> Answer:
    errors: list[Mapping[Partition, ErrorCode]] = []
    if context.version >= _SEVERAL_FROM and (refused := denied(context, ACT_AS_BROKER)) is not None:
        return encode(context, AddPartitionsToTxnRequest(()), [], refused)
    for transaction in request.transactions:
        if errors:  # other tasks run between two transactions; most requests have one, and do not wait
            await trio.lowlevel.checkpoint()
        if context.version < _SEVERAL_FROM and (not_allowed := _not_allowed(context, transaction)) is not None:
            errors.append(not_allowed)
        elif is_elsewhere(context.broker, transaction.transactional_id):
            errors.append(_for_all(transaction, code_of_id_elsewhere(context.broker, transaction.transactional_id)))
        elif transaction.verify_only:
            errors.append(_verify(context, transaction))
        else:
            errors.append(await _errors(context, transaction))
    return encode(context, request, errors)


def _not_allowed(context: Context, request: Transaction) -> dict[Partition, ErrorCode] | None:
    """The answer if the client may not use the transactional id, or not write to one of the topics."""
    refused = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id)
    if refused is not None:
        return _for_all(request, refused)
    codes = {name: denied(context, WRITE_TOPIC, name) for name, _ in request.topics}
    if not any(codes.values()):
        return None
    return {
        (name, partition): codes[name] or ErrorCode.OPERATION_NOT_ATTEMPTED
        for name, partitions in request.topics
        for partition in partitions
    }


def _for_all(request: Transaction, code: ErrorCode) -> dict[Partition, ErrorCode]:
    return {(name, partition): code for name, partitions in request.topics for partition in partitions}


def _verify(context: Context, request: Transaction) -> dict[Partition, ErrorCode]:
    """Whether the transaction is open and has each of the partitions."""
    broker, who = context.broker, (request.transactional_id, request.producer_id, request.producer_epoch)
    codes: dict[Partition, ErrorCode] = {}
    for name, partitions in request.topics:
        for partition in partitions:
            log = log_of(broker.cluster.topic(name), partition)
            has_it = log is not None and broker.coordinator.has_added(*who, log)
            codes[name, partition] = ErrorCode.NONE if has_it else ErrorCode.TRANSACTION_ABORTABLE
    return codes


async def _errors(context: Context, request: Transaction) -> dict[Partition, ErrorCode]:
    cluster = context.broker.cluster
    logs = {
        (name, partition): log_of(cluster.topic(name), partition)
        for name, partitions in request.topics
        for partition in partitions
    }
    if not is_acceptable(request.transactional_id):
        return dict.fromkeys(logs, ErrorCode.INVALID_REQUEST)
    if context.broker.appends_wait():
        return dict.fromkeys(logs, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    found = {partition: log for partition, log in logs.items() if log is not None}
    if len(found) == len(logs):
        return await _add(context, request, logs=found, asked=logs)
    # Asked for nothing, the coordinator still says who is fenced. And it learns that the sender knows of its last
    # commit: an abort that follows is of the next.
    errors = await _add(context, request, logs={}, asked=logs)
    return {
        partition: error
        or (ErrorCode.TRANSACTION_ABORTABLE if partition not in found else ErrorCode.OPERATION_NOT_ATTEMPTED)
        for partition, error in errors.items()
    }


async def _add(
    context: Context,
    request: Transaction,
    *,
    logs: Mapping[Partition, LogId],
    asked: Iterable[Partition],
) -> dict[Partition, ErrorCode]:
    """Add `logs`. Returns the coordinator's answer for each partition in `asked`, NONE if it has no error."""
    try:
        outcome = await context.broker.coordinator.add_logs(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            tuple(logs.values()),
            context.client.connection if context.version < _SEVERAL_FROM else None,
        )
    except StorageFailure:
        return dict.fromkeys(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(outcome, Refusal):
        return dict.fromkeys(asked, _code(context, outcome))
    return {
        partition: _code_of_log(context, logs[partition], outcome) if partition in logs else ErrorCode.NONE
        for partition in asked
    }


def _code_of_log(context: Context, log: LogId, outcome: Mapping[LogId, Refusal | None]) -> ErrorCode:
    if outcome[log] is Refusal.UNKNOWN_LOG and may_soon_be_led(context.broker, log):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return _code(context, outcome[log])


def _code(context: Context, refusal: Refusal | None) -> ErrorCode:
    if refusal is None:
        return ErrorCode.NONE
    if refusal is Refusal.MUST_ABORT:
        return must_abort_code(ADD_PARTITIONS, context.client)
    return code_of_refusal(refusal, knows_producer_fenced=context.version >= 2)


def encode(
    context: Context,
    request: AddPartitionsToTxnRequest,
    errors: Sequence[Mapping[Partition, ErrorCode]],
    error: ErrorCode = ErrorCode.NONE,
) -> Answer:
    """`error` is one for the whole request, in versions that have it."""
    writer = context.writer()

    def topics(transaction: Transaction, codes: Mapping[Partition, ErrorCode]) -> None:
        writer.array_length(len(transaction.topics))
        for name, partitions in transaction.topics:
            writer.string(name)
            writer.array_length(len(partitions))
            for index in partitions:
                writer.int32(index)
                writer.int16(codes[name, index])
                writer.end_of_fields()
            writer.end_of_fields()

    writer.int32(0)  # throttle time
    if context.version < _SEVERAL_FROM:
        topics(request.transactions[0], errors[0])
    else:
        writer.int16(error)
        writer.array_length(len(request.transactions))
        for transaction, codes in zip(request.transactions, errors, strict=True):
            writer.string(transaction.transactional_id)
            topics(transaction, codes)
            writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(
    24,
    "AddPartitionsToTxn",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (WRITE_TRANSACTIONAL_ID, WRITE_TOPIC, ACT_AS_BROKER),
)
