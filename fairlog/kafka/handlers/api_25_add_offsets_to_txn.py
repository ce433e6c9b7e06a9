"""AddOffsetsToTxn: the transaction will commit offsets of this group.

Behaviour
- Adds the group's offsets log to the transaction, as AddPartitionsToTxn adds a partition. The first such request begins
  the transaction. Without it, TxnOffsetCommit is refused.
- If the broker has aborted the transaction and the client has not: see `must_abort.py`.
- A group of another shard that refuses writes, because its disk has failed, is TRANSACTION_ABORTABLE: Java's client
  gives up on KAFKA_STORAGE_ERROR here.
- A transactional id that another broker coordinates is NOT_COORDINATOR; while the engine of several machines is away,
  it is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 has PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH in earlier versions; 3 is flexible; 4 knows
  TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.answers import Refusal
from fairlog.groups.interface import is_group_id
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import READ_GROUP, WRITE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import ADD_OFFSETS, must_abort_code
from fairlog.kafka.ownership import why_no_write_of_id
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 4)
FLEXIBLE_FROM = 3


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    group: str


def decode(reader: Reader, version: int) -> AddOffsetsToTxnRequest:  # noqa: ARG001 (all versions look alike)
    request = AddOffsetsToTxnRequest(
        reader.string(), ProducerId(reader.int64()), ProducerEpoch(reader.int16()), reader.string()
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AddOffsetsToTxnRequest) -> Answer:
    error = ErrorCode.INVALID_REQUEST
    not_allowed = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id) or denied(
        context, READ_GROUP, request.group
    )
    if not_allowed is not None:
        error = not_allowed
    elif not is_group_id(request.group):
        error = ErrorCode.INVALID_GROUP_ID
    elif is_acceptable(request.transactional_id):
        error = why_no_write_of_id(context.broker, request.transactional_id) or await _add(context, request)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.end_of_fields()
    return writer.parts()


async def _add(context: Context, request: AddOffsetsToTxnRequest) -> ErrorCode:
    broker = context.broker
    log = broker.offsets.log_of(request.group)
    try:
        outcome = await broker.coordinator.add_logs(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            (log,),
            context.client.connection,
        )
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    refusal = outcome if isinstance(outcome, Refusal) else outcome[log]
    if refusal is None:
        return ErrorCode.NONE
    if refusal is Refusal.STORAGE and refusal is not outcome:  # only of the shard that has the group
        return ErrorCode.TRANSACTION_ABORTABLE
    if refusal is Refusal.MUST_ABORT:
        return must_abort_code(ADD_OFFSETS, context.client)
    return code_of_refusal(refusal, knows_producer_fenced=context.version >= 2)


API = Api(25, "AddOffsetsToTxn", SERVED, FLEXIBLE_FROM, decode, handle, (WRITE_TRANSACTIONAL_ID, READ_GROUP))
