"""Names, labels and bounds of what Prometheus reads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.sinks.messages import SinkStatistics
from coordinator.statistics import CommitDurations, CoordinatorStatistics
from copier.copier import CopierStatistics
from datalog.interface import Space
from fairlog.kafka.fetch_sessions import FetchSessionStatistics
from fairlog.metrics import GROUP_TOPICS_SHOWN, LABEL_CHARACTERS_MAX, exposition
from fairlog.node_statistics import (
    OLDEST_SHOWN,
    ApiCounts,
    EdgeCounts,
    GroupLag,
    JournalStatistics,
    NodeStatistics,
    RunningStatistics,
    UnstableStatistics,
)
from fairlog.retention.statistics import RetentionStatistics
from fairlog_histogram import BOUNDS_S, Durations, Histogram


def durations(*seconds: float) -> Durations:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    return histogram.read()


COORDINATOR = CoordinatorStatistics(
    begun=9,
    committed=5,
    aborted={"timed_out": 2, "forced": 1},
    durations=CommitDurations(durations(0.001, 0.002), durations(0.0001), durations(0.003)),
    transactional_ids=4,
    open=1,
    preparing=0,
    copying=0,
    oldest=(("billing-7", 12.5),),
    failed_journals=0,
)
RUNNING = RunningStatistics(
    cluster_id="c",
    node_id=1,
    topics=2,
    topics_of_mode={"markers": 2},
    partitions=6,
    appended_batches=3,
    appended_records=30,
    appended_bytes=3000,
    coordinator=COORDINATOR,
    sinks=SinkStatistics(sinks=2, open_lanes=3, committed=17),
    copier=CopierStatistics(1, 20, 2000, 512, 0.25, 0, 1.5),
    retention=RetentionStatistics(500, 2, 900, 40, 600, 3),
    edge=EdgeCounts(
        [
            ApiCounts("Produce", 7, 1, {"NOT_LEADER": 2}, 700, 70, durations(0.02)),
            ApiCounts("Fetch", 0, 0, {}, 0, 0, durations()),
        ],
        connected=3,
        accepted=5,
        refused={"node": 1, "quota": 2},
        handshakes_failed=4,
        not_served=2,
        fetch_sessions=FetchSessionStatistics(sessions=4, partitions=40, evictions=6),
        sign_ins={("PLAIN", "refused"): 2},
        throttled={"Fetch": (3, 4500)},
    ),
    journals=JournalStatistics(6, 4096, 1024, [("billing-7", 1024)], 0, 1),
    unstable=UnstableStatistics(3, 12, [("orders", 1, 9)]),
    space=Space(8192, 1 << 30),
    group_lags=[GroupLag("readers", "orders", 7)],
)


def read(
    running: RunningStatistics | None = RUNNING, accept: str = ""
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples, by name and labels."""
    text, _ = exposition(
        NodeStatistics("9.9", serving=running is not None, refusing_writes=False, running=running), accept
    )
    return samples_of(text)


def samples_of(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """A page's samples, by name and labels."""
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("fairlog_serving", {}, 1),
        ("fairlog_writes_refused", {}, 0),
        ("fairlog_transactions", {"state": "open"}, 1),
        ("fairlog_transactions_committed_total", {}, 5),
        ("fairlog_transactions_aborted_total", {"cause": "timed_out"}, 2),
        ("fairlog_transaction_oldest_age_seconds", {}, 12.5),
        ("fairlog_transaction_age_seconds", {"transactional_id": "billing-7"}, 12.5),
        ("fairlog_sinks", {}, 2),
        ("fairlog_sink_open_lanes", {}, 3),
        ("fairlog_sink_batches_committed_total", {}, 17),
        ("fairlog_topics_of_mode", {"mode": "journal"}, 0),
        ("fairlog_topics_of_mode", {"mode": "markers"}, 2),
        ("fairlog_unstable_partitions", {}, 3),
        ("fairlog_unstable_records", {}, 12),
        ("fairlog_partition_unstable_records", {"topic": "orders", "partition": "1"}, 9),
        ("fairlog_journal_pinned_bytes", {}, 1024),
        ("fairlog_journal_pinned_by_transaction_bytes", {"transactional_id": "billing-7"}, 1024),
        ("fairlog_journals_failed", {"kind": "group"}, 1),
        ("fairlog_copy_lag_bytes", {}, 512),
        ("fairlog_copy_lag_seconds", {}, 0.25),
        ("fairlog_commit_duration_seconds_count", {"phase": "prepare"}, 2),
        ("fairlog_commit_duration_seconds_count", {"phase": "flush"}, 1),
        ("fairlog_commit_duration_seconds_sum", {"phase": "apply"}, 0.003),
        ("fairlog_group_lag_records", {"group": "readers", "topic": "orders"}, 7),
        ("fairlog_requests_total", {"api": "Produce"}, 7),
        ("fairlog_requests_failed_total", {"api": "Produce"}, 1),
        ("fairlog_request_errors_total", {"api": "Produce", "error": "NOT_LEADER"}, 2),
        ("fairlog_request_bytes_total", {"api": "Produce"}, 700),
        ("fairlog_response_bytes_total", {"api": "Produce"}, 70),
        ("fairlog_request_duration_seconds_count", {"api": "Produce"}, 1),
        ("fairlog_connections", {}, 3),
        ("fairlog_connections_refused_total", {"limit": "node"}, 1),
        ("fairlog_connections_refused_total", {"limit": "quota"}, 2),
        ("fairlog_connections_refused_total", {"limit": "address"}, 0),
        ("fairlog_requests_throttled_total", {"api": "Fetch"}, 3),
        ("fairlog_throttle_seconds_total", {"api": "Fetch"}, 4.5),
        ("fairlog_tls_handshakes_failed_total", {}, 4),
        ("fairlog_incremental_fetch_sessions", {}, 4),
        ("fairlog_incremental_fetch_partitions_cached", {}, 40),
        ("fairlog_incremental_fetch_session_evictions_total", {}, 6),
        ("fairlog_produced_records_total", {}, 30),
        ("fairlog_retention_deleted_bytes_total", {}, 500),
        ("fairlog_compactions_total", {}, 2),
        ("fairlog_compaction_read_bytes_total", {}, 900),
        ("fairlog_compaction_removed_records_total", {}, 40),
        ("fairlog_compaction_removed_bytes_total", {}, 600),
        ("fairlog_retention_postponed_rounds_total", {}, 3),
        ("fairlog_datalog_used_bytes", {}, 8192),
        ("fairlog_datalog_map_bytes", {}, 1 << 30),
    ],
)
def test_metric_that_operators_alert_on_is_there(name: str, labels: dict[str, str], value: float) -> None:
    """These names are a promise: dashboards and alerts are made of them."""
    assert read()[name, tuple(sorted(labels.items()))] == value


def test_metrics_of_a_node_that_recovers_say_so() -> None:
    """And have the process' own statistics."""
    samples = read(running=None)
    assert samples["fairlog_serving", ()] == 0
    assert ("process_resident_memory_bytes", ()) in samples
    assert not any(name.startswith("fairlog_transactions") for name, _ in samples)


def test_histogram_counts_upwards_to_its_count() -> None:
    """Buckets are cumulative, as Prometheus wants them, and hold their upper bound."""
    spread = durations(*BOUNDS_S, 99.0)
    running = replace(RUNNING, coordinator=replace(COORDINATOR, durations=CommitDurations(spread, spread, spread)))
    samples = read(running)
    buckets = [
        samples["fairlog_commit_duration_seconds_bucket", (("le", le), ("phase", "apply"))]
        for le in [*map(str, BOUNDS_S), "+Inf"]
    ]
    assert buckets == list(range(1, len(BOUNDS_S) + 2))


def test_metrics_are_bounded_whatever_clients_call_themselves() -> None:
    """Neither the number of ids and groups nor the length of a name makes the page grow."""
    many = tuple((f"{number}" + "ä" * 1000, 1.0) for number in range(100))
    running = replace(
        RUNNING,
        coordinator=replace(COORDINATOR, oldest=many),
        journals=replace(RUNNING.journals, pinned_by=[(name, 1) for name, _ in many]),
        group_lags=[GroupLag(f"group {number}", "t", number) for number in range(10_000)],
    )
    samples = read(running)
    ages = [dict(labels) for name, labels in samples if name == "fairlog_transaction_age_seconds"]
    assert len(ages) == OLDEST_SHOWN
    assert all(len(labels["transactional_id"]) == LABEL_CHARACTERS_MAX + 1 for labels in ages)
    assert sum(name == "fairlog_journal_pinned_by_transaction_bytes" for name, _ in samples) == OLDEST_SHOWN
    lags = {value for (name, _), value in samples.items() if name == "fairlog_group_lag_records"}
    assert lags == set(range(10_000 - GROUP_TOPICS_SHOWN, 10_000))


@pytest.mark.parametrize("name", ['quo"te', "new\nline", "back\\slash", '"} 1\nfake_metric{x="', "\x00", "ünïcødé"])
def test_label_that_a_client_chose_stays_a_label(name: str) -> None:
    """No transactional id adds a line of its own to the page."""
    samples = read(replace(RUNNING, coordinator=replace(COORDINATOR, oldest=((name, 3.0),))))
    assert samples["fairlog_transaction_age_seconds", (("transactional_id", name),)] == 3.0
    assert not any(sample.startswith("fake") for sample, _ in samples)


def test_metrics_speak_openmetrics_to_who_asks_for_it() -> None:
    """As Prometheus does."""
    statistics = NodeStatistics("9.9", serving=True, refusing_writes=False, running=RUNNING)
    text, content_type = exposition(statistics, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@pytest.mark.parametrize("version", ["abc", "1.x.0"])
def test_metrics_are_plain_text_for_who_asks_for_a_version_that_is_none(version: str) -> None:
    """What the header says is the scraper's; it is no fault of the node."""
    statistics = NodeStatistics("9.9", serving=True, refusing_writes=False, running=RUNNING)
    _, content_type = exposition(statistics, f"application/openmetrics-text; version={version}; escaping=dots")
    assert content_type.startswith("text/plain")


def test_metrics_of_one_of_several_processes_have_its_shard() -> None:
    """Each sample has the label, and the one that answers for all says who has answered."""
    statistics = NodeStatistics("9.9", serving=True, refusing_writes=False, running=RUNNING, shard=1)
    for _ in range(2):  # what prometheus-client keeps itself is not changed
        samples = samples_of(exposition(statistics, "")[0])
        assert {dict(labels).get("shard") for _, labels in samples} == {"1"}
        assert samples["fairlog_transactions", (("shard", "1"), ("state", "open"))] == 1
    of_all = samples_of(exposition(replace(statistics, shards_up={0: False, 1: True}), "")[0])
    assert of_all.items() - samples.items() >= {
        (("fairlog_shard_up", (("shard", "0"),)), 0.0),
        (("fairlog_shard_up", (("shard", "1"),)), 1.0),
    }


def test_metrics_of_the_only_process_have_no_shard() -> None:
    """Its series are those that they were before there could be several."""
    assert not any("shard" in dict(labels) for _, labels in read())


def test_documentation_lists_exactly_what_there_is() -> None:
    """docs/admin-http.md has every metric of ours, by the name that a query uses, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "admin-http.md").read_text(encoding="utf-8")
    table = page.partition("## Metrics")[2].partition("### What to alert on")[0]
    statistics = NodeStatistics(
        "9.9", serving=True, refusing_writes=False, running=RUNNING, shard=0, shards_up={0: True}
    )
    samples = {name for name, _ in samples_of(exposition(statistics, "")[0]) if name.startswith("fairlog_")}
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in samples}
    assert set(re.findall(r"`(fairlog_\w+)`", table)) == names
