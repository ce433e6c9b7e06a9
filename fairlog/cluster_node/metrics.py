"""The metrics of a node of several machines: every name, its meaning and its labels are in this file."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from fairlog import __version__
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.cluster_node.status import ClusterStatus

_PROCESS = ProcessCollector(registry=None)


def exposition(admin: AdminStatistics, status: ClusterStatus | None, accept: str) -> tuple[bytes, str]:
    """These, with the process' own, as text, and its content type. `accept` is the scraper's header. Blocks.

    `admin` is what the admin listener counts.
    """
    registry = CollectorRegistry()
    for collector in (_Collector(admin, status), _PROCESS, GC_COLLECTOR, PLATFORM_COLLECTOR):
        registry.register(collector)
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Collector(Collector):
    def __init__(self, admin: AdminStatistics, status: ClusterStatus | None) -> None:
        self._admin = admin
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        info = {"version": __version__}
        if status is not None:
            info |= {"cluster_id": status.cluster_id, "cluster": status.name, "node_id": str(status.node)}
            yield from _of(status)
        yield InfoMetricFamily("fairlog", "The node", value=info)
        yield CounterMetricFamily(
            "fairlog_tls_handshakes_failed",
            "Connections of clients, of other nodes and of admins that were closed because there was no TLS with them",
            value=self._admin.handshakes_failed if status is None else status.handshakes_failed,
        )
        sign_ins = CounterMetricFamily(
            "fairlog_sign_ins", "How users have signed in at the admin listener", labels=["mechanism", "outcome"]
        )
        for (mechanism, outcome), count in sorted(self._admin.sign_ins.copy().items()):
            sign_ins.add_metric([mechanism, outcome], count)
        yield sign_ins


def _of(status: ClusterStatus) -> Iterator[Metric]:
    up = GaugeMetricFamily("fairlog_node_up", "1 if the node has been heard within ten seconds", labels=["node"])
    for node in status.nodes:
        up.add_metric([str(node.number)], int(node.is_up))
    yield up
    epochs = CounterMetricFamily("fairlog_shard_owners", "Owners that the shard has had so far", labels=["shard"])
    owners = GaugeMetricFamily("fairlog_shard_owner", "The node that owns the shard; -1 if none does", labels=["shard"])
    in_sync = GaugeMetricFamily("fairlog_shard_in_sync", "Copies of the shard that are in sync", labels=["shard"])
    wanted = GaugeMetricFamily("fairlog_shard_copies", "Copies that there are, or are to be", labels=["shard"])
    lag = GaugeMetricFamily(
        "fairlog_copy_lag_entries", "Entries of the stream that the copy has not taken yet", labels=["shard", "node"]
    )
    for shard in status.shards:
        label = [str(shard.number)]
        epochs.add_metric(label, shard.epoch)
        owners.add_metric(label, -1 if shard.owner is None else shard.owner)
        in_sync.add_metric(label, sum(copy.in_sync for copy in shard.copies))
        wanted.add_metric(label, len(shard.copies))
        for copy in shard.copies:
            if copy.lag is not None:
                lag.add_metric([*label, str(copy.node)], copy.lag)
    yield from (epochs, owners, in_sync, wanted, lag)
    engine = status.engine
    yield GaugeMetricFamily("fairlog_engine_answers", "1 if the engine has answered last", value=int(engine.answers))
    yield CounterMetricFamily("fairlog_engine_appends", "Entries that the engine has taken", value=engine.appends)
    yield CounterMetricFamily("fairlog_engine_bytes", "Their bytes", value=engine.bytes)
    yield CounterMetricFamily("fairlog_engine_unknown", "Appends whose outcome is not known", value=engine.unknown)
