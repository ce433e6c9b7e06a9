"""The generation of a group: what its members have agreed on, and how that is told.

How it works. Numbers only grow; with each generation there are a strategy that all its members know and a leader, who
is one of them. What each member wants and was given stands in the roster; a generation and the roster together are
told in four ways, each to somebody else:

    joined, joined_in_place ─▶ a member: you are in, and he leads
    synced ──────────────────▶ a member: this is what you read
    to_persist ─────────────────▶ the disk: all that outlives a restart
    describe, subscribed ────▶ an operator, and who asks what a group consumes

A group without members has a generation, too: only its number counts, so that nobody of the last one is current any
more.

What it keeps: one generation is current. Who names another, or a member id that is not (or no longer) a member's, is
not found in it.

It does not know when the next one is due, nor who waits for it: that is the state machine's (`machine.py`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairlog.groups.interface import GroupDescription, GroupRefusal, MemberDescription
from fairlog.groups.member import Member
from fairlog.groups.messages import NO_GENERATION, Joined, JoinedMember, Joining, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup
from fairlog.groups.roster import Roster
from fairlog.groups.states import GroupState
from fairlog.groups.subscription import CONSUMER, subscribed_topics_untrusted


class Generation:
    """The current generation of the members in `roster`. Belongs to one `Group`, which alone changes it."""

    __slots__ = ("_roster", "leader_id", "number", "protocol")

    def __init__(self, roster: Roster) -> None:
        self.number = 0
        """0 until the first one begins."""
        self.protocol = ""
        """The strategy that the members agreed on; empty before they have."""
        self.leader_id: str | None = None
        self._roster = roster

    def resume(self, kept: PersistedClassicGroup) -> None:
        """Go on with the one that was kept; its members are in the roster."""
        self.number, self.protocol, self.leader_id = kept.generation, kept.protocol, kept.leader_id or None

    def begin(self, joined: Sequence[Member]) -> None:
        """The next one, of all in the roster. One of those who have joined leads it: if he can, who led before."""
        if all(member.member_id != self.leader_id for member in joined):
            self.leader_id = joined[0].member_id
        self.number += 1
        self.protocol = self._roster.choose_protocol()

    def end(self) -> None:
        """The last member is gone."""
        self.number += 1  # so that nobody of the last one is current any more
        self.protocol = ""
        self.leader_id = None

    # --- who is in it --------------------------------------------------------------------------------

    def find(self, member_id: str, instance_id: str | None, number: int) -> Member | GroupRefusal:
        """The member that says to be this one, and knows the current number; a refusal if it is or does not."""
        member = self._roster.find(member_id, instance_id)
        if isinstance(member, Member):
            if number != self.number or number == NO_GENERATION:
                return GroupRefusal.ILLEGAL_GENERATION
            member.is_back = True
        return member

    def is_led_by(self, member: Member) -> bool:
        return member.member_id == self.leader_id

    def is_what_it_means(self, request: Syncing) -> bool:
        """Whether the protocol type and the strategy that a SyncGroup names, if it does, are those of this one."""
        agreed = self._roster.protocol_type, self.protocol
        return (request.protocol_type or agreed[0], request.protocol or agreed[1]) == agreed

    # --- told to members -----------------------------------------------------------------------------

    def joined(self, member: Member) -> Joined:
        """What answers the JoinGroup of a member; the leader alone is told who the others are."""
        assert self.leader_id is not None, "a generation has a leader"
        everybody = (
            JoinedMember(each.member_id, each.instance_id, each.protocols[self.protocol])
            for each in self._roster.members.values()
        )
        return Joined(
            self.number,
            self._roster.protocol_type,
            self.protocol,
            self.leader_id,
            member.member_id,
            members=tuple(everybody) if self.is_led_by(member) else (),
        )

    def joined_in_place(self, member: Member, old: Member, request: Joining, led: bool) -> Joined:
        """The answer that lets a replacement go on with what its predecessor had, without a rebalance.

        Were it told that it leads, it would assign anew, and nobody would be there to hear it. Clients that cannot be
        told to skip that are told that the old id leads, which is not theirs.
        """
        joined = self.joined(member)
        if not led:
            return joined
        if request.knows_skipping:
            return replace(joined, skip_assignment=True)
        return replace(joined, leader_id=old.member_id, members=())

    def synced(self, member: Member) -> Synced:
        """What answers the SyncGroup of a member."""
        return Synced(self._roster.protocol_type, self.protocol, member.assignment)

    # --- told to others ------------------------------------------------------------------------------

    def to_persist(self) -> PersistedClassicGroup:
        """All of it that outlives a restart."""
        members = tuple(member.to_persist() for member in self._roster.members.values())
        return PersistedClassicGroup(
            self.number, self._roster.protocol_type, self.protocol, self.leader_id or "", members
        )

    def topics_of(self, member: Member) -> frozenset[str] | None:
        """What it consumes, as far as the chosen strategy is told (before one is chosen: the one it likes most).

        None if that cannot be known.
        """
        if self._roster.protocol_type != CONSUMER:
            return None
        metadata = member.protocols.get(self.protocol)
        return subscribed_topics_untrusted(next(iter(member.protocols.values())) if metadata is None else metadata)

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members consume; see `interface.Membership`."""
        names: frozenset[str] = frozenset()
        for member in self._roster.members.values():
            topics = self.topics_of(member)
            if topics is None:
                return None
            names |= topics
        return names

    def describe(self, group_id: str, state: GroupState) -> GroupDescription:
        """Metadata is shown once the strategy is chosen, assignments while the group is stable, as in Kafka."""
        settled = state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        stable = state is GroupState.STABLE
        return GroupDescription(
            group_id,
            state,
            self._roster.protocol_type,
            self.protocol if settled else "",
            tuple(
                MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.protocols[self.protocol] if settled else b"",
                    member.assignment if stable else b"",
                )
                for member in self._roster.members.values()
            ),
        )
