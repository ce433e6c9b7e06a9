"""SyncGroup: a member asks for its assignment; the leader sends the assignments of all members.

Behaviour
- Waits for the leader, but no longer than the group waits for it. Then the answer is REBALANCE_IN_PROGRESS, as whenever
  a new rebalance begins. If the client disconnects or the node stops, it behaves like JoinGroup.
- A member that the leader has left out gets an empty assignment; assignments for clients that are not members are
  dropped.
- If the request names a protocol type or name, it has to be the group's.
- If an assignment is larger than 1 MiB, the leader gets MESSAGE_TOO_LARGE.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the throttle time; 3 static members; 4 is flexible; 5 adds protocol type and name.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fairlog.broker import Parked
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Synced, Syncing
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import READ_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 4
_PROTOCOL_FROM = 5


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    group_id: str
    sync: Syncing


def decode(reader: Reader, version: int) -> SyncGroupRequest:
    def assignment() -> tuple[str, bytes]:
        entry = reader.string(), bytes(reader.byte_string())
        reader.end_of_fields()
        return entry

    group_id, generation, member_id = reader.string(), reader.int32(), reader.string()
    sync = Syncing(
        member_id,
        reader.nullable_string() if version >= 3 else None,
        generation,
        reader.nullable_string() if version >= _PROTOCOL_FROM else None,
        reader.nullable_string() if version >= _PROTOCOL_FROM else None,
        dict(reader.array(assignment)),
    )
    reader.end_of_fields()
    return SyncGroupRequest(group_id, sync)


async def handle(context: Context, request: SyncGroupRequest) -> Reply:
    if denied(context, READ_GROUP, request.group_id) is not None:
        return encode(context, GroupRefusal.NOT_ALLOWED)
    if is_group_elsewhere(context.broker, request.group_id):
        return encode(context, refusal_of_group_elsewhere(context.broker, request.group_id))
    parked = context.broker.groups.sync(request.group_id, request.sync)  # noqa: ASYNC200 (no file is meant)
    return Deferred(functools.partial(_finish, context, parked), parked.give_up)


async def _finish(context: Context, parked: Parked[Synced | GroupRefusal]) -> Answer:
    answer: Synced | GroupRefusal = GroupRefusal.STOPPING
    with context.client.long_poll(math.inf):
        answer = await parked.answer()
    return encode(context, answer)


def encode(context: Context, answer: Synced | GroupRefusal) -> Answer:
    version, writer = context.version, context.writer()
    refused = isinstance(answer, GroupRefusal)
    if version >= 1:
        writer.int32(0)  # throttle time
    writer.int16(GROUP_REFUSALS[answer] if refused else ErrorCode.NONE)
    if version >= _PROTOCOL_FROM:
        writer.nullable_string(None if refused else answer.protocol_type)
        writer.nullable_string(None if refused else answer.protocol)
    writer.byte_string(b"" if refused else answer.assignment)
    writer.end_of_fields()
    return writer.parts()


API = Api(14, "SyncGroup", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP,))
