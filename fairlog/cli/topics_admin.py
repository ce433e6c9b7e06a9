"""What the `topic` commands ask a broker, in their own words: requests and answers of kio stay in here.

Where a partition begins and ends, its leader is asked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.create_topics.v5.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.create_topics.v5.response import CreateTopicsResponse
from kio.schema.delete_topics.v4.request import DeleteTopicsRequest
from kio.schema.delete_topics.v4.response import DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v5.response import ListOffsetsResponse
from kio.schema.metadata.v9.response import MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from fairlog.cli.brokers import Brokers
from fairlog.cli.client import TIMEOUT_S, Connection, NoAnswer, check
from fairlog.cli.errors import ClientError

_EARLIEST, _LATEST = -2, -1
"""ListOffsets' timestamps that are none."""

_NOT_YET = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)
"""What a leader answers that has not heard of a new topic, or of its new partitions, which another broker has made."""
_NEWS_S = 2.0
"""Maximum time for it to hear of them."""
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Offsets:
    """What a partition has: the records from `start` to before `end`."""

    start: int
    end: int
    stable: int
    """Where readers of committed records stand still: before `end` while a transaction of marker mode is open."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, and its leader."""

    partition: int
    leader: int
    leader_epoch: int
    offsets: Offsets | None
    """None if the leader does not answer."""


def topic_partitions(brokers: Brokers) -> Mapping[str, int]:
    """All topics by name, with their number of partitions."""
    answer = brokers.metadata(None)
    return {str(topic.name): len(topic.partitions) for topic in sorted(answer.topics, key=lambda topic: topic.name)}


def create_topic(connection: Connection, name: str, partitions: int | None, configs: Mapping[str, str]) -> int:
    """Make a topic, with the broker's own number of partitions unless given; answers the number."""
    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(-1 if partitions is None else partitions),
        replication_factor=i16(-1),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
    )
    answer = connection.request(CreateTopicsRequest(topics=(topic,), timeout=_timeout()), CreateTopicsResponse)
    (result,) = answer.topics
    check(f"creating topic {name}", result.error_code, result.error_message)
    return int(result.num_partitions)


def delete_topic(connection: Connection, name: str) -> None:
    """Take a topic away, with all its records."""
    request = DeleteTopicsRequest(topic_names=(TopicName(name),), timeout=_timeout())
    (result,) = connection.request(request, DeleteTopicsResponse).responses
    check(f"deleting topic {name}", result.error_code)


def partition_count(brokers: Brokers, name: str) -> int | None:
    """How many partitions a topic has, None if there is no such topic. It is not made by asking."""
    (topic,) = brokers.metadata((name,)).topics
    if topic.error_code is ErrorCode.unknown_topic_or_partition:
        return None
    check(f"describing topic {name}", topic.error_code)
    return len(topic.partitions)


def describe_topic(brokers: Brokers, name: str) -> Sequence[Partition]:
    """A topic's partitions, in order."""
    found = sorted(_topic(brokers, name).partitions, key=lambda each: each.partition_index)
    leaders = {int(each.partition_index): int(each.leader_id) for each in found}
    starts = offsets_at(brokers, name, leaders, _EARLIEST)
    ends = offsets_at(brokers, name, leaders, _LATEST)
    stable = offsets_at(brokers, name, leaders, _LATEST, committed_only=True)
    answered = starts.keys() & ends.keys() & stable.keys()
    return [
        Partition(
            number,
            int(each.leader_id),
            int(each.leader_epoch),
            Offsets(starts[number], ends[number], stable[number]) if number in answered else None,
        )
        for number, each in zip(leaders, found, strict=True)
    ]


def leaders_of(partitions: Sequence[Partition]) -> Mapping[int, int]:
    """The node id of each partition's leader."""
    return {each.partition: each.leader for each in partitions}


def leader(brokers: Brokers, name: str, partition: int) -> Connection:
    """The connection to a partition's leader. Raises ClientError, also if it does not answer."""
    for each in _topic(brokers, name).partitions:
        if each.partition_index == partition:
            connection = brokers.led_by(int(each.leader_id))
            brokers.require_all(f"it leads {name}-{partition}, which nothing was done to")
            assert connection is not None
            return connection
    raise ClientError(f"topic {name} has no partition {partition}")


def offsets_at(
    brokers: Brokers, name: str, leaders: Mapping[int, int], timestamp_ms: int, *, committed_only: bool = False
) -> Mapping[int, int]:
    """In each partition, the offset of the first record of that time or later; -1 if there is none.

    With `committed_only` as a reader of committed records is told. `leaders` has the node id of each partition's
    leader; partitions whose leader does not answer are left out.
    """
    led: defaultdict[int, list[int]] = defaultdict(list)
    for partition, node_id in leaders.items():
        led[node_id].append(partition)
    offsets: dict[int, int] = {}
    for node_id, partitions in led.items():
        connection = brokers.led_by(node_id)
        if connection is not None:
            request = _list_offsets(name, partitions, timestamp_ms, committed_only)
            try:
                offsets |= _offsets(connection, name, request, patient=brokers.several)
            except NoAnswer as error:
                brokers.miss(node_id, error)
    return offsets


def _list_offsets(name: str, partitions: Sequence[int], timestamp_ms: int, committed_only: bool) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(int(committed_only)),
        topics=(
            ListOffsetsTopic(
                name=TopicName(name),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp_ms))
                    for partition in partitions
                ),
            ),
        ),
    )


def _offsets(connection: Connection, name: str, request: ListOffsetsRequest, *, patient: bool) -> Mapping[int, int]:
    deadline = time.monotonic() + (_NEWS_S if patient else 0)
    while True:
        topics = connection.request(request, ListOffsetsResponse).topics
        answers = [each for topic in topics for each in topic.partitions]
        if time.monotonic() > deadline or not any(each.error_code in _NOT_YET for each in answers):
            break
        time.sleep(_ASK_AGAIN_S)
    for each in answers:
        check(f"asking the offsets of {name}-{each.partition_index}", each.error_code)
    return {int(each.partition_index): int(each.offset) for each in answers}


def _topic(brokers: Brokers, name: str) -> MetadataResponseTopic:
    (topic,) = brokers.metadata((name,)).topics
    check(f"describing topic {name}", topic.error_code)
    return topic


def _timeout() -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=TIMEOUT_S))
