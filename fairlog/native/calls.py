"""What an op is, and which part of the node it can use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fairlog.broker import Broker
from fairlog.cluster.interface import Topic
from fairlog.edge.log_limiter import LogLimiter
from fairlog.native.messages import Arguments, HangUp, Refused, Result
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.authorizer import Rights
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.principal import ANONYMOUS, Principal
from fairlog_types import LogId


@dataclass(slots=True)
class Client:
    """The peer at the other end of a connection."""

    connection: int
    """The connection's ordinal: it grows with each connection that the node accepts."""
    peer: str
    """Address and port, for log lines."""
    lines: LogLimiter
    """For log lines that a client can cause at will."""
    listener: Listener = PLAIN
    """Where it came in."""
    principal: Principal = ANONYMOUS
    """Who the peer has shown to be."""
    rights: Rights | None = None
    """What it may do, as of its last request; None if everyone may do everything."""

    @property
    def address(self) -> str:
        """The peer's address without its port."""
        return self.peer.rpartition(":")[0]

    def admit_line(self, event: str) -> Mapping[str, int] | None:
        """None if no log line of this event should be written now; otherwise what it says about suppressed ones."""
        return self.lines.admit(self.address, event)


@dataclass(frozen=True, slots=True)
class Call:
    """The context of one request."""

    broker: Broker
    arguments: Arguments
    client: Client
    serial: int
    """The request's serial number in this run of the node."""

    @property
    def connection(self) -> int:
        """The ordinal of the client's connection."""
        return self.client.connection


class Check(NamedTuple):
    """An operation on a resource that a client must be allowed (`fairlog.native.permissions`)."""

    operation: Operation
    of: ResourceType


class Op(NamedTuple):
    """One of the protocol."""

    carry_out: Callable[[Call], Awaitable[Result]]
    """Raises Refused, HangUp, or StorageFailure, which means without effect."""
    checks: tuple[Check, ...]
    """All that it asks of what the client may do; docs/authorization.md says of what."""


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
