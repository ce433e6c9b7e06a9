"""Metadata: the cluster, its brokers, and its topics with their partitions.

Behaviour
- The node has one broker, or one for each of its shards; that of the first one is the controller. A partition's leader
  is its only replica, and in sync. If its broker has not started yet, the partition is LEADER_NOT_AVAILABLE.
- Brokers are listed with the addresses of the listener that the client came in by. One that has no listener of this
  name is left out, and what it leads is LISTENER_NOT_FOUND, before version 6 LEADER_NOT_AVAILABLE, as in Kafka.
- Topics that are requested by name and do not exist are created, if the client allows it and the node is configured so.
- A topic that is named more than once is answered once. Other clients are served between one topic and the next.
- A topic that the client may not describe is left out if it asks for all, and TOPIC_AUTHORIZATION_FAILED if it asks for
  this one, whether it exists or not. By its id it is told apart from one that does not exist, as in Kafka.
- Encoded answers are kept until the cluster's generation changes, because many clients send the same request. Answers
  with errors are not kept: a client can ask for another missing topic each time.

Version notes
- 0: an empty list means all topics; from 1 on that is null, and an empty list means none. 1 adds racks, the controller
  and internal topics; 2 the cluster id; 3 the throttle time; 4 lets the client forbid auto-creation; 5 offline
  replicas; 7 the leader epoch; 8 authorized operations (KIP-430), of the cluster up to 10 only;
  9 is flexible; 10 adds topic ids; 12 lets a client ask by id; 13 adds an error for the whole answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from uuid import UUID

import trio

from fairlog.cluster.interface import BrokerAddress, ClusterStore, Leader, PartitionCopies, Topic
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import (
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    NOT_ASKED,
    denied,
    may,
    operations,
    operations_on_cluster,
)
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import NO_NODE
from fairlog.kafka.topic_lookup import find_or_create
from fairlog.kafka.wire import Reader
from fairlog.security.acls import ResourceType

SERVED = Versions(0, 13)
FLEXIBLE_FROM = 9
_LISTENER_NOT_FOUND_FROM = 6

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class TopicWanted:
    """By id if there is one: Java's client also sends an empty name, and Kafka accepts this."""

    name: str | None
    topic_id: UUID | None


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    topics: tuple[TopicWanted, ...] | None
    """None: all of them."""
    may_create: bool
    operations_of_cluster: bool
    """Whether authorized operations are asked for."""
    operations_of_topics: bool


@dataclass(frozen=True, slots=True)
class _Line:
    error: ErrorCode
    name: str | None
    topic_id: UUID | None
    leaders: Sequence[Leader] = ()
    """Of the topic's partitions, in their order."""
    copies: Sequence[PartitionCopies] = ()
    """Likewise."""

    @classmethod
    def of(cls, cluster: ClusterStore, topic: Topic) -> _Line:
        return cls(ErrorCode.NONE, topic.name, topic.topic_id, cluster.leaders(topic), cluster.copies(topic))


def decode(reader: Reader, version: int) -> MetadataRequest:
    def topic() -> TopicWanted:
        topic_id = reader.uuid() if version >= 10 else None
        wanted = TopicWanted(reader.nullable_string() if version >= 10 else reader.string(), topic_id)
        reader.end_of_fields()
        return wanted

    topics = reader.nullable_array(topic)
    if version == 0 and not topics:
        topics = None
    may_create = reader.boolean() if version >= 4 else True
    operations_of_cluster = reader.boolean() if 8 <= version <= 10 else False
    operations_of_topics = reader.boolean() if version >= 8 else False
    reader.end_of_fields()
    return MetadataRequest(topics, may_create, operations_of_cluster, operations_of_topics)


async def handle(context: Context, request: MetadataRequest) -> Answer:
    asked = None if request.topics is None else _once_each(request.topics)
    if asked is not None:
        return await _describe(context, asked, request)
    async with context.encoded.one_at_a_time:  # who asks at the same time gets what the first one has had encoded
        return await _describe(context, None, request)


async def _describe(context: Context, asked: tuple[TopicWanted, ...] | None, request: MetadataRequest) -> Answer:
    cluster = context.broker.cluster
    generation = cluster.generation
    key = (
        "Metadata",
        context.client.listener.name,
        context.client.rights,
        context.version,
        asked,
        request.operations_of_cluster,
        request.operations_of_topics,
    )
    kept = context.encoded.get(key, generation)
    if kept is not None:
        return kept
    if asked is None:
        lines = [_Line.of(cluster, topic) for topic in cluster.topics() if may(context, DESCRIBE_TOPIC, topic.name)]
    else:
        lines = [await _look_up(context, wanted, request.may_create) for wanted in asked]
    answer = await encode(context, request, lines)
    if cluster.generation == generation and all(line.error is ErrorCode.NONE for line in lines):
        context.encoded.put(key, generation, answer, key_items=len(asked or ()))
    return answer


def _once_each(topics: Iterable[TopicWanted]) -> tuple[TopicWanted, ...]:
    """Without repetitions: a name of two bytes would otherwise cost its topic's partitions each time."""
    by_what_counts = {(wanted.topic_id or wanted.name): wanted for wanted in topics}
    return tuple(by_what_counts.values())


async def _look_up(context: Context, wanted: TopicWanted, may_create: bool) -> _Line:
    if wanted.name is None or wanted.topic_id is not None:
        topic = None if wanted.topic_id is None else context.broker.cluster.topic_by_id(wanted.topic_id)
        if topic is None:
            return _Line(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
        refused = denied(context, DESCRIBE_TOPIC, topic.name)
        if refused is not None:
            return _Line(refused, None, wanted.topic_id)
        return _Line.of(context.broker.cluster, topic)
    refused = denied(context, DESCRIBE_TOPIC, wanted.name)
    found = refused or await find_or_create(context, wanted.name, may_create=may_create)
    if isinstance(found, ErrorCode):
        return _Line(found, wanted.name, None)
    return _Line.of(context.broker.cluster, found)


async def encode(context: Context, request: MetadataRequest, lines: Sequence[_Line]) -> Answer:
    version, writer, broker = context.version, context.writer(), context.broker
    listener = context.client.listener.name
    brokers, controller = broker.brokers(listener), broker.controller(listener)
    reachable = {address.node_id for address in brokers}
    unreachable = frozenset(broker.started) - reachable if version >= _LISTENER_NOT_FOUND_FROM else ()

    def node(address: BrokerAddress) -> None:
        writer.int32(address.node_id)
        writer.string(address.host)
        writer.int32(address.port)
        if version >= 1:
            writer.nullable_string(broker.cluster.rack_of(address.node_id))
        writer.end_of_fields()

    def partition(numbered: tuple[int, Leader, PartitionCopies]) -> None:
        index, (node_id, leader_epoch), copies = numbered
        can_lead = node_id in reachable
        missing = ErrorCode.LISTENER_NOT_FOUND if node_id in unreachable else ErrorCode.LEADER_NOT_AVAILABLE
        writer.int16(ErrorCode.NONE if can_lead else missing)
        writer.int32(index)
        writer.int32(node_id if can_lead else NO_NODE)
        if version >= 7:
            writer.int32(leader_epoch)
        writer.int32_array(copies.replicas)
        writer.int32_array(copies.in_sync)
        if version >= 5:
            writer.int32_array(())  # offline replicas
        writer.end_of_fields()

    def topic(line: _Line) -> None:
        writer.int16(line.error)
        writer.nullable_string(line.name if line.name is not None or version >= 12 else "")
        if version >= 10:
            writer.uuid(line.topic_id)
        if version >= 1:
            writer.boolean(False)  # internal
        writer.array(list(zip(count(), line.leaders, line.copies, strict=False)), partition)
        if version >= 8:
            told = request.operations_of_topics and line.name is not None and line.error is not _DENIED
            writer.int32(operations(context, ResourceType.TOPIC, line.name or "") if told else NOT_ASKED)
        writer.end_of_fields()

    if version >= 3:
        writer.int32(0)  # throttle time
    writer.array(brokers, node)
    if version >= 2:
        writer.nullable_string(broker.cluster.cluster_id)
    if version >= 1:
        writer.int32(NO_NODE if controller is None else controller.node_id)
    writer.array_length(len(lines))
    for line in lines:
        topic(line)
        await trio.lowlevel.checkpoint()
    if 8 <= version <= 10:
        writer.int32(operations_on_cluster(context) if request.operations_of_cluster else NOT_ASKED)
    if version >= 13:
        writer.int16(ErrorCode.NONE)
    writer.end_of_fields()
    return writer.parts()


API = Api(
    3,
    "Metadata",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (DESCRIBE_TOPIC, CREATE_TOPIC, CREATE_IN_CLUSTER, DESCRIBE_CLUSTER),
)
