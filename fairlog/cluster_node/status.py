"""The cluster as one node of it sees it at one moment: for people, probes and Prometheus.

    metadata ─┐                                          ┌─▶ /api/cluster, `fairlog cluster`
    reports ──┼─▶ `look` ─▶ ClusterStatus (plain values) ─┼─▶ /metrics
    engine ───┘                                          └─▶ /health

Positions are those of the shards' streams. Ages are seconds, by this node's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fairlog import __version__
from fairlog.cluster.cluster_memory import ClusterMemory
from fairlog.cluster.cluster_records import NodeNumber, ShardRecord
from fairlog.cluster.reports import HeardCopy, Reports, lags
from fairlog_types import ShardNumber
from shard.progress import Role
from stream.kafka_health import KafkaHealth

UP_AGE_S = 10.0
"""A node that has reported within so many seconds is shown as up."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    number: int
    address: str
    """For clients: its host."""
    rack: str | None
    is_up: bool


@dataclass(frozen=True, slots=True)
class CopyStatus:
    node: int
    role: str
    """joining, replica, opening or owner; deposed if another node has become the owner since, down if the node is not
    up, unknown if it has not reported the copy."""
    in_sync: bool
    """As its owner has said, and its node is up."""
    lag: int | None
    """Entries that it had not taken yet, by its last report; None if nobody can tell, or its node is not up."""
    age_s: float | None
    """Since that report."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    number: int
    owner: int | None
    """None if there is none, or its node is not up."""
    epoch: int
    """Grows with each change of owner."""
    wish: int | None
    """The node that an operator wishes to own it."""
    copies: Sequence[CopyStatus]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    answers: bool
    since_s: float
    """For how long that is so."""
    said: str
    appends: int
    bytes: int
    unknown: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    cluster_id: str
    name: str
    node: int
    """The one that says so."""
    version: str
    """Of the program that it runs."""
    nodes: Sequence[NodeStatus]
    shards: Sequence[ShardStatus]
    engine: EngineStatus
    handshakes_failed: int
    """TLS handshakes of this node with clients and other nodes, and at the admin listener, so far."""

    @property
    def own_roles(self) -> Mapping[int, str]:
        """What this node is for each shard of which it has a copy."""
        found = {shard.number: copy.role for shard in self.shards for copy in shard.copies if copy.node == self.node}
        return dict(sorted(found.items()))

    @property
    def engine_answers(self) -> bool:
        """Whether the engine has answered last."""
        return self.engine.answers


def look(
    name: str,
    node: NodeNumber,
    memory: ClusterMemory,
    reports: Reports,
    health: KafkaHealth,
    now_s: float,
    *,
    handshakes_failed: int = 0,
) -> ClusterStatus:
    """What this node knows. `name` is the cluster's; `now_s` is the clock of `health`."""
    up = set(reports.up(UP_AGE_S)) | {node}
    # A node that has just started, or whose engine is away, knows no better than the metadata.
    heard_of = up if health.answers and reports.hears(node, UP_AGE_S) else memory.nodes.keys()
    nodes = [
        NodeStatus(number, record.host, record.rack, number in up) for number, record in sorted(memory.nodes.items())
    ]
    shards = [_shard(ShardNumber(number), memory, reports, heard_of) for number in range(memory.shards)]
    engine = EngineStatus(
        health.answers, now_s - health.since, health.said, health.appends, health.bytes, health.unknown
    )
    return ClusterStatus(memory.cluster.cluster_id, name, node, __version__, nodes, shards, engine, handshakes_failed)


def _shard(number: ShardNumber, memory: ClusterMemory, reports: Reports, up: Collection[NodeNumber]) -> ShardStatus:
    record, said = memory.shard(number), reports.of(number)
    lag = lags({node: copy for node, copy in said.items() if node in up})
    copies: list[CopyStatus] = []
    for node in record.copies:
        heard = said.get(node)
        copies.append(
            CopyStatus(
                node,
                _role(heard, record, is_up=node in up),
                node in record.in_sync and node in up,
                lag.get(node),
                None if heard is None else heard.age_s,
            )
        )
    owner = record.owner if record.owner in up else None
    return ShardStatus(number, owner, record.epoch, memory.wishes.get(number), copies)


def _role(heard: HeardCopy | None, record: ShardRecord, *, is_up: bool) -> str:
    if not is_up:
        return "down"
    if heard is None:
        return "unknown"
    if heard.role is Role.OWNER and heard.epoch < record.epoch:
        return "deposed"
    return heard.role.name.lower()
