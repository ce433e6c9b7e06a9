"""LeaveGroup: a member leaves, or an operator removes several members.

Behaviour
- A static member is named by its instance id alone, or with its member id, which then has to be the current one.
- A parked JoinGroup or SyncGroup of a member that leaves is answered UNKNOWN_MEMBER_ID.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the throttle time; 3 many members at once, each with an outcome of its own; 4 is flexible; 5 adds a reason,
  which is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Leaving
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import READ_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader
from fairlog.trail import Action

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 4
_MANY_MEMBERS_FROM = 3


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[Leaving, ...]
    """Exactly one before version 3."""


def decode(reader: Reader, version: int) -> LeaveGroupRequest:
    def member() -> Leaving:
        entry = Leaving(reader.string(), reader.nullable_string())
        if version >= 5:
            reader.nullable_string()  # why it goes
        reader.end_of_fields()
        return entry

    group_id = reader.string()
    members = reader.array(member) if version >= _MANY_MEMBERS_FROM else (Leaving(reader.string(), None),)
    reader.end_of_fields()
    return LeaveGroupRequest(group_id, members)


def _is_removed(context: Context, group_id: str, leaving: Leaving) -> bool:
    """Whether it does not leave by itself, as far as one can tell: it is named by its instance, as operators do, or is
    another client than the one that asks. A consumer that leaves says its member id, on a connection like the others.
    """
    if not leaving.member_id:
        return True
    client = context.broker.groups.client_of(group_id, leaving.member_id)
    return client not in (None, (context.client.client_id, context.client.shown_host))


def _note(context: Context, group_id: str, leaving: Leaving, refusal: GroupRefusal | None) -> None:
    error = ErrorCode.NONE if refusal is None else GROUP_REFUSALS[refusal]
    named: dict[str, Any] = {"instance": leaving.instance_id} if leaving.instance_id else {"member": leaving.member_id}
    note(context, Action.REMOVE_MEMBER, group_id, error, **named)


async def handle(context: Context, request: LeaveGroupRequest) -> Answer:
    outcome: Sequence[GroupRefusal | None] | GroupRefusal
    is_removed = [_is_removed(context, request.group_id, leaving) for leaving in request.members]
    if denied(context, READ_GROUP, request.group_id) is not None:
        outcome = GroupRefusal.NOT_ALLOWED
    elif is_group_elsewhere(context.broker, request.group_id):
        outcome = refusal_of_group_elsewhere(context.broker, request.group_id)
    else:
        outcome = context.broker.groups.leave(request.group_id, request.members)
    of_each = [outcome] * len(request.members) if isinstance(outcome, GroupRefusal) else outcome
    for leaving, refusal, is_noted in zip(request.members, of_each, is_removed, strict=True):
        if is_noted:
            _note(context, request.group_id, leaving, refusal)
    refused = isinstance(outcome, GroupRefusal)
    whole = outcome if refused else None
    if context.version < _MANY_MEMBERS_FROM and not refused:
        whole = outcome[0]
    writer = context.writer()

    def code(refusal: GroupRefusal | None) -> None:
        writer.int16(ErrorCode.NONE if refusal is None else GROUP_REFUSALS[refusal])

    def member(entry: tuple[Leaving, GroupRefusal | None]) -> None:
        leaving, refusal = entry
        writer.string(leaving.member_id)
        writer.nullable_string(leaving.instance_id)
        code(refusal)
        writer.end_of_fields()

    if context.version >= 1:
        writer.int32(0)  # throttle time
    code(whole)
    if context.version >= _MANY_MEMBERS_FROM:
        writer.array(() if refused else zip(request.members, outcome, strict=True), member)
    writer.end_of_fields()
    return writer.parts()


API = Api(13, "LeaveGroup", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP,))
