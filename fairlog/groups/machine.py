"""The state machine of one consumer group: Kafka's classic group protocol, without I/O and without a clock.

How it works. Members agree on who reads what in *generations*. When someone comes, changes or goes, the group prepares
a rebalance: it parks the JoinGroup of each member until all are there, or the time is up; then it numbers a new
generation, picks a strategy that all know and a leader, and answers them all. The leader decides; its SyncGroup brings
the assignments, and the SyncGroups of the others, parked so far, are answered with theirs. From then on members send
heartbeats, and learn from the answers that the next rebalance is due.

    members ─▶ join, sync, heartbeat, leave ─┐
    connections that break ─▶ hang_up ───────┼─▶ Group ─▶ answers, by ticket
    time ─▶ tick, due_ms ────────────────────┤     │
    what was to be kept is ─▶ kept, not_kept ┘     └────▶ take_write: what is to be kept over a restart

`states.TABLE` has the states and what leads from one to the other; all moves go through `_move`. A method that may
answer parked requests returns all answers that are due by it. Time comes in as `now_ms`, on any clock that does
not go backwards. The machine decides what follows from what; what it decides about has modules of its own:

    roster.py        who is in, and who is about to be
    generation.py    what they have agreed on, and how it is told
    waiting.py       whom the group waits for, and until when
    parking.py       which requests wait, and the answers that are due

After each of these calls the shell takes what the group wants kept, and says when it is. A generation is kept with its
assignments, before anybody is told of them; so whatever a member was told holds after a restart, too, which begins
with `resumed`.

What it keeps:

* Each ticket is answered once, unless its connection breaks first.
* One generation is current, and numbers only grow. Who names another, or a member id that is not (or no longer) a
  member's, gets no assignment and commits no offsets.
* The leader is a member. A member is not past its deadline after a `tick`: neither for its heartbeat, nor for joining
  again, nor for the SyncGroup that follows.
* Nobody waits for who is known to be gone. There it goes beyond Kafka, which does not see connections: `hang_up`.
* Who is told what he reads, or that he has taken a static member's place, is in the group that is kept.

It does not know what an assignment means (a strategy may be eager or cooperative), nor where groups are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlog.groups.generation import Generation
from fairlog.groups.interface import GroupDescription, GroupOverview, GroupRefusal, MemberClient
from fairlog.groups.member import MEMBER_BYTES_MAX, Member, bytes_of
from fairlog.groups.messages import NO_MEMBER_ID, Answer, Joining, JoinRefused, Leaving, Syncing, Ticket
from fairlog.groups.parking import Parking
from fairlog.groups.persisted_group import GroupWrite, PersistedClassicGroup
from fairlog.groups.roster import Roster
from fairlog.groups.settings import GroupSettings
from fairlog.groups.states import NEXT_STATE, Cause, GroupState
from fairlog.groups.waiting import Waiting

GROUP_BYTES = 2_048
"""What a group takes beside its members, roughly."""


class Group:
    """One group. `now_ms` is the time of its first request."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.reason = ""
        """Why the last rebalance began, for log lines."""
        self._settings = settings
        self._roster = Roster()
        self._members = self._roster.members
        self._current = Generation(self._roster)
        self._parking = Parking()
        self._waiting = Waiting(self._roster, settings, now_ms)
        self._write_number = 0
        self._to_write: GroupWrite | None = None
        """What the shell has yet to take."""
        self._is_kept = False
        """Whether something of it may be kept."""
        self._deciding: int | None = None
        """The number under which the leader's assignments are being kept; the group is stable when they are."""

    @classmethod
    def resumed(cls, group_id: str, kept: PersistedClassicGroup, settings: GroupSettings, now_ms: int) -> Group:
        """The group as it was kept before a restart; its members' sessions begin now."""
        group = cls(group_id, settings, now_ms)
        group._is_kept = True
        group._roster.protocol_type = kept.protocol_type
        group._current.resume(kept)
        if kept.members:
            for each in kept.members:
                member = Member.resumed(each, kept.protocol_type)
                group._roster.enter(member, kept.protocol_type)
                group._waiting.begin_session(member, now_ms)
            group._move(Cause.RESUMED)
        return group

    # --- requests ------------------------------------------------------------------------------------

    def join(self, ticket: Ticket, request: Joining, now_ms: int) -> Sequence[Answer]:
        """A member wants in, again or for the first time."""
        refusal = self._joins(ticket, request, now_ms)
        if refusal is not None:
            self._parking.answer(ticket, JoinRefused(refusal, request.member_id))
        return self._parking.take()

    def sync(self, ticket: Ticket, request: Syncing, now_ms: int) -> Sequence[Answer]:
        """A member asks for its assignment; the leader brings all of them."""
        refusal = self._syncs(ticket, request, now_ms)
        if refusal is not None:
            self._parking.answer(ticket, refusal)
        return self._parking.take()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> GroupRefusal | None:
        """A member lives. REBALANCE_IN_PROGRESS tells it to join again; that is a heartbeat, too."""
        member = self._current.find(member_id, instance_id, generation)
        if isinstance(member, GroupRefusal):
            return member
        self._waiting.heard_of(member, now_ms)
        return GroupRefusal.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else None

    def leave(self, leaving: Sequence[Leaving], now_ms: int) -> tuple[Sequence[GroupRefusal | None], Sequence[Answer]]:
        """Members go, each for itself or sent away together; a refusal, or None, for each."""
        outcome = [self._leaves(each, now_ms) for each in leaving]
        return outcome, self._parking.take()

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool, now_ms: int
    ) -> GroupRefusal | None:
        """Whether offsets of this sender are taken; see `interface.Membership`. Kafka's `validateOffsetCommit`."""
        if generation < 0 and not self._members:
            return None
        if generation < 0 and member_id == NO_MEMBER_ID and instance_id is None:
            # Versions of TxnOffsetCommit before 3 do not tell who sends them.
            return None if transactional else GroupRefusal.UNKNOWN_MEMBER
        member = self._current.find(member_id, instance_id, generation)
        if isinstance(member, GroupRefusal):
            return member
        if transactional:
            return None
        if self.state is GroupState.COMPLETING_REBALANCE:
            # Whose partitions these are is just being decided. It hears so, and commits or gives up afterwards.
            return GroupRefusal.REBALANCE_IN_PROGRESS
        self._waiting.heard_of(member, now_ms)
        return None

    def hang_up(self, ticket: Ticket, now_ms: int) -> Sequence[Answer]:
        """The connection on which this parked request came is gone, and with it, perhaps, the member.

        In a JoinGroup: who never was a member is forgotten. A static member is not waited for; it stays until its
        session ends, as if it did not join again. Any other has HANG_UP_GRACE_MS to come back. In a SyncGroup: its
        session begins anew. Nothing happens if the request has been answered.
        """
        member = Parking.find(self._members.values(), ticket)
        if member is None:
            return ()
        if member.sync_ticket == ticket:
            member.sync_ticket = None
            self._waiting.awaited.add(member.member_id)
            self._waiting.begin_session(member, now_ms)
            return ()
        member.join_ticket = member.in_place = None
        if member.is_new:
            self._remove(member, now_ms, "a joining client has hung up")
        else:
            self._waiting.has_hung_up(member, now_ms)
        return self._parking.take()

    def tick(self, now_ms: int) -> Sequence[Answer]:
        """Do what time alone brings, and set `due_ms` anew."""
        for member_id in [each for each, until_ms in self._roster.pending.items() if until_ms <= now_ms]:
            self._forget_pending(member_id, now_ms)
        for member in [each for each in self._members.values() if each.deadline_ms <= now_ms]:
            # The removal of one may complete the rebalance that a new member has waited for in vain so far.
            if member.deadline_ms <= now_ms:
                self._remove(member, now_ms, f"{member.member_id} was not heard of")
        if self._waiting.until_ms <= now_ms:
            self._has_waited(now_ms)
        if self.is_empty and now_ms >= self._waiting.idle_until_ms:
            self.forget()
        self._waiting.due_ms = self._waiting.soonest_ms()
        return self._parking.take()

    def refuse_parked(self, refusal: GroupRefusal) -> Sequence[Answer]:
        """Answer all requests that wait. The group is of no use afterwards."""
        self._deciding = None
        for member in self._members.values():
            self._parking.refuse(member, refusal)
        return self._parking.take()

    def forget(self) -> None:
        """The group ends; it `is_empty`."""
        assert self.is_empty, "somebody is about to join"
        self._move(Cause.FORGOTTEN)
        self._waiting.for_nothing()
        if self._is_kept:
            self._persist(None)

    def begin_anew(self, now_ms: int, reason: str) -> Sequence[Answer]:
        """The members, who are of another group so far, are gathered; the group is to be kept as it is."""
        self._persist(self._current.to_persist())
        self._rebalance(now_ms, reason)
        return self._parking.take()

    # --- what is kept of it --------------------------------------------------------------------------

    def take_write(self) -> GroupWrite | None:
        """What is to be kept of the group from now on; None if that has not changed since the last call."""
        write, self._to_write = self._to_write, None
        return write

    def kept(self, number: int, now_ms: int) -> Sequence[Answer]:
        """What was to be kept under this number is on disk, and so is, or is superseded, all before it."""
        for member in self._members.values():
            if member.in_place is not None and member.in_place[0] <= number:
                self._parking.answer_join(member, member.in_place[1])
                self._waiting.begin_session(member, now_ms)
        if self._deciding is not None and self._deciding <= number:
            self._deciding = None
            self._move(Cause.ASSIGNED)
            for member in self._members.values():
                if member.sync_ticket is not None:
                    self._parking.answer_sync(member, self._current.synced(member))
                    self._waiting.begin_session(member, now_ms)
        return self._parking.take()

    def not_kept(self, number: int, now_ms: int) -> Sequence[Answer]:
        """The disk has refused what was to be kept under this number: whoever waits for it is refused.

        Assignments that are not kept are nobody's: the members are gathered anew.
        """
        for member in self._members.values():
            if member.in_place is not None and member.in_place[0] <= number:
                self._parking.refuse(member, GroupRefusal.NOT_KEPT)
                self._waiting.begin_session(member, now_ms)
        if self._deciding is not None and self._deciding <= number:
            for member in self._members.values():
                if member.sync_ticket is not None:
                    self._parking.refuse(member, GroupRefusal.NOT_KEPT)
                    self._waiting.heard_of(member, now_ms)
            self._rebalance(now_ms, "its assignments could not be kept")
        return self._parking.take()

    def _persist(self, group: PersistedClassicGroup | None) -> int:
        """Ask the shell to keep this; answers its number."""
        self._write_number += 1
        self._to_write = GroupWrite(self._write_number, group)
        self._is_kept = group is not None
        return self._write_number

    # --- what it shows -------------------------------------------------------------------------------

    @property
    def due_ms(self) -> float:
        """When `tick` is to be called next, at the latest; there may be nothing to do yet."""
        return self._waiting.due_ms

    @property
    def generation(self) -> int:
        """The number of the current generation; 0 before the first one."""
        return self._current.number

    @property
    def protocol(self) -> str:
        """The strategy that the members agreed on; empty before they have."""
        return self._current.protocol

    @property
    def leader_id(self) -> str | None:
        return self._current.leader_id

    @property
    def is_empty(self) -> bool:
        """Whether it has neither members nor those who are about to join."""
        return self._roster.is_empty

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
        return self._current.subscribed()

    def to_persist(self) -> PersistedClassicGroup:
        """The current generation, with what each member reads in it."""
        return self._current.to_persist()

    def overview(self) -> GroupOverview:
        return GroupOverview(self.group_id, self.state, self._roster.protocol_type)

    def describe(self) -> GroupDescription:
        """What of it is shown depends on its state; see `Generation.describe`."""
        return self._current.describe(self.group_id, self.state)

    def client_of(self, member_id: str) -> MemberClient | None:
        """Who it is that is a member under this id; None if nobody is."""
        member = self._members.get(member_id)
        return None if member is None else MemberClient(member.client_id, member.client_host)

    # --- joining -------------------------------------------------------------------------------------

    def _joins(self, ticket: Ticket, request: Joining, now_ms: int) -> GroupRefusal | None:
        """Do it, and park or answer; or say why not."""
        settings, roster = self._settings, self._roster
        if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
            return GroupRefusal.INVALID_SESSION_TIMEOUT
        if bytes_of(request) > MEMBER_BYTES_MAX:
            return GroupRefusal.TOO_LARGE
        member = roster.find_joining(request)
        if isinstance(member, GroupRefusal):
            return member
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
            self._waiting.give_id(request.new_member_id, request.session_timeout_ms, now_ms)
            refused = JoinRefused(GroupRefusal.MEMBER_ID_REQUIRED, request.new_member_id)
            self._parking.answer(ticket, refused)
        else:
            self._add(request.new_member_id, ticket, request, now_ms)
        return None

    def _add(self, member_id: str, ticket: Ticket, request: Joining, now_ms: int) -> None:
        member = Member.of(member_id, request)
        self._roster.enter(member, request.protocol_type)
        self._park_join(member, ticket, now_ms)
        self._waiting.company_comes()
        self._rebalance(now_ms, f"{member_id} joins")

    def _rejoin(self, member: Member, ticket: Ticket, request: Joining, now_ms: int) -> None:
        member.is_back = True
        preparing = self.state is GroupState.PREPARING_REBALANCE
        # A leader asks for a rebalance by joining again: it has seen that there are more partitions, say.
        leads = self.state is GroupState.STABLE and self._current.is_led_by(member)
        if preparing or leads or not member.says_the_same(request):
            self._roster.update(member, request)
            self._park_join(member, ticket, now_ms)
            self._rebalance(now_ms, f"{member.member_id} {'leads and joins again' if leads else 'has changed'}")
        else:
            # It may not have received the answer to its first JoinGroup.
            self._waiting.heard_of(member, now_ms)
            self._parking.answer(ticket, self._current.joined(member))

    def _replace(self, old: Member, ticket: Ticket, request: Joining, now_ms: int) -> None:
        """A static member is back with a new process: it gets its predecessor's place, and that one is fenced."""
        self._parking.refuse(old, GroupRefusal.FENCED_INSTANCE)
        awaited, led = old.member_id in self._waiting.awaited, self._current.is_led_by(old)
        topics, protocol_type = self._current.topics_of(old), self._roster.protocol_type
        self._drop(old)
        member = Member.of(request.new_member_id, request)
        member.is_new = old.is_new
        self._roster.enter(member, request.protocol_type)
        self._roster.assign(member, old.assignment)
        if led:
            self._current.leader_id = member.member_id
        fits = (
            self.state is GroupState.STABLE
            and protocol_type == request.protocol_type
            and topics == self._current.topics_of(member)
            and self.protocol == self._roster.choose_protocol()
        )
        if fits:
            if awaited:
                self._waiting.awaited.add(member.member_id)
            # Told before it is kept, it would after a crash be fenced by its predecessor.
            joined = self._current.joined_in_place(member, old, request, led)
            self._parking.park_join_in_place(member, ticket, self._persist(self._current.to_persist()), joined)
        else:
            self._park_join(member, ticket, now_ms)
            self._rebalance(
                now_ms, f"{member.instance_id} is back, before there was an assignment or with other wishes"
            )

    # --- from one generation to the next -------------------------------------------------------------

    def _rebalance(self, now_ms: int, reason: str) -> None:
        """Gather the members anew, if that is not under way; go on if all are there."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self.reason = reason
            if self.state is GroupState.COMPLETING_REBALANCE:
                self._deciding = None
                self._refuse_syncs(now_ms)
            for member in self._members.values():
                member.in_place = None  # it has joined: it gets its answer with the next generation
            self._waiting.for_joins(now_ms, first=self.state is GroupState.EMPTY)
            self._move(Cause.REBALANCE)
        self._complete_if_gathered(now_ms)

    def _refuse_syncs(self, now_ms: int) -> None:
        for member in self._members.values():
            if member.sync_ticket is not None:
                self._parking.answer_sync(member, GroupRefusal.REBALANCE_IN_PROGRESS)
                self._waiting.heard_of(member, now_ms)

    def _complete_if_gathered(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self._waiting.all_are_there:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with those who have joined, and static members who may yet come back."""
        for member in list(self._members.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._drop(member)
        if not self._members:
            self._become_empty(now_ms)
            return
        self._waiting.begin_anew(now_ms)
        joined = [member for member in self._members.values() if member.join_ticket is not None]
        if not joined:
            # Static members alone, and none is there to lead: wait until one comes, or their sessions end.
            return
        self._current.begin(joined)
        self._move(Cause.GATHERED)
        for member in joined:
            self._parking.answer_join(member, self._current.joined(member))
            member.is_new = False
        self._waiting.for_syncs(joined, now_ms)

    def _has_waited(self, now_ms: int) -> None:
        """The time for joining, or for syncing, is up."""
        if self.state is GroupState.PREPARING_REBALANCE:
            if not self._waiting.gathers_on(now_ms):
                self._complete_join(now_ms)
            return
        self._waiting.is_over()
        for member_id in tuple(self._waiting.awaited):
            self._remove(self._members[member_id], now_ms, f"{member_id} has sent no SyncGroup")

    def _become_empty(self, now_ms: int) -> None:
        self._current.end()
        self._waiting.for_nobody(now_ms)
        self._deciding = None
        self._move(Cause.EMPTIED)
        if self._is_kept:
            self._persist(self._current.to_persist())

    # --- syncing -------------------------------------------------------------------------------------

    def _syncs(self, ticket: Ticket, request: Syncing, now_ms: int) -> GroupRefusal | None:
        """Do it, and park or answer; or say why not."""
        member = self._current.find(request.member_id, request.instance_id, request.generation)
        if isinstance(member, GroupRefusal):
            return member
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupRefusal.REBALANCE_IN_PROGRESS
        if not self._current.is_what_it_means(request):
            return GroupRefusal.INCONSISTENT_PROTOCOL
        if self.state is GroupState.STABLE:
            self._waiting.awaited.discard(member.member_id)
            self._waiting.heard_of(member, now_ms)
            self._parking.answer(ticket, self._current.synced(member))
            return None
        leads = self._current.is_led_by(member)
        if leads and any(len(each) > MEMBER_BYTES_MAX for each in request.assignments.values()):
            return GroupRefusal.TOO_LARGE
        self._parking.park_sync(member, ticket)
        self._waiting.has_synced(member)
        if leads and self._deciding is None:
            self._settle(request)
        return None

    def _settle(self, request: Syncing) -> None:
        """Every member gets what the leader has for it, once that is kept; who is left out gets nothing to read."""
        for member in self._members.values():
            self._roster.assign(member, request.assignments.get(member.member_id, b""))
        self._deciding = self._persist(self._current.to_persist())

    # --- going ---------------------------------------------------------------------------------------

    def _leaves(self, leaving: Leaving, now_ms: int) -> GroupRefusal | None:
        if leaving.member_id in self._roster.pending:
            self._forget_pending(leaving.member_id, now_ms)
            return None
        member = self._roster.find_leaving(leaving)
        if isinstance(member, GroupRefusal):
            return member
        self._remove(member, now_ms, f"{member.member_id} leaves")
        return None

    def _remove(self, member: Member, now_ms: int, reason: str) -> None:
        """A member is gone, and the others are to share what it read."""
        self._parking.refuse(member, GroupRefusal.UNKNOWN_MEMBER)
        self._drop(member)
        if self._members:
            self._rebalance(now_ms, reason)
        else:
            self._become_empty(now_ms)

    def _drop(self, member: Member) -> None:
        self._roster.drop(member)
        self._waiting.awaited.discard(member.member_id)

    def _forget_pending(self, member_id: str, now_ms: int) -> None:
        self._roster.unexpect(member_id)
        self._complete_if_gathered(now_ms)

    # --- the rest ------------------------------------------------------------------------------------

    def _park_join(self, member: Member, ticket: Ticket, now_ms: int) -> None:
        self._parking.park_join(member, ticket)
        self._waiting.has_joined(member, now_ms)

    def _move(self, cause: Cause) -> None:
        then = NEXT_STATE.get((self.state, cause))
        assert then is not None, f"{cause.name} cannot occur in {self.state.name}"
        self.state = then
