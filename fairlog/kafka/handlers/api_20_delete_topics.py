"""DeleteTopics: delete topics with all their records.

Behaviour
- When this is answered, the topic is deleted: its name is free, and its partitions accept and return nothing. The disk
  space is freed in the background.
- A topic that the client may not delete is TOPIC_AUTHORIZATION_FAILED, whether it exists or not. If it was named by its
  id, the answer has its name only if the client may describe it.
- Its part of an open transaction is lost with it; the transaction's other partitions can still commit.

Version notes
- 4 is flexible; 5 adds an error message; 6 allows topic ids beside names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from fairlog.cluster.interface import Topic, UnknownTopic
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import noting
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(1, 6)
FLEXIBLE_FROM = 4
_TOPIC_IDS_FROM = 6


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    topics: tuple[tuple[str | None, UUID | None], ...]
    """(name, topic id): a correct client sends one of the two."""


@dataclass(frozen=True, slots=True)
class _Line:
    name: str | None
    topic_id: UUID | None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def decode(reader: Reader, version: int) -> DeleteTopicsRequest:
    def topic() -> tuple[str | None, UUID | None]:
        if version < _TOPIC_IDS_FROM:
            return reader.string(), None
        entry = reader.nullable_string(), reader.uuid()
        reader.end_of_fields()
        return entry

    request = DeleteTopicsRequest(reader.array(topic))
    reader.int32()  # time-out: a topic is gone when it is answered
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DeleteTopicsRequest) -> Answer:
    lines: list[_Line] = []
    for name, topic_id in request.topics:
        topic = None if topic_id is None else context.broker.cluster.topic_by_id(topic_id)
        called = name or (str(topic_id) if topic is None else topic.name)
        with noting(context, Action.DELETE_TOPIC, called) as is_answered:
            lines.append(await _delete(context, name, topic_id))
            is_answered(lines[-1].error)
    return encode(context, lines)


async def _delete(context: Context, name: str | None, topic_id: UUID | None) -> _Line:
    cluster = context.broker.cluster
    if (name is None) == (topic_id is None):
        return _Line(name, topic_id, ErrorCode.INVALID_REQUEST, "either a name or a topic id is needed")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name is not None:
        topic = cluster.topic(name)
    else:
        assert topic_id is not None, "one of the two is given"
        topic, unknown = cluster.topic_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
    refused = _why_not(context, name, topic)
    if refused is not None:
        shown = (
            name if topic is None or topic_id is None or not may(context, DESCRIBE_TOPIC, topic.name) else topic.name
        )
        return _Line(shown, topic_id, refused, "the client may not delete this topic")
    if topic is None:
        return _Line(name, topic_id, unknown, "there is no such topic")
    try:
        await context.broker.topics.delete(topic.topic_id)
    except UnknownTopic:
        return _Line(name, topic_id, unknown, "there is no such topic any more")
    except StorageFailure as failure:
        return _Line(topic.name, topic.topic_id, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
    return _Line(topic.name, topic.topic_id)


def _why_not(context: Context, name: str | None, topic: Topic | None) -> ErrorCode | None:
    """By its name a topic has to be describable first, as in Kafka; an id that no topic has may be asked for by all."""
    if may(context, DELETE_IN_CLUSTER):
        return None
    if name is not None:
        return denied(context, DESCRIBE_TOPIC, name) or denied(context, DELETE_TOPIC, name)
    return None if topic is None else denied(context, DELETE_TOPIC, topic.name)


def encode(context: Context, lines: Sequence[_Line]) -> Answer:
    version, writer = context.version, context.writer()

    def topic(line: _Line) -> None:
        if version >= _TOPIC_IDS_FROM:
            writer.nullable_string(line.name)
            writer.uuid(line.topic_id)
        else:
            writer.string(line.name or "")
        writer.int16(line.error)
        if version >= 5:
            writer.message(line.message)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(lines, topic)
    writer.end_of_fields()
    return writer.parts()


API = Api(20, "DeleteTopics", SERVED, FLEXIBLE_FROM, decode, handle, (DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC))
