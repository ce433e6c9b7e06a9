"""The native protocol on Kafka's port: its ops, its statistics, and its connections."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import trio

from fairlog.broker import Broker
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.statistics import ApiStatistics
from fairlog.native import batches, cuts
from fairlog.native.calls import Client, Op
from fairlog.native.connection import OPENING, NativeConnection, Served
from fairlog.native.permissions import DESCRIBE_SINK, DESCRIBE_TOPIC, READ_GROUP, READ_TOPIC, WRITE_SINK
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.principal import ANONYMOUS, Principal

OPS: Mapping[str, Op] = {
    "join": Op(batches.join, (WRITE_SINK,)),
    "commit": Op(batches.commit, (WRITE_SINK, READ_GROUP, READ_TOPIC, DESCRIBE_TOPIC)),
    "abort": Op(batches.abort, (WRITE_SINK,)),
    "topics": Op(cuts.topics, (DESCRIBE_TOPIC,)),
    "cut": Op(cuts.cut, (DESCRIBE_TOPIC,)),
    "sinks": Op(batches.sinks, (DESCRIBE_SINK, DESCRIBE_TOPIC)),
    "forget": Op(batches.forget, (WRITE_SINK,)),
}


class NativeProtocol:
    """One per node. Implements `fairlog.edge.protocols.ListenerProtocol`."""

    opening = OPENING

    def __init__(self, broker: Broker) -> None:
        self._served = Served(
            broker, {name: (op, ApiStatistics(f"native {name}")) for name, op in OPS.items()}, itertools.count(1)
        )
        self.statistics = [statistics for _, statistics in self._served.ops.values()]
        """The counts of each op. Refusals are counted by kind."""

    def connection(
        self,
        stream: trio.abc.Stream,
        received: bytes,
        *,
        ordinal: int,
        peer: str,
        budget: FrameBudget,
        lines: LogLimiter,
        listener: Listener = PLAIN,
        principal: Principal = ANONYMOUS,
    ) -> NativeConnection:
        client = Client(ordinal, peer, lines, listener, principal)
        return NativeConnection(self._served, stream, received, client, budget)
