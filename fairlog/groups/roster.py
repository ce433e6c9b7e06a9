"""Who is in a group, who is about to be, and what they have in common.

Members are known by their member id, static ones by their instance id, too (KIP-345): of two processes that say the
same instance id, the one with the newer member id holds it, and the other is fenced.

Pure. Belongs to one `Group`.
"""

from __future__ import annotations

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.member import MEMBER_BYTES, Member, protocols_of
from fairlog.groups.messages import NO_MEMBER_ID, Joining, Leaving
from fairlog.groups.votes import Votes


class Roster:
    """The members of one group, in the order in which they came, and the ids that are given and not yet used."""

    __slots__ = ("_instances", "_votes", "members", "pending", "protocol_type", "size_bytes")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.pending: dict[str, float] = {}
        """Ids that were given to clients who have yet to come with them, and until when (ms) they may."""
        self.protocol_type = ""
        """What the members are to each other: `consumer`. Of the last ones, if there are none."""
        self.size_bytes = 0
        """What all of it takes of the node's memory, roughly."""
        self._instances: dict[str, str] = {}
        """Member ids by instance id."""
        self._votes = Votes()

    @property
    def is_empty(self) -> bool:
        """Whether there are neither members nor those who are about to join."""
        return not self.members and not self.pending

    def enter(self, member: Member, protocol_type: str) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._votes.enter(member.protocols)
        self.protocol_type = protocol_type
        self.size_bytes += member.size_bytes

    def update(self, member: Member, request: Joining) -> None:
        """Take over what a member says that joins again."""
        self._votes.leave(member.protocols)
        self.size_bytes -= member.size_bytes
        member.update(request)
        self.size_bytes += member.size_bytes
        self._votes.enter(member.protocols)
        self.protocol_type = request.protocol_type

    def drop(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._votes.leave(member.protocols)
        self.size_bytes -= member.size_bytes

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def expect(self, member_id: str, until_ms: float) -> None:
        """A client was given this id, to come with it."""
        self.pending[member_id] = until_ms
        self.size_bytes += MEMBER_BYTES

    def unexpect(self, member_id: str) -> None:
        """It has come, or will not."""
        del self.pending[member_id]
        self.size_bytes -= MEMBER_BYTES

    def holder_of(self, instance_id: str | None) -> Member | None:
        """The static member of this instance id."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def find(self, member_id: str, instance_id: str | None) -> Member | GroupRefusal:
        """The member that says to be this one; a refusal if it is not, or not any more."""
        holder = self.holder_of(instance_id)
        if holder is not None and holder.member_id != member_id:
            # What is kept may be a rebalance old: until the holder is heard of it may be the one that was replaced, and
            # who is fenced gives up for good.
            return GroupRefusal.FENCED_INSTANCE if holder.is_back else GroupRefusal.UNKNOWN_MEMBER
        member = self.members.get(member_id)
        if member is None or (instance_id is not None and holder is None):
            return GroupRefusal.UNKNOWN_MEMBER
        return member

    def find_joining(self, request: Joining) -> Member | GroupRefusal | None:
        """The member that joins again, or whose place is to be taken; None if it is a new one that may come so."""
        if request.member_id == NO_MEMBER_ID:
            return self.holder_of(request.instance_id)
        if request.member_id not in self.pending:
            return self.find(request.member_id, request.instance_id)
        # Ids are given in advance to members that are not static.
        return None if request.instance_id is None else GroupRefusal.UNKNOWN_MEMBER

    def find_leaving(self, leaving: Leaving) -> Member | GroupRefusal:
        """The member that goes, or is sent away; a refusal if there is none."""
        if leaving.member_id == NO_MEMBER_ID:
            # An operator sends a static member away, and need not know which process it is.
            holder = self.holder_of(leaving.instance_id)
            if holder is not None:
                return holder
        return self.find(leaving.member_id, leaving.instance_id)

    def goes_together(self, request: Joining, member: Member | None) -> bool:
        """Whether the others are of the same protocol type, and all know one of the strategies.

        `member` is who asks, if it is in already: what it came with does not bind it.
        """
        names = protocols_of(request)
        if not request.protocol_type or not names:
            return False
        alone = len(self.members) == (member is not None)
        if not alone and request.protocol_type != self.protocol_type:
            return False
        return self._votes.agrees(names, instead_of=None if member is None else member.protocols)

    def choose_protocol(self) -> str:
        """The strategy for those who are members now."""
        return self._votes.choose(member.protocols for member in self.members.values())

    def longest_rebalance_ms(self) -> int:
        """How long a rebalance may take: as long as the most patient member says."""
        return max(member.rebalance_timeout_ms for member in self.members.values())
