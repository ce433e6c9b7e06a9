"""ConsumerGroupHeartbeat: a member of a consumer group of the new protocol (KIP-848) joins, stays, changes or leaves.

Behaviour
- The epoch says which: 0 joins, -1 leaves, -2 leaves for a while (a static member), any other is the member's own.
- Answered when everything in the answer is on disk: after a restart members continue at their epochs. If the group
  cannot be stored, the answer is COORDINATOR_NOT_AVAILABLE, on which clients retry.
- The answer contains the assignment when it has changed, and for a member that sends all its fields again.
- A group without members accepts members of either protocol. A group that has only members of the classic protocol is
  GROUP_ID_NOT_FOUND here, unless they can also be members of a consumer group (docs/groups.md).
- A member of an unknown group gets UNKNOWN_MEMBER_ID, and joins again. Kafka answers GROUP_ID_NOT_FOUND, which is fatal
  to clients.
- A member that begins again with epoch 0, and owns nothing, is accepted at once. In Kafka it is fenced until its
  session ends, unless its previous epoch was 0.
- A topic pattern has RE2's syntax, as in Kafka. A pattern that RE2 refuses, or that is too large, is
  INVALID_REGULAR_EXPRESSION.
- The heartbeat interval and the session time-out are the group's own, if it has any (`fairlog.live_group_configs`), and
  apply from the next heartbeat on.
- Racks are read and shown, but otherwise ignored: there is one replica of everything.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the topic pattern; from this version on the member creates its own id.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from fairlog.broker import Parked
from fairlog.groups.consumer.values import AWAY, JOINING, Beat, Beaten, Partitions, Refused
from fairlog.groups.interface import GroupRefusal
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DESCRIBE_TOPIC, READ_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader, Writer

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 0
_MEMBERS_MAKE_IDS_FROM = 1


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    """-1: unchanged."""
    topic_names: tuple[str, ...] | None
    topic_regex: str | None
    assignor: str | None
    owned: Partitions | None


def decode(reader: Reader, version: int) -> ConsumerGroupHeartbeatRequest:
    def topic() -> tuple[UUID | None, tuple[int, ...]]:
        entry = reader.uuid(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    request = ConsumerGroupHeartbeatRequest(
        reader.string(),
        reader.string(),
        reader.int32(),
        reader.nullable_string(),
        reader.nullable_string(),
        reader.int32(),
        reader.nullable_array(reader.string),
        reader.nullable_string() if version >= 1 else None,
        reader.nullable_string(),
        None if (owned := reader.nullable_array(topic)) is None else _partitions(owned),
    )
    reader.end_of_fields()
    return request


def _partitions(topics: Iterable[tuple[UUID | None, tuple[int, ...]]]) -> Partitions:
    return frozenset((topic.hex, index) for topic, indexes in topics if topic is not None for index in indexes)


def what_is_wrong(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Why the request is INVALID_REQUEST; None if it is valid. The rules are Kafka's."""
    if not request.group_id:
        return "the group id is empty"
    if not request.member_id and (version >= _MEMBERS_MAKE_IDS_FROM or request.epoch != JOINING):
        return "the member id is empty"
    if request.instance_id == "":
        return "the instance id is empty"
    if request.rack_id == "":
        return "the rack id is empty"
    if request.epoch < AWAY:
        return "the member epoch is below -2"
    if request.epoch == AWAY and request.instance_id is None:
        return "a member without an instance id cannot leave for a while"
    if request.epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            return "a member that joins must give its rebalance time-out"
        if request.owned is None or request.owned:
            return "a member that joins cannot own partitions"
        if request.topic_names is None and request.topic_regex is None:
            return "a member that joins must give its subscription"
    return None


async def handle(context: Context, request: ConsumerGroupHeartbeatRequest) -> Reply:
    if denied(context, READ_GROUP, request.group_id) is not None:
        refusal = GroupRefusal.NOT_ALLOWED
        return encode(context, request, GROUP_REFUSALS[refusal], refusal.value)
    for name in request.topic_names or ():
        refused = denied(context, DESCRIBE_TOPIC, name)
        if refused is not None:
            return encode(context, request, refused, "the client may not describe a topic that it subscribes to")
    wrong = what_is_wrong(request, context.version)
    if wrong is not None:
        return encode(context, request, ErrorCode.INVALID_REQUEST, wrong)
    if is_group_elsewhere(context.broker, request.group_id):
        refusal = refusal_of_group_elsewhere(context.broker, request.group_id)
        return encode(context, request, GROUP_REFUSALS[refusal], refusal.value)
    groups, client = context.broker.groups, context.client
    beat = Beat(
        request.member_id or groups.new_member_id(client.client_id),
        request.epoch,
        request.instance_id,
        request.rack_id,
        None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        None if request.topic_names is None else frozenset(request.topic_names),
        request.topic_regex,
        request.assignor,
        request.owned,
        client.client_id,
        client.shown_host,
        client.connection,
    )
    parked = await groups.beat(request.group_id, beat)
    return Deferred(functools.partial(_finish, context, request, parked), parked.give_up)


async def _finish(context: Context, request: ConsumerGroupHeartbeatRequest, parked: Parked[Beaten | Refused]) -> Answer:
    answer: Beaten | Refused = Refused(GroupRefusal.STOPPING, GroupRefusal.STOPPING.value)
    with context.client.long_poll(math.inf):
        answer = await parked.answer()
    if isinstance(answer, Refused):
        return encode(context, request, GROUP_REFUSALS[answer.refusal], answer.message)
    return encode(context, request, ErrorCode.NONE, None, answer)


def encode(
    context: Context,
    request: ConsumerGroupHeartbeatRequest,
    error: ErrorCode,
    message: str | None,
    answer: Beaten | None = None,
) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.message(message)
    writer.nullable_string(request.member_id if answer is None else answer.member_id)
    writer.int32(0 if answer is None else answer.epoch)
    writer.int32(0 if answer is None else context.broker.groups.heartbeat_interval_ms(request.group_id))
    assignment = None if answer is None else answer.assignment
    writer.int8(-1 if assignment is None else 1)
    if assignment is not None:
        write_partitions(writer, assignment)
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


def write_partitions(writer: Writer, partitions: Partitions) -> None:
    """The array of topics, by id, with their partitions."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)

    def topic_partitions(entry: tuple[str, list[int]]) -> None:
        writer.uuid(UUID(hex=entry[0]))
        writer.int32_array(entry[1])
        writer.end_of_fields()

    writer.array(topics.items(), topic_partitions)


API = Api(68, "ConsumerGroupHeartbeat", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP, DESCRIBE_TOPIC))
