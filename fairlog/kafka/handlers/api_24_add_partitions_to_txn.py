"""AddPartitionsToTxn: the transaction will write to these partitions; the first such request begins it.

Behaviour
- What the coordinator refuses (who is fenced, above all) is told so, whatever the partitions are.
- All or none: if one partition does not exist, the others are OPERATION_NOT_ATTEMPTED and nothing has
  begun. Only a partition that is deleted in that very moment is refused alone.
- A partition that does not exist is TRANSACTION_ABORTABLE, where Kafka says UNKNOWN_TOPIC_OR_PARTITION: clients
  repeat that without end (docs/decisions/0003-deleted-topics.md).
- After a transaction that the broker has aborted, and before the client has: the code on which this client asks for a
  new epoch, aborts, or stops (`must_abort.py`).

Version notes
- 2 has PRODUCER_FENCED, before it the same is INVALID_PRODUCER_EPOCH; 3 is flexible. 4 and above are for
  brokers among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.answers import Refusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import must_abort_code
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import LogId, ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 3)
FLEXIBLE_FROM = 3


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    topics: tuple[tuple[str, tuple[int, ...]], ...]


Partition = tuple[str, int]


def decode(reader: Reader, version: int) -> AddPartitionsToTxnRequest:  # noqa: ARG001 (all versions look alike)
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    request = AddPartitionsToTxnRequest(
        reader.string(), ProducerId(reader.int64()), ProducerEpoch(reader.int16()), reader.array(topic)
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AddPartitionsToTxnRequest) -> Answer:
    errors = await _errors(context, request)
    return encode(context, request, errors)


async def _errors(context: Context, request: AddPartitionsToTxnRequest) -> dict[Partition, ErrorCode]:
    cluster = context.broker.cluster
    logs = {
        (name, partition): log_of(cluster.topic(name), partition)
        for name, partitions in request.topics
        for partition in partitions
    }
    if not is_acceptable(request.transactional_id):
        return dict.fromkeys(logs, ErrorCode.INVALID_REQUEST)
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
    request: AddPartitionsToTxnRequest,
    *,
    logs: Mapping[Partition, LogId],
    asked: Iterable[Partition],
) -> dict[Partition, ErrorCode]:
    """Add `logs`; the coordinator's word on each of the partitions `asked` for, NONE where it has none."""
    try:
        outcome = await context.broker.coordinator.add_logs(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            tuple(logs.values()),
            context.client.connection,
        )
    except StorageFailure:
        return dict.fromkeys(asked, ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(outcome, Refusal):
        return dict.fromkeys(asked, _code(context, outcome))
    return {
        partition: _code(context, outcome[logs[partition]]) if partition in logs else ErrorCode.NONE
        for partition in asked
    }


def _code(context: Context, refusal: Refusal | None) -> ErrorCode:
    if refusal is None:
        return ErrorCode.NONE
    if refusal is Refusal.MUST_ABORT:
        return must_abort_code(24, context.client)
    return code_of_refusal(refusal, knows_producer_fenced=context.version >= 2)


def encode(context: Context, request: AddPartitionsToTxnRequest, errors: Mapping[Partition, ErrorCode]) -> Answer:
    writer = context.writer()

    def topic(entry: tuple[str, tuple[int, ...]]) -> None:
        name, partitions = entry

        def partition(index: int) -> None:
            writer.int32(index)
            writer.int16(errors[name, index])
            writer.end_of_fields()

        writer.string(name)
        writer.array(partitions, partition)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(request.topics, topic)
    writer.end_of_fields()
    return writer.parts()


API = Api(24, "AddPartitionsToTxn", SERVED, FLEXIBLE_FROM, decode, handle)
