"""The requests of a group's members that wait for others, and the answers that are due.

How it works. A member may have a JoinGroup parked, or a SyncGroup, by the ticket that it came with. It waits until the
group answers it, refuses it, or the member sends it again on another connection: nobody waits for the first one any
more, which is refused. Whatever ends a wait puts an answer to those that are due; `take` hands these out, in the order
in which they came about.

What it keeps: each ticket is answered once, unless it is forgotten, since its connection is gone.

It does not know what the members wait for (`machine.py`), nor how answers reach them (`service.py`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.member import Member
from fairlog.groups.messages import NO_MEMBER_ID, Answer, Joined, JoinRefused, Synced, Ticket


class Parking:
    """Where the requests of one group wait. The tickets themselves are with the members."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: list[Answer] = []

    def take(self) -> Sequence[Answer]:
        """The answers that are due since the last call."""
        due, self._due = self._due, []
        return due

    def answer(self, ticket: Ticket, what: Joined | JoinRefused | Synced | GroupRefusal) -> None:
        """Answer a request that is not parked."""
        self._due.append(Answer(ticket, what))

    def park_join(self, member: Member, ticket: Ticket) -> None:
        """It waits for the next generation."""
        if member.join_ticket is not None:
            self.answer(member.join_ticket, JoinRefused(GroupRefusal.UNKNOWN_MEMBER, NO_MEMBER_ID))
        member.join_ticket, member.in_place = ticket, None

    def park_join_in_place(self, member: Member, ticket: Ticket, number: int, joined: Joined) -> None:
        """It waits only until the group is kept under this number, and is answered so."""
        assert member.join_ticket is None, "it has just come"
        member.join_ticket, member.in_place = ticket, (number, joined)

    def park_sync(self, member: Member, ticket: Ticket) -> None:
        """It waits for its assignment."""
        if member.sync_ticket is not None:
            self.answer(member.sync_ticket, GroupRefusal.REBALANCE_IN_PROGRESS)
        member.sync_ticket = ticket

    def answer_join(self, member: Member, joined: Joined) -> None:
        """The member's JoinGroup, which is parked, is answered."""
        assert member.join_ticket is not None, "its JoinGroup waits for this"
        self.answer(member.join_ticket, joined)
        member.join_ticket = member.in_place = None

    def answer_sync(self, member: Member, what: Synced | GroupRefusal) -> None:
        """The member's SyncGroup, which is parked, is answered."""
        assert member.sync_ticket is not None, "its SyncGroup waits for this"
        self.answer(member.sync_ticket, what)
        member.sync_ticket = None

    def refuse(self, member: Member, refusal: GroupRefusal) -> None:
        """All that the member has parked is refused."""
        if member.join_ticket is not None:
            self.answer(member.join_ticket, JoinRefused(refusal, NO_MEMBER_ID))
        if member.sync_ticket is not None:
            self.answer(member.sync_ticket, refusal)
        member.join_ticket = member.sync_ticket = member.in_place = None

    @staticmethod
    def find(members: Iterable[Member], ticket: Ticket) -> Member | None:
        """Whose request this is; None if it is not parked (any more)."""
        return next((each for each in members if ticket in (each.join_ticket, each.sync_ticket)), None)
