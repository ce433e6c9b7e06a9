"""One member of a group: what it said of itself, and which of its requests wait.

Pure. Belongs to one `Group`, which alone changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fairlog.groups.messages import NO_MEMBER_ID, Joined, Joining, Ticket
from fairlog.groups.persisted_group import PersistedMember

MEMBER_BYTES_MAX = 1 << 20
"""What names and metadata of one member may take; its assignment may take as much. In Kafka a whole group, with all
members and assignments, has to fit one record of `message.max.bytes`, 1 MiB."""

REBALANCE_MS_MIN = 1_000
"""A rebalance time-out below this is raised to it: nobody could join again in time, and a group of static members that
are all away would be due again and again."""

MEMBER_BYTES = 1_024
"""What a member takes beside its metadata and assignment, roughly; what one takes that is about to join."""

PROTOCOL_BYTES = 128
"""What a protocol takes beside its name and metadata, roughly."""


def protocols_of(request: Joining) -> dict[str, bytes]:
    """By name, in the order of preference. Of a name that is said twice the first counts."""
    protocols: dict[str, bytes] = {}
    for name, metadata in request.protocols:
        protocols.setdefault(name, metadata)
    return protocols


def bytes_of(request: Joining) -> int:
    """What the member would take of the node's memory, without an assignment."""
    names = (request.instance_id or "", request.client_id, request.protocol_type)
    size = MEMBER_BYTES + sum(map(len, names))
    return size + sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in request.protocols)


@dataclass(slots=True)
class Member:
    """A member; times are those of the machine's clock, in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    own_bytes: int
    assignment: bytes = b""
    is_new: bool = True
    """Was never told of a generation."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    in_place: tuple[int, Joined] | None = None
    """Its JoinGroup waits only until the group is kept under this number, and is answered so: it takes over a static
    member's place in a stable group."""
    is_back: bool = True
    """False from a restart until it is heard of."""
    deadline_ms: float = field(default=math.inf)
    """When it is taken for dead unless it is heard of; infinite while one of its requests waits for others."""

    @classmethod
    def of(cls, member_id: str, request: Joining) -> Member:
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            max(request.rebalance_timeout_ms, REBALANCE_MS_MIN),
            protocols_of(request),
            bytes_of(request),
        )

    @classmethod
    def resumed(cls, kept: PersistedMember, protocol_type: str) -> Member:
        """The member as it was kept before a restart."""
        joining = Joining(
            kept.member_id,
            kept.instance_id,
            NO_MEMBER_ID,
            id_required=False,
            knows_skipping=False,
            client_id=kept.client_id,
            client_host=kept.client_host,
            session_timeout_ms=kept.session_timeout_ms,
            rebalance_timeout_ms=kept.rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=kept.protocols,
        )
        member = cls.of(kept.member_id, joining)
        member.assignment, member.is_new, member.is_back = kept.assignment, False, False
        return member

    def to_persist(self) -> PersistedMember:
        """All of it that outlives a restart."""
        return PersistedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            tuple(self.protocols.items()),
            self.assignment,
        )

    @property
    def size_bytes(self) -> int:
        """What it takes of the node's memory, roughly."""
        return self.own_bytes + len(self.assignment)

    def says_the_same(self, request: Joining) -> bool:
        """Whether nothing that the leader goes by has changed."""
        return list(self.protocols.items()) == list(protocols_of(request).items())

    def update(self, request: Joining) -> None:
        """Take over what it says when it joins again."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = max(request.rebalance_timeout_ms, REBALANCE_MS_MIN)
        self.protocols = protocols_of(request)
        self.own_bytes = bytes_of(request)
