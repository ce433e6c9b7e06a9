"""JoinGroup: a consumer joins a group's next generation.

Behaviour
- Waits until all members have joined, or the rebalance time-out is over. If the client disconnects meanwhile, the group
  is told. A node that stops answers COORDINATOR_NOT_AVAILABLE at once.
- A member without an id gets one. From version 4 on it has to send the request again with this id (MEMBER_ID_REQUIRED),
  unless it is static. So a client that gives up early leaves no member behind (KIP-394).
- Only the leader is told about the other members.
- A member whose names and metadata take more than 1 MiB is MESSAGE_TOO_LARGE.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 1 adds the rebalance time-out, which was the session time-out before; 2 the throttle time; 4 MEMBER_ID_REQUIRED; 5
  static members; 6 is flexible; 7 adds the protocol type to the answer; 8 a reason, which is ignored; 9 lets a static
  leader that returns skip the assignment (KIP-814).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fairlog.broker import Parked
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import NO_GENERATION, NO_MEMBER_ID, Joined, JoinedMember, Joining, JoinRefused
from fairlog.kafka.api import CLIENT_NAME_MAX, Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import READ_GROUP, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.ownership import is_group_elsewhere, refusal_of_group_elsewhere
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 9)
FLEXIBLE_FROM = 6
_STATIC_MEMBERS_FROM = 5
_PROTOCOL_TYPE_FROM = 7


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]


def decode(reader: Reader, version: int) -> JoinGroupRequest:
    def protocol() -> tuple[str, bytes]:
        entry = reader.string(), bytes(reader.byte_string())
        reader.end_of_fields()
        return entry

    group_id, session_timeout_ms = reader.string(), reader.int32()
    request = JoinGroupRequest(
        group_id,
        session_timeout_ms,
        reader.int32() if version >= 1 else session_timeout_ms,
        reader.string(),
        reader.nullable_string() if version >= _STATIC_MEMBERS_FROM else None,
        reader.string(),
        reader.array(protocol),
    )
    if version >= 8:
        reader.nullable_string()  # why the member joins
    reader.end_of_fields()
    return request


async def handle(context: Context, request: JoinGroupRequest) -> Reply:
    groups, client = context.broker.groups, context.client
    if denied(context, READ_GROUP, request.group_id) is not None:
        return encode(context, JoinRefused(GroupRefusal.NOT_ALLOWED, request.member_id))
    if is_group_elsewhere(context.broker, request.group_id):
        return encode(
            context, JoinRefused(refusal_of_group_elsewhere(context.broker, request.group_id), request.member_id)
        )
    joining = Joining(
        request.member_id,
        request.instance_id,
        # Cut: an instance id may be as long as a string can be, and what is made of it must still be one.
        groups.new_member_id((request.instance_id or client.client_id)[:CLIENT_NAME_MAX]),
        id_required=context.version >= 4,
        knows_skipping=context.version >= 9,
        client_id=client.client_id,
        client_host=client.shown_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=request.protocols,
    )
    parked = groups.join(request.group_id, joining)
    return Deferred(functools.partial(_finish, context, parked), parked.give_up)


async def _finish(context: Context, parked: Parked[Joined | JoinRefused]) -> Answer:
    answer: Joined | JoinRefused = JoinRefused(GroupRefusal.STOPPING, NO_MEMBER_ID)
    with context.client.long_poll(math.inf):
        answer = await parked.answer()
    return encode(context, answer)


def encode(context: Context, answer: Joined | JoinRefused) -> Answer:
    version, writer = context.version, context.writer()
    refused = isinstance(answer, JoinRefused)
    generation, leader_id, members = NO_GENERATION, "", ()
    protocol_type, protocol = None, None if version >= _PROTOCOL_TYPE_FROM else ""
    if not refused:
        generation, leader_id, members = answer.generation, answer.leader_id, answer.members
        protocol_type, protocol = answer.protocol_type, answer.protocol

    def member(entry: JoinedMember) -> None:
        writer.string(entry.member_id)
        if version >= _STATIC_MEMBERS_FROM:
            writer.nullable_string(entry.instance_id)
        writer.byte_string(entry.metadata)
        writer.end_of_fields()

    if version >= 2:
        writer.int32(0)  # throttle time
    writer.int16(GROUP_REFUSALS[answer.refusal] if refused else ErrorCode.NONE)
    writer.int32(generation)
    if version >= _PROTOCOL_TYPE_FROM:
        writer.nullable_string(protocol_type)
    writer.nullable_string(protocol)
    writer.string(leader_id)
    if version >= 9:
        writer.boolean(not refused and answer.skip_assignment)
    writer.string(answer.member_id)
    writer.array(members, member)
    writer.end_of_fields()
    return writer.parts()


API = Api(11, "JoinGroup", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP,))
