"""ConsumerGroupDescribe: the state of consumer groups of the new protocol (KIP-848), and their members.

Behaviour
- A group that is unknown, or of the classic protocol, is GROUP_ID_NOT_FOUND: admin clients then ask DescribeGroups.
- A member's assignment is what it may read now; its target is what it will read in the end.
- A group that is named more than once is answered once. Other clients are served in between.
- A group whose members read topics that the client may not describe is TOPIC_AUTHORIZATION_FAILED, as in Kafka.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds each member's type: of the classic protocol, or of the new one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import trio

from fairlog.groups.consumer.values import GroupSnapshot, MemberView, Partitions
from fairlog.groups.interface import GroupDescription, GroupRefusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_GROUP, DESCRIBE_TOPIC, NOT_ASKED, denied, may, operations
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import code_of_group_elsewhere, is_group_elsewhere
from fairlog.kafka.wire import Reader, Writer
from fairlog.security.acls import ResourceType

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    groups: tuple[str, ...]
    operations: bool
    """Whether authorized operations are asked for."""


class _NotShown(NamedTuple):
    """Why a group is not shown."""

    code: ErrorCode
    message: str


def decode(reader: Reader, version: int) -> ConsumerGroupDescribeRequest:  # noqa: ARG001 (both versions look alike)
    request = ConsumerGroupDescribeRequest(reader.array(reader.string), reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ConsumerGroupDescribeRequest) -> Answer:
    writer = context.writer()
    asked = dict.fromkeys(request.groups)
    writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for group_id in asked:
        _write_group(context, writer, group_id, asks_operations=request.operations)
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


def _write_group(context: Context, writer: Writer, group_id: str, *, asks_operations: bool) -> None:
    found = _find(context, group_id)
    if isinstance(found, _NotShown):
        writer.int16(found.code)
        writer.message(found.message)
        state, group_epoch, assignment_epoch, assignor, members = "", 0, 0, "", ()
    else:
        described, group, assignor = found
        state, members = described.state.value, group.members
        group_epoch, assignment_epoch = group.group_epoch, group.assignment_epoch
        writer.int16(ErrorCode.NONE)
        writer.message(None)
    writer.string(group_id)
    writer.string(state)
    writer.int32(group_epoch)
    writer.int32(assignment_epoch)
    writer.string(assignor)
    writer.array(members, lambda view: _write_member(context, writer, view))
    told = asks_operations and not isinstance(found, _NotShown)
    writer.int32(operations(context, ResourceType.GROUP, group_id) if told else NOT_ASKED)
    writer.end_of_fields()


def _find(context: Context, group_id: str) -> tuple[GroupDescription, GroupSnapshot, str] | _NotShown:
    broker = context.broker
    refused = denied(context, DESCRIBE_GROUP, group_id)
    if refused is not None:
        return _NotShown(refused, GroupRefusal.NOT_ALLOWED.value)
    if is_group_elsewhere(broker, group_id):
        return _NotShown(code_of_group_elsewhere(broker, group_id), GroupRefusal.ELSEWHERE.value)
    found = broker.groups.snapshot(group_id)
    if found is None:
        return _NotShown(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id}")
    if context.client.rights is not None:
        read = {topic for view in found[1].members for topic, _ in (*view.member.assigned, *view.target)}
        topics = [broker.cluster.topic_by_id(UUID(hex=topic)) for topic in read]
        if not all(may(context, DESCRIBE_TOPIC, topic.name) for topic in topics if topic is not None):
            return _NotShown(ErrorCode(DESCRIBE_TOPIC.code), "the group reads topics that the client may not describe")
    return found


def _write_member(context: Context, writer: Writer, view: MemberView) -> None:
    member = view.member
    writer.string(member.member_id)
    writer.nullable_string(member.instance_id)
    writer.nullable_string(member.rack_id)
    writer.int32(member.epoch)
    writer.string(member.client_id)
    writer.string(member.client_host)
    writer.array(sorted(member.topic_names), writer.string)
    writer.nullable_string(member.topic_regex)
    _write_assignment(context, writer, member.assigned)
    _write_assignment(context, writer, view.target)
    if context.version >= 1:
        writer.int8(1 if member.classic is None else 0)
    writer.end_of_fields()


def _write_assignment(context: Context, writer: Writer, partitions: Partitions) -> None:
    """Deleted topics are left out, as in Kafka."""
    topics: defaultdict[UUID, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[UUID(hex=topic)].append(index)
    named = [
        (topic_id, topic.name, indexes)
        for topic_id, indexes in topics.items()
        if (topic := context.broker.cluster.topic_by_id(topic_id)) is not None
    ]

    def topic_partitions(entry: tuple[UUID, str, list[int]]) -> None:
        writer.uuid(entry[0])
        writer.string(entry[1])
        writer.int32_array(entry[2])
        writer.end_of_fields()

    writer.array(named, topic_partitions)
    writer.end_of_fields()


API = Api(69, "ConsumerGroupDescribe", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_GROUP, DESCRIBE_TOPIC))
