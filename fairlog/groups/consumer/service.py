"""The consumer groups of the new protocol (KIP-848) that this node coordinates: the trio shell around the machine.

    heartbeat ─▶ ConsumerGroup.beat ─▶ what is to be kept ─▶ persister ─▶ it is on disk ─▶ the answer

A heartbeat that changes nothing is answered at once, unless earlier changes of the group are on their way to the disk:
no answer tells more than what a start would go on with.

One task (`run`) sleeps until the first of all groups is due (`fairlog.groups.deadlines`). Which group is of which
protocol is not decided here (`fairlog.groups.node_groups`).

Memory. Groups, members and targets take from one budget, `CONSUMER_GROUPS_BYTES_MAX`; while it is spent, who wants to
join is told to try again later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from fairlog.groups.consumer import classic_members
from fairlog.groups.consumer.cluster_topics import ClusterTopics
from fairlog.groups.consumer.machine import ASSIGNORS, ConsumerGroup
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.states import ConsumerGroupState
from fairlog.groups.consumer.values import JOINING, Beat, Beaten, GroupSnapshot, Refused
from fairlog.groups.deadlines import Deadlines, clock_ms
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.interface import GroupOffsets, GroupRefusal, GroupsWithOffsets, is_group_id
from fairlog.groups.member import MEMBER_BYTES_MAX, bytes_of
from fairlog.groups.messages import Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.persisted_group import GroupWrite
from fairlog.groups.service import LocalGroups, ParkedRequest, answered
from fairlog.patterns import BadPattern

log = structlog.get_logger()

A = TypeVar("A")

CONSUMER_GROUPS_BYTES_MAX = 256 << 20
"""What all groups of the new protocol may take: room for a hundred thousand members."""


@dataclass(slots=True)
class Waiting:
    """An answer that waits until what it tells is kept."""

    number: int
    deliver: Callable[[], None]
    refuse: Callable[[GroupRefusal], None]


@dataclass(slots=True)
class Entry:
    """A group, and how it was when it was last looked at."""

    group: ConsumerGroup
    state: ConsumerGroupState = ConsumerGroupState.EMPTY
    size_bytes: int = 0
    empty_since_ms: int = 0
    """When (Unix ms) it last lost its last member."""
    waiting: list[Waiting] = field(default_factory=list[Waiting])


class ConsumerGroups:
    """All groups of one node. `run` has to run, for time to have its effect."""

    def __init__(
        self,
        settings_of: Callable[[str], ConsumerGroupSettings],
        topics: ClusterTopics,
        with_offsets: GroupsWithOffsets,
        classic: LocalGroups,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`settings_of` has what a group goes by, by its id, and is asked each time; `now_ms` is the Unix time.

        `classic` takes over groups that have members of the classic protocol alone.
        """
        self.settings_of = settings_of
        self.topics = topics
        self._with_offsets = with_offsets
        self._classic = classic
        self._unix_ms = now_ms
        self._entries: dict[str, Entry] = {}
        self._size_bytes = 0
        self._persister: GroupPersister | None = None
        self._deadlines = Deadlines()
        self._stopping = False

    def resume(self, persister: GroupPersister, kept: Mapping[str, GroupSnapshot]) -> None:
        """Go on with the groups that were kept before the start, and keep them with `persister`; before any request.

        Until this is called groups end with the run, and count as kept at once.
        """
        assert not self._entries, "groups have begun anew already"
        self._persister = persister
        for group_id, each in kept.items():
            group = ConsumerGroup.resumed(group_id, each, self.settings_of(group_id), self.topics, clock_ms())
            entry = self._entries[group_id] = Entry(group, group.state, empty_since_ms=self._unix_ms())
            self._settle(entry)
        members = sum(len(each.members) for each in kept.values())
        if members:
            log.info("consumer groups go on", groups=len(kept), members=members)

    async def run(self) -> None:
        """Do what time brings, until cancelled."""
        await self._deadlines.run(self._tick)

    def stop(self) -> None:
        """Refuse all that waits, and all that comes."""
        self._stopping = True
        for entry in self._entries.values():
            self._refuse_waiting(entry, GroupRefusal.STOPPING)

    # --- members -------------------------------------------------------------------------------------

    async def refusal_of(self, group_id: str, beat: Beat) -> Refused | None:
        """What is in the way of a heartbeat, whoever's group it is; a pattern is looked at meanwhile."""
        if not is_group_id(group_id):
            return Refused(GroupRefusal.INVALID_GROUP_ID, GroupRefusal.INVALID_GROUP_ID.value)
        if self._stopping:
            return Refused(GroupRefusal.STOPPING, GroupRefusal.STOPPING.value)
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            names = ", ".join(ASSIGNORS)
            return Refused(GroupRefusal.UNSUPPORTED_ASSIGNOR, f"there is no assignor {beat.assignor}, only {names}")
        if size_of(beat) > MEMBER_BYTES_MAX:
            return Refused(GroupRefusal.TOO_LARGE, GroupRefusal.TOO_LARGE.value)
        if beat.epoch == JOINING and self._size_bytes > CONSUMER_GROUPS_BYTES_MAX:
            return Refused(GroupRefusal.NO_ROOM, GroupRefusal.NO_ROOM.value)
        if beat.topic_regex:
            try:
                await self.topics.prepare(beat.topic_regex)
            except BadPattern as error:
                message = f"the pattern {beat.topic_regex[:100]!r} is not one of RE2's: {error}"
                return Refused(GroupRefusal.INVALID_REGEX, message)
        return None

    def beat(self, group_id: str, beat: Beat) -> ParkedRequest[Beaten | Refused]:
        """A member lives, joins, changes or leaves; `refusal_of` had nothing against it.

        A group is made for a member that joins.
        """
        entry = self._entries.get(group_id)
        if entry is None:
            if beat.epoch != JOINING:
                refusal = GroupRefusal.UNKNOWN_GROUP if beat.epoch < JOINING else GroupRefusal.UNKNOWN_MEMBER
                return answered(Refused(refusal, f"there is no consumer group {group_id}"))
            entry = self.begin(group_id)
        entry.group.settings = self.settings_of(group_id)
        answer = entry.group.beat(beat, clock_ms())
        return self._answer(entry, answer, lambda refusal: Refused(refusal, refusal.value))

    def join(self, group_id: str, request: Joining) -> ParkedRequest[Joined | JoinRefused]:
        """A member of the classic protocol joins a group of the new one."""
        size_bytes = bytes_of(request)
        refusal = None
        if self._stopping:
            refusal = GroupRefusal.STOPPING
        elif size_bytes > MEMBER_BYTES_MAX:
            refusal = GroupRefusal.TOO_LARGE
        elif self._size_bytes + size_bytes > CONSUMER_GROUPS_BYTES_MAX:
            refusal = GroupRefusal.NO_ROOM
        if refusal is not None:
            return answered(JoinRefused(refusal, request.member_id))
        entry = self._entries[group_id]
        answer = classic_members.join(entry.group, request, clock_ms())
        return self._answer(entry, answer, lambda refusal: JoinRefused(refusal, request.member_id))

    def sync(self, group_id: str, request: Syncing) -> ParkedRequest[Synced | GroupRefusal]:
        """A member of the classic protocol asks for its assignment."""
        if self._stopping:
            return answered(GroupRefusal.STOPPING)
        entry = self._entries[group_id]
        answer = classic_members.sync(entry.group, request, clock_ms())
        return self._answer(entry, answer, lambda refusal: refusal)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> GroupRefusal | None:
        """A member of the classic protocol lives."""
        entry = self._entries[group_id]
        answer = classic_members.heartbeat(entry.group, member_id, instance_id, generation, clock_ms())
        self._settle(entry)
        return answer

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> Sequence[GroupRefusal | None]:
        """Members of the classic protocol go."""
        entry = self._entries[group_id]
        outcome = classic_members.leave(entry.group, leaving, clock_ms())
        self._settle(entry)
        return outcome

    def _answer(self, entry: Entry, answer: A, refused: Callable[[GroupRefusal], A]) -> ParkedRequest[A]:
        """After whatever was asked of a group: what is to be answered, once it is kept."""
        self._settle(entry)
        number = entry.group.answer_number
        if number is None or self._entries.get(entry.group.group_id) is not entry:  # or it goes on by another protocol
            return answered(answer)
        parked = ParkedRequest[A]()
        entry.waiting.append(Waiting(number, lambda: parked.set(answer), lambda refusal: parked.set(refused(refusal))))
        return parked

    def begin(self, group_id: str, epoch: int = 0) -> Entry:
        """A group without members, whose epochs go on from this one."""
        group = ConsumerGroup(group_id, self.settings_of(group_id), self.topics, clock_ms(), epoch)
        entry = self._entries[group_id] = Entry(group, empty_since_ms=self._unix_ms())
        return entry

    def take_over(self, group_id: str, group: GroupSnapshot) -> None:
        """Go on with a group of the classic protocol, and its members."""
        made = ConsumerGroup.resumed(group_id, group, self.settings_of(group_id), self.topics, clock_ms())
        self._entries[group_id] = Entry(made, made.state, empty_since_ms=self._unix_ms())

    def hand_over(self, group_id: str) -> GroupSnapshot:
        """Give up a group, that goes on by the classic protocol. Who waits is to ask again."""
        entry = self._entries.pop(group_id)
        self._deadlines.forget(group_id)
        self._refuse_waiting(entry, GroupRefusal.REBALANCE_IN_PROGRESS)
        self._size_bytes -= entry.size_bytes
        return entry.group.snapshot()

    def _go_back(self, group_id: str) -> None:
        """Make a classic group of one that has classic members alone."""
        group = classic_members.to_classic_group(self.hand_over(group_id), self.topics)
        self._classic.take_over(group_id, group)
        log.info("consumer group becomes a classic group", group=group_id, members=len(group.members))

    # --- what others ask -----------------------------------------------------------------------------

    def get(self, group_id: str) -> ConsumerGroup | None:
        """The group; None if there is none of the new protocol."""
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group

    def known(self) -> Collection[str]:
        """The groups that have members, or had some lately."""
        return self._entries.keys()

    def empty_since_ms(self, group_id: str) -> int | None:
        """See `interface.Membership`."""
        entry = self._entries.get(group_id)
        return None if entry is None or not entry.group.is_empty else entry.empty_since_ms

    async def delete(self, group_id: str, offsets: GroupOffsets) -> GroupRefusal | None:
        """Forget a group that has no members, with its offsets, for good. Raises StorageFailure.

        As for classic groups; see `LocalGroups.delete`.
        """
        if not self._entries[group_id].group.is_empty:
            return GroupRefusal.NON_EMPTY_GROUP
        refusal = await offsets.delete(group_id)
        entry = self._entries.get(group_id)
        if refusal is None and entry is not None and entry.group.is_empty:
            entry.group.forget()
            self._settle(entry)
            if self._persister is not None:
                await self._persister.settled(group_id)
        return refusal

    # --- the machines --------------------------------------------------------------------------------

    def _tick(self, group_id: str, now_ms: int) -> None:
        entry = self._entries[group_id]
        for reason in entry.group.tick(now_ms):
            log.info("a member is removed", group=group_id, reason=reason)
        self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        """After whatever was done with a group: note how it is now, and let it be kept."""
        group = entry.group
        if group.state is not entry.state:
            self._log_move(entry)
            if group.state is ConsumerGroupState.EMPTY:
                entry.empty_since_ms = self._unix_ms()
            entry.state = group.state
        if classic_members.can_go_back(group):
            self._go_back(group.group_id)
            return
        write = group.take_write()
        if write is not None or group.is_empty:
            size_bytes = group.size_bytes
            self._size_bytes += size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes
        if group.is_forgotten or group.epoch == 0:
            self._size_bytes -= entry.size_bytes
            del self._entries[group.group_id]
            self._deadlines.forget(group.group_id)
            self._refuse_waiting(entry, GroupRefusal.UNKNOWN_MEMBER)
            if group.epoch > 0:
                self._with_offsets.members_left(group.group_id, entry.empty_since_ms)
        else:
            self._deadlines.bring_forward(group.group_id, group.due_ms)
        if write is not None:
            self._persist(entry, write)

    def _persist(self, entry: Entry, write: GroupWrite) -> None:
        told = functools.partial(self._told, entry, write.number)
        if self._persister is None:
            told(True)
        else:
            self._persister.persist(entry.group.group_id, write.group, told)

    def _told(self, entry: Entry, number: int, is_kept: bool) -> None:
        group = entry.group
        if self._entries.get(group.group_id) is not entry:
            return  # it was forgotten, and no one waits
        if is_kept:
            group.kept(number)
            due = [each for each in entry.waiting if each.number <= number]
            entry.waiting = [each for each in entry.waiting if each.number > number]
            for each in due:
                each.deliver()
        elif group.not_kept(number, clock_ms()):
            self._refuse_waiting(entry, GroupRefusal.NOT_KEPT)
            self._settle(entry)

    def _refuse_waiting(self, entry: Entry, refusal: GroupRefusal) -> None:
        waiting, entry.waiting = entry.waiting, []
        for each in waiting:
            each.refuse(refusal)

    def _log_move(self, entry: Entry) -> None:
        group = entry.group
        if group.state is ConsumerGroupState.STABLE:
            log.info(
                "consumer group is stable",
                group=group.group_id,
                epoch=group.epoch,
                members=len(group.members),
                assignor=group.assignor,
            )
        elif group.state is ConsumerGroupState.EMPTY:
            log.info("consumer group is empty", group=group.group_id, epoch=group.epoch)


def size_of(beat: Beat) -> int:
    """What the names in a heartbeat take of the node's memory, roughly."""
    names = (beat.member_id, beat.instance_id or "", beat.rack_id or "", beat.topic_regex or "")
    return sum(map(len, names)) + sum(len(name) + 64 for name in beat.topic_names or ())
