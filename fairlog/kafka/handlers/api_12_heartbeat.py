"""Heartbeat: a member of a group shows that it is alive.

Behaviour
- REBALANCE_IN_PROGRESS asks the member to join again; it counts as a heartbeat all the same.
- While the group waits for the leader's assignment, heartbeats are accepted as usual.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the throttle time; 3 static members; 4 is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.groups.interface import GroupRefusal
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import READ_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 4)
FLEXIBLE_FROM = 4


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


def decode(reader: Reader, version: int) -> HeartbeatRequest:
    request = HeartbeatRequest(
        reader.string(), reader.int32(), reader.string(), reader.nullable_string() if version >= 3 else None
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: HeartbeatRequest) -> Answer:
    broker = context.broker
    if denied(context, READ_GROUP, request.group_id) is not None:
        refusal = GroupRefusal.NOT_ALLOWED
    elif is_group_elsewhere(broker, request.group_id):
        refusal = refusal_of_group_elsewhere(broker, request.group_id)
    else:
        refusal = broker.groups.heartbeat(request.group_id, request.member_id, request.instance_id, request.generation)
    writer = context.writer()
    if context.version >= 1:
        writer.int32(0)  # throttle time
    writer.int16(ErrorCode.NONE if refusal is None else GROUP_REFUSALS[refusal])
    writer.end_of_fields()
    return writer.parts()


API = Api(12, "Heartbeat", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP,))
