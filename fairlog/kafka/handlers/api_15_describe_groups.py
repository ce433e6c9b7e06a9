"""DescribeGroups: the state of groups, and their members.

Behaviour
- A group that has offsets and no members is Empty. An unknown group, or a consumer group of the new protocol, is Dead:
  from version 6 on with GROUP_ID_NOT_FOUND, in earlier versions without an error, as in Kafka.
- Metadata is shown once the members have agreed on a strategy, assignments while the group is stable.
- A group that is named more than once is answered once. Other clients are served in between.
- All operations of a group are authorized: there is no authorizer (`fairlog.kafka.acl_operations`).
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the throttle time; 3 asks for authorized operations; 4 shows static members; 5 is flexible; 6 reports an
  unknown group by an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.groups.interface import GroupDescription, GroupType, MemberDescription
from fairlog.groups.states import GroupState
from fairlog.kafka.acl_operations import ALL_OF_GROUP, NOT_ASKED
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader

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

    def elsewhere(group_id: str) -> None:
        refusal = refusal_of_group_elsewhere(context.broker, group_id)
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
            writer.int32(ALL_OF_GROUP if request.operations else NOT_ASKED)
        writer.end_of_fields()

    asked = dict.fromkeys(request.groups)
    if version >= 1:
        writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for group_id in asked:
        await trio.lowlevel.checkpoint()
        if is_group_elsewhere(context.broker, group_id):
            elsewhere(group_id)
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


API = Api(15, "DescribeGroups", SERVED, FLEXIBLE_FROM, decode, handle)
