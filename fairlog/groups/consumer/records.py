"""A consumer group of the new protocol as it is kept: docs/formats/group-membership.md. Pure.

    GroupSnapshot ──▶ encode ──▶ the store ──▶ decode ──▶ ConsumerGroup.resumed

What does not read back as a group that holds together is `CorruptStorage`, never a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

from fairlog.groups.consumer.states import MemberState
from fairlog.groups.consumer.values import (
    AWAY,
    JOINING,
    NOTHING,
    ClassicPart,
    GroupSnapshot,
    Member,
    MemberView,
    Partitions,
)
from fairlog_types import CorruptStorage

KIND = "consumer"
"""Stands second in the record, where a classic group has its generation."""

_TOPIC_BYTES = 16

_STATES = {each.value for each in MemberState}


def to_record(group_id: str, group: GroupSnapshot) -> list[object]:
    """The record as CBOR's types."""
    topics = [[bytes.fromhex(topic), size] for topic, size in group.topics]
    members = [_of_member(view.member, view.target) for view in group.members]
    return [group_id, KIND, group.group_epoch, group.assignment_epoch, topics, members]


def _of_member(member: Member, target: Partitions) -> list[object]:
    classic = member.classic
    return [
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        sorted(member.topic_names),
        member.topic_regex,
        member.assignor,
        member.epoch,
        member.previous_epoch,
        member.state.value,
        _of_partitions(member.assigned),
        _of_partitions(member.revoking),
        _of_partitions(target),
        None if classic is None else [classic.session_timeout_ms, [list(each) for each in classic.protocols]],
    ]


def _of_partitions(partitions: Partitions) -> list[object]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return [[bytes.fromhex(topic), indexes] for topic, indexes in topics.items()]


def from_record(content: list[object], name: str) -> GroupSnapshot:
    """The group in a record whose first two elements are its id and `KIND`. Raises CorruptStorage."""
    match content:
        case [str(), str(), int(epoch), int(assignment_epoch), list(), list()] if epoch > 0:
            topics = tuple(_topic(each, name) for each in cast("list[list[object]]", content)[4])
            members = tuple(_member(each, name) for each in cast("list[list[object]]", content)[5])
        case _:
            raise CorruptStorage(f"the record {name} is not a consumer group")
    group = GroupSnapshot(epoch, assignment_epoch, topics, members)
    if not _holds_together(group):
        raise CorruptStorage(f"the record {name} is a consumer group whose members or epochs do not go together")
    return group


def _topic(line: object, name: str) -> tuple[str, int]:
    match line:
        case [bytes(topic), int(size)] if len(topic) == _TOPIC_BYTES and size > 0:
            return topic.hex(), size
        case _:
            raise CorruptStorage(f"the record {name} has a topic that cannot be read")


def _member(line: object, name: str) -> MemberView:
    match line:
        case [
            str(member_id),
            str() | None as instance_id,
            str() | None as rack_id,
            str(client_id),
            str(client_host),
            int(rebalance_timeout_ms),
            list(),
            str() | None as topic_regex,
            str() | None as assignor,
            int(epoch),
            int(previous_epoch),
            int(state),
            list(),
            list(),
            list(),
            list() | None,
        ] if state in _STATES and epoch >= AWAY:
            fields = cast("list[list[object]]", line)
            classic = cast("list[list[object] | None]", line)[15]
            member = Member(
                member_id,
                instance_id,
                rack_id,
                client_id,
                client_host,
                rebalance_timeout_ms,
                frozenset(_text(each, name) for each in fields[6]),
                topic_regex,
                assignor,
                epoch,
                previous_epoch,
                MemberState(state),
                _partitions(fields[12], name),
                _partitions(fields[13], name),
                None if classic is None else _classic(classic, name),
            )
            return MemberView(member, _partitions(fields[14], name))
        case _:
            raise CorruptStorage(f"the record {name} has a member that cannot be read")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise CorruptStorage(f"the record {name} has a topic name that is no text")
    return value


def _partitions(lines: Iterable[object], name: str) -> Partitions:
    found: set[tuple[str, int]] = set()
    for line in lines:
        match line:
            case [bytes(topic), list()] if len(topic) == _TOPIC_BYTES:
                for index in cast("list[list[object]]", line)[1]:
                    if not isinstance(index, int) or index < 0:
                        raise CorruptStorage(f"the record {name} has a partition that is no number")
                    found.add((topic.hex(), index))
            case _:
                raise CorruptStorage(f"the record {name} has partitions that cannot be read")
    return frozenset(found)


def _classic(fields: list[object], name: str) -> ClassicPart:
    match fields:
        case [int(session_timeout_ms), list()] if session_timeout_ms > 0:
            lines = cast("list[list[object]]", fields)[1]
            return ClassicPart(session_timeout_ms, tuple(_protocol(each, name) for each in lines))
        case _:
            raise CorruptStorage(f"the record {name} has a classic member that cannot be read")


def _protocol(line: object, name: str) -> tuple[str, bytes]:
    match line:
        case [str(protocol), bytes(metadata)]:
            return protocol, metadata
        case _:
            raise CorruptStorage(f"the record {name} has a member with a protocol that cannot be read")


def _holds_together(group: GroupSnapshot) -> bool:
    members = [view.member for view in group.members]
    ids = [member.member_id for member in members]
    instances = [member.instance_id for member in members if member.instance_id is not None]
    owned = [partition for member in members for partition in member.owned]
    targets = [partition for view in group.members for partition in view.target]
    return (
        JOINING <= group.assignment_epoch <= group.group_epoch
        and all(member.epoch <= group.group_epoch for member in members)
        and all(member.assigned & member.revoking == NOTHING for member in members)
        and all(len(set(names)) == len(names) for names in (ids, instances, owned, targets))
    )
