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

from fairlog.cluster.interface import UnknownTopic
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import note
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
    lines = [await _delete(context, name, topic_id) for name, topic_id in request.topics]
    for line in lines:
        note(context, Action.DELETE_TOPIC, line.name or str(line.topic_id), line.error)
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
    refused = _why_not(context, name or ("" if topic is None else topic.name))
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


def _why_not(context: Context, name: str) -> ErrorCode | None:
    """Of a topic that exists, or whose name the client has said; empty for an id that no topic has."""
    return None if not name or may(context, DELETE_IN_CLUSTER) else denied(context, DELETE_TOPIC, name)


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
