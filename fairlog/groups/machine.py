"""The state machine of one consumer group: Kafka's classic group protocol, without I/O and without a clock.

How it works. Members agree on who reads what in *generations*. When someone comes, changes or goes, the group prepares
a rebalance: it parks the JoinGroup of each member until all are there, or the time is up; then it numbers a new
generation, picks a strategy that all know and a leader, and answers them all. The leader decides; its SyncGroup brings
the assignments, and the SyncGroups of the others, parked so far, are answered with theirs. From then on members send
heartbeats, and learn from the answers that the next rebalance is due.

    members ─▶ join, sync, heartbeat, leave ─┐
    connections that break ─▶ hang_up ───────┼─▶ Group ─▶ answers, by ticket
    time ─▶ tick, due_ms ────────────────────┘

`states.TABLE` has the states and what leads from one to the other; all moves go through `_move`. A method that may
answer parked requests returns all answers that are due by it. Time comes in as `now_ms`, on any clock that does
not go backwards.

What it keeps:

* Each ticket is answered once, unless its connection breaks first.
* One generation is current, and numbers only grow. Who names another, or a member id that is not (or no longer) a
  member's, gets no assignment and commits no offsets.
* The leader is a member. A member is not past its deadline after a `tick`: neither for its heartbeat, nor for joining
  again, nor for the SyncGroup that follows.
* Nobody waits for who is known to be gone. There it goes beyond Kafka, which does not see connections: `hang_up`.

It does not know what an assignment means (a strategy may be eager or cooperative), and keeps nothing on disk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fairlog.groups.interface import GroupDescription, GroupOverview, GroupRefusal, MemberDescription
from fairlog.groups.member import MEMBER_BYTES_MAX, Member, bytes_of
from fairlog.groups.messages import (
    NO_GENERATION,
    NO_MEMBER_ID,
    Answer,
    Joined,
    JoinedMember,
    Joining,
    JoinRefused,
    Leaving,
    Synced,
    Syncing,
    Ticket,
)
from fairlog.groups.roster import Roster
from fairlog.groups.settings import GroupSettings
from fairlog.groups.states import NEXT_STATE, Cause, GroupState
from fairlog.groups.subscription import CONSUMER, subscribed_topics_untrusted

NEW_MEMBER_JOIN_MS = 5 * 60 * 1000
"""How long the first JoinGroup of a member may be parked: its client may be gone without the connection's end being
seen. Kafka's `NewMemberJoinTimeoutMs`."""

PENDING_MEMBER_MS_MAX = 10_000
"""How long a client that was given an id may take to come with it. Kafka gives it its session time-out, up to half an
hour, and holds up the rebalance for so long; a client that lives comes back at once."""

HANG_UP_GRACE_MS = 3_000
"""How long a rebalance waits for a member whose connection broke in its JoinGroup. Clients connect again within a
second (Java's `reconnect.backoff.max.ms`)."""

IDLE_MS_MAX = 10 * 60 * 1000
"""How long a group without members is remembered. Kafka looks every ten minutes for those that have no offsets
(`offsets.retention.check.interval.ms`). All that is lost is the number of its last generation: since when it is empty,
the offsets are told (`interface.GroupOffsets.members_left`)."""

GROUP_BYTES = 2_048
"""What a group takes beside its members, roughly."""


class Group:
    """One group. `now_ms` is the time of its first request."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol = ""
        """The strategy that the members agreed on; empty before they have."""
        self.leader_id: str | None = None
        self.reason = ""
        """Why the last rebalance began, for log lines."""
        self.empty_since_ms = now_ms
        """Since when it has no members, if it has none."""
        self.due_ms = now_ms + IDLE_MS_MAX
        """When `tick` is to be called next, at the latest; there may be nothing to do yet."""
        self._settings = settings
        self._roster = Roster()
        self._members = self._roster.members
        self._awaited: set[str] = set()
        """Members that the group waits for: while it prepares, to join; afterwards, to sync."""
        self._deadline_ms = math.inf
        """Until when it waits for them."""
        self._gathering = False
        """Waits for the first members to get company, however many have joined."""
        self._gathering_until_ms = math.inf
        self._company_came = False
        self._answers: list[Answer] = []

    # --- requests ------------------------------------------------------------------------------------

    def join(self, ticket: Ticket, request: Joining, now_ms: int) -> Sequence[Answer]:
        """A member wants in, again or for the first time."""
        refusal = self._joins(ticket, request, now_ms)
        if refusal is not None:
            self._answers.append(Answer(ticket, JoinRefused(refusal, request.member_id)))
        return self._taken_answers()

    def sync(self, ticket: Ticket, request: Syncing, now_ms: int) -> Sequence[Answer]:
        """A member asks for its assignment; the leader brings all of them."""
        refusal = self._syncs(ticket, request, now_ms)
        if refusal is not None:
            self._answers.append(Answer(ticket, refusal))
        return self._taken_answers()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupRefusal | None:
        """A member lives. REBALANCE_IN_PROGRESS tells it to join again; that is a heartbeat, too."""
        member = self._current_member(member_id, instance_id, generation)
        if isinstance(member, GroupRefusal):
            return member
        self._heard_of(member, now_ms)
        return GroupRefusal.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else None

    def leave(self, leaving: Sequence[Leaving], now_ms: int) -> tuple[Sequence[GroupRefusal | None], Sequence[Answer]]:
        """Members go, each for itself or sent away together; a refusal, or None, for each."""
        outcome = [self._leaves(each, now_ms) for each in leaving]
        return outcome, self._taken_answers()

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool, now_ms: int
    ) -> GroupRefusal | None:
        """Whether offsets of this sender are taken; see `interface.Membership`. Kafka's `validateOffsetCommit`."""
        if generation < 0 and not self._members:
            return None
        if generation < 0 and member_id == NO_MEMBER_ID and instance_id is None:
            # Versions of TxnOffsetCommit before 3 do not tell who sends them.
            return None if transactional else GroupRefusal.UNKNOWN_MEMBER
        member = self._current_member(member_id, instance_id, generation)
        if isinstance(member, GroupRefusal):
            return member
        if transactional:
            return None
        if self.state is GroupState.COMPLETING_REBALANCE:
            # Whose partitions these are is just being decided. It hears so, and commits or gives up afterwards.
            return GroupRefusal.REBALANCE_IN_PROGRESS
        self._heard_of(member, now_ms)
        return None

    def hang_up(self, ticket: Ticket, now_ms: int) -> Sequence[Answer]:
        """The connection on which this parked request came is gone, and with it, perhaps, the member.

        In a JoinGroup: who never was a member is forgotten. A static member is not waited for; it stays until its
        session ends, as if it did not join again. Any other has HANG_UP_GRACE_MS to come back. In a SyncGroup: its
        session begins anew. Nothing happens if the request has been answered.
        """
        for member in self._members.values():
            if ticket in (member.join_ticket, member.sync_ticket):
                break
        else:
            return ()
        if member.sync_ticket == ticket:
            member.sync_ticket = None
            self._awaited.add(member.member_id)
            self._expect(member, now_ms + member.session_timeout_ms)
            return ()
        member.join_ticket = None
        if member.is_new:
            self._remove(member, now_ms, "a joining client has hung up")
        elif member.instance_id is not None:
            self._expect(member, now_ms + member.session_timeout_ms)
        else:
            self._awaited.add(member.member_id)
            self._expect(member, now_ms + min(member.session_timeout_ms, HANG_UP_GRACE_MS))
        return self._taken_answers()

    def tick(self, now_ms: int) -> Sequence[Answer]:
        """Do what time alone brings, and set `due_ms` anew."""
        for member_id in [each for each, until_ms in self._roster.pending.items() if until_ms <= now_ms]:
            self._forget_pending(member_id, now_ms)
        for member in [each for each in self._members.values() if each.deadline_ms <= now_ms]:
            # The removal of one may complete the rebalance that a new member has waited for in vain so far.
            if member.deadline_ms <= now_ms:
                self._remove(member, now_ms, f"{member.member_id} was not heard of")
        if self._deadline_ms <= now_ms:
            self._has_waited(now_ms)
        if self.is_empty and now_ms >= self.empty_since_ms + IDLE_MS_MAX:
            self.forget()
        self.due_ms = self._soonest_ms()
        return self._taken_answers()

    def refuse_parked(self, refusal: GroupRefusal) -> Sequence[Answer]:
        """Answer all requests that wait. The group is of no use afterwards."""
        for member in self._members.values():
            self._refuse_requests_of(member, refusal)
        return self._taken_answers()

    def forget(self) -> None:
        """The group ends; it `is_empty`."""
        assert self.is_empty, "somebody is about to join"
        self._move(Cause.FORGOTTEN)

    # --- what it shows -------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether it has neither members nor those who are about to join."""
        return not self._members and not self._roster.pending

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self._members)

    @property
    def size_bytes(self) -> int:
        """What it takes of the node's memory, roughly."""
        return GROUP_BYTES + self._roster.size_bytes

    @property
    def never_was(self) -> bool:
        """Whether whoever asked for it was refused: there is nothing to remember."""
        return self.is_empty and self.generation == 0

    def subscribed(self) -> frozenset[str] | None:
        """The topics that its members consume; see `interface.Membership`."""
        names: frozenset[str] = frozenset()
        for member in self._members.values():
            topics = self._topics_of(member)
            if topics is None:
                return None
            names |= topics
        return names

    def overview(self) -> GroupOverview:
        return GroupOverview(self.group_id, self.state, self._roster.protocol_type)

    def describe(self) -> GroupDescription:
        """Metadata is shown once the strategy is chosen, assignments while the group is stable, as in Kafka."""
        settled = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            self.group_id,
            self.state,
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
                for member in self._members.values()
            ),
        )

    # --- joining -------------------------------------------------------------------------------------

    def _joins(self, ticket: Ticket, request: Joining, now_ms: int) -> GroupRefusal | None:
        """Do it, and park or answer; or say why not."""
        settings, roster = self._settings, self._roster
        if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
            return GroupRefusal.INVALID_SESSION_TIMEOUT
        if bytes_of(request) > MEMBER_BYTES_MAX:
            return GroupRefusal.TOO_LARGE
        member = None
        if request.member_id == NO_MEMBER_ID:
            member = roster.holder_of(request.instance_id)
        elif request.member_id not in roster.pending:
            found = roster.find(request.member_id, request.instance_id)
            if isinstance(found, GroupRefusal):
                return found
            member = found
        elif request.instance_id is not None:  # ids are given in advance to members that are not static
            return GroupRefusal.UNKNOWN_MEMBER
        if not roster.goes_together(request, member):
            return GroupRefusal.INCONSISTENT_PROTOCOL
        if member is not None:
            if request.member_id == NO_MEMBER_ID:
                self._replace(member, ticket, request, now_ms)
            else:
                self._rejoin(member, ticket, request, now_ms)
        elif request.member_id != NO_MEMBER_ID:
            roster.unexpect(request.member_id)
            self._add(request.member_id, ticket, request, now_ms)
        elif len(self._members) + len(roster.pending) >= settings.members_max:
            return GroupRefusal.GROUP_MAX_SIZE
        elif request.id_required and request.instance_id is None:
            until_ms = now_ms + min(request.session_timeout_ms, PENDING_MEMBER_MS_MAX)
            roster.expect(request.new_member_id, until_ms)
            self.due_ms = min(self.due_ms, until_ms)
            refused = JoinRefused(GroupRefusal.MEMBER_ID_REQUIRED, request.new_member_id)
            self._answers.append(Answer(ticket, refused))
        else:
            self._add(request.new_member_id, ticket, request, now_ms)
        return None

    def _add(self, member_id: str, ticket: Ticket, request: Joining, now_ms: int) -> None:
        member = Member.of(member_id, request)
        self._roster.enter(member, request.protocol_type)
        self._park_join(member, ticket, now_ms)
        self._company_came = True
        self._rebalance(now_ms, f"{member_id} joins")

    def _rejoin(self, member: Member, ticket: Ticket, request: Joining, now_ms: int) -> None:
        preparing = self.state is GroupState.PREPARING_REBALANCE
        # A leader asks for a rebalance by joining again: it has seen that there are more partitions, say.
        leads = self.state is GroupState.STABLE and member.member_id == self.leader_id
        if preparing or leads or not member.says_the_same(request):
            self._roster.update(member, request)
            self._park_join(member, ticket, now_ms)
            self._rebalance(now_ms, f"{member.member_id} {'leads and joins again' if leads else 'has changed'}")
        else:
            # It may not have received the answer to its first JoinGroup.
            self._heard_of(member, now_ms)
            self._answers.append(Answer(ticket, self._joined(member)))

    def _replace(self, old: Member, ticket: Ticket, request: Joining, now_ms: int) -> None:
        """A static member is back with a new process: it gets its predecessor's place, and that one is fenced."""
        self._refuse_requests_of(old, GroupRefusal.FENCED_INSTANCE)
        awaited, led = old.member_id in self._awaited, old.member_id == self.leader_id
        topics, protocol_type = self._topics_of(old), self._roster.protocol_type
        self._drop(old)
        member = Member.of(request.new_member_id, request)
        member.is_new = old.is_new
        self._roster.enter(member, request.protocol_type)
        self._roster.assign(member, old.assignment)
        if led:
            self.leader_id = member.member_id
        fits = (
            self.state is GroupState.STABLE
            and protocol_type == request.protocol_type
            and topics == self._topics_of(member)
            and self.protocol == self._roster.choose_protocol()
        )
        if fits:
            if awaited:
                self._awaited.add(member.member_id)
            self._expect(member, now_ms + member.session_timeout_ms)
            self._answers.append(Answer(ticket, self._joined_in_place(member, old, request, led)))
        else:
            self._park_join(member, ticket, now_ms)
            self._rebalance(
                now_ms, f"{member.instance_id} is back, before there was an assignment or with other wishes"
            )

    def _joined_in_place(self, member: Member, old: Member, request: Joining, led: bool) -> Joined:
        """The answer that lets a replacement go on with what its predecessor had, without a rebalance.

        Were it told that it leads, it would assign anew, and nobody would be there to hear it. Clients that cannot be
        told to skip that are told that the old id leads, which is not theirs.
        """
        joined = self._joined(member)
        if not led:
            return joined
        if request.knows_skipping:
            return replace(joined, skip_assignment=True)
        return replace(joined, leader_id=old.member_id, members=())

    def _joined(self, member: Member) -> Joined:
        assert self.leader_id is not None, "a generation has a leader"
        everybody = (
            JoinedMember(each.member_id, each.instance_id, each.protocols[self.protocol])
            for each in self._members.values()
        )
        leads = member.member_id == self.leader_id
        return Joined(
            self.generation,
            self._roster.protocol_type,
            self.protocol,
            self.leader_id,
            member.member_id,
            members=tuple(everybody) if leads else (),
        )

    # --- from one generation to the next -------------------------------------------------------------

    def _rebalance(self, now_ms: int, reason: str) -> None:
        """Gather the members anew, if that is not under way; go on if all are there."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self.reason = reason
            longest_ms = self._roster.longest_rebalance_ms()
            self._deadline_ms = now_ms + longest_ms
            if self.state is GroupState.EMPTY:
                delay_ms = min(self._settings.initial_rebalance_delay_ms, longest_ms)
                self._gathering, self._company_came = delay_ms > 0, False
                self._gathering_until_ms = self._deadline_ms
                if self._gathering:
                    self._deadline_ms = now_ms + delay_ms
            elif self.state is GroupState.COMPLETING_REBALANCE:
                self._refuse_syncs(now_ms)
            self._awaited.clear()
            self._awaited.update(each.member_id for each in self._members.values() if each.join_ticket is None)
            self.due_ms = min(self.due_ms, self._deadline_ms)
            self._move(Cause.REBALANCE)
        self._complete_if_gathered(now_ms)

    def _refuse_syncs(self, now_ms: int) -> None:
        for member in self._members.values():
            if member.sync_ticket is not None:
                self._answers.append(Answer(member.sync_ticket, GroupRefusal.REBALANCE_IN_PROGRESS))
                member.sync_ticket = None
                self._heard_of(member, now_ms)

    def _complete_if_gathered(self, now_ms: int) -> None:
        preparing = self.state is GroupState.PREPARING_REBALANCE
        if preparing and not (self._gathering or self._awaited or self._roster.pending):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with those who have joined, and static members who may yet come back."""
        for member in list(self._members.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._drop(member)
        if not self._members:
            self._become_empty(now_ms)
            return
        self._deadline_ms = now_ms + self._roster.longest_rebalance_ms()
        self.due_ms = min(self.due_ms, self._deadline_ms)
        joined = [member for member in self._members.values() if member.join_ticket is not None]
        if not joined:
            # Static members alone, and none is there to lead: wait until one comes, or their sessions end.
            return
        self._gathering = False
        if all(member.member_id != self.leader_id for member in joined):
            self.leader_id = joined[0].member_id
        self.generation += 1
        self.protocol = self._roster.choose_protocol()
        self._move(Cause.GATHERED)
        self._awaited.clear()
        for member in joined:
            assert member.join_ticket is not None, "it has joined"
            self._answers.append(Answer(member.join_ticket, self._joined(member)))
            member.join_ticket, member.is_new = None, False
            self._awaited.add(member.member_id)
            self._expect(member, now_ms + member.session_timeout_ms)

    def _has_waited(self, now_ms: int) -> None:
        """The time for joining, or for syncing, is up."""
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._gathering and self._company_came and now_ms < self._gathering_until_ms:
                # Where one has just come, more may follow; a rebalance for each would cost them all more.
                self._company_came = False
                delay_ms = self._settings.initial_rebalance_delay_ms
                self._deadline_ms = min(now_ms + delay_ms, self._gathering_until_ms)
            else:
                self._complete_join(now_ms)
            return
        self._deadline_ms = math.inf
        for member_id in tuple(self._awaited):
            self._remove(self._members[member_id], now_ms, f"{member_id} has sent no SyncGroup")

    def _become_empty(self, now_ms: int) -> None:
        self.generation += 1  # so that nobody of the last one is current any more
        self.protocol = ""
        self.leader_id = None
        self.empty_since_ms = now_ms
        self._awaited.clear()
        self._deadline_ms = math.inf
        self._gathering = False
        self.due_ms = min(self.due_ms, now_ms + IDLE_MS_MAX)
        self._move(Cause.EMPTIED)

    # --- syncing -------------------------------------------------------------------------------------

    def _syncs(self, ticket: Ticket, request: Syncing, now_ms: int) -> GroupRefusal | None:
        """Do it, and park or answer; or say why not."""
        member = self._current_member(request.member_id, request.instance_id, request.generation)
        if isinstance(member, GroupRefusal):
            return member
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupRefusal.REBALANCE_IN_PROGRESS
        agreed = self._roster.protocol_type, self.protocol
        if (request.protocol_type or agreed[0], request.protocol or agreed[1]) != agreed:
            return GroupRefusal.INCONSISTENT_PROTOCOL
        if self.state is GroupState.STABLE:
            self._awaited.discard(member.member_id)
            self._heard_of(member, now_ms)
            self._answers.append(Answer(ticket, self._synced(member)))
            return None
        leads = member.member_id == self.leader_id
        if leads and any(len(each) > MEMBER_BYTES_MAX for each in request.assignments.values()):
            return GroupRefusal.TOO_LARGE
        if member.sync_ticket is not None:
            # Sent again on another connection; nobody waits for the first one any more.
            self._answers.append(Answer(member.sync_ticket, GroupRefusal.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        member.deadline_ms = math.inf
        self._awaited.discard(member.member_id)
        if leads:
            self._settle(request, now_ms)
        return None

    def _settle(self, request: Syncing, now_ms: int) -> None:
        """Every member gets what the leader has for it; who is left out gets nothing to read."""
        self._move(Cause.ASSIGNED)
        for member in self._members.values():
            self._roster.assign(member, request.assignments.get(member.member_id, b""))
            if member.sync_ticket is not None:
                self._answers.append(Answer(member.sync_ticket, self._synced(member)))
                member.sync_ticket = None
                self._expect(member, now_ms + member.session_timeout_ms)

    def _synced(self, member: Member) -> Synced:
        return Synced(self._roster.protocol_type, self.protocol, member.assignment)

    # --- going ---------------------------------------------------------------------------------------

    def _leaves(self, leaving: Leaving, now_ms: int) -> GroupRefusal | None:
        if leaving.member_id in self._roster.pending:
            self._forget_pending(leaving.member_id, now_ms)
            return None
        member: Member | GroupRefusal | None = None
        if leaving.member_id == NO_MEMBER_ID:
            # An operator sends a static member away, and need not know which process it is.
            member = self._roster.holder_of(leaving.instance_id)
        if member is None:
            member = self._roster.find(leaving.member_id, leaving.instance_id)
        if isinstance(member, GroupRefusal):
            return member
        self._remove(member, now_ms, f"{member.member_id} leaves")
        return None

    def _remove(self, member: Member, now_ms: int, reason: str) -> None:
        """A member is gone, and the others are to share what it read."""
        self._refuse_requests_of(member, GroupRefusal.UNKNOWN_MEMBER)
        self._drop(member)
        if self._members:
            self._rebalance(now_ms, reason)
        else:
            self._become_empty(now_ms)

    def _drop(self, member: Member) -> None:
        self._roster.drop(member)
        self._awaited.discard(member.member_id)

    def _forget_pending(self, member_id: str, now_ms: int) -> None:
        self._roster.unexpect(member_id)
        self._complete_if_gathered(now_ms)

    # --- the rest ------------------------------------------------------------------------------------

    def _current_member(self, member_id: str, instance_id: str | None, generation: int) -> Member | GroupRefusal:
        """The member that says to be this one, and knows the current generation; a refusal if it is or does not."""
        member = self._roster.find(member_id, instance_id)
        if isinstance(member, Member) and (generation != self.generation or generation == NO_GENERATION):
            return GroupRefusal.ILLEGAL_GENERATION
        return member

    def _topics_of(self, member: Member) -> frozenset[str] | None:
        """What it consumes, as far as the chosen strategy is told (before one is chosen: the one it likes most)."""
        if self._roster.protocol_type != CONSUMER:
            return None
        metadata = member.protocols.get(self.protocol)
        return subscribed_topics_untrusted(next(iter(member.protocols.values())) if metadata is None else metadata)

    def _park_join(self, member: Member, ticket: Ticket, now_ms: int) -> None:
        if member.join_ticket is not None:
            # Sent again on another connection; nobody waits for the first one any more.
            refused = JoinRefused(GroupRefusal.UNKNOWN_MEMBER, NO_MEMBER_ID)
            self._answers.append(Answer(member.join_ticket, refused))
        member.join_ticket = ticket
        self._awaited.discard(member.member_id)
        self._expect(member, now_ms + NEW_MEMBER_JOIN_MS if member.is_new else math.inf)

    def _heard_of(self, member: Member, now_ms: int) -> None:
        """Its session begins anew, unless one of its requests is parked: then others are waited for, not it."""
        if member.join_ticket is None and member.sync_ticket is None:
            self._expect(member, now_ms + member.session_timeout_ms)

    def _expect(self, member: Member, deadline_ms: float) -> None:
        member.deadline_ms = deadline_ms
        self.due_ms = min(self.due_ms, deadline_ms)

    def _refuse_requests_of(self, member: Member, refusal: GroupRefusal) -> None:
        if member.join_ticket is not None:
            self._answers.append(Answer(member.join_ticket, JoinRefused(refusal, NO_MEMBER_ID)))
        if member.sync_ticket is not None:
            self._answers.append(Answer(member.sync_ticket, refusal))
        member.join_ticket = member.sync_ticket = None

    def _move(self, cause: Cause) -> None:
        then = NEXT_STATE.get((self.state, cause))
        assert then is not None, f"{cause.name} cannot occur in {self.state.name}"
        self.state = then

    def _soonest_ms(self) -> float:
        """The earliest of all deadlines."""
        deadlines = [self._deadline_ms, *self._roster.pending.values()]
        deadlines += [member.deadline_ms for member in self._members.values()]
        if self.is_empty and self.state is not GroupState.DEAD:
            deadlines.append(self.empty_since_ms + IDLE_MS_MAX)
        return min(deadlines)

    def _taken_answers(self) -> Sequence[Answer]:
        answers, self._answers = self._answers, []
        return answers
