"""The one table of a group's states: what may lead from where to where.

A group is in exactly one `GroupState`. What moves it is a `Cause`; requests that move nothing (a heartbeat, a repeated
JoinGroup) have none. `TABLE` lists every pair that can occur, with what comes of it: one state, so that the picture
in docs/groups.md can be made from it. A pair that is not listed is our bug, and `Group` stops there.

The words are Kafka's (`org.apache.kafka.coordinator.group.classic.ClassicGroupState`). One thing differs: Kafka goes
through PreparingRebalance when the last member leaves a stable group, and is Empty in the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class GroupState(Enum):
    """Where a group stands. The value is Kafka's word for it, as DescribeGroups and ListGroups say it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Cause(Enum):
    """What moves a group. The value is its line in the documentation."""

    REBALANCE = "a member is new, comes back changed, goes, or the leader asks for it"
    GATHERED = "all members have joined again, or the time for it is up"
    ASSIGNED = "the leader says who reads what"
    EMPTIED = "the last member is gone"
    FORGOTTEN = "the empty group was deleted, or idle for long"
    RESUMED = "the node has started, and the group was stable when it was last kept"


class Row(NamedTuple):
    """In `state`, `cause` leads to `then`; `what` is what members notice of it."""

    state: GroupState
    cause: Cause
    then: GroupState
    what: str


_S = GroupState

TABLE: tuple[Row, ...] = (
    Row(_S.EMPTY, Cause.REBALANCE, _S.PREPARING_REBALANCE, "the first JoinGroup waits for company"),
    Row(_S.EMPTY, Cause.FORGOTTEN, _S.DEAD, "none is left to notice"),
    Row(_S.EMPTY, Cause.RESUMED, _S.STABLE, "nothing: they go on"),
    #
    Row(_S.PREPARING_REBALANCE, Cause.GATHERED, _S.COMPLETING_REBALANCE, "every parked JoinGroup is answered"),
    Row(_S.PREPARING_REBALANCE, Cause.EMPTIED, _S.EMPTY, "none is left to notice"),
    #
    Row(_S.COMPLETING_REBALANCE, Cause.ASSIGNED, _S.STABLE, "every parked SyncGroup is answered"),
    Row(_S.COMPLETING_REBALANCE, Cause.REBALANCE, _S.PREPARING_REBALANCE, "every parked SyncGroup is refused"),
    Row(_S.COMPLETING_REBALANCE, Cause.EMPTIED, _S.EMPTY, "none is left to notice"),
    #
    Row(_S.STABLE, Cause.REBALANCE, _S.PREPARING_REBALANCE, "the next heartbeats say so"),
    Row(_S.STABLE, Cause.EMPTIED, _S.EMPTY, "none is left to notice"),
)

NEXT_STATE: Mapping[tuple[GroupState, Cause], GroupState] = {(row.state, row.cause): row.then for row in TABLE}
"""For each pair that can occur, the state that follows."""

assert len(NEXT_STATE) == len(TABLE), "a pair stands in the table twice"


def matrix() -> str:
    """The table in Markdown: a line for each row."""
    lines = ["| state | cause | next state | what members notice |", "|---|---|---|---|"]
    lines += [f"| {row.state.value} | {row.cause.name} | {row.then.value} | {row.what} |" for row in TABLE]
    return "\n".join(lines) + "\n"
