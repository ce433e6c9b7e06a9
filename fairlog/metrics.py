"""A node's counters for Prometheus: every name, its meaning and its labels are in this file.

    rooms ── plain counts ──▶ NodeStatistics (one moment) ──▶ families ──▶ text, by prometheus-client

The rooms know nothing about Prometheus. They keep integers and histograms; `fairlog.node_view` collects them when they
are asked for, and this module gives them names. Nothing is registered on a hot path, so a node that is not scraped pays
for the counting alone.

Cardinality. Labels come from what the node itself is made of (APIs, error codes, causes of aborts), never from names
that clients choose, with three exceptions, all bounded: the OLDEST_SHOWN oldest open transactions, the UNSTABLE_SHOWN
partitions in which readers wait for most, and the GROUP_TOPICS_SHOWN pairs of group and topic with the largest lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import get_args

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from coordinator.sinks.messages import SinkStatistics
from coordinator.statistics import CoordinatorStatistics
from copier.copier import CopierStatistics
from fairlog.edge.connection_limits import ReachedLimit
from fairlog.node_statistics import (
    OLDEST_SHOWN,
    UNSTABLE_SHOWN,
    EdgeCounts,
    GroupLag,
    JournalStatistics,
    NodeStatistics,
    RunningStatistics,
    UnstableStatistics,
)
from fairlog.retention.statistics import RetentionStatistics
from fairlog_histogram import BOUNDS_S, Durations
from partition.modes import TransactionModeName

GROUP_TOPICS_SHOWN = 500
LABEL_CHARACTERS_MAX = 200
"""Of a label that a client has chosen: a transactional id may have a thousand."""


def exposition(statistics: NodeStatistics, accept: str) -> tuple[bytes, str]:
    """These, with the process' own, as text, and its content type. `accept` is the scraper's header. Blocks.

    Of one of several processes each sample has the label `shard`.
    """
    registry = CollectorRegistry()
    for collector in (_Collector(statistics), _PROCESS, GC_COLLECTOR, PLATFORM_COLLECTOR):
        registry.register(collector if statistics.shard is None else _OfShard(collector, statistics.shard))
    if statistics.shards_up:
        registry.register(_ShardsUp(statistics.shards_up))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number: what any scraper can read is better than nothing
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


_PROCESS = ProcessCollector(registry=None)


class _OfShard(Collector):
    """What another collector collects, with the shard's label."""

    def __init__(self, collector: Collector, shard: int) -> None:
        self._collector = collector
        self._shard = str(shard)

    def collect(self) -> Iterator[Metric]:
        for metric in self._collector.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            labelled.samples = [
                sample._replace(labels={**sample.labels, "shard": self._shard}) for sample in metric.samples
            ]
            yield labelled


class _ShardsUp(Collector):
    def __init__(self, up: Mapping[int, bool]) -> None:
        self._up = up

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "fairlog_shard_up", "1 if the shard's process has answered for this page", labels=["shard"]
        )
        for shard, up in sorted(self._up.items()):
            family.add_metric([str(shard)], int(up))
        yield family


class _Collector(Collector):
    def __init__(self, statistics: NodeStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        statistics = self._statistics
        yield _gauge("serving", "1 if the node has recovered and takes clients", int(statistics.serving))
        yield _gauge(
            "writes_refused",
            "1 if the disk has failed and writes are refused until a restart",
            statistics.refusing_writes,
        )
        info = {"version": statistics.version}
        running = statistics.running
        if running is not None:
            info |= {"cluster_id": running.cluster_id, "node_id": str(running.node_id)}
            yield from _running(running)
        yield InfoMetricFamily("fairlog", "The node", value=info)


def _running(statistics: RunningStatistics) -> Iterator[Metric]:
    yield _gauge("topics", "Topics", statistics.topics)
    of_mode = GaugeMetricFamily(
        "fairlog_topics_of_mode", "Topics by how transactions reach them: journal, markers", labels=["mode"]
    )
    for mode in get_args(TransactionModeName):
        of_mode.add_metric([mode], statistics.topics_of_mode.get(mode, 0))
    yield of_mode
    yield _gauge("partitions", "Partitions that this node leads", statistics.partitions)
    yield _counter("produced_batches", "Record batches written by clients", statistics.appended_batches)
    yield _counter("produced_records", "Records written by clients, committed or not", statistics.appended_records)
    yield _counter("produced_bytes", "Bytes of record batches written by clients, as sent", statistics.appended_bytes)
    yield from _transactions(statistics.coordinator)
    yield from _sinks(statistics.sinks)
    yield from _unstable(statistics.unstable)
    yield from _journals(statistics.journals)
    yield from _copy(statistics.copier)
    yield from _retention(statistics.retention)
    yield _gauge("datalog_used_bytes", "The data logs' file, to the last page ever used", statistics.space.used_bytes)
    yield _gauge("datalog_map_bytes", "What it may grow to (datalog.map_bytes)", statistics.space.bytes_max)
    yield from _edge(statistics.edge)
    yield from _group_lags(statistics.group_lags)


def _transactions(statistics: CoordinatorStatistics) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "fairlog_transactions",
        "Transactions under way: open, preparing (being committed), copying (committed, not visible yet)",
        labels=["state"],
    )
    states.add_metric(["open"], statistics.open)
    states.add_metric(["preparing"], statistics.preparing)
    states.add_metric(["copying"], statistics.copying)
    yield states
    yield _gauge("transactional_ids", "Transactional ids that are remembered", statistics.transactional_ids)
    yield _counter("transactions_begun", "Transactions that have begun", statistics.begun)
    yield _counter("transactions_committed", "Transactions that were committed", statistics.committed)
    aborted = CounterMetricFamily("fairlog_transactions_aborted", "Transactions aborted, by cause", labels=["cause"])
    for cause, count in sorted(statistics.aborted.items()):
        aborted.add_metric([cause], count)
    yield aborted
    yield _gauge(
        "transaction_oldest_age_seconds",
        "Age of the transaction that has been open longest; 0 without one",
        max((age_s for _, age_s in statistics.oldest), default=0.0),
    )
    ages = GaugeMetricFamily(
        "fairlog_transaction_age_seconds",
        f"Age of the {OLDEST_SHOWN} transactions that have been open longest",
        labels=["transactional_id"],
    )
    for transactional_id, age_s in statistics.oldest[:OLDEST_SHOWN]:
        ages.add_metric([_label(transactional_id)], age_s)
    yield ages
    durations = statistics.durations
    yield _histogram(
        "commit_duration_seconds",
        "A commit's time: prepare (all participants have it on disk), flush (the rest until PREPARE_COMMIT is, too), "
        "apply (from the decision until it is visible)",
        "phase",
        {"prepare": durations.prepare, "flush": durations.flush, "apply": durations.apply},
    )


def _sinks(statistics: SinkStatistics) -> Iterator[Metric]:
    yield _gauge("sinks", "Sinks that are remembered", statistics.sinks)
    yield _gauge("sink_open_lanes", "Lanes in which batches of sinks are being written", statistics.open_lanes)
    yield _counter("sink_batches_committed", "Batches of sinks that were committed", statistics.committed)


def _unstable(statistics: UnstableStatistics) -> Iterator[Metric]:
    yield _gauge(
        "unstable_partitions",
        "Partitions of marker mode in which readers of committed records wait for an open transaction",
        statistics.partitions,
    )
    yield _gauge(
        "unstable_records", "Records there between the last stable offset and the high watermark", statistics.records
    )
    largest = GaugeMetricFamily(
        "fairlog_partition_unstable_records",
        f"The same by partition, for the {UNSTABLE_SHOWN} where it is most",
        labels=["topic", "partition"],
    )
    for topic, partition, records in statistics.largest:
        largest.add_metric([topic, str(partition)], records)
    yield largest


def _journals(statistics: JournalStatistics) -> Iterator[Metric]:
    yield _gauge(
        "journal_bytes", "Local journals: bytes of segments that are not given back yet", statistics.local_bytes
    )
    yield _gauge("journals", "Local journals: one for each partition", statistics.local)
    yield _gauge(
        "journal_pinned_bytes",
        "Bytes of local journals that cannot be given back because of open transactions",
        statistics.pinned_bytes,
    )
    pinned = GaugeMetricFamily(
        "fairlog_journal_pinned_by_transaction_bytes",
        f"The same by transaction, for the {OLDEST_SHOWN} that pin most; where several do, each counts",
        labels=["transactional_id"],
    )
    for transactional_id, count in statistics.pinned_by[:OLDEST_SHOWN]:
        pinned.add_metric([_label(transactional_id)], count)
    yield pinned
    failed = GaugeMetricFamily(
        "fairlog_journals_failed", "Journals closed for writing because the disk has failed", labels=["kind"]
    )
    failed.add_metric(["local"], statistics.failed_local)
    failed.add_metric(["group"], statistics.failed_group)
    yield failed


def _copy(statistics: CopierStatistics) -> Iterator[Metric]:
    yield _gauge("copy_lag_bytes", "Decided in the journals, and not yet in the data logs", statistics.backlog_bytes)
    yield _gauge("copy_lag_seconds", "How long the oldest of it has waited", statistics.lag_s)
    yield _counter("copied_records", "Records copied into the data logs", statistics.copied_records)
    yield _counter("copied_bytes", "Bytes of record batches copied into the data logs", statistics.copied_payload_bytes)
    yield _counter(
        "copied_chunks", "Write transactions of the data logs that copied something", statistics.copied_chunks
    )


def _retention(statistics: RetentionStatistics) -> Iterator[Metric]:
    yield _counter(
        "retention_deleted_bytes", "Bytes of batches that were too old or too many", statistics.deleted_bytes
    )
    yield _counter("compactions", "Compactions of a partition that have done something", statistics.cleanings)
    yield _counter("compaction_read_bytes", "Bytes of batches that compaction has read", statistics.cleaned_read_bytes)
    yield _counter(
        "compaction_removed_records", "Records that compaction has removed", statistics.cleaned_removed_records
    )
    yield _counter("compaction_removed_bytes", "Bytes that it has removed", statistics.cleaned_removed_bytes)
    yield _counter(
        "retention_postponed_rounds",
        "Rounds of retention or compaction that ended early because the disk or the map was full",
        statistics.postponed_rounds,
    )


def _edge(statistics: EdgeCounts) -> Iterator[Metric]:
    yield _gauge("connections", "Connections of Kafka clients", statistics.connected)
    yield _counter("connections_accepted", "Connections accepted", statistics.accepted)
    refused = CounterMetricFamily(
        "fairlog_connections_refused",
        "Connections closed at once, by the limit: node (requests.connections_max), listener, address, rate, quota",
        labels=["limit"],
    )
    for limit in ReachedLimit:
        refused.add_metric([limit.value], statistics.refused.get(limit.value, 0))
    yield refused
    throttled = CounterMetricFamily("fairlog_requests_throttled", "Requests above a quota", labels=["api"])
    throttle_s = CounterMetricFamily(
        "fairlog_throttle_seconds", "For how long clients were muted because of a quota", labels=["api"]
    )
    for api, (count, throttled_ms) in sorted(statistics.throttled.items()):
        throttled.add_metric([api], count)
        throttle_s.add_metric([api], throttled_ms / 1000)
    yield from (throttled, throttle_s)
    yield _counter(
        "tls_handshakes_failed", "Connections closed because there was no TLS with them", statistics.handshakes_failed
    )
    yield _counter("requests_not_served", "Requests of APIs that are not served", statistics.not_served)
    if statistics.sign_ins:
        sign_ins = CounterMetricFamily(
            "fairlog_sign_ins", "How clients have signed in, or have not", labels=["mechanism", "outcome"]
        )
        for (mechanism, outcome), count in sorted(statistics.sign_ins.items()):
            sign_ins.add_metric([mechanism, outcome], count)
        yield sign_ins
    sessions = statistics.fetch_sessions
    yield _gauge("incremental_fetch_sessions", "Fetch sessions that are remembered (KIP-227)", sessions.sessions)
    yield _gauge("incremental_fetch_partitions_cached", "Partitions of all fetch sessions", sessions.partitions)
    yield _counter(
        "incremental_fetch_session_evictions", "Fetch sessions that had to make room for others", sessions.evictions
    )
    labels = ["api"]
    requests = CounterMetricFamily("fairlog_requests", "Requests answered", labels=labels)
    failed = CounterMetricFamily(
        "fairlog_requests_failed", "Requests whose connection was closed instead of an answer", labels=labels
    )
    errors = CounterMetricFamily(
        "fairlog_request_errors",
        "Error codes in answers; an answer to several partitions may hold several",
        labels=["api", "error"],
    )
    bytes_in = CounterMetricFamily("fairlog_request_bytes", "Bytes of requests", labels=labels)
    bytes_out = CounterMetricFamily("fairlog_response_bytes", "Bytes of answers; Fetch: what is read", labels=labels)
    used = [api for api in statistics.apis if api.answered or api.failed]
    for api in used:
        requests.add_metric([api.name], api.answered)
        failed.add_metric([api.name], api.failed)
        bytes_in.add_metric([api.name], api.bytes_in)
        bytes_out.add_metric([api.name], api.bytes_out)
        for error, count in sorted(api.errors.items()):
            errors.add_metric([api.name, error], count)
    yield from (requests, failed, errors, bytes_in, bytes_out)
    yield _histogram(
        "request_duration_seconds",
        "From the whole request to its answer; Fetch waits for data in between",
        "api",
        {api.name: api.latency for api in used},
    )


def _group_lags(lags: Sequence[GroupLag]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "fairlog_group_lag_records",
        f"Records between a group's committed offsets and the end; the {GROUP_TOPICS_SHOWN} largest",
        labels=["group", "topic"],
    )
    for lag in sorted(lags, key=lambda each: each.lag, reverse=True)[:GROUP_TOPICS_SHOWN]:
        family.add_metric([_label(lag.group), lag.topic], lag.lag)
    yield family


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fairlog_{name}", documentation, value=value)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"fairlog_{name}", documentation, value=value)


def _histogram(name: str, documentation: str, label: str, rows: Mapping[str, Durations]) -> Metric:
    family = HistogramMetricFamily(f"fairlog_{name}", documentation, labels=[label])
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    for value, durations in rows.items():
        buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
        family.add_metric([value], buckets, durations.sum_s)
    return family


def _label(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[:LABEL_CHARACTERS_MAX] + "…"
