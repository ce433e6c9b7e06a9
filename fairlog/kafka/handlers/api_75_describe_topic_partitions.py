"""DescribeTopicPartitions: topics and their partitions, page by page (KIP-966).

Behaviour
- The same information about topics as in Metadata, in the order of their names, up to `PARTITIONS_MAX` partitions, or
  fewer if the client says so. If there are more, the answer carries a cursor: the topic and the partition with which
  the next request should begin. No page lists a topic without partitions, so a page may end in the middle of a topic.
- An empty list of names means all topics. Topics that do not exist have an error and do not count towards the limit;
  none is created.
- A list of names without the cursor's topic, and a cursor below partition 0, are INVALID_REQUEST for each topic named,
  as in Kafka. With a cursor after a topic's last partition, the topic is answered without partitions.
- A topic that the client may not describe is left out if it asks for all, and TOPIC_AUTHORIZATION_FAILED if it asks for
  this one, whether it exists or not.
- If the leader's broker has not started yet, the partition is LEADER_NOT_AVAILABLE; if it has no listener of the name
  by which the client came in, LISTENER_NOT_FOUND.
- Eligible leader replicas, current and former, are empty lists: the leader is the only replica. The operations that
  the client may do are always told, as in Kafka.
- A topic that is named more than once is answered once. Other clients are served between one topic and the next.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio

from fairlog.cluster.interface import InvalidTopic, Leader, PartitionCopies, Topic
from fairlog.cluster.topic_rules import check_topic_untrusted
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_TOPIC, NOT_ASKED, denied, may, operations
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import NO_NODE
from fairlog.kafka.wire import Reader, Writer
from fairlog.security.acls import ResourceType

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0

PARTITIONS_MAX = 2_000
"""The limit for one answer: Kafka's max.request.partition.size.limit."""

"""Kafka's AclOperation: read, write, create, delete, alter, describe, describe and alter configs."""


@dataclass(frozen=True, slots=True)
class Cursor:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class DescribeTopicPartitionsRequest:
    topics: tuple[str, ...]
    """Empty: all."""
    partitions_max: int
    cursor: Cursor | None


@dataclass(frozen=True, slots=True)
class _Line:
    error: ErrorCode
    name: str
    topic: Topic | None = None
    partitions: range = range(0)


def decode(reader: Reader, version: int) -> DescribeTopicPartitionsRequest:  # noqa: ARG001 (there is one version)
    def topic() -> str:
        name = reader.string()
        reader.end_of_fields()
        return name

    def cursor() -> Cursor | None:
        if reader.int8() < 0:
            return None
        entry = Cursor(reader.string(), reader.int32())
        reader.end_of_fields()
        return entry

    request = DescribeTopicPartitionsRequest(reader.array(topic), reader.int32(), cursor())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeTopicPartitionsRequest) -> Answer:
    cursor = request.cursor
    if cursor is not None and (cursor.partition < 0 or (request.topics and cursor.topic not in request.topics)):
        lines = [_Line(ErrorCode.INVALID_REQUEST, name) for name in dict.fromkeys(request.topics)]
        return await _encode(context, lines, None)
    lines, following = await _page(context, request)
    return await _encode(context, lines, following)


_NAMES_PER_TURN = 100
"""Looked at before others run."""


async def _page(context: Context, request: DescribeTopicPartitionsRequest) -> tuple[Sequence[_Line], Cursor | None]:
    cluster = context.broker.cluster
    cursor = request.cursor or Cursor("", 0)
    room = max(1, min(request.partitions_max, PARTITIONS_MAX))
    lines: list[_Line] = []
    names: Iterable[str] = sorted(set(request.topics)) or [topic.name for topic in cluster.topics()]
    for number, name in enumerate(names):
        if number % _NAMES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
        if name < cursor.topic:
            continue
        if not request.topics and not may(context, DESCRIBE_TOPIC, name):
            continue
        if not room:
            return lines, Cursor(name, 0)
        topic = cluster.topic(name)
        await trio.lowlevel.checkpoint()
        if (refused := denied(context, DESCRIBE_TOPIC, name)) is not None:
            lines.append(_Line(refused, name))
            continue
        if topic is None:
            if request.topics:
                lines.append(_Line(_error_of(name), name))
            continue
        first = cursor.partition if name == cursor.topic else 0
        partitions = range(first, min(topic.partitions, first + room))
        lines.append(_Line(ErrorCode.NONE, name, topic, partitions))
        if partitions and partitions.stop < topic.partitions:
            return lines, Cursor(name, partitions.stop)
        room -= len(partitions)
    return lines, None


def _error_of(name: str) -> ErrorCode:
    """Why there is no topic of this name."""
    try:
        check_topic_untrusted(name, 1)
    except InvalidTopic:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _encode(context: Context, lines: Sequence[_Line], following: Cursor | None) -> Answer:
    writer, broker = context.writer(), context.broker
    reachable = {address.node_id for address in broker.brokers(context.client.listener.name)}
    unreachable = frozenset(broker.started) - reachable
    leaders: Sequence[Leader] = ()
    copies: Sequence[PartitionCopies] = ()

    def partition(index: int) -> None:
        node_id, leader_epoch = leaders[index]
        can_lead = node_id in reachable
        missing = ErrorCode.LISTENER_NOT_FOUND if node_id in unreachable else ErrorCode.LEADER_NOT_AVAILABLE
        writer.int16(ErrorCode.NONE if can_lead else missing)
        writer.int32(index)
        writer.int32(node_id if can_lead else NO_NODE)
        writer.int32(leader_epoch)
        writer.int32_array(copies[index].replicas)
        writer.int32_array(copies[index].in_sync)
        writer.int32_array(())  # eligible leader replicas
        writer.int32_array(())  # the last that were known
        writer.int32_array(())  # offline replicas
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array_length(len(lines))
    for line in lines:
        leaders = () if line.topic is None else broker.cluster.leaders(line.topic)
        copies = () if line.topic is None else broker.cluster.copies(line.topic)
        writer.int16(line.error)
        writer.nullable_string(line.name)
        writer.uuid(None if line.topic is None else line.topic.topic_id)
        writer.boolean(False)  # internal
        writer.array(line.partitions, partition)
        told = line.error not in (ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        writer.int32(operations(context, ResourceType.TOPIC, line.name) if told else NOT_ASKED)
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    _write_cursor(writer, following)
    writer.end_of_fields()
    return writer.parts()


def _write_cursor(writer: Writer, cursor: Cursor | None) -> None:
    if cursor is None:
        writer.int8(-1)
        return
    writer.int8(1)
    writer.string(cursor.topic)
    writer.int32(cursor.partition)
    writer.end_of_fields()


API = Api(75, "DescribeTopicPartitions", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_TOPIC,))
