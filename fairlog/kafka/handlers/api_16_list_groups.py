"""ListGroups: all groups that this broker coordinates. Clients ask every broker.

Behaviour
- Lists groups with members, groups that recently had members, and groups that have offsets; the latter two are Empty.
- The filters of states and types ignore case, and states also ignore surrounding spaces. An unknown word matches
  nothing.
- Groups that the client may not describe are left out.
- Other clients are served while a long list is written.

Version notes
- 1 adds the throttle time; 3 is flexible; 4 adds the filter of states and the state; 5 the filter of types.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, DESCRIBE_GROUP, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 5)
FLEXIBLE_FROM = 3
_STATES_FROM = 4
_TYPES_FROM = 5

_GROUPS_PER_TURN = 1_000
"""Written before others run; they take about a millisecond."""


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    states: frozenset[str]
    """In lower case. Empty: all."""
    types: frozenset[str]
    """Likewise."""


def decode(reader: Reader, version: int) -> ListGroupsRequest:
    states = reader.array(reader.string) if version >= _STATES_FROM else ()
    types = reader.array(reader.string) if version >= _TYPES_FROM else ()
    reader.end_of_fields()
    return ListGroupsRequest(
        frozenset(state.strip().lower() for state in states), frozenset(group_type.lower() for group_type in types)
    )


async def handle(context: Context, request: ListGroupsRequest) -> Answer:
    version, writer = context.version, context.writer()
    sees_all = may(context, DESCRIBE_CLUSTER)
    passing = [
        overview
        for overview in context.broker.groups.overviews()
        if (not request.states or overview.state.value.lower() in request.states)
        and (not request.types or overview.type.value.lower() in request.types)
        and (sees_all or may(context, DESCRIBE_GROUP, overview.group_id))
    ]
    if version >= 1:
        writer.int32(0)  # throttle time
    writer.int16(ErrorCode.NONE)
    writer.array_length(len(passing))
    for index, overview in enumerate(passing, 1):
        writer.string(overview.group_id)
        writer.string(overview.protocol_type)
        if version >= _STATES_FROM:
            writer.string(overview.state.value)
        if version >= _TYPES_FROM:
            writer.string(overview.type.value)
        writer.end_of_fields()
        if index % _GROUPS_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


API = Api(16, "ListGroups", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER, DESCRIBE_GROUP))
