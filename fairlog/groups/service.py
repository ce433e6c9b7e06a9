"""The membership of all groups that this node coordinates: the trio shell around `machine.Group`.

It gives the machines their time and their tickets, parks the requests that wait, and wakes them with their answers.
One task (`run`) sleeps until the first of all groups is due (`deadlines.py`).

What a group wants kept over a restart goes to the persister (`_persist`), whose word that it is on disk comes back as
one more call of the machine (`_told`). A start begins with what was kept (`resume`), and members go on (decision 40).

Memory. Groups, members, metadata and assignments take from one budget, `MEMBERSHIP_BYTES_MAX`; while it is spent, who
wants to join is told to try again later. Of a parked request nothing is held but its ticket: what it said is in the
group. When its connection breaks it is given up, and the group hears of it (`Group.hang_up`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog
import trio

from fairlog.groups.deadlines import Deadlines, clock_ms
from fairlog.groups.interface import (
    GroupDescription,
    GroupOffsets,
    GroupOverview,
    GroupRefusal,
    GroupsWithOffsets,
    MemberClient,
    is_group_id,
)
from fairlog.groups.machine import Group
from fairlog.groups.member import bytes_of
from fairlog.groups.messages import (
    NO_MEMBER_ID,
    Answer,
    Joined,
    Joining,
    JoinRefused,
    Leaving,
    Synced,
    Syncing,
    Ticket,
)
from fairlog.groups.persisted_group import GroupWrite, PersistedClassicGroup, PersistedGroup
from fairlog.groups.settings import GroupSettings
from fairlog.groups.states import GroupState

log = structlog.get_logger()

A = TypeVar("A")

MEMBERSHIP_BYTES_MAX = 256 << 20
"""What all groups of the node may take: room for a hundred thousand members with a little metadata each."""


class GroupPersister(Protocol):
    """What keeps groups over a restart; `fairlog.groups.group_persister.GroupPersister` is one."""

    def persist(self, group_id: str, group: PersistedGroup | None, told: Callable[[bool], None]) -> None: ...

    async def settled(self, group_id: str) -> None: ...


@dataclass(slots=True)
class _Entry:
    """A group, and how it was when it was last looked at."""

    group: Group
    state: GroupState = GroupState.EMPTY
    size_bytes: int = 0
    rebalancing_since_s: float = 0.0
    """When the rebalance began that is under way, or the last one."""
    empty_since_ms: int = 0
    """When (Unix ms) it last lost its last member."""


class ParkedRequest(Generic[A]):
    """A JoinGroup or SyncGroup that waits for its answer, or has it."""

    __slots__ = ("_answer", "_answered", "_on_give_up")

    def __init__(self, on_give_up: Callable[[], None] | None = None) -> None:
        self._answer: A | None = None
        self._answered = trio.Event()
        self._on_give_up = on_give_up

    def set(self, answer: A) -> None:
        """Wake who waits for it."""
        self._answer = answer
        self._answered.set()

    async def answer(self) -> A:
        """See `fairlog.broker.Parked`."""
        await self._answered.wait()
        assert self._answer is not None, "it is set with the event"
        return self._answer

    def give_up(self) -> None:
        """See `fairlog.broker.Parked`."""
        on_give_up, self._on_give_up = self._on_give_up, None
        if on_give_up is not None and not self._answered.is_set():
            on_give_up()


class LocalGroups:
    """All groups of one node. `run` has to run, for time to have its effect."""

    def __init__(
        self,
        settings: GroupSettings,
        with_offsets: GroupsWithOffsets,
        *,
        now_ms: Callable[[], int],
        new_suffix: Callable[[], str],
    ) -> None:
        """`now_ms` is the Unix time; `new_suffix` makes something unique, for member ids."""
        self._settings = settings
        self._with_offsets = with_offsets
        self._unix_ms = now_ms
        self._new_suffix = new_suffix
        self._entries: dict[str, _Entry] = {}
        self._size_bytes = 0
        self._persister: GroupPersister | None = None
        self._tickets = itertools.count(1)
        self._parked: dict[Ticket, ParkedRequest[Any]] = {}
        self._deadlines = Deadlines()
        self._stopping = False

    def resume(self, persister: GroupPersister, kept: Mapping[str, PersistedClassicGroup]) -> None:
        """Go on with the groups that were kept before the start, and keep them with `persister`; before any request.

        Until this is called groups end with the run, and count as kept at once.
        """
        assert not self._entries, "groups have begun anew already"
        self._persister = persister
        for group_id, each in kept.items():
            group = Group.resumed(group_id, each, self._settings, clock_ms())
            entry = self._entries[group_id] = _Entry(group, group.state, empty_since_ms=self._unix_ms())
            self._settle(entry, ())
        members = sum(len(each.members) for each in kept.values())
        if members:
            log.info("groups go on", groups=len(kept), members=members)

    async def run(self) -> None:
        """Do what time brings, until cancelled."""
        await self._deadlines.run(self._tick)

    def stop(self) -> None:
        """Answer all that is parked, and park nothing any more. The groups are of no use afterwards."""
        self._stopping = True
        for entry in self._entries.values():
            self._deliver(entry.group.refuse_parked(GroupRefusal.STOPPING))

    # --- members -------------------------------------------------------------------------------------

    def new_member_id(self, name: str) -> str:
        """An id that was never given before; it begins with the name, for people."""
        return f"{name}-{self._new_suffix()}"

    def join(self, group_id: str, request: Joining) -> ParkedRequest[Joined | JoinRefused]:
        """A member wants in; the answer comes when it is in a generation of the group, or refused.

        Given up: the client is gone. A new member is forgotten; another one may come back for a while.
        """
        refusal = self._refused(group_id, bytes_of(request))
        entry = self._entries.get(group_id)
        if refusal is None and entry is None and request.member_id != NO_MEMBER_ID:
            refusal = GroupRefusal.UNKNOWN_MEMBER
        if refusal is not None:
            return answered(JoinRefused(refusal, request.member_id))
        if entry is None:
            entry = self._entries[group_id] = _Entry(Group(group_id, self._settings, clock_ms()))
        ticket, parked = self._park(entry)
        self._settle(entry, entry.group.join(ticket, request, clock_ms()))
        return parked

    def sync(self, group_id: str, request: Syncing) -> ParkedRequest[Synced | GroupRefusal]:
        """A member asks for its assignment; the answer comes with the leader's, or when the next rebalance begins.

        Given up: the client is gone; the member has its session time-out to come back.
        """
        refusal = self._refused(group_id, sum(map(len, request.assignments.values())))
        entry = self._entries.get(group_id)
        if refusal is not None or entry is None:
            return answered(refusal or GroupRefusal.UNKNOWN_MEMBER)
        ticket, parked = self._park(entry)
        self._settle(entry, entry.group.sync(ticket, request, clock_ms()))
        return parked

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> GroupRefusal | None:
        """A member lives; REBALANCE_IN_PROGRESS asks it to join again."""
        if not is_group_id(group_id):
            return GroupRefusal.INVALID_GROUP_ID
        group = self._group(group_id)
        if group is None:
            return GroupRefusal.UNKNOWN_MEMBER
        return group.heartbeat(member_id, instance_id, generation, clock_ms())

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> Sequence[GroupRefusal | None] | GroupRefusal:
        """Members go; an outcome for each, or one refusal of the whole."""
        if not is_group_id(group_id):
            return GroupRefusal.INVALID_GROUP_ID
        entry = self._entries.get(group_id)
        if entry is None:
            return [GroupRefusal.UNKNOWN_MEMBER] * len(leaving)
        outcome, answers = entry.group.leave(leaving, clock_ms())
        self._settle(entry, answers)
        return outcome

    # --- what others ask -----------------------------------------------------------------------------

    def may_commit(
        self, group: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> GroupRefusal | None:
        """See `interface.Membership`."""
        known = self._group(group)
        if known is not None:
            return known.may_commit(member_id, instance_id, generation, transactional=transactional, now_ms=clock_ms())
        # A member of a group that was forgotten, by a restart for one, has to join again.
        return None if generation < 0 else GroupRefusal.ILLEGAL_GENERATION

    def is_empty(self, group: str) -> bool:
        """See `interface.Membership`."""
        known = self._group(group)
        return known is None or known.is_empty

    def empty_since_ms(self, group: str) -> int | None:
        """See `interface.Membership`."""
        entry = self._entries.get(group)
        if entry is None or not entry.group.is_empty or entry.group.generation == 0:
            return None
        return entry.empty_since_ms

    def subscribed(self, group: str) -> frozenset[str] | None:
        """See `interface.Membership`."""
        known = self._group(group)
        return frozenset() if known is None else known.subscribed()

    def known(self) -> Collection[str]:
        """See `interface.Membership`."""
        return self._entries.keys()

    def describe(self, group: str) -> GroupDescription | None:
        """See `interface.Membership`."""
        known = self._group(group)
        if known is not None:
            return known.describe()
        return GroupDescription(group, GroupState.EMPTY, "", "", ()) if group in self._with_offsets.groups() else None

    def client_of(self, group: str, member_id: str) -> MemberClient | None:
        """Who it is that is a member under this id; None if nobody is."""
        known = self._group(group)
        return None if known is None else known.client_of(member_id)

    def overviews(self) -> Sequence[GroupOverview]:
        """All groups that have members, had some lately, or have offsets."""
        found = [entry.group.overview() for entry in self._entries.values()]
        others = (group for group in self._with_offsets.groups() if group not in self._entries)
        return [*found, *(GroupOverview(group, GroupState.EMPTY, "") for group in others)]

    async def delete(self, group: str, offsets: GroupOffsets) -> GroupRefusal | None:
        """Forget a group that has no members, with its offsets, for good. Raises StorageFailure.

        Who joins in the meantime finds the group without offsets. Cancelled: the offsets are deleted or not. If the
        disk refuses at last, an empty group is there again after a restart, for as long as one is remembered.
        """
        known = self._group(group)
        if known is None and group not in self._with_offsets.groups():
            return GroupRefusal.UNKNOWN_GROUP
        if known is not None and not known.is_empty:
            return GroupRefusal.NON_EMPTY_GROUP
        refusal = await offsets.delete(group)
        entry = self._entries.get(group)
        if refusal is None and entry is not None and entry.group.is_empty:
            entry.group.forget()
            self._settle(entry, ())
            if self._persister is not None:
                await self._persister.settled(group)
        return refusal

    # --- a group that changes its protocol -----------------------------------------------------------

    def to_persist(self, group_id: str) -> PersistedClassicGroup:
        """A group's current generation."""
        return self._entries[group_id].group.to_persist()

    def hand_over(self, group_id: str) -> PersistedClassicGroup:
        """Give up a group, that goes on by the new protocol; answers its generation. Who waits has to join again."""
        entry = self._entries.pop(group_id)
        self._deadlines.forget(group_id)
        self._deliver(entry.group.refuse_parked(GroupRefusal.REBALANCE_IN_PROGRESS))
        self._size_bytes -= entry.size_bytes
        return entry.group.to_persist()

    def take_over(self, group_id: str, generation: PersistedClassicGroup) -> None:
        """Go on with a group of the new protocol; its members, if it has some, have to join again."""
        group = Group.resumed(group_id, generation, self._settings, clock_ms())
        entry = self._entries[group_id] = _Entry(group, group.state, empty_since_ms=self._unix_ms())
        answers = group.begin_anew(clock_ms(), "it was a consumer group") if generation.members else ()
        self._settle(entry, answers)

    # --- the machines --------------------------------------------------------------------------------

    def _group(self, group_id: str) -> Group | None:
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group

    def _refused(self, group_id: str, more_bytes: int) -> GroupRefusal | None:
        """What is in the way of a request that may be parked, whoever sends it."""
        if not is_group_id(group_id):
            return GroupRefusal.INVALID_GROUP_ID
        if self._stopping:
            return GroupRefusal.STOPPING
        if self._size_bytes + more_bytes > MEMBERSHIP_BYTES_MAX:
            return GroupRefusal.NO_ROOM
        return None

    def _park(self, entry: _Entry) -> tuple[Ticket, ParkedRequest[Any]]:
        ticket = Ticket(next(self._tickets))
        parked = self._parked[ticket] = ParkedRequest[Any](functools.partial(self._give_up, entry, ticket))
        return ticket, parked

    def _give_up(self, entry: _Entry, ticket: Ticket) -> None:
        del self._parked[ticket]
        self._settle(entry, entry.group.hang_up(ticket, clock_ms()))

    def _tick(self, group_id: str, now_ms: int) -> None:
        entry = self._entries[group_id]
        self._settle(entry, entry.group.tick(now_ms))

    def _settle(self, entry: _Entry, answers: Sequence[Answer]) -> None:
        """After whatever was done with a group: wake who is answered, and note how it is now."""
        self._deliver(answers)
        group = entry.group
        self._size_bytes += group.size_bytes - entry.size_bytes
        entry.size_bytes = group.size_bytes
        if group.state is not entry.state:
            self._log_move(entry)
            if group.state is GroupState.EMPTY:
                # Noted once: taken from two clocks at each question, the answer would not stay the same.
                entry.empty_since_ms = self._unix_ms()
            entry.state = group.state
        write = group.take_write()
        if group.state is GroupState.DEAD or group.never_was:
            self._size_bytes -= group.size_bytes
            del self._entries[group.group_id]
            self._deadlines.forget(group.group_id)
            if group.generation > 0:
                self._with_offsets.members_left(group.group_id, entry.empty_since_ms)
        else:
            self._deadlines.bring_forward(group.group_id, group.due_ms)
        if write is not None:
            self._persist(entry, write)

    def _persist(self, entry: _Entry, write: GroupWrite) -> None:
        told = functools.partial(self._told, entry, write.number)
        if self._persister is None:
            told(True)
        else:
            self._persister.persist(entry.group.group_id, write.group, told)

    def _told(self, entry: _Entry, number: int, is_kept: bool) -> None:
        group = entry.group
        if self._entries.get(group.group_id) is entry:  # else it was forgotten, and nobody waits
            self._settle(entry, (group.kept if is_kept else group.not_kept)(number, clock_ms()))

    def _deliver(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._parked.pop(answer.ticket).set(answer.what)

    def _log_move(self, entry: _Entry) -> None:
        group, now_s = entry.group, trio.current_time()
        if entry.state in (GroupState.STABLE, GroupState.EMPTY):
            entry.rebalancing_since_s = now_s
        if group.state is GroupState.STABLE:
            log.info(
                "group is stable",
                group=group.group_id,
                generation=group.generation,
                members=group.size,
                protocol=group.protocol,
                seconds=round(now_s - entry.rebalancing_since_s, 3),
                reason=group.reason,
            )
        elif group.state is GroupState.EMPTY:
            log.info("group is empty", group=group.group_id, generation=group.generation)


def answered(answer: A) -> ParkedRequest[A]:
    """What needs no waiting."""
    request = ParkedRequest[A]()
    request.set(answer)
    return request
