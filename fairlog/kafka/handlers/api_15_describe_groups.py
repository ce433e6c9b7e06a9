"""DescribeGroups: the state of groups, and their members.

Behaviour
- A group that has offsets and no members is Empty. An unknown group, or a consumer group of the new protocol, is Dead:
  from version 6 on with GROUP_ID_NOT_FOUND, in earlier versions without an error, as in Kafka.
- Metadata is shown once the members have agreed on a strategy, assignments while the group is stable.
- A group that is named more than once is answered once. Other clients are served in between.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the throttle time; 3 asks for authorized operations; 4 shows static members; 5 is flexible; 6 reports an
  unknown group by an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.groups.interface import GroupDescription, GroupRefusal, GroupType, MemberDescription
from fairlog.groups.states import GroupState
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_GROUP, NOT_ASKED, denied, operations
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader
from fairlog.security.acls import ResourceType

SERVED = Versions(0, 6)
FLEXIBLE_FROM = 5
_NOT_FOUND_FROM = 6


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...]
    operations: bool
    """Whether authorized operations are asked for."""


def decode(reader: Reader, version: int) -> DescribeGroupsRequest:
    groups = reader.array(reader.string)
    request = DescribeGroupsRequest(groups, reader.boolean() if version >= 3 else False)
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeGroupsRequest) -> Answer:
    version, writer = context.version, context.writer()

    def member(entry: MemberDescription) -> None:
        writer.string(entry.member_id)
        if version >= 4:
            writer.nullable_string(entry.instance_id)
        writer.string(entry.client_id)
        writer.string(entry.client_host)
        writer.byte_string(entry.metadata)
        writer.byte_string(entry.assignment)
        writer.end_of_fields()

    def head(group_id: str, error: ErrorCode, message: str | None, state: str) -> None:
        writer.int16(error)
        if version >= _NOT_FOUND_FROM:
            writer.message(message)
        writer.string(group_id)
        writer.string(state)

    def refused(group_id: str, refusal: GroupRefusal) -> None:
        head(group_id, GROUP_REFUSALS[refusal], refusal.value, "")
        writer.string("")
        writer.string("")
        writer.array((), member)
        if version >= 3:
            writer.int32(NOT_ASKED)
        writer.end_of_fields()

    def group(entry: GroupDescription, error: ErrorCode, message: str | None) -> None:
        head(entry.group_id, error, message, entry.state.value)
        writer.string(entry.protocol_type)
        writer.string(entry.protocol)
        writer.array(entry.members, member)
        if version >= 3:
            writer.int32(operations(context, ResourceType.GROUP, entry.group_id) if request.operations else NOT_ASKED)
        writer.end_of_fields()

    asked = dict.fromkeys(request.groups)
    if version >= 1:
        writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for group_id in asked:
        await trio.lowlevel.checkpoint()
        if denied(context, DESCRIBE_GROUP, group_id) is not None:
            refused(group_id, GroupRefusal.NOT_ALLOWED)
            continue
        if is_group_elsewhere(context.broker, group_id):
            refused(group_id, refusal_of_group_elsewhere(context.broker, group_id))
            continue
        described = context.broker.groups.describe(group_id)
        error, message = ErrorCode.NONE, None
        if described is None or described.type is not GroupType.CLASSIC:
            described = GroupDescription(group_id, GroupState.DEAD, "", "", ())
            if version >= _NOT_FOUND_FROM:
                error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no classic group {group_id}"
        group(described, error, message)
    writer.end_of_fields()
    return writer.parts()


API = Api(15, "DescribeGroups", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_GROUP,))
