"""TxnOffsetCommit: a group's next offsets, inside a transaction.

Behaviour
- The offsets become visible together with the transaction's records when it is committed, and never if it is aborted.
  Answered when the offsets are in the journal; the commit makes them durable.
- Refused without any effect: an older epoch (INVALID_PRODUCER_EPOCH); a producer id that is not the transactional id's
  (INVALID_PRODUCER_ID_MAPPING); a group that was not added to an open transaction, or a late request on an earlier
  connection (INVALID_TXN_STATE); a transaction that the broker has aborted (TRANSACTION_ABORTABLE); and a member that
  the group refuses, because it has left, is of an older generation (KIP-447), or its instance id is taken. A member of
  the new protocol names its epoch as the generation; if this is not its current epoch, the answer is
  ILLEGAL_GENERATION, as in Kafka.
- A partition that does not exist, or whose metadata string is too long, is refused alone. The former is
  TRANSACTION_ABORTABLE, where Kafka answers UNKNOWN_TOPIC_OR_PARTITION: clients repeat the request without end
  (docs/decisions/0003-deleted-topics.md).
- With several brokers: a group that another one coordinates is NOT_COORDINATOR; partitions are checked before. If
  another broker coordinates the transactional id, the group's log alone decides, by the transaction that it has open;
  if it has none, the answer is TRANSACTION_ABORTABLE in every version, for the coordinator alone knows why. While the
  engine of several machines is away, the group is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 adds the leader epoch; 3 is flexible and identifies the sender in the group, so that it can be refused. In earlier
  versions, only the epoch fences.
- From 4 on, a group that was not added is TRANSACTION_ABORTABLE, as in Kafka. From 5 on (transaction version 2,
  KIP-890) the request adds it, and begins the transaction if necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from coordinator.answers import Refusal
from fairlog.groups.committed import PATIENCE_S
from fairlog.groups.interface import is_group_id
from fairlog.groups.offset_values import CommitRefusal, NewOffset, OffsetRefusal, Sender, TransactionalProducer
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import READ_GROUP, READ_TOPIC, WRITE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import ErrorCode, code_of_commit_refusal
from fairlog.kafka.must_abort import COMMIT_OFFSETS, must_abort_code
from fairlog.kafka.offset_lines import OffsetLines, TopicKey, check_lines, read_lines, write_lines
from fairlog.kafka.ownership import why_no_write_of_group
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import ProducerEpoch, ProducerId
from partition.answers import RefusedAppend

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 3
_KNOWS_ABORTABLE_FROM = 4
_ADDS_FROM = 5


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    transactional_id: str
    group: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    sender: Sender
    lines: OffsetLines


def decode(reader: Reader, version: int) -> TxnOffsetCommitRequest:
    transactional_id, group = reader.string(), reader.string()
    producer_id, epoch = ProducerId(reader.int64()), ProducerEpoch(reader.int16())
    sender = Sender()
    if version >= 3:
        generation, member_id = reader.int32(), reader.string()
        sender = Sender(member_id, reader.nullable_string(), generation)
    lines = read_lines(reader, has_leader_epoch=version >= 2)
    reader.end_of_fields()
    return TxnOffsetCommitRequest(transactional_id, group, producer_id, epoch, sender, lines)


async def handle(context: Context, request: TxnOffsetCommitRequest) -> Answer:
    not_allowed = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id) or denied(
        context, READ_GROUP, request.group
    )
    if not_allowed is not None:
        return encode(context, request, {}, not_allowed)
    if not is_acceptable(request.transactional_id):
        return encode(context, request, {}, ErrorCode.INVALID_REQUEST)
    if not is_group_id(request.group):
        return encode(context, request, {}, ErrorCode.INVALID_GROUP_ID)
    offsets, refused = await check_lines(context, request.lines, unknown_partition=ErrorCode.TRANSACTION_ABORTABLE)
    if not offsets:
        return encode(context, request, refused, ErrorCode.NONE)
    cannot = why_no_write_of_group(context.broker, request.group)
    if cannot is not None:
        return encode(context, request, refused, cannot)
    outcome = await _commit(context, request, offsets)
    return encode(context, request, refused, outcome)


async def _commit(context: Context, request: TxnOffsetCommitRequest, offsets: Sequence[NewOffset]) -> ErrorCode:
    if context.version >= _ADDS_FROM:
        refusal = await _add(context, request)
        if refusal is not None:
            return _code(context, refusal, request.transactional_id)
    producer = TransactionalProducer(
        request.transactional_id, request.producer_id, request.producer_epoch, context.client.connection
    )
    outcome = await context.broker.offsets.commit_in_transaction(request.group, request.sender, producer, offsets)
    return ErrorCode.NONE if outcome is None else _code(context, outcome, request.transactional_id)


async def _add(context: Context, request: TxnOffsetCommitRequest) -> CommitRefusal | None:
    """Add the group's offsets log to the transaction, unless it is there already."""
    broker = context.broker
    try:
        refusal = await broker.add_to_transaction(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            broker.offsets.log_of(request.group),
            deadline_s=trio.current_time() + PATIENCE_S,
        )
    except trio.TooSlowError:
        return OffsetRefusal.TIMED_OUT
    return RefusedAppend.STORAGE if refusal is Refusal.STORAGE else refusal


def _code(context: Context, refusal: CommitRefusal, transactional_id: str) -> ErrorCode:
    if refusal in (Refusal.MUST_ABORT, RefusedAppend.MUST_ABORT):
        return must_abort_code(COMMIT_OFFSETS, context.client)
    if refusal is RefusedAppend.NOT_IN_TRANSACTION:
        if not context.broker.coordinates(transactional_id):
            return must_abort_code(COMMIT_OFFSETS, context.client)
        if context.version >= _KNOWS_ABORTABLE_FROM:
            return ErrorCode.TRANSACTION_ABORTABLE
    return code_of_commit_refusal(refusal)


def encode(
    context: Context,
    request: TxnOffsetCommitRequest,
    refused: Mapping[tuple[TopicKey, int], ErrorCode],
    outcome: ErrorCode,
) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    write_lines(writer, request.lines, refused, outcome)
    writer.end_of_fields()
    return writer.parts()


API = Api(
    28, "TxnOffsetCommit", SERVED, FLEXIBLE_FROM, decode, handle, (WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_TOPIC)
)
