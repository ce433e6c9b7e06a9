"""EndTxn: end a transaction, by commit or by abort.

Behaviour
- A commit is answered when the transaction is decided and durable: it *will* be visible, whatever happens. The next
  transaction may begin at once; CONCURRENT_TRANSACTIONS is only for a transaction that is still being decided.
- A repetition with the same outcome succeeds. On an older connection than the one that began the transaction it is
  refused (invariant 10).
- Transaction version 2 (KIP-890, from 5 on): it grants the epoch of the next transaction, so the epoch alone says which
  transaction is meant, on any connection. A repetition is answered with the same epoch, and an abort succeeds even if
  nothing was added.
- A commit of a transaction that the broker has aborted is refused with the code that this client understands as such
  (`must_abort.py`).
- If the disk fails while the decision is written, the outcome is unknown until the node has restarted: the connection
  is closed without an answer, and the client retries.
- A transactional id that another broker coordinates is NOT_COORDINATOR; while the engine of several machines is away,
  it is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 has PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH in earlier versions; 3 is flexible; 4 knows
  TRANSACTION_ABORTABLE; 5 returns the producer id and epoch to continue with.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.answers import Granted, Refusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import WRITE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import EffectUnknown, ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import END, must_abort_code
from fairlog.kafka.ownership import why_no_write_of_id
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 3
_GRANTS_FROM = 5

_NOTHING_GRANTED = Granted(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool


def decode(reader: Reader, version: int) -> EndTxnRequest:  # noqa: ARG001 (all versions look alike)
    request = EndTxnRequest(
        reader.string(), ProducerId(reader.int64()), ProducerEpoch(reader.int16()), reader.boolean()
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: EndTxnRequest) -> Answer:
    outcome: Granted | ErrorCode = ErrorCode.INVALID_REQUEST
    not_allowed = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id)
    if not_allowed is not None:
        outcome = not_allowed
    elif is_acceptable(request.transactional_id):
        outcome = why_no_write_of_id(context.broker, request.transactional_id) or await _end(context, request)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(outcome if isinstance(outcome, ErrorCode) else ErrorCode.NONE)
    if context.version >= _GRANTS_FROM:
        granted = outcome if isinstance(outcome, Granted) else _NOTHING_GRANTED
        writer.int64(granted.producer_id)
        writer.int16(granted.epoch)
    writer.end_of_fields()
    return writer.parts()


async def _end(context: Context, request: EndTxnRequest) -> Granted | ErrorCode:
    coordinator = context.broker.coordinator
    who = request.transactional_id, request.producer_id, request.producer_epoch, request.commit
    try:
        if context.version >= _GRANTS_FROM:
            outcome = await coordinator.end_epoch(*who)
        else:
            outcome = await coordinator.end(*who, context.client.connection)
    except StorageFailure as failure:
        raise EffectUnknown(f"the disk failed at the end of a transaction of {request.transactional_id}") from failure
    if not isinstance(outcome, Refusal):
        return outcome or ErrorCode.NONE
    if outcome is Refusal.MUST_ABORT:
        return must_abort_code(END, context.client)
    return code_of_refusal(outcome, knows_producer_fenced=context.version >= 2)


API = Api(26, "EndTxn", SERVED, FLEXIBLE_FROM, decode, handle, (WRITE_TRANSACTIONAL_ID,))
