"""What an op is, and which part of the node it can use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from fairlog.broker import Broker
from fairlog.cluster.interface import Topic
from fairlog.native.messages import Arguments, Refused, Result
from fairlog_types import LogId


@dataclass(frozen=True, slots=True)
class Call:
    """The context of one request."""

    broker: Broker
    arguments: Arguments
    connection: int
    """The ordinal of the client's connection: it grows with each connection that the node accepts."""
    serial: int
    """The request's serial number in this run of the node."""


Op: TypeAlias = Callable[[Call], Awaitable[Result]]
"""Carries out a request. Raises Refused, or StorageFailure, which means without effect."""


def topic_of(broker: Broker, name: str) -> Topic:
    """The topic with this name. Raises Refused."""
    topic = broker.cluster.topic(name)
    if topic is None:
        raise Refused("unknown-topic", f"there is no topic {name}")
    return topic


def log_of(broker: Broker, name: str, partition: int) -> LogId:
    """The log of a topic's partition. Raises Refused."""
    topic = topic_of(broker, name)
    if partition >= topic.partitions:
        raise Refused("unknown-partition", f"topic {name} has {topic.partitions} partitions, not {name}-{partition}")
    return LogId.of_topic(topic.topic_id, partition)
