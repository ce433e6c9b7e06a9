"""A node's counters at one moment: plain values, between the rooms that count and the code that shows them.

`fairlog.node_view` collects them when they are asked for; `fairlog.metrics` gives them names for Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.sinks.messages import SinkStatistics
from coordinator.statistics import CoordinatorStatistics
from copier.copier import CopierStatistics
from datalog.interface import Space
from fairlog.kafka.fetch_sessions import FetchSessionStatistics
from fairlog.retention.statistics import RetentionStatistics
from fairlog_histogram import Durations

OLDEST_SHOWN = 5
"""Open transactions that are told of by name, everywhere that something is told of each."""


UNSTABLE_SHOWN = 20
"""Partitions that are told of by name because readers of committed records wait there."""


@dataclass(frozen=True, slots=True)
class ApiCounts:
    """One API of Kafka's edge; what the fields count is in `fairlog.edge.statistics`."""

    name: str
    answered: int
    failed: int
    errors: Mapping[str, int]
    """By the name of the error code."""
    bytes_in: int
    bytes_out: int
    latency: Durations


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """Kafka's edge."""

    apis: Sequence[ApiCounts]
    connected: int
    accepted: int
    refused: Mapping[str, int]
    """By the limit that was reached."""
    handshakes_failed: int
    not_served: int
    fetch_sessions: FetchSessionStatistics
    sign_ins: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By mechanism and outcome."""
    throttled: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By API: requests above a quota, and for how many ms their clients were muted."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """All journals of the node."""

    local: int
    local_bytes: int
    """Of segments that are not given back yet."""
    pinned_bytes: int
    """From the first frame of the oldest open transaction to the journal's end, over all local journals."""
    pinned_by: Sequence[tuple[str, int]]
    """Transactional id and bytes, the most first; at most OLDEST_SHOWN."""
    failed_local: int
    failed_group: int


@dataclass(frozen=True, slots=True)
class UnstableStatistics:
    """Partitions of marker mode in which a transaction is open, so that readers of committed records wait."""

    partitions: int
    records: int
    """Between last stable offset and high watermark, markers included; in all of them."""
    largest: Sequence[tuple[str, int, int]]
    """Topic, partition and records, the most first; at most UNSTABLE_SHOWN."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in a topic."""

    group: str
    topic: str
    lag: int
    """In records."""


@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """What there is once the node has recovered."""

    cluster_id: str
    node_id: int
    topics: int
    topics_of_mode: Mapping[str, int]
    """By how transactions reach them."""
    partitions: int
    appended_batches: int
    appended_records: int
    appended_bytes: int
    coordinator: CoordinatorStatistics
    sinks: SinkStatistics
    copier: CopierStatistics
    retention: RetentionStatistics
    edge: EdgeCounts
    journals: JournalStatistics
    unstable: UnstableStatistics
    space: Space
    group_lags: Sequence[GroupLag]


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """Everything, at one moment."""

    version: str
    serving: bool
    refusing_writes: bool
    running: RunningStatistics | None
    shard: int | None = None
    """Of this process; None if there is only one."""
    shards_up: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """Which shards answer the process that answers for all of them; empty in the others."""
