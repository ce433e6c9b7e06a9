"""The words of consumer groups of the new protocol (KIP-848), as plain values.

A *member* has a subscription (what it wants to read), an epoch, and a current assignment (what it may read, and what
it has yet to give up). A heartbeat brings news of a member; its answer brings the epoch and, when it has changed, the
assignment. All values are immutable: a group's past state stays as it was.

Names are Kafka's (`ConsumerGroupHeartbeatRequest.json`, `ConsumerGroupMember`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.groups.consumer.states import MemberState
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_index import Partition

Partitions = frozenset[Partition]
"""Partitions of topics, each as (topic id in hex, index): named like the keys of committed offsets."""

NOTHING: Partitions = frozenset()

JOINING = 0
"""The epoch of a member that joins, or joins again with nothing in its hands."""

LEAVING = -1
"""The epoch of a member that leaves for good."""

AWAY = -2
"""The epoch of a static member that will come back."""


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """What a member has beside, if it speaks the classic protocol in a consumer group (an online migration)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(strategy, metadata), by preference."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member: what it said of itself, and its current assignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: frozenset[str]
    topic_regex: str | None
    """What it subscribes to by pattern, beside the names; None if it does not."""
    assignor: str | None
    """The server-side assignor that it wishes."""
    epoch: int = JOINING
    previous_epoch: int = JOINING
    """The epoch before: a member whose answer was lost still says it."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    """What it may read now."""
    revoking: Partitions = NOTHING
    """What it was told to give up, and may still read."""
    classic: ClassicPart | None = None
    """None for a member of the new protocol."""

    @property
    def owned(self) -> Partitions:
        """What nobody else may read."""
        return self.assigned | self.revoking


@dataclass(frozen=True, slots=True)
class Beat:
    """A ConsumerGroupHeartbeat. None says that nothing has changed since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int | None
    topic_names: frozenset[str] | None
    topic_regex: str | None
    """An empty one ends the subscription by pattern."""
    assignor: str | None
    owned: Partitions | None
    client_id: str
    client_host: str
    connection: int
    """The ordinal of the connection that it came by."""

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as it does when it is not sure of what arrived."""
        return (
            self.rebalance_timeout_ms is not None
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to a heartbeat."""

    member_id: str
    epoch: int
    assignment: Partitions | None
    """What the member may read; None if that has not changed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A heartbeat is refused. Nothing has changed."""

    refusal: GroupRefusal
    message: str


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as ConsumerGroupDescribe shows it."""

    member: Member
    target: Partitions


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A whole group at one moment: what is kept, and what is described."""

    group_epoch: int
    assignment_epoch: int
    """The group epoch that the target assignment was made for."""
    topics: tuple[tuple[str, int], ...]
    """(topic id in hex, partitions) of the topics that the target assignment knows, sorted."""
    members: tuple[MemberView, ...]
    """In the order in which they joined."""
