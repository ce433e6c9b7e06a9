"""InitProducerId: a producer id and epoch, for idempotent and for transactional producers.

Behaviour
- Without a transactional id: a fresh producer id, epoch 0.
- With one: the caller becomes its one current producer. What the last instance left is finished first, its
  epoch is fenced. A repetition on the same connection gets the same answer, and does not fence its own
  sender.
- An empty transactional id, or one of more than 1,024 bytes, is INVALID_REQUEST.

Version notes
- 2 is flexible; 3 lets a producer say which id and epoch it had, so that it can recover from an error
  (KIP-360); 4 has PRODUCER_FENCED, before it the same is INVALID_PRODUCER_EPOCH; 5 knows
  TRANSACTION_ABORTABLE. 6, of two-phase commit (KIP-939), is not served.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.answers import Granted, Refusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode, code_of_refusal
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    transactional_id: str | None
    timeout_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


def decode(reader: Reader, version: int) -> InitProducerIdRequest:
    transactional_id, timeout_ms = reader.nullable_string(), reader.int32()
    producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if version >= 3:
        producer_id, epoch = ProducerId(reader.int64()), ProducerEpoch(reader.int16())
    reader.end_of_fields()
    return InitProducerIdRequest(transactional_id, timeout_ms, producer_id, epoch)


async def handle(context: Context, request: InitProducerIdRequest) -> Answer:
    outcome = await _init(context, request)
    granted = isinstance(outcome, Granted)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(ErrorCode.NONE if granted else outcome)
    writer.int64(outcome.producer_id if granted else NO_PRODUCER_ID)
    writer.int16(outcome.epoch if granted else NO_PRODUCER_EPOCH)
    writer.end_of_fields()
    return writer.parts()


async def _init(context: Context, request: InitProducerIdRequest) -> Granted | ErrorCode:
    if request.transactional_id is not None and not is_acceptable(request.transactional_id):
        return ErrorCode.INVALID_REQUEST
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    try:
        outcome = await context.broker.coordinator.init_producer_id(
            request.transactional_id,
            request.timeout_ms,
            request.producer_id,
            request.producer_epoch,
            context.client.connection,
        )
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(outcome, Refusal):
        return code_of_refusal(outcome, knows_producer_fenced=context.version >= 4)
    return outcome


API = Api(22, "InitProducerId", SERVED, FLEXIBLE_FROM, decode, handle)
