"""EndTxn: the end of a transaction, by commit or by abort.

Behaviour
- A commit is answered when the transaction is decided and durable: it *will* be visible, whatever happens.
  The next transaction may begin at once; CONCURRENT_TRANSACTIONS is for one that is really still being
  decided.
- Repeated with the same outcome, and an abort of nothing, it succeeds. From an older connection than the
  one that began the transaction it is refused (invariant 10).
- A commit of a transaction that the broker has aborted is refused with the code that this client takes so
  (`must_abort.py`).
- If the disk fails while the decision is written, the outcome is unknown until the node has restarted: the
  connection is closed without an answer, and the client asks again.

Version notes
- 2 has PRODUCER_FENCED, before it the same is INVALID_PRODUCER_EPOCH; 3 is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.answers import Refusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import EffectUnknown, ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import must_abort_code
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import ProducerEpoch, ProducerId, StorageFailure

SERVED = Versions(0, 3)
FLEXIBLE_FROM = 3


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
    error = ErrorCode.INVALID_REQUEST
    if is_acceptable(request.transactional_id):
        error = await _end(context, request)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.end_of_fields()
    return writer.parts()


async def _end(context: Context, request: EndTxnRequest) -> ErrorCode:
    try:
        refusal = await context.broker.coordinator.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.commit,
            context.client.connection,
        )
    except StorageFailure as failure:
        raise EffectUnknown(f"the disk failed at the end of a transaction of {request.transactional_id}") from failure
    if refusal is None:
        return ErrorCode.NONE
    if refusal is Refusal.MUST_ABORT:
        return must_abort_code(26, context.client)
    return code_of_refusal(refusal, knows_producer_fenced=context.version >= 2)


API = Api(26, "EndTxn", SERVED, FLEXIBLE_FROM, decode, handle)
