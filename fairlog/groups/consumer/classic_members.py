"""Members of the classic protocol in a consumer group: an online migration, one member at a time (KIP-848).

A classic group becomes a consumer group when a member of the new protocol joins it, and is a classic one again when the
last of these goes. In between, classic members go on with JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and take part
in the same reconciliation:

    Heartbeat: REBALANCE_IN_PROGRESS   the member has a step to take
    JoinGroup                          it takes it, and says what it owns; the answer has its epoch as the generation
    SyncGroup                          it is told its assignment

No JoinGroup waits for others. No member leads: each is told that it does not. A member that has to join again, or to
send its SyncGroup, has its rebalance time-out for it.

Source: KIP-848, "Online Migration"; `classicGroupJoinToConsumerGroup` and its kin in Kafka's `GroupMetadataManager`.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairlog.groups.consumer.embedded_protocol import (
    NamedPartition,
    NotEmbedded,
    decode_assignment_untrusted,
    decode_subscription_untrusted,
    encode_assignment,
)
from fairlog.groups.consumer.machine import ConsumerGroup, new_member
from fairlog.groups.consumer.states import MemberState
from fairlog.groups.consumer.topics import Topics
from fairlog.groups.consumer.values import (
    ClassicPart,
    GroupSnapshot,
    Member,
    MemberView,
    Partitions,
)
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import NO_MEMBER_ID, Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember
from fairlog.groups.subscription import CONSUMER
from fairlog.groups.votes import Votes

NO_LEADER = ""


# --- from one protocol to the other ------------------------------------------------------------------


def to_consumer_group(classic: PersistedClassicGroup, topics: Topics) -> GroupSnapshot | None:
    """The classic group's members as members of a consumer group; None if they cannot be.

    They have to be consumers, in a generation in which no partition was given to two of them.
    """
    if classic.protocol_type != CONSUMER:
        return None
    views: list[MemberView] = []
    owned: set[object] = set()
    for each in classic.members:
        protocols = dict(each.protocols)
        try:
            first = each.protocols[0][1]
            decode_subscription_untrusted(first)  # by which it is told its assignment later
            subscription = decode_subscription_untrusted(protocols.get(classic.protocol, first))
            assigned = _by_id(decode_assignment_untrusted(each.assignment), topics)
        except NotEmbedded:
            return None
        if owned & assigned:
            return None
        owned |= assigned
        member = Member(
            each.member_id,
            each.instance_id,
            None,
            each.client_id,
            each.client_host,
            each.rebalance_timeout_ms,
            subscription.topics,
            None,
            None,
            classic.generation,
            classic.generation,
            assigned=assigned,
            classic=ClassicPart(each.session_timeout_ms, each.protocols),
        )
        views.append(MemberView(member, assigned))
    return GroupSnapshot(classic.generation, classic.generation, (), tuple(views))


def to_classic_group(group: GroupSnapshot, topics: Topics) -> PersistedClassicGroup:
    """A consumer group whose members all speak the classic protocol, as a classic group."""
    votes = Votes()
    members: list[PersistedMember] = []
    for view in group.members:
        member, classic = view.member, view.member.classic
        assert classic is not None, "it speaks the new protocol"
        votes.enter([name for name, _ in classic.protocols])
        members.append(
            PersistedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                classic.protocols,
                _encoded(member, topics),
            )
        )
    protocol = votes.choose([name for name, _ in member.protocols] for member in members)
    # Not the group epoch: no one was told of the one that began when the last member of the new protocol went. Who has
    # this generation hears from its next heartbeat that it has to join again, and keeps what it has.
    generation = max(1, *(view.member.epoch for view in group.members))
    return PersistedClassicGroup(generation, CONSUMER, protocol, members[0].member_id, tuple(members))


def can_go_back(group: ConsumerGroup) -> bool:
    """Whether all members speak the classic protocol, and there are some."""
    return bool(group.members) and all(member.classic is not None for member in group.members.values())


# --- requests ----------------------------------------------------------------------------------------


def join(group: ConsumerGroup, request: Joining, now_ms: int) -> Joined | JoinRefused:
    """A classic member joins, or takes its next step."""
    try:
        return _joins(group, request, now_ms)
    except NotEmbedded:
        return JoinRefused(GroupRefusal.INCONSISTENT_PROTOCOL, request.member_id)


def _joins(group: ConsumerGroup, request: Joining, now_ms: int) -> Joined | JoinRefused:
    if not group.allows_session(request.session_timeout_ms):
        return JoinRefused(GroupRefusal.INVALID_SESSION_TIMEOUT, request.member_id)
    is_unknown = request.member_id == NO_MEMBER_ID
    if request.protocol_type != CONSUMER or not _agrees(group, request):
        return JoinRefused(GroupRefusal.INCONSISTENT_PROTOCOL, request.member_id)
    protocol, metadata = request.protocols[0]
    subscription = decode_subscription_untrusted(metadata)
    holder = group.holder_of(request.instance_id)
    is_more = request.member_id not in group.members and holder is None
    if is_more and group.is_full:
        return JoinRefused(GroupRefusal.GROUP_MAX_SIZE, request.member_id)
    if is_unknown and request.id_required and request.instance_id is None:
        return JoinRefused(GroupRefusal.MEMBER_ID_REQUIRED, request.new_member_id)
    member_id = request.new_member_id if is_unknown else request.member_id
    if request.instance_id is None:
        before = group.members.get(member_id) or new_member(member_id)
    elif is_unknown:
        before = new_member(member_id) if holder is None else group.take_place(holder, member_id)
    elif holder is None:
        return JoinRefused(GroupRefusal.UNKNOWN_MEMBER, request.member_id)
    elif holder.member_id != member_id:
        return JoinRefused(GroupRefusal.FENCED_INSTANCE, request.member_id)
    else:
        before = holder
    member = replace(
        before,
        instance_id=request.instance_id or before.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=subscription.topics,
        topic_regex=None,
        assignor=None,
        classic=ClassicPart(request.session_timeout_ms, request.protocols),
    )
    member = group.advance(member, _by_id(subscription.owned, group.topics), now_ms)
    group.expect_classic(member, now_ms, anew=True)
    return Joined(member.epoch, CONSUMER, protocol, NO_LEADER, member.member_id)


def sync(group: ConsumerGroup, request: Syncing, now_ms: int) -> Synced | GroupRefusal:
    """A classic member asks for its assignment."""
    member = _find(group, request.member_id, request.instance_id)
    if isinstance(member, GroupRefusal):
        return member
    assert member.classic is not None, "it was looked for"
    protocol = member.classic.protocols[0][0]
    if request.generation != member.epoch:
        return GroupRefusal.ILLEGAL_GENERATION
    if (request.protocol_type or CONSUMER, request.protocol or protocol) != (CONSUMER, protocol):
        return GroupRefusal.INCONSISTENT_PROTOCOL
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        group.expect_classic(member, now_ms, anew=False)
        return GroupRefusal.REBALANCE_IN_PROGRESS
    group.expect_nothing(member)
    group.hear_of(member, now_ms)
    return Synced(CONSUMER, protocol, _encoded(member, group.topics))


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> GroupRefusal | None:
    """A classic member lives; REBALANCE_IN_PROGRESS tells it to join again."""
    member = _find(group, member_id, instance_id)
    if isinstance(member, GroupRefusal):
        return member
    if generation != member.epoch:
        return GroupRefusal.ILLEGAL_GENERATION
    group.hear_of(member, now_ms)
    if group.epoch > member.epoch or member.state is MemberState.UNREVOKED or group.has_more_for(member):
        group.expect_classic(member, now_ms, anew=False)
        return GroupRefusal.REBALANCE_IN_PROGRESS
    return None


def leave(group: ConsumerGroup, leaving: Sequence[Leaving], now_ms: int) -> Sequence[GroupRefusal | None]:
    """Classic members go, or are sent away; a refusal, or None, for each."""
    outcome: list[GroupRefusal | None] = []
    for each in leaving:
        holder = group.holder_of(each.instance_id)
        # An operator sends a static member away, and need not know which process it is.
        member_id = holder.member_id if holder is not None and each.member_id == NO_MEMBER_ID else each.member_id
        member = _find(group, member_id, each.instance_id)
        if isinstance(member, GroupRefusal):
            outcome.append(member)
            continue
        group.remove(member.member_id, now_ms)
        outcome.append(None)
    return outcome


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member | GroupRefusal:
    holder = group.holder_of(instance_id)
    if instance_id is not None and holder is not None and holder.member_id != member_id:
        return GroupRefusal.FENCED_INSTANCE
    member = group.members.get(member_id) if instance_id is None else holder
    return GroupRefusal.UNKNOWN_MEMBER if member is None or member.classic is None else member


def _agrees(group: ConsumerGroup, request: Joining) -> bool:
    """Whether there is a strategy that all classic members know, so that the group could be a classic one."""
    names = {name for name, _ in request.protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != request.member_id:
            names &= {name for name, _ in member.classic.protocols}
    return bool(names)


def _by_id(partitions: frozenset[NamedPartition], topics: Topics) -> Partitions:
    """Those that there are."""
    found = {name: topics.find(name) for name, _ in partitions}
    return frozenset(
        (topic[0], index) for name, index in partitions if (topic := found[name]) is not None and 0 <= index < topic[1]
    )


def _encoded(member: Member, topics: Topics) -> bytes:
    """What the member may read, as its strategy would say it."""
    assert member.classic is not None, "it speaks the new protocol"
    names = {topic: topics.name_of(topic) for topic, _ in member.assigned}
    named = [(name, index) for topic, index in member.assigned if (name := names[topic]) is not None]
    return encode_assignment(named, decode_subscription_untrusted(member.classic.protocols[0][1]).version)
