"""What the `topic` commands ask a broker, in their own words: requests and answers of kio stay in here."""

from __future__ import annotations

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
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v9.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from fairlog.cli.client import TIMEOUT_S, Connection, check

_EARLIEST, _LATEST = -2, -1
"""ListOffsets' timestamps that are none."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; its records are those from `start` to before `end`."""

    partition: int
    leader: int
    leader_epoch: int
    start: int
    end: int
    stable: int
    """Where readers of committed records stand still: before `end` while a transaction of marker mode is open."""


def topic_partitions(connection: Connection) -> Mapping[str, int]:
    """All topics by name, with their number of partitions."""
    answer = _metadata(connection, None)
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


def partition_count(connection: Connection, name: str) -> int | None:
    """How many partitions a topic has, None if there is no such topic. It is not made by asking."""
    (topic,) = _metadata(connection, name).topics
    if topic.error_code is ErrorCode.unknown_topic_or_partition:
        return None
    check(f"describing topic {name}", topic.error_code)
    return len(topic.partitions)


def describe_topic(connection: Connection, name: str) -> Sequence[Partition]:
    """A topic's partitions, in order."""
    (topic,) = _metadata(connection, name).topics
    check(f"describing topic {name}", topic.error_code)
    found = sorted(topic.partitions, key=lambda each: each.partition_index)
    numbers = [int(each.partition_index) for each in found]
    starts = offsets_at(connection, name, numbers, _EARLIEST)
    ends = offsets_at(connection, name, numbers, _LATEST)
    stable = offsets_at(connection, name, numbers, _LATEST, committed_only=True)
    return [
        Partition(
            int(each.partition_index),
            int(each.leader_id),
            int(each.leader_epoch),
            starts[each.partition_index],
            ends[each.partition_index],
            stable[each.partition_index],
        )
        for each in found
    ]


def offsets_at(
    connection: Connection, name: str, partitions: Sequence[int], timestamp_ms: int, *, committed_only: bool = False
) -> Mapping[int, int]:
    """In each partition, the offset of the first record of that time or later; -1 if there is none.

    With `committed_only` as a reader of committed records is told.
    """
    request = ListOffsetsRequest(
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
    offsets: dict[int, int] = {}
    for topic in connection.request(request, ListOffsetsResponse).topics:
        for each in topic.partitions:
            check(f"asking the offsets of {name}-{each.partition_index}", each.error_code)
            offsets[int(each.partition_index)] = int(each.offset)
    return offsets


def _metadata(connection: Connection, name: str | None) -> MetadataResponse:
    request = MetadataRequest(
        topics=None if name is None else (MetadataRequestTopic(name=TopicName(name)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return connection.request(request, MetadataResponse)


def _timeout() -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=TIMEOUT_S))
