"""CreateTopics: new topics, with their partitions and configs.

Behaviour
- -1 partitions or replicas means the node's default. A replication factor above the number of nodes is clamped with a
  log line, or refused, depending on `topics.replication_factor_policy`: many test suites always ask for 3.
- Manual assignments must number the partitions from 0 without gaps. The brokers that they name are treated like a
  replication factor: there is only this one.
- Configs are checked against a table (`fairlog.topic_configs`); an unknown name or value is INVALID_CONFIG.
- A config that is fixed at creation (`fairlog.transactions`) is written into the topic's configs and answered with
  them, whether the request names it or not.
- validate_only checks all this, and whether the name is taken, and creates nothing.
- A name that occurs twice in one request is INVALID_REQUEST, and no such topic is created.
- A client that may create the topic and not describe its configs is not told partitions, replicas and configs.
- Other clients are served in between.

Version notes
- 5 is flexible and answers with partitions, replicas and configs; 7 adds the topic id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import trio

from fairlog.cluster.interface import InvalidTopic, TopicExists
from fairlog.cluster.topic_rules import check_topic_untrusted
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_CONFIGS_OF_TOPIC, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import noting
from fairlog.kafka.replicas import REPLICAS, BadReplicas, check_assignments, check_replication_factor
from fairlog.kafka.wire import Reader
from fairlog.topic_configs import why_refused, with_fixed
from fairlog.trail import Action
from fairlog_types import StorageFailure

SERVED = Versions(2, 7)
FLEXIBLE_FROM = 5

_DEFAULT = -1
_CONFIG_ERROR_TAG = 0
_CONFIG_SOURCE_TOPIC = 1
"""Kafka's DYNAMIC_TOPIC_CONFIG: set for this topic."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int
    replication_factor: int
    assignments: tuple[tuple[int, tuple[int, ...]], ...]
    """(partition, its brokers); empty if the node is to decide."""
    configs: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    topics: tuple[NewTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    configs: tuple[tuple[str, str], ...] = ()
    config_error: ErrorCode = ErrorCode.NONE
    """Why configs and partitions are not told."""


class _Refused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def decode(reader: Reader, version: int) -> CreateTopicsRequest:  # noqa: ARG001 (all versions look alike)
    def assignment() -> tuple[int, tuple[int, ...]]:
        entry = reader.int32(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def config() -> tuple[str, str | None]:
        entry = reader.string(), reader.nullable_string()
        reader.end_of_fields()
        return entry

    def topic() -> NewTopic:
        entry = NewTopic(
            reader.string(), reader.int32(), reader.int16(), reader.array(assignment), reader.array(config)
        )
        reader.end_of_fields()
        return entry

    topics = reader.array(topic)
    reader.int32()  # time-out: a topic is there when it is answered
    request = CreateTopicsRequest(topics, reader.boolean())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: CreateTopicsRequest) -> Answer:
    times = Counter(topic.name for topic in request.topics)
    lines: list[_Line] = []
    may_create_any = may(context, CREATE_IN_CLUSTER)
    for name, topic in {topic.name: topic for topic in request.topics}.items():
        await trio.lowlevel.checkpoint()
        if times[name] > 1:
            lines.append(_Line(name, ErrorCode.INVALID_REQUEST, "the request names this topic more than once"))
            continue
        refused = None if may_create_any else denied(context, CREATE_TOPIC, name)
        if request.validate_only:
            lines.append(await _line(context, topic, refused, validate_only=True))
            continue
        with noting(context, Action.CREATE_TOPIC, name) as is_answered:
            lines.append(await _line(context, topic, refused, validate_only=False))
            is_answered(lines[-1].error)
    return encode(context, lines)


async def _line(context: Context, topic: NewTopic, refused: ErrorCode | None, *, validate_only: bool) -> _Line:
    if refused is not None:
        return _Line(topic.name, refused, "the client may not create this topic")
    try:
        made = await _create(context, topic, validate_only)
    except _Refused as refusal:
        return _Line(topic.name, refusal.error, str(refusal))
    if may(context, DESCRIBE_CONFIGS_OF_TOPIC, topic.name):
        return made
    return replace(made, config_error=ErrorCode(DESCRIBE_CONFIGS_OF_TOPIC.code))


async def _create(context: Context, topic: NewTopic, validate_only: bool) -> _Line:
    broker = context.broker
    partitions = _partitions(topic, broker.settings.topics.partitions_default)
    _check_replicas(topic, clamp=broker.settings.topics.replication_factor_policy == "clamp")
    problem = why_refused(dict(topic.configs))
    if problem is not None:
        raise _Refused(ErrorCode.INVALID_CONFIG, problem)
    configs = with_fixed({name: value for name, value in topic.configs if value is not None}, broker.settings)
    if validate_only:
        try:
            check_topic_untrusted(topic.name, partitions)
        except InvalidTopic as error:
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
        if broker.cluster.topic(topic.name) is not None:
            raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists")
        return _Line(topic.name, partitions=partitions, configs=tuple(configs.items()))
    try:
        made = await broker.topics.create(topic.name, partitions=partitions, configs=configs)
    except InvalidTopic as error:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    except TopicExists as error:
        raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} exists") from error
    except StorageFailure as error:
        raise _Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    return _Line(topic.name, topic_id=made.topic_id, partitions=partitions, configs=tuple(configs.items()))


def _partitions(topic: NewTopic, default: int) -> int:
    if topic.assignments:
        if topic.partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            raise _Refused(
                ErrorCode.INVALID_REQUEST, "with assignments, partitions and replication factor must both be -1"
            )
        if sorted(index for index, _ in topic.assignments) != list(range(len(topic.assignments))):
            raise _Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assignments must number the partitions 0, 1, 2, …")
        return len(topic.assignments)
    if topic.partitions == _DEFAULT:
        return default
    if topic.partitions < 1:
        raise _Refused(ErrorCode.INVALID_PARTITIONS, f"{topic.partitions} partitions; at least 1 is needed")
    return topic.partitions


def _check_replicas(topic: NewTopic, *, clamp: bool) -> None:
    try:
        if topic.assignments:
            check_assignments(topic.name, [brokers for _, brokers in topic.assignments], clamp=clamp)
        elif topic.replication_factor != _DEFAULT:
            check_replication_factor(topic.name, topic.replication_factor, clamp=clamp)
    except BadReplicas as bad:
        by_hand = bool(topic.assignments)
        error = ErrorCode.INVALID_REPLICA_ASSIGNMENT if by_hand else ErrorCode.INVALID_REPLICATION_FACTOR
        raise _Refused(error, str(bad)) from bad


def encode(context: Context, lines: Sequence[_Line]) -> Answer:
    version, writer = context.version, context.writer()

    def config(entry: tuple[str, str]) -> None:
        name, value = entry
        writer.string(name)
        writer.nullable_string(value)
        writer.boolean(False)  # read only
        writer.int8(_CONFIG_SOURCE_TOPIC)
        writer.boolean(False)  # sensitive
        writer.end_of_fields()

    def topic(line: _Line) -> None:
        writer.string(line.name)
        if version >= 7:
            writer.uuid(line.topic_id)
        writer.int16(line.error)
        writer.message(line.message)
        if version >= 5:
            is_told = line.config_error is ErrorCode.NONE
            writer.int32(line.partitions if is_told else -1)
            writer.int16(REPLICAS if line.error is ErrorCode.NONE and is_told else -1)
            if is_told:
                writer.array(line.configs, config)
                writer.end_of_fields()
            else:
                writer.null_array()
                writer.tagged_fields([(_CONFIG_ERROR_TAG, line.config_error.to_bytes(2, "big"))])
        else:
            writer.end_of_fields()

    writer.int32(0)  # throttle time
    writer.array(lines, topic)
    writer.end_of_fields()
    return writer.parts()


API = Api(
    19,
    "CreateTopics",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_CONFIGS_OF_TOPIC),
)
