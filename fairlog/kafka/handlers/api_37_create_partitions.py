"""CreatePartitions: more partitions for topics that exist.

Behaviour
- The count is the new total. If it is not more than the present count, or is above the limits of CreateTopics, the
  answer is INVALID_PARTITIONS, with a message that says how many there are.
- When this is answered, the new partitions accept batches and fetches, and Metadata lists them. Records stay where they
  are: keys that a client hashes over all partitions may go to other partitions from now on.
- There is one manual assignment for each new partition. The brokers that they name are treated like a replication
  factor, as in CreateTopics.
- validate_only checks all this and changes nothing.
- A topic that is named more than once is INVALID_REQUEST, and is not changed.

Version notes
- 2 is flexible; 3 allows an error about quotas (never returned).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fairlog.cluster.interface import InvalidPartitions, Topic, UnknownTopic
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_TOPIC, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note, noting
from fairlog.kafka.replicas import BadReplicas, check_assignments
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(0, 3)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class GrownTopic:
    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None
    """The brokers of each new partition; None if the node is to decide."""


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    topics: tuple[GrownTopic, ...]
    validate_only: bool


def decode(reader: Reader, version: int) -> CreatePartitionsRequest:  # noqa: ARG001 (all versions look alike)
    def assignment() -> tuple[int, ...]:
        entry = reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def topic() -> GrownTopic:
        entry = GrownTopic(reader.string(), reader.int32(), reader.nullable_array(assignment))
        reader.end_of_fields()
        return entry

    topics = reader.array(topic)
    reader.int32()  # time-out: partitions are there when they are answered
    request = CreatePartitionsRequest(topics, reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: CreatePartitionsRequest) -> Answer:
    times = Counter(topic.name for topic in request.topics)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(times))
    for topic in request.topics:
        if topic.name not in times:
            continue
        if times.pop(topic.name) > 1:
            error, message = ErrorCode.INVALID_REQUEST, "the request names this topic more than once"
        elif (refused := denied(context, ALTER_TOPIC, topic.name)) is not None:
            error, message = refused, "the client may not alter this topic"
            note(context, Action.CREATE_PARTITIONS, topic.name, error, total=topic.total)
        elif request.validate_only:
            error, message = await _grow(context, topic, True)
        else:
            with noting(context, Action.CREATE_PARTITIONS, topic.name, total=topic.total) as is_answered:
                error, message = await _grow(context, topic, False)
                is_answered(error)
        writer.string(topic.name)
        writer.int16(error)
        writer.message(message)
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


async def _grow(context: Context, wanted: GrownTopic, validate_only: bool) -> tuple[ErrorCode, str | None]:
    broker = context.broker
    try:
        topic = await broker.topics.add_partitions(wanted.name, wanted.total, validate_only=True)
        _check_assignments(topic, wanted, clamp=broker.settings.topics.replication_factor_policy == "clamp")
        if not validate_only:
            await broker.topics.add_partitions(wanted.name, wanted.total, validate_only=False)
    except UnknownTopic as error:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error)
    except InvalidPartitions as error:
        return ErrorCode.INVALID_PARTITIONS, str(error)
    except BadReplicas as error:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)
    except StorageFailure as error:
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return ErrorCode.NONE, None


def _check_assignments(topic: Topic, wanted: GrownTopic, *, clamp: bool) -> None:
    if wanted.assignments is None:
        return
    new = wanted.total - topic.partitions
    if len(wanted.assignments) != new:
        raise BadReplicas(f"{len(wanted.assignments)} assignments for {new} new partitions")
    check_assignments(topic.name, wanted.assignments, clamp=clamp)


API = Api(37, "CreatePartitions", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_TOPIC,))
