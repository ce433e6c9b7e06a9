"""What an op is, and which part of the node it can use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from fairlog.broker import Broker
from fairlog.cluster.interface import Topic
from fairlog.native.messages import Arguments, HangUp, Refused, Result
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.principal import ANONYMOUS, Principal
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
    listener: Listener = PLAIN
    """By which the client came in: it is told the addresses of other brokers' listeners of this name."""
    host: str = ""
    """The client's address, without its port."""
    principal: Principal = ANONYMOUS
    """Who the client has shown to be."""


Op: TypeAlias = Callable[[Call], Awaitable[Result]]
"""Carries out a request. Raises Refused, HangUp, or StorageFailure, which means without effect."""


def have_others_asked(broker: Broker) -> None:
    """Raises HangUp if this broker knows of no other owner of its shard than itself, and may be wrong.

    Who has given up a shard while the engine is silent would have clients ask here again and again. When the connection
    is closed, they ask another broker.
    """
    if broker.may_be_told_of_itself and not broker.opens():
        raise HangUp("the node does not know who owns the shard, for the replicated log does not answer")


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
