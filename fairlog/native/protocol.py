"""The native protocol on Kafka's port: its ops, its statistics, and its connections.

A node of several processes refuses the ops of sinks as yet: a sink's lanes would have to be on one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import trio

from fairlog.broker import Broker
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.statistics import ApiStatistics
from fairlog.native import batches, cuts
from fairlog.native.calls import Call, Op
from fairlog.native.connection import OPENING, NativeConnection, Served
from fairlog.native.messages import Refused, Result

OPS: Mapping[str, Op] = {
    "join": batches.join,
    "commit": batches.commit,
    "abort": batches.abort,
    "topics": cuts.topics,
    "cut": cuts.cut,
    "sinks": batches.sinks,
    "forget": batches.forget,
}


OVER_SHARDS = frozenset({"topics", "cut"})
"""Those that a node of several processes carries out."""


async def _refuse(call: Call) -> Result:  # noqa: ARG001 (whatever it is)
    await trio.lowlevel.checkpoint()
    raise Refused("several-processes", "Sinks need a node of one process as yet; start it without --processes")


class NativeProtocol:
    """One per node. Implements `fairlog.edge.protocols.ListenerProtocol`."""

    opening = OPENING

    def __init__(self, broker: Broker) -> None:
        ops = {name: op if broker.is_alone or name in OVER_SHARDS else _refuse for name, op in OPS.items()}
        self._served = Served(
            broker, {name: (op, ApiStatistics(f"native {name}")) for name, op in ops.items()}, itertools.count(1)
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
    ) -> NativeConnection:
        return NativeConnection(self._served, stream, received, ordinal=ordinal, peer=peer, budget=budget, lines=lines)
