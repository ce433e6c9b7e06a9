"""TxnOffsetCommit: a group's next offsets, inside a transaction.

Behaviour
- Seen when the transaction is committed, together with its records, and never if it is aborted. Answered when the
  offsets are in the journal: durability is bought at the commit.
- Refused, without a trace: an older epoch (INVALID_PRODUCER_EPOCH), another producer id than the transactional id has
  (INVALID_PRODUCER_ID_MAPPING), a group that was not added to an open transaction, or a request that came late on an
  earlier connection (INVALID_TXN_STATE), a transaction that the broker has aborted (TRANSACTION_ABORTABLE), and whom
  the group refuses: a member that is gone or of an older generation (KIP-447), or whose instance id is taken. A member
  of the new protocol names its epoch as the generation, and is ILLEGAL_GENERATION at another one, as in Kafka.
- A partition that does not exist, or whose metadata string is too long, is refused alone. The former is
  TRANSACTION_ABORTABLE, where Kafka says UNKNOWN_TOPIC_OR_PARTITION: clients repeat that without end
  (docs/decisions/0003-deleted-topics.md).

Version notes
- 2 adds the leader epoch; 3 is flexible and says who the sender is in the group, so that it can be refused. Before
  that, only the epoch fences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlog.groups.interface import is_group_id
from fairlog.groups.offset_values import Sender, TransactionalProducer
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode, code_of_commit_refusal
from fairlog.kafka.offset_lines import OffsetLines, TopicKey, check_lines, read_lines, write_lines
from fairlog.kafka.transactional_ids import is_acceptable
from fairlog.kafka.wire import Reader
from fairlog_types import ProducerEpoch, ProducerId

SERVED = Versions(0, 3)
FLEXIBLE_FROM = 3


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
    if not is_acceptable(request.transactional_id):
        return encode(context, request, {}, ErrorCode.INVALID_REQUEST)
    if not is_group_id(request.group):
        return encode(context, request, {}, ErrorCode.INVALID_GROUP_ID)
    offsets, refused = await check_lines(
        context.broker, request.lines, unknown_partition=ErrorCode.TRANSACTION_ABORTABLE
    )
    if not offsets:
        return encode(context, request, refused, ErrorCode.NONE)
    producer = TransactionalProducer(
        request.transactional_id, request.producer_id, request.producer_epoch, context.client.connection
    )
    refusal = await context.broker.offsets.commit_in_transaction(request.group, request.sender, producer, offsets)
    outcome = ErrorCode.NONE if refusal is None else code_of_commit_refusal(refusal)
    return encode(context, request, refused, outcome)


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


API = Api(28, "TxnOffsetCommit", SERVED, FLEXIBLE_FROM, decode, handle)
