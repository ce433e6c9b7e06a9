"""DeleteGroups: delete groups without members, with their committed offsets.

Behaviour
- A group that has members, or a member that is about to join, is NON_EMPTY_GROUP. A group that has neither members nor
  offsets, and had no members recently, is GROUP_ID_NOT_FOUND.
- When this is answered, the group is deleted durably: its offsets cannot be fetched any more.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 2 is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DELETE_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.noting import noting
from fairlog.kafka.ownership import code_of_group_elsewhere, is_group_elsewhere
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    groups: tuple[str, ...]


def decode(reader: Reader, version: int) -> DeleteGroupsRequest:  # noqa: ARG001 (all versions look alike)
    request = DeleteGroupsRequest(reader.array(reader.string))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DeleteGroupsRequest) -> Answer:
    errors: dict[str, ErrorCode] = {}
    for group in dict.fromkeys(request.groups):
        with noting(context, Action.DELETE_GROUP, group) as is_answered:
            errors[group] = await _delete(context, group)
            is_answered(errors[group])
    writer = context.writer()

    def result(entry: tuple[str, ErrorCode]) -> None:
        writer.string(entry[0])
        writer.int16(entry[1])
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(errors.items(), result)
    writer.end_of_fields()
    return writer.parts()


async def _delete(context: Context, group: str) -> ErrorCode:
    refused = denied(context, DELETE_GROUP, group)
    if refused is not None:
        return refused
    if is_group_elsewhere(context.broker, group):
        return code_of_group_elsewhere(context.broker, group)
    try:
        refusal = await context.broker.groups.delete(group, context.broker.offsets)
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE if refusal is None else GROUP_REFUSALS[refusal]


API = Api(42, "DeleteGroups", SERVED, FLEXIBLE_FROM, decode, handle, (DELETE_GROUP,))
