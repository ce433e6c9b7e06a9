"""Three brokers of Apache Kafka for tests, and nodes on them: `obtain` what they need, `open_brokers`, `three_nodes`.

Kafka's jars come from Maven: on CI `scripts/test.py` has them at the start, elsewhere `python -m tests.stream` does.
Where they, or Java, are missing, tests on Kafka are skipped, but on CI (tests/lacking.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from peers import kafka_artifacts
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_artifacts import Artifacts
from peers.kafka_cluster import KafkaCluster

from scripts import java

NUMBERS = count(1)
"""For names of what is kept on the brokers."""


def obtain() -> Artifacts:
    """Kafka's jars, and Java. Skips the test if they are missing."""
    if java.find() is None:
        pytest.skip(java.MISSING)
    if kafka_artifacts.at_hand(kafka_artifacts.POM, "kafka", "kafka_") is None and "CI" not in os.environ:
        pytest.skip("Kafka's jars are not here: `.venv/bin/python -m tests.stream --seconds 1` has them from Maven")
    return kafka_artifacts.obtain()


@contextmanager
def open_brokers(directory: Path, artifacts: Artifacts, *, links: bool = False) -> Iterator[KafkaCluster]:
    """Started; with `links` their connections can be cut."""
    cluster = KafkaCluster(directory, artifacts, links=links)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def three_nodes(
    kafka: KafkaCluster, directory: Path, *, failover_ms: int = 1500, more: Mapping[str, str] | None = None
) -> Iterator[FairlogCluster]:
    """Three nodes with a copy of each of three shards, started. Each cluster has a name of its own on these brokers.
    `more` are variables of the nodes' environment.
    """
    settings = {
        "FAIRLOG_CLUSTER_FAILOVER_MS": str(failover_ms),
        "FAIRLOG_CLUSTER_REPLICAS": "3",
        "FAIRLOG_TOPICS_AUTO_CREATE": "false",
        **(more or {}),
    }
    nodes = FairlogCluster(directory, kafka.bootstrap, name=f"nodes-{next(NUMBERS)}", settings=settings)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()
