"""Whom a group waits for, and until when: all its deadlines.

How it works. There are four kinds of them, each an instant of the group's clock:

* Each member has one (`Member.deadline_ms`): its session ends, or its first JoinGroup was parked for too long. It has
  none while one of its requests waits for others; then these are waited for, not it.
* Each id that was given to a client, who is to come with it (`Roster.pending`).
* The rebalance has one: while the group is prepared, those who have not joined again are *awaited* until then;
  afterwards, those who have not sent their SyncGroup. When nobody is awaited any more, it goes on at once.
* An empty group is remembered for a while.

The first members of a group are *gathered*: more are likely to come right behind them. So however many have joined,
nothing begins before the delay of the settings is over; if one has come in it, it begins anew, until the time for
the whole rebalance is up.

`due_ms` is when the group has to look next. Where a deadline comes nearer it does, too; where one goes away it stays,
and the group looks once in vain. `soonest_ms` is exact.

It does not know what follows when a deadline has passed (`machine.py`), and has no clock: times come in. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fairlog.groups.member import Member
from fairlog.groups.roster import Roster
from fairlog.groups.settings import GroupSettings

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
the offsets are told (`interface.GroupsWithOffsets.members_left`)."""


class Waiting:
    """The deadlines of one group, which is empty so far. Times are in ms."""

    __slots__ = (
        "_company_came",
        "_gathering",
        "_gathering_until_ms",
        "_roster",
        "_settings",
        "awaited",
        "due_ms",
        "idle_until_ms",
        "until_ms",
    )

    def __init__(self, roster: Roster, settings: GroupSettings, now_ms: int) -> None:
        self.due_ms: float = now_ms + IDLE_MS_MAX
        """When the group is to look again, at the latest; there may be nothing to do yet."""
        self.idle_until_ms: float = now_ms + IDLE_MS_MAX
        """Until when it is remembered, if it has no members."""
        self.awaited: set[str] = set()
        """Members that the group waits for: while it prepares, to join; afterwards, to sync."""
        self.until_ms = math.inf
        """Until when it waits for them."""
        self._roster = roster
        self._settings = settings
        self._gathering = False
        """Waits for the first members to get company, however many have joined."""
        self._gathering_until_ms = math.inf
        self._company_came = False

    # --- one member ----------------------------------------------------------------------------------

    def expect(self, member: Member, within_ms: float) -> None:
        """It is to be heard of by then: an instant, or infinity."""
        member.deadline_ms = within_ms
        self.due_ms = min(self.due_ms, within_ms)

    def begin_session(self, member: Member, now_ms: int) -> None:
        self.expect(member, now_ms + member.session_timeout_ms)

    def heard_of(self, member: Member, now_ms: int) -> None:
        """Its session begins anew, unless one of its requests is parked: then others are waited for, not it."""
        if member.join_ticket is None and member.sync_ticket is None:
            self.begin_session(member, now_ms)

    def has_joined(self, member: Member, now_ms: int) -> None:
        """Its JoinGroup is parked."""
        self.awaited.discard(member.member_id)
        self.expect(member, now_ms + NEW_MEMBER_JOIN_MS if member.is_new else math.inf)

    def has_synced(self, member: Member) -> None:
        """Its SyncGroup is parked."""
        self.awaited.discard(member.member_id)
        self.expect(member, math.inf)

    def has_hung_up(self, member: Member, now_ms: int) -> None:
        """The connection is gone on which its JoinGroup was parked; see `Group.hang_up`."""
        if member.instance_id is not None:
            self.begin_session(member, now_ms)
        else:
            self.awaited.add(member.member_id)
            self.expect(member, now_ms + min(member.session_timeout_ms, HANG_UP_GRACE_MS))

    def give_id(self, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        """A client is to come with this id, soon."""
        until_ms = now_ms + min(session_timeout_ms, PENDING_MEMBER_MS_MAX)
        self._roster.expect(member_id, until_ms)
        self.due_ms = min(self.due_ms, until_ms)

    # --- all of them ---------------------------------------------------------------------------------

    def for_joins(self, now_ms: int, *, first: bool) -> None:
        """All whose JoinGroup is not parked are awaited from now on; if they are the first, they are gathered."""
        longest_ms = self._roster.longest_rebalance_ms()
        self.until_ms = now_ms + longest_ms
        if first:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, longest_ms)
            self._gathering, self._company_came = delay_ms > 0, False
            self._gathering_until_ms = self.until_ms
            if self._gathering:
                self.until_ms = now_ms + delay_ms
        self.awaited.clear()
        self.awaited.update(each.member_id for each in self._roster.members.values() if each.join_ticket is None)
        self.due_ms = min(self.due_ms, self.until_ms)

    def company_comes(self) -> None:
        """Somebody has joined who was no member."""
        self._company_came = True

    def gathers_on(self, now_ms: int) -> bool:
        """Whether there is more time for the first members, now that `until_ms` has passed."""
        if not (self._gathering and self._company_came and now_ms < self._gathering_until_ms):
            return False
        # Where one has just come, more may follow; a rebalance for each would cost them all more.
        self._company_came = False
        self.until_ms = min(now_ms + self._settings.initial_rebalance_delay_ms, self._gathering_until_ms)
        return True

    @property
    def all_are_there(self) -> bool:
        """Whether nobody is awaited, or may yet come."""
        return not (self._gathering or self.awaited or self._roster.pending)

    def begin_anew(self, now_ms: int) -> None:
        """There is as much time as a rebalance may take, from now on."""
        self.until_ms = now_ms + self._roster.longest_rebalance_ms()
        self.due_ms = min(self.due_ms, self.until_ms)

    def for_syncs(self, joined: Iterable[Member], now_ms: int) -> None:
        """These have been told that they are in, and are awaited with their SyncGroup."""
        self._gathering = False
        self.awaited.clear()
        for member in joined:
            self.awaited.add(member.member_id)
            self.begin_session(member, now_ms)

    def is_over(self) -> None:
        """`until_ms` has passed, and those who are still awaited are to go."""
        self.until_ms = math.inf

    def for_nobody(self, now_ms: int) -> None:
        """The last member is gone."""
        self.awaited.clear()
        self.until_ms = math.inf
        self._gathering = False
        self.idle_until_ms = now_ms + IDLE_MS_MAX
        self.due_ms = min(self.due_ms, self.idle_until_ms)

    def for_nothing(self) -> None:
        """The group, which is empty, has ended."""
        self.idle_until_ms = math.inf

    def soonest_ms(self) -> float:
        """The earliest of all deadlines."""
        deadlines = [self.until_ms, *self._roster.pending.values()]
        deadlines += [member.deadline_ms for member in self._roster.members.values()]
        if self._roster.is_empty:
            deadlines.append(self.idle_until_ms)
        return min(deadlines)
