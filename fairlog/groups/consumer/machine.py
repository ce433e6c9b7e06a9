"""The state machine of one consumer group: KIP-848, without I/O and without a clock.

How it works. The group has an *epoch*, which grows with every change of its members, their subscriptions or the topics
they subscribe to. For each epoch an assignor makes a *target assignment*. Members are *reconciled* to it one by one,
each at its own pace, by their heartbeats: a member first gives up what is not in its target, then moves on to the new
epoch, then takes what the others have given up. No one waits for the group as a whole.

    heartbeats ─▶ beat ─▶ (epoch grows) ─▶ (a new target) ─▶ reconcile the member ─▶ its answer
    time ─▶ tick, due_ms                                                         └─▶ take_write

All that members are told is kept first: the shell takes what is to be kept after each call, and holds back every answer
until it is on disk (`kept`). If the disk refuses (`not_kept`), the group is again what it was when it was last kept.
A start goes on with `resumed`.

What it keeps:

* No partition is owned by two members. It is owned from the moment in which a member may be told to read it, until that
  member says that it gave it up, or is removed.
* Epochs only grow, the group's and each member's (but for a member that begins again, with nothing).
* A member that names another epoch than its own is fenced, unless it names the epoch before, and owns nothing but what
  it may (its last answer was lost).
* A heartbeat that was delayed on an earlier connection of a member changes nothing.

Not here: members of the classic protocol in a consumer group (`classic_members.py`), time and disk (`service.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fairlog.groups.consumer.assignor import Assignor, Subscriber
from fairlog.groups.consumer.ranges import assign_ranges
from fairlog.groups.consumer.reconciliation import is_reconciled, reconcile
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.states import ConsumerGroupState, MemberState
from fairlog.groups.consumer.topics import Topics
from fairlog.groups.consumer.uniform import assign_uniformly
from fairlog.groups.consumer.values import (
    AWAY,
    JOINING,
    LEAVING,
    NOTHING,
    Beat,
    Beaten,
    GroupSnapshot,
    Member,
    MemberView,
    Partitions,
    Refused,
)
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_index import Partition
from fairlog.groups.persisted_group import GroupWrite

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""By name; the first is for groups whose members do not say. Kafka's `group.consumer.assignors`."""

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))

IDLE_MS_MAX = 10 * 60 * 1000
"""How long a group without members is remembered: as long as a classic one (`fairlog.groups.waiting`)."""

GROUP_BYTES = 2_048
MEMBER_BYTES = 2_048
PARTITION_BYTES = 256
"""What a group, a member and a partition in a target take of the node's memory, roughly."""


@dataclass(slots=True)
class _Life:
    """What is known of a member and not kept."""

    session_ends_ms: float
    revokes_until_ms: float = math.inf
    """When it has to have given up what it was told to."""
    classic_until_ms: float = math.inf
    """When a member of the classic protocol has to have joined again, or asked for its assignment."""
    connection: int = 0
    """The latest that it was heard of by."""


class ConsumerGroup:
    """One group. Times are in ms, on a clock that does not go backwards."""

    def __init__(
        self, group_id: str, settings: ConsumerGroupSettings, topics: Topics, now_ms: int, epoch: int = 0
    ) -> None:
        self.group_id = group_id
        self.epoch = epoch
        """The group epoch; 0 if it never had a member."""
        self.members: dict[str, Member] = {}
        self.due_ms: float = now_ms + IDLE_MS_MAX
        """When `tick` is to be called next, at the latest; there may be nothing to do yet."""
        self.is_forgotten = False
        self.settings = settings
        """Those that hold from now on: the shell may put others in their place between two calls."""
        self.topics = topics
        self._assignment_epoch = epoch
        self._sizes: dict[str, int] = {}
        """The partitions of the topics that the target knows, by id."""
        self._generation_seen = -1
        """Of the topics, when they were last looked at."""
        self._targets: dict[str, Partitions] = {}
        self._instances: dict[str, str] = {}
        """Member ids by instance id."""
        self._owners: dict[Partition, str] = {}
        self._lives: dict[str, _Life] = {}
        self._idle_until_ms: float = now_ms + IDLE_MS_MAX
        self._changed = False
        self._write_number = 0
        self._sent: dict[int, GroupSnapshot] = {}
        """What is on its way to the disk, by number."""
        self._last_kept: GroupSnapshot | None = None
        self._kept_through = 0

    @classmethod
    def resumed(
        cls, group_id: str, kept: GroupSnapshot, settings: ConsumerGroupSettings, topics: Topics, now_ms: int
    ) -> ConsumerGroup:
        """The group as it was kept before a restart; its members' sessions begin now."""
        group = cls(group_id, settings, topics, now_ms)
        group._last_kept = kept
        group._restore(kept, now_ms)
        return group

    # --- requests ------------------------------------------------------------------------------------

    def beat(self, beat: Beat, now_ms: int) -> Beaten | Refused:
        """A member lives, joins, changes or leaves."""
        if beat.epoch in (LEAVING, AWAY):
            return self._leaves(beat, now_ms)
        before = self._find(beat)
        if isinstance(before, Refused):
            return before
        regex = before.topic_regex if beat.topic_regex is None else beat.topic_regex or None
        member = replace(
            before,
            instance_id=before.instance_id if beat.instance_id is None else beat.instance_id,
            rack_id=before.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            rebalance_timeout_ms=(
                before.rebalance_timeout_ms if beat.rebalance_timeout_ms is None else beat.rebalance_timeout_ms
            ),
            topic_names=before.topic_names if beat.topic_names is None else beat.topic_names,
            topic_regex=regex,
            assignor=before.assignor if beat.assignor is None else beat.assignor,
            classic=None,
        )
        member = self.advance(member, beat.owned, now_ms)
        self._lives[member.member_id].connection = beat.connection
        told = beat.epoch == JOINING or beat.is_full or member.assigned != before.assigned
        return Beaten(member.member_id, member.epoch, member.assigned if told else None)

    def tick(self, now_ms: int) -> Sequence[str]:
        """Do what time alone brings, and set `due_ms` anew; answers why members were removed, for log lines."""
        removed: list[str] = []
        for member_id, life in list(self._lives.items()):
            if life.session_ends_ms <= now_ms:
                removed.append(f"{member_id} was not heard of")
            elif life.classic_until_ms <= now_ms:
                removed.append(f"{member_id} did not join again, or ask for its assignment, in time")
            elif life.revokes_until_ms <= now_ms:
                removed.append(f"{member_id} did not give up its partitions in time")
            else:
                continue
            self.remove(member_id, now_ms)
        if self.is_empty and now_ms >= self._idle_until_ms:
            self.forget()
        deadlines = [
            min(life.session_ends_ms, life.revokes_until_ms, life.classic_until_ms) for life in self._lives.values()
        ]
        self.due_ms = min(deadlines, default=math.inf if self.is_forgotten else self._idle_until_ms)
        return removed

    def forget(self) -> None:
        """The group ends; it `is_empty`."""
        assert self.is_empty, "it has members"
        self.is_forgotten = self._changed = True

    # --- what is kept of it --------------------------------------------------------------------------

    def take_write(self) -> GroupWrite | None:
        """What is to be kept of the group from now on; None if that has not changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        self._write_number += 1
        if self.is_forgotten:
            return GroupWrite(self._write_number, None)
        snapshot = self._sent[self._write_number] = self.snapshot()
        return GroupWrite(self._write_number, snapshot)

    @property
    def answer_number(self) -> int | None:
        """The number under which all that it has answered so far is kept; None if it is on disk already."""
        return self._write_number if self._write_number > self._kept_through else None

    def kept(self, number: int) -> None:
        """What was to be kept under this number is on disk, and so is, or is superseded, all before it."""
        self._kept_through = number
        self._last_kept = self._sent.get(number, self._last_kept)
        for each in [sent for sent in self._sent if sent <= number]:
            del self._sent[each]

    def not_kept(self, number: int, now_ms: int) -> bool:
        """The disk has refused what was to be kept under this number. Whether the group is what it was before.

        Unless more is on its way, which has all of this in it.
        """
        self._sent.pop(number, None)
        if number != self._write_number:
            return False
        self._kept_through = number
        self._changed = False
        nothing = GroupSnapshot(0, 0, (), ())
        self._restore(nothing if self._last_kept is None else self._last_kept, now_ms)
        return True

    def _restore(self, kept: GroupSnapshot, now_ms: int) -> None:
        self.epoch, self._assignment_epoch = kept.group_epoch, kept.assignment_epoch
        self._sizes = dict(kept.topics)
        self._generation_seen = -1
        self.members, self._targets, self._instances, self._owners = {}, {}, {}, {}
        lives, self._lives = self._lives, {}
        for view in kept.members:
            member_id = view.member.member_id
            self._lives[member_id] = lives.get(member_id, _Life(now_ms))
            self._put(view.member, now_ms)
            self._targets[member_id] = view.target
            self.hear_of(view.member, now_ms)
        self._changed = False
        self.due_ms = now_ms

    # --- what it shows -------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_forgotten:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self._assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(is_reconciled(member, self._assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def allows_session(self, timeout_ms: int) -> bool:
        """Whether a member of the classic protocol may ask for this session time-out."""
        settings = self.settings
        return settings.classic_session_timeout_min_ms <= timeout_ms <= settings.classic_session_timeout_max_ms

    @property
    def is_full(self) -> bool:
        return len(self.members) >= self.settings.members_max

    @property
    def size_bytes(self) -> int:
        """What it takes of the node's memory, roughly."""
        return GROUP_BYTES + len(self._owners) * PARTITION_BYTES + sum(map(bytes_of, self.members.values()))

    @property
    def assignor(self) -> str:
        """The name of the assignor that most members wish; a draw goes to the first in `ASSIGNORS`."""
        votes = [member.assignor for member in self.members.values()]
        return max(ASSIGNORS, key=votes.count)

    def subscribed(self) -> frozenset[str]:
        """The names of the topics that its members consume; see `interface.Membership`."""
        return frozenset[str]().union(*map(self._names_of, self.members.values()))

    def snapshot(self) -> GroupSnapshot:
        views = (
            MemberView(member, self._targets.get(member_id, NOTHING)) for member_id, member in self.members.items()
        )
        return GroupSnapshot(self.epoch, self._assignment_epoch, tuple(sorted(self._sizes.items())), tuple(views))

    def find_epoch(self, member_id: str) -> tuple[int, bool] | None:
        """A member's epoch, and whether it speaks the classic protocol; None if there is no such member."""
        member = self.members.get(member_id)
        return None if member is None else (member.epoch, member.classic is not None)

    # --- who asks ------------------------------------------------------------------------------------

    def _find(self, beat: Beat) -> Member | Refused:
        """The member as it is before this heartbeat; one that joins may be new, or take a static member's place."""
        holder = self.holder_of(beat.instance_id)
        if beat.epoch == JOINING:
            if holder is not None and holder.member_id != beat.member_id:
                if holder.epoch != AWAY and holder.classic is None:
                    return Refused(
                        GroupRefusal.UNRELEASED_INSTANCE,
                        f"the instance id {beat.instance_id} is held by the member {holder.member_id}",
                    )
                return self.take_place(holder, beat.member_id)
            member = self.members.get(beat.member_id)
            if member is None:
                if self.is_full:
                    return Refused(
                        GroupRefusal.GROUP_MAX_SIZE, f"the group has {self.settings.members_max} members already"
                    )
                return new_member(beat.member_id)
        elif beat.instance_id is not None:
            if holder is None:
                return Refused(GroupRefusal.UNKNOWN_MEMBER, f"no member has the instance id {beat.instance_id}")
            if holder.member_id != beat.member_id:
                return Refused(
                    GroupRefusal.FENCED_INSTANCE,
                    f"the instance id {beat.instance_id} is held by the member {holder.member_id}",
                )
            member = holder
        else:
            member = self.members.get(beat.member_id)
            if member is None:
                return Refused(GroupRefusal.UNKNOWN_MEMBER, f"{beat.member_id} is not a member of the group")
        if beat.connection < self._lives[member.member_id].connection:
            return Refused(GroupRefusal.LATE, "the member was heard of by a later connection")
        return self._at_epoch(member, beat)

    def _at_epoch(self, member: Member, beat: Beat) -> Member | Refused:
        if beat.epoch == member.epoch:
            return member
        if beat.epoch == JOINING:
            # It has given up everything, or never heard that it was given something. In Kafka it would have to wait for
            # the end of its session, unless its epoch before was 0.
            return replace(
                member,
                epoch=JOINING,
                previous_epoch=JOINING,
                state=MemberState.STABLE,
                assigned=NOTHING,
                revoking=NOTHING,
            )
        if beat.epoch == member.previous_epoch and beat.owned is not None and beat.owned <= member.assigned:
            return member
        return Refused(
            GroupRefusal.FENCED_MEMBER_EPOCH,
            f"the member is at epoch {member.epoch}, not {beat.epoch}: it has to give up all partitions and join again",
        )

    def holder_of(self, instance_id: str | None) -> Member | None:
        """The static member of this instance id."""
        member_id = None if instance_id is None else self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def take_place(self, holder: Member, member_id: str) -> Member:
        """A static member is back, as a new process: it gets what its predecessor had."""
        member = replace(holder, member_id=member_id, epoch=JOINING, previous_epoch=JOINING, revoking=NOTHING)
        self._targets[member_id] = self._targets.pop(holder.member_id, NOTHING)
        self._drop(holder)
        self._put(member, 0)
        return member

    def _leaves(self, beat: Beat, now_ms: int) -> Beaten | Refused:
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            member = self.holder_of(beat.instance_id)
            if member is not None and member.member_id != beat.member_id:
                return Refused(
                    GroupRefusal.FENCED_INSTANCE,
                    f"the instance id {beat.instance_id} is held by the member {member.member_id}",
                )
        if member is None:
            return Refused(GroupRefusal.UNKNOWN_MEMBER, f"{beat.member_id} is not a member of the group")
        if beat.connection < self._lives[member.member_id].connection:
            return Refused(GroupRefusal.LATE, "the member was heard of by a later connection")
        if beat.epoch == AWAY:
            self._put(replace(member, epoch=AWAY, revoking=NOTHING), now_ms)
            self._lives[member.member_id].revokes_until_ms = math.inf
        else:
            self.remove(member.member_id, now_ms)
        return Beaten(beat.member_id, beat.epoch, None)

    # --- what follows --------------------------------------------------------------------------------

    def advance(self, member: Member, said_owned: Partitions | None, now_ms: int) -> Member:
        """Take over what a member says, make a new target if need be, and take the member one step nearer to it."""
        known = self.members.get(member.member_id)
        is_other = known is None or (known.topic_names, known.topic_regex) != (member.topic_names, member.topic_regex)
        self._put(member, now_ms)
        if is_other or self._generation_seen != self.topics.generation:
            sizes = self._sizes_now()
            if is_other or sizes != self._sizes:
                self._bump()
            self._sizes = sizes
        if self.epoch > self._assignment_epoch:
            self._assign()
        member = reconcile(
            member,
            self._assignment_epoch,
            self._targets.get(member.member_id, NOTHING),
            said_owned,
            lambda partition: partition not in self._owners,
        )
        self._put(member, now_ms)
        self.hear_of(member, now_ms)
        return member

    def hear_of(self, member: Member, now_ms: int) -> None:
        """The member lives: its session begins anew; the time to give up partitions does not."""
        life = self._lives[member.member_id]
        classic = member.classic
        session_ms = self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
        life.session_ends_ms = now_ms + session_ms
        if member.state is not MemberState.UNREVOKED:
            life.revokes_until_ms = math.inf
        elif life.revokes_until_ms == math.inf and classic is None:
            life.revokes_until_ms = now_ms + member.rebalance_timeout_ms
        self.due_ms = min(self.due_ms, life.session_ends_ms, life.revokes_until_ms)

    def expect_classic(self, member: Member, now_ms: int, *, anew: bool) -> None:
        """A member of the classic protocol has its rebalance time-out, from now or (not `anew`) as before, to act."""
        life = self._lives[member.member_id]
        if anew or life.classic_until_ms == math.inf:
            life.classic_until_ms = now_ms + member.rebalance_timeout_ms
        self.due_ms = min(self.due_ms, life.classic_until_ms)

    def expect_nothing(self, member: Member) -> None:
        """The member of the classic protocol has done what it had to."""
        self._lives[member.member_id].classic_until_ms = math.inf

    def has_more_for(self, member: Member) -> bool:
        """Whether a member that waits for partitions could have them all now."""
        return member.state is MemberState.UNRELEASED and not any(
            partition in self._owners for partition in self._targets[member.member_id] - member.assigned
        )

    def remove(self, member_id: str, now_ms: int) -> None:
        """The member is gone; what it owned is free."""
        self._drop(self.members[member_id])
        self._targets.pop(member_id, None)
        self._bump()
        if not self.members:
            self._sizes = {}
            self._assignment_epoch = self.epoch
            self._idle_until_ms = now_ms + IDLE_MS_MAX
            self.due_ms = min(self.due_ms, self._idle_until_ms)

    def _put(self, member: Member, now_ms: int) -> None:
        """The member is so from now on."""
        known = self.members.get(member.member_id)
        if known == member:
            return
        owned_before = NOTHING if known is None else known.owned
        for partition in owned_before - member.owned:
            del self._owners[partition]
        for partition in member.owned - owned_before:
            assert partition not in self._owners, f"{partition} would have two owners"
            self._owners[partition] = member.member_id
        if known is not None and known.instance_id is not None:
            del self._instances[known.instance_id]
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._lives.setdefault(member.member_id, _Life(now_ms))
        self._changed = True

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        del self._lives[member.member_id]
        for partition in member.owned:
            del self._owners[partition]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._changed = True

    def _bump(self) -> None:
        self.epoch += 1
        self._changed = True

    def _names_of(self, member: Member) -> frozenset[str]:
        return member.topic_names.union(() if member.topic_regex is None else self.topics.matching(member.topic_regex))

    def _sizes_now(self) -> dict[str, int]:
        self._generation_seen = self.topics.generation
        found = map(self.topics.find, self.subscribed())
        return dict(topic for topic in found if topic is not None)

    def _assign(self) -> None:
        """Make the target assignment of the current epoch."""

        def topics_of(member: Member) -> frozenset[str]:
            found = map(self.topics.find, self._names_of(member))
            return frozenset(topic[0] for topic in found if topic is not None)

        subscribers = {
            member_id: Subscriber(member.instance_id, topics_of(member), self._targets.get(member_id, NOTHING))
            for member_id, member in self.members.items()
        }
        self._targets = ASSIGNORS[self.assignor](subscribers, self._sizes)
        self._assignment_epoch = self.epoch
        self._changed = True


def new_member(member_id: str) -> Member:
    """A member of which nothing is known yet."""
    return Member(member_id, None, None, "", "", 0, frozenset(), None, None)


def bytes_of(member: Member) -> int:
    """What a member takes of the node's memory, without partitions, roughly."""
    names = (member.instance_id or "", member.rack_id or "", member.topic_regex or "", *member.topic_names)
    classic = () if member.classic is None else member.classic.protocols
    return (
        MEMBER_BYTES
        + sum(len(name) + 64 for name in names)
        + sum(len(name) + len(data) + 128 for name, data in classic)
    )
