"""All consumer groups of this node, of the classic protocol and of the new one (KIP-848).

    JoinGroup, SyncGroup, …  ──▶ NodeGroups ──▶ LocalGroups        classic groups
    ConsumerGroupHeartbeat   ──▶            └─▶ ConsumerGroups     groups of the new protocol

A group is of one protocol at a time, and its first member decides of which. An empty group is of none: who comes next,
by either protocol, has it. A classic group with members becomes one of the new protocol when a member of that one
joins, and is a classic one again when the last of these has gone; in between it has members of both
(`consumer/classic_members.py`). In all of this generations and epochs go on from the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog
import trio

from fairlog.groups.consumer.classic_members import to_consumer_group
from fairlog.groups.consumer.service import ConsumerGroups
from fairlog.groups.consumer.values import JOINING, Beat, Beaten, GroupSnapshot, Refused
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.interface import (
    GroupDescription,
    GroupOffsets,
    GroupOverview,
    GroupRefusal,
    GroupType,
    MemberClient,
    MemberDescription,
)
from fairlog.groups.messages import NO_MEMBER_ID, Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedGroup
from fairlog.groups.service import LocalGroups, ParkedRequest
from fairlog.groups.subscription import CONSUMER

log = structlog.get_logger()


class NodeGroups:
    """Implements `fairlog.broker.Groups`. `run` has to run, for time to have its effect."""

    def __init__(self, classic: LocalGroups, consumer: ConsumerGroups) -> None:
        self._classic = classic
        self._consumer = consumer

    def resume(self, persister: GroupPersister, kept: Mapping[str, PersistedGroup]) -> None:
        """Go on with the groups that were kept before the start, and keep them with `persister`; before any request."""
        self._classic.resume(
            persister, {name: each for name, each in kept.items() if isinstance(each, PersistedClassicGroup)}
        )
        self._consumer.resume(persister, {name: each for name, each in kept.items() if isinstance(each, GroupSnapshot)})

    async def run(self) -> None:
        """Do what time brings, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._classic.run)
            nursery.start_soon(self._consumer.run)

    def stop(self) -> None:
        """Answer all that is parked, and park nothing any more. The groups are of no use afterwards."""
        self._classic.stop()
        self._consumer.stop()

    # --- members of the new protocol -----------------------------------------------------------------

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often a group's members of the new protocol are to send heartbeats."""
        return self._consumer.settings_of(group_id).heartbeat_interval_ms

    async def beat(self, group_id: str, beat: Beat) -> ParkedRequest[Beaten | Refused]:
        """A member of the new protocol lives, joins, changes or leaves. The answer comes when it is kept.

        Given up: nothing happens.
        """
        refused = await self._consumer.refusal_of(group_id, beat)
        if refused is None and self._consumer.get(group_id) is None and beat.epoch == JOINING:
            refused = self._convert(group_id)
        if refused is not None:
            parked = ParkedRequest[Beaten | Refused]()
            parked.set(refused)
            return parked
        return self._consumer.beat(group_id, beat)

    def _convert(self, group_id: str) -> Refused | None:
        """Make a group of the new protocol of a classic one, if there is one."""
        if group_id not in self._classic.known():
            return None
        classic = self._classic.to_persist(group_id)
        if not classic.members:  # there may be clients that were given an id; they can come all the same
            self._classic.hand_over(group_id)
            self._consumer.begin(group_id, classic.generation)
            return None
        group = to_consumer_group(classic, self._consumer.topics)
        if group is None or len(group.members) > self._consumer.settings_of(group_id).members_max:
            return Refused(GroupRefusal.UNKNOWN_GROUP, f"the members of {group_id} cannot be those of a consumer group")
        self._classic.hand_over(group_id)
        self._consumer.take_over(group_id, group)
        log.info("classic group becomes a consumer group", group=group_id, members=len(group.members))
        return None

    def snapshot(self, group_id: str) -> tuple[GroupDescription, GroupSnapshot, str] | None:
        """A group of the new protocol, with the name of its assignor; None if there is none."""
        group = self._consumer.get(group_id)
        described = self.describe(group_id)
        if group is None or described is None:
            return None
        return described, group.snapshot(), group.assignor

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> GroupRefusal | None:
        """Why a member that names itself and its epoch may not read the group's offsets; None if it may.

        Members of classic groups are not asked for.
        """
        group = self._consumer.get(group_id)
        if group is None or (member_id is None and epoch < 0):
            return None
        return _refusal_at(group.find_epoch(member_id or ""), epoch)

    # --- members of the classic protocol -------------------------------------------------------------

    def new_member_id(self, name: str) -> str:
        """See `LocalGroups`; so for the next four."""
        return self._classic.new_member_id(name)

    def join(self, group_id: str, request: Joining) -> ParkedRequest[Joined | JoinRefused]:
        group = self._consumer.get(group_id)
        if group is not None:
            if not group.is_empty:
                return self._consumer.join(group_id, request)
            if request.member_id == NO_MEMBER_ID:
                epoch = self._consumer.hand_over(group_id).group_epoch
                self._classic.take_over(group_id, PersistedClassicGroup(epoch, CONSUMER, "", "", ()))
        return self._classic.join(group_id, request)

    def sync(self, group_id: str, request: Syncing) -> ParkedRequest[Synced | GroupRefusal]:
        service = self._classic if self._consumer.get(group_id) is None else self._consumer
        return service.sync(group_id, request)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> GroupRefusal | None:
        service = self._classic if self._consumer.get(group_id) is None else self._consumer
        return service.heartbeat(group_id, member_id, instance_id, generation)

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> Sequence[GroupRefusal | None] | GroupRefusal:
        service = self._classic if self._consumer.get(group_id) is None else self._consumer
        return service.leave(group_id, leaving)

    # --- what others ask -----------------------------------------------------------------------------

    def may_commit(
        self, group: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> GroupRefusal | None:
        """See `interface.Membership`. For a member of the new protocol `generation` is its epoch."""
        consumer = self._consumer.get(group)
        if consumer is None:
            return self._classic.may_commit(group, member_id, instance_id, generation, transactional=transactional)
        if generation < 0 and consumer.is_empty:
            return None
        if transactional and generation < 0 and member_id == NO_MEMBER_ID and instance_id is None:
            # A producer that does not say who it is in the group: the epoch alone fences it, as in Kafka (KAFKA-18060).
            return None
        refusal = _refusal_at(consumer.find_epoch(member_id), generation)
        if refusal is GroupRefusal.STALE_MEMBER_EPOCH and transactional:
            return GroupRefusal.ILLEGAL_GENERATION  # TxnOffsetCommit does not have the other
        return refusal

    def is_empty(self, group: str) -> bool:
        """See `interface.Membership`."""
        consumer = self._consumer.get(group)
        return self._classic.is_empty(group) if consumer is None else consumer.is_empty

    def empty_since_ms(self, group: str) -> int | None:
        """See `interface.Membership`."""
        if self._consumer.get(group) is None:
            return self._classic.empty_since_ms(group)
        return self._consumer.empty_since_ms(group)

    def subscribed(self, group: str) -> frozenset[str] | None:
        """See `interface.Membership`."""
        consumer = self._consumer.get(group)
        return self._classic.subscribed(group) if consumer is None else consumer.subscribed()

    def known(self) -> Collection[str]:
        """See `interface.Membership`."""
        return {*self._classic.known(), *self._consumer.known()}

    def describe(self, group: str) -> GroupDescription | None:
        """See `interface.Membership`."""
        consumer = self._consumer.get(group)
        if consumer is None:
            return self._classic.describe(group)
        members = tuple(
            MemberDescription(each.member_id, each.instance_id, each.client_id, each.client_host, b"", b"")
            for each in consumer.members.values()
        )
        return GroupDescription(group, consumer.state, CONSUMER, consumer.assignor, members, GroupType.CONSUMER)

    def client_of(self, group: str, member_id: str) -> MemberClient | None:
        """Who it is that is a member under this id; None if nobody is."""
        consumer = self._consumer.get(group)
        if consumer is None:
            return self._classic.client_of(group, member_id)
        member = consumer.members.get(member_id)
        return None if member is None else MemberClient(member.client_id, member.client_host)

    def overviews(self) -> Sequence[GroupOverview]:
        """All groups that have members, had some lately, or have offsets."""
        consumer = self._consumer.known()
        found = [
            GroupOverview(group_id, group.state, CONSUMER, GroupType.CONSUMER)
            for group_id in consumer
            if (group := self._consumer.get(group_id)) is not None
        ]
        return [*found, *(each for each in self._classic.overviews() if each.group_id not in consumer)]

    async def delete(self, group: str, offsets: GroupOffsets) -> GroupRefusal | None:
        """Forget a group that has no members, with its offsets, for good. Raises StorageFailure.

        See `LocalGroups.delete`.
        """
        if self._consumer.get(group) is None:
            return await self._classic.delete(group, offsets)
        return await self._consumer.delete(group, offsets)


def _refusal_at(known: tuple[int, bool] | None, epoch: int) -> GroupRefusal | None:
    """Whether a member at an epoch (and of the classic protocol or not) may name this one. KIP-848."""
    if known is None:
        return GroupRefusal.UNKNOWN_MEMBER
    if known[0] == epoch:
        return None
    return GroupRefusal.ILLEGAL_GENERATION if known[1] else GroupRefusal.STALE_MEMBER_EPOCH
