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
from cryptography.x509.oid import NameOID
from peers import kafka_artifacts
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_artifacts import Artifacts
from peers.kafka_cluster import KafkaCluster

from scripts import java
from tests.security.certificates import Authority, name_of

NUMBERS = count(1)
"""For names of what is kept on the brokers."""
INNER = "INNER"
"""The listener by which nodes reach each other."""


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
    kafka: KafkaCluster,
    directory: Path,
    *,
    failover_ms: int = 1500,
    more: Mapping[str, str] | None = None,
    authority: Authority | None = None,
) -> Iterator[FairlogCluster]:
    """Three nodes with a copy of each of three shards, started. Each cluster has a name of its own on these brokers.
    `more` are variables of the nodes' environment. With an `authority`, which issues their certificate, they speak TLS
    with each other.
    """
    settings = {
        "FAIRLOG_CLUSTER_FAILOVER_MS": str(failover_ms),
        "FAIRLOG_CLUSTER_REPLICAS": "3",
        "FAIRLOG_TOPICS_AUTO_CREATE": "false",
        **({} if authority is None else _inner_tls(authority)),
        **(more or {}),
    }
    name, inner = f"nodes-{next(NUMBERS)}", None if authority is None else INNER
    nodes = FairlogCluster(directory, kafka.bootstrap, name=name, settings=settings, inner_listener=inner)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()


def _inner_tls(authority: Authority) -> Mapping[str, str]:
    node = authority.issue("node", name_of((NameOID.COMMON_NAME, "node")))
    return {
        "FAIRLOG_SECURITY_PROTOCOLS": f"{INNER}:SSL",
        "FAIRLOG_TLS_CERTIFICATE": str(node.certificate),
        "FAIRLOG_TLS_KEY": str(node.key),
        "FAIRLOG_TLS_INNER_CA": str(authority.certificate),
    }
