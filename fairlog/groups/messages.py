"""What members ask of a group and what they are answered, as values.

A request that may have to wait for others carries a *ticket*: a number that the caller makes up and never uses twice.
Its answer comes as an `Answer` with that ticket, out of the same call or of a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from fairlog.groups.interface import GroupRefusal

Ticket = NewType("Ticket", int)

NO_MEMBER_ID = ""
"""Said by who has no member id yet."""

NO_GENERATION = -1
"""Said by who does not take part in a group."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A JoinGroup."""

    member_id: str
    """NO_MEMBER_ID at the first time."""
    instance_id: str | None
    """Of a static member (KIP-345)."""
    new_member_id: str
    """The id to give the member if it has none. Never given before."""
    id_required: bool
    """Whether a member without an id is sent back once, to come with the one it is given (KIP-394)."""
    knows_skipping: bool
    """Whether a leader that comes back can be told to leave the assignment as it is (KIP-814)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(strategy, what the leader needs to know of this member for it), by preference."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The member is in the group's current generation. It is to send SyncGroup next."""

    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    member_id: str
    skip_assignment: bool = False
    """To a leader: the members keep what they have."""
    members: tuple[JoinedMember, ...] = ()
    """All of them, to the leader alone."""


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Not a member."""

    refusal: GroupRefusal
    member_id: str
    """The one to come with, if the refusal is MEMBER_ID_REQUIRED; otherwise what the member said, or none."""


@dataclass(frozen=True, slots=True)
class Syncing:
    """A SyncGroup."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    """None if the member does not say; so for `protocol`."""
    protocol: str | None
    assignments: Mapping[str, bytes]
    """By member id; looked at only if the leader sends it."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What the member reads in this generation, in the words of the strategy."""

    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Leaving:
    """A member that goes, or is sent away: by member id, by instance id alone, or by both."""

    member_id: str
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The one answer to a request."""

    ticket: Ticket
    what: Joined | JoinRefused | Synced | GroupRefusal
    """The first two to a JoinGroup, the others to a SyncGroup."""
