"""What the `group` commands ask a broker, in their own words: requests and answers of kio stay in here.

A group's lag in a partition is the partition's end minus the committed offset: so many records are yet to be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kio.schema.consumer_protocol_assignment.v0 import ConsumerProtocolAssignment
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v8.response import OffsetCommitResponse
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.primitive import i32, i64

from fairlog.cli.brokers import Broker, Brokers
from fairlog.cli.client import Connection, check
from fairlog.cli.errors import ClientError

Place = tuple[str, int]
"""Topic and partition."""

_CONSUMERS = "consumer"
"""The protocol type of consumer groups: only their assignments can be read."""
_WITHOUT_MEMBERS = ("Empty", "Dead")
_UNKNOWN = "Dead"
"""How brokers describe a group that they do not know."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A group that a broker coordinates."""

    group: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[Place, ...]
    """What it was given to read; empty while the group is still deciding."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group and its members."""

    state: str
    protocol_type: str
    protocol: str
    """How partitions are assigned, e.g. `range`; empty without members."""
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's place in a partition: the next record it wants."""

    offset: int
    metadata: str


def list_groups(brokers: Brokers, states: Sequence[str]) -> Sequence[Listed]:
    """All brokers' groups in one of `states` (all of them without any), by name."""

    def ask(broker: Broker) -> Sequence[Listed]:
        answer = broker.connection.request(ListGroupsRequest(states_filter=tuple(states)), ListGroupsResponse)
        check("listing groups", answer.error_code)
        return [Listed(str(each.group_id), each.group_state, each.protocol_type) for each in answer.groups]

    return sorted((each for found in brokers.each(ask) for each in found), key=lambda each: each.group)


def describe_group(connection: Connection, name: str) -> Group | None:
    """The group, None if the broker knows no member of it; committed offsets it may have all the same."""
    request = DescribeGroupsRequest(groups=(GroupId(name),), include_authorized_operations=False)
    (found,) = connection.request(request, DescribeGroupsResponse).groups
    if found.error_code is ErrorCode.group_id_not_found:
        return None
    check(f"describing group {name}", found.error_code)
    if found.group_state == _UNKNOWN:
        return None
    readable = found.protocol_type == _CONSUMERS
    members = tuple(_member(connection, each, readable=readable) for each in found.members)
    return Group(found.group_state, found.protocol_type, found.protocol_data, members)


def refuse_members(name: str, group: Group | None) -> None:
    """Raise ClientError if the group has members: they would go on from where they are, and overwrite what is set."""
    if group is not None and group.state not in _WITHOUT_MEMBERS:
        members = ", ".join(sorted({each.client_id for each in group.members})) or "unknown"
        raise ClientError(
            f"group {name} is {group.state} with {len(group.members)} members ({members}); stop them, then reset it"
        )


def committed_offsets(connection: Connection, name: str) -> Mapping[Place, Committed]:
    """All committed offsets of the group, in order."""
    answer = connection.request(OffsetFetchRequest(group_id=GroupId(name), topics=None), OffsetFetchResponse)
    check(f"asking for the offsets of group {name}", answer.error_code)
    found: dict[Place, Committed] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            check(f"asking for the offset of group {name} in {topic.name}-{each.partition_index}", each.error_code)
            if each.committed_offset >= 0:
                place = str(topic.name), int(each.partition_index)
                found[place] = Committed(int(each.committed_offset), each.metadata or "")
    return dict(sorted(found.items()))


def commit_offsets(connection: Connection, name: str, offsets: Mapping[Place, int]) -> None:
    """Set the offsets of a group without members, as a client that is no member does. Raises ClientError."""
    topics = sorted({topic for topic, _ in offsets})
    request = OffsetCommitRequest(
        group_id=GroupId(name),
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=""
                    )
                    for (of_topic, partition), offset in sorted(offsets.items())
                    if of_topic == topic
                ),
            )
            for topic in topics
        ),
    )
    for topic in connection.request(request, OffsetCommitResponse).topics:
        for each in topic.partitions:
            what = f"setting the offset of group {name} in {topic.name}-{each.partition_index}"
            if each.error_code is ErrorCode.unknown_member_id:
                raise ClientError(f"{what}: the group now has members; stop them, then reset it")
            check(what, each.error_code)


def _member(connection: Connection, found: DescribedGroupMember, *, readable: bool) -> Member:
    partitions: tuple[Place, ...] = ()
    if readable and found.member_assignment:
        # Every version begins with its number and goes on as version 0 does (Kafka's ConsumerProtocol).
        try:
            assignment, _ = entity_reader(ConsumerProtocolAssignment)(found.member_assignment, 2)
        except (SerialError, ValueError, LookupError) as error:
            raise ClientError(f"{connection.address} returned an unreadable assignment: {error}") from error
        partitions = tuple(
            sorted(
                (str(each.topic), int(index)) for each in assignment.assigned_partitions for index in each.partitions
            )
        )
    return Member(found.member_id, found.group_instance_id, found.client_id, found.client_host, partitions)
