"""What the two halves of consumer groups ask of each other, and what handlers see of them.

A consumer group has *members*, who agree on who reads what (this package's machine and service), and *committed
offsets* (`fairlog/groups/committed.py`), whose index in memory (`fairlog/groups/offset_index.py`) is made before both.
They know each other only by the protocols below:

    offsets  ask  Membership            may this member commit? is the group in use?
    members  ask  GroupsWithOffsets     which groups have offsets, though they have no members?

A deletion concerns both: its caller passes the offsets to the members, as `GroupOffsets`.

Words only: no API numbers, no error codes, no I/O.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from fairlog.groups.consumer.states import ConsumerGroupState
from fairlog.groups.states import GroupState

GROUP_ID_BYTES_MAX = 1_024
"""In UTF-8. Kafka has no limit but a string's, 32 KiB; an id stands in every offset that is committed for it."""


def is_group_id(group: str) -> bool:
    """Whether a group that has members, or offsets, may be called so. Others are refused as INVALID_GROUP_ID.

    Kafka takes the empty id for offsets alone, for the sake of consumers from before 2.2; here nobody gets it.
    """
    return 0 < len(group.encode()) <= GROUP_ID_BYTES_MAX


class GroupRefusal(Enum):
    """Why a group does not do what it was asked. None of these changes the group (but for a heartbeat's effect)."""

    UNKNOWN_MEMBER = "the group has no such member (any more): join again, without a member id"
    ILLEGAL_GENERATION = "the generation is not the group's current one"
    FENCED_INSTANCE = "the group instance id is held by another member id: a newer instance has taken over"
    REBALANCE_IN_PROGRESS = "the members are being gathered anew: join again"
    INCONSISTENT_PROTOCOL = "the protocol type or protocols do not go together with those of the other members"
    INVALID_SESSION_TIMEOUT = "the session time-out is out of the node's bounds"
    INVALID_GROUP_ID = "the group id is empty or too long"
    MEMBER_ID_REQUIRED = "join again, with the member id that this refusal carries"
    GROUP_MAX_SIZE = "the group has as many members as it may have"
    NON_EMPTY_GROUP = "the group has members"
    UNKNOWN_GROUP = "there is no such group"
    SUBSCRIBED = "a member of the group consumes this topic"
    TOO_LARGE = "names, metadata or assignments take more room than a member may have"
    NO_ROOM = "the node has as many groups or joining members as it has room for: try again later"
    NOT_KEPT = "the disk refuses to keep the group: find the coordinator again, and try again"
    FENCED_MEMBER_EPOCH = "the member names another epoch than its own: give up all partitions and join again"
    STALE_MEMBER_EPOCH = "the member has moved on to another epoch: ask again with that one"
    UNRELEASED_INSTANCE = "the group instance id is held by a member that has not left"
    UNSUPPORTED_ASSIGNOR = "there is no such server-side assignor"
    INVALID_REGEX = "the pattern of topics cannot be read, or is too large"
    ELSEWHERE = "another node coordinates the group: find the coordinator again"
    LOADING = "this node has just become the group's coordinator: try again"
    NOT_ALLOWED = "the client may not do this with the group"
    LATE = "the request was delayed on an earlier connection of the member: ask again"
    STOPPING = "the node is stopping: find the coordinator again, and try again"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    """Of the connection that it joined by, with a slash in front as Kafka has it: `/127.0.0.1`."""
    metadata: bytes
    """What it said under the protocol that was chosen; empty while none is."""
    assignment: bytes
    """What the leader gave it in the current generation; empty unless the group is stable."""


class GroupType(Enum):
    """By which protocol members share their topics. The value is Kafka's word for it, as ListGroups says it."""

    CLASSIC = "classic"
    """JoinGroup and SyncGroup; also a group that has only offsets."""
    CONSUMER = "consumer"
    """ConsumerGroupHeartbeat (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group as ListGroups shows it."""

    group_id: str
    state: GroupState | ConsumerGroupState
    protocol_type: str
    """As in `GroupDescription`."""
    type: GroupType = GroupType.CLASSIC


class MemberClient(NamedTuple):
    """Who is a member, as it has said and as it came when it joined."""

    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as DescribeGroups shows it."""

    group_id: str
    state: GroupState | ConsumerGroupState
    protocol_type: str
    """`consumer` for consumers; empty if the group has only offsets, and had no members lately."""
    protocol: str
    """The assignment strategy that the members agreed on; empty while there is none."""
    members: tuple[MemberDescription, ...]
    """Of a consumer group only who they are."""
    type: GroupType = GroupType.CLASSIC


class Membership(Protocol):
    """The members of all groups that this node coordinates."""

    def may_commit(
        self, group: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> GroupRefusal | None:
        """Why offsets of this sender are not taken; None if they are.

        A generation of -1 with an empty member id is who does not take part in the group: a consumer that assigns
        itself, an admin tool, or (`transactional`) a producer that does not tell. An accepted commit of a member
        counts as its heartbeat.
        """
        ...

    def is_empty(self, group: str) -> bool:
        """Whether the group has no members, nor any who are about to join. So is an unknown one."""
        ...

    def empty_since_ms(self, group: str) -> int | None:
        """When (Unix ms) the last member left; None if the group has members, or is not remembered.

        A group is remembered for a while after that; then `GroupsWithOffsets.members_left` is told.
        The same each time, for as long as nobody joins: by it the offsets' half tells whether somebody has.
        """
        ...

    def subscribed(self, group: str) -> frozenset[str] | None:
        """Names of the topics that its members consume; None if that cannot be told.

        Empty for a group without members. It cannot be told for protocol types other than `consumer`, nor if a
        member's metadata is not readable.
        """
        ...

    def known(self) -> Collection[str]:
        """The groups that have members, or had some lately. Others may have offsets."""
        ...

    def describe(self, group: str) -> GroupDescription | None:
        """None for a group that has neither members nor offsets."""
        ...


class GroupsWithOffsets(Protocol):
    """What membership needs to know of committed offsets; `fairlog.groups.offset_index.OffsetIndex` is one."""

    def groups(self) -> Collection[str]:
        """The groups that have committed offsets."""
        ...

    def members_left(self, group: str, at_ms: int) -> None:
        """The group is not remembered any more; its last member left at that time (Unix ms)."""
        ...


class GroupOffsets(Protocol):
    """The offsets of a group that is deleted; `fairlog.groups.committed.CommittedOffsets` is one."""

    async def delete(self, group: str) -> GroupRefusal | None:
        """Forget all offsets of a group; durable when this returns. None also if there were none.

        Raises StorageFailure.
        """
        ...
