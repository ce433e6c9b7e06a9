"""From the names and ids in requests to topics and their logs; creates topics where that is allowed.

Handlers get either a value or the error code for the answer.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from fairlog.broker import Broker
from fairlog.cluster.interface import InvalidTopic, Topic, TopicExists
from fairlog.kafka.api import Context
from fairlog.kafka.checks import CREATE_IN_CLUSTER, CREATE_TOPIC, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import noting
from fairlog.kafka.wire import TopicKey
from fairlog.topic_configs import with_fixed
from fairlog.trail import Action
from fairlog_types import LogId, LogKind, StorageFailure

log = structlog.get_logger()

OFFSETS_TOPIC = "__consumer_offsets"


async def find_or_create(context: Context, name: str, *, may_create: bool) -> Topic | ErrorCode:
    """The topic with this name. A missing one is created with the node's defaults, if `may_create` and the
    configuration allow it, and the client may create it.
    """
    broker = context.broker
    topic = broker.cluster.topic(name)
    if topic is not None:
        return topic
    if not (may_create and broker.settings.topics.auto_create):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with noting(context, Action.CREATE_TOPIC, name, on_first_use=True) as is_answered:
        made = await _create(context, name)
        if made is not None:
            is_answered(made if isinstance(made, ErrorCode) else ErrorCode.NONE)
    return made or broker.cluster.topic(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _create(context: Context, name: str) -> Topic | ErrorCode | None:
    """None if another client's request was faster."""
    broker = context.broker
    refused = None if may(context, CREATE_IN_CLUSTER) else denied(context, CREATE_TOPIC, name)
    if refused is not None:
        return refused
    try:
        with structlog.contextvars.bound_contextvars(on_first_use=True):  # in the line of the topic's creation
            return await broker.topics.create(
                name,
                partitions=broker.settings.topics.partitions_default,
                configs=with_fixed({}, broker.settings),
            )
    except InvalidTopic:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    except TopicExists:
        return None
    except StorageFailure as failure:
        event = "a topic could not be made"
        more = context.client.admit_line(event)
        if more is not None:
            log.warning(event, topic=name, reason=str(failure), **more)
        return ErrorCode.KAFKA_STORAGE_ERROR


def find_topic(broker: Broker, key: TopicKey) -> Topic | None:
    """The topic with this name or id; None if there is none."""
    if isinstance(key, str):
        return broker.cluster.topic(key)
    return None if key is None else broker.cluster.topic_by_id(key)


def log_of(topic: Topic | None, partition: int) -> LogId | None:
    """The log of a topic's partition, None if there is none."""
    if topic is None or not 0 <= partition < topic.partitions:
        return None
    return LogId.of_topic(topic.topic_id, partition)


def partition_name(broker: Broker, log_id: LogId) -> tuple[str, int]:
    """A log as clients call it: topic and partition. The topic id replaces the name of a deleted topic.

    An offsets log has the name of Kafka's own, although no client can fetch it.
    """
    if log_id.kind != LogKind.TOPIC.value:
        return OFFSETS_TOPIC, log_id.partition
    topic = broker.cluster.topic_by_id(UUID(hex=log_id.topic))
    return (log_id.topic if topic is None else topic.name), log_id.partition
