"""InitProducerId: a producer id and epoch, for idempotent and for transactional producers.

Behaviour
- Without a transactional id: a new producer id, epoch 0.
- With one: the caller becomes its only current producer. What the last instance left open is ended first, and its epoch
  is fenced. A repetition on the same connection gets the same answer, and does not fence its own sender.
- What the last instance committed can be read before the answer. If that takes long, because another shard's process is
  down, the answer is CONCURRENT_TRANSACTIONS; the same request on the same connection gets the same epoch then.
- Two-phase commit with another system (KIP-939): `Enable2Pc` asks for transactions without a time-out, which the
  setting `transactions.two_phase_commit_enable` has to allow; with `KeepPreparedTxn` an open transaction stays open,
  and the answer names the epoch in which it was written, and the epoch that may end it. Without a transactional id both
  are INVALID_REQUEST.
- The client has to be allowed to write with the transactional id, and, with `Enable2Pc`, to commit in two phases
  (KIP-939). Without one, to write idempotently, or to write to at least one topic.
- An empty transactional id, or one of more than 1,024 bytes, is INVALID_REQUEST.
- A transactional id that another broker coordinates is NOT_COORDINATOR; while the engine of several machines is away,
  it is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 is flexible; 3 lets a producer say which id and epoch it had, so that it can recover from an error (KIP-360); 4 has
  PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH in earlier versions; 5 knows TRANSACTION_ABORTABLE; 6 has two-phase
  commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.answers import Granted, GrantedToEnd, Refusal
from coordinator.states import IdState
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import (
    COMMIT_IN_TWO_PHASES,
    WRITE_IDEMPOTENTLY,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    denied,
    may,
    may_with_any,
    refuse,
)
from fairlog.kafka.errors import ErrorCode, code_of_refusal
from fairlog.kafka.noting import note
from fairlog.kafka.ownership import why_no_write_of_id
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, StorageFailure, TxId

SERVED = Versions(0, 6)
FLEXIBLE_FROM = 2
_TWO_PHASE_FROM = 6


_NOTHING = Granted(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    transactional_id: str | None
    timeout_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    two_phase: bool = False
    keeps: bool = False


def decode(reader: Reader, version: int) -> InitProducerIdRequest:
    transactional_id, timeout_ms = reader.nullable_string(), reader.int32()
    producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if version >= 3:
        producer_id, epoch = ProducerId(reader.int64()), ProducerEpoch(reader.int16())
    two_phase, keeps = (reader.boolean(), reader.boolean()) if version >= _TWO_PHASE_FROM else (False, False)
    reader.end_of_fields()
    return InitProducerIdRequest(transactional_id, timeout_ms, producer_id, epoch, two_phase, keeps)


async def handle(context: Context, request: InitProducerIdRequest) -> Answer:
    error, granted, kept = ErrorCode.NONE, _NOTHING, _NOTHING
    match await _init(context, request):
        case GrantedToEnd() as outcome:
            granted, kept = outcome.granted, outcome.kept
        case Granted() as outcome:
            granted = outcome
        case ErrorCode() as outcome:
            error = outcome
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(error)
    for each in (granted, kept) if context.version >= _TWO_PHASE_FROM else (granted,):
        writer.int64(each.producer_id)
        writer.int16(each.epoch)
    writer.end_of_fields()
    return writer.parts()


async def _init(context: Context, request: InitProducerIdRequest) -> Granted | GrantedToEnd | ErrorCode:
    not_allowed = _why_not_allowed(context, request)
    if not_allowed is not None:
        return not_allowed
    if request.transactional_id is None:
        if request.two_phase or request.keeps:
            return ErrorCode.INVALID_REQUEST
    elif not is_acceptable(request.transactional_id):
        return ErrorCode.INVALID_REQUEST
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if request.transactional_id is not None:
        refused = why_no_write_of_id(context.broker, request.transactional_id)
        if refused is not None:
            return refused
    ended = _open_transaction(context, request)
    try:
        outcome = await context.broker.coordinator.init_producer_id(
            request.transactional_id,
            request.timeout_ms,
            request.producer_id,
            request.producer_epoch,
            context.client.connection,
            two_phase=request.two_phase,
            keeps=request.keeps,
        )
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(outcome, Refusal):
        return code_of_refusal(outcome, knows_producer_fenced=context.version >= 4)
    if ended is not None:
        assert request.transactional_id is not None, "who has a transaction open has an id"
        note(context, Action.ABORT_TRANSACTION, request.transactional_id, ErrorCode.NONE, often=True, txid=str(ended))
    return outcome


def _open_transaction(context: Context, request: InitProducerIdRequest) -> TxId | None:
    """What the request ends: a new instance does, and so does `fairlog txn abort`."""
    if request.transactional_id is None or request.keeps:
        return None
    known = context.broker.coordinator.describe(request.transactional_id)
    return known.txid if known is not None and known.state == IdState.OPEN.name else None


def _why_not_allowed(context: Context, request: InitProducerIdRequest) -> ErrorCode | None:
    """Whoever may write to some topic may do so idempotently (KIP-679)."""
    if request.transactional_id is not None:
        refused = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id)
        if refused is None and request.two_phase:
            return denied(context, COMMIT_IN_TWO_PHASES, request.transactional_id)
        return refused
    if may(context, WRITE_IDEMPOTENTLY) or may_with_any(context, WRITE_TOPIC):
        return None
    return refuse(context, WRITE_IDEMPOTENTLY)


API = Api(
    22,
    "InitProducerId",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (WRITE_TRANSACTIONAL_ID, COMMIT_IN_TWO_PHASES, WRITE_IDEMPOTENTLY, WRITE_TOPIC),
)
