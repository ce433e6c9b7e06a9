"""One cluster of three brokers for all tests of this folder, and two ways to keep streams on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_artifacts import Artifacts
from peers.kafka_cluster import KafkaCluster

from stream.kafka_settings import KafkaEngineSettings
from tests.on_kafka.brokers import NUMBERS, obtain, open_brokers, three_nodes
from tests.security.certificates import Authority
from tests.stream.rigs import KafkaRig

ENTRY_BYTES_MAX = 4 << 20


@pytest.fixture(scope="package")
def artifacts() -> Artifacts:
    """Kafka's jars, and Java."""
    return obtain()


@pytest.fixture(scope="package")
def kafka(artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, whose links can be cut. Whoever disturbs them heals them."""
    with open_brokers(tmp_path_factory.mktemp("kafka"), artifacts, links=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def three_replicas(kafka: KafkaCluster) -> KafkaRig:
    """Streams with three replicas, two of which have what is answered."""
    settings = KafkaEngineSettings(
        bootstrap_servers=kafka.bootstrap,
        cluster="three",
        entry_bytes_max=ENTRY_BYTES_MAX,
        append_timeout_s=8.0,
        request_timeout_s=3.0,
    )
    return KafkaRig("kafka-3", settings, NUMBERS)


@pytest.fixture(scope="package")
def one_replica(kafka: KafkaCluster) -> KafkaRig:
    """Streams with one replica, as for trying it out."""
    settings = KafkaEngineSettings(
        bootstrap_servers=kafka.bootstrap,
        cluster="one",
        replicas=1,
        min_insync_replicas=1,
        flush_each_entry=True,
        entry_bytes_max=ENTRY_BYTES_MAX,
        request_timeout_s=3.0,
    )
    return KafkaRig("kafka-1", settings, NUMBERS)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Of the certificates of `cluster`'s nodes."""
    return Authority(tmp_path / "certificates")


@pytest.fixture
def cluster(kafka: KafkaCluster, tmp_path: Path, authority: Authority) -> Iterator[FairlogCluster]:
    """Three nodes with a copy of each of three shards, which speak TLS with each other. They soon take over from one
    that is not heard.
    """
    with three_nodes(kafka, tmp_path, authority=authority) as nodes:
        yield nodes


@pytest.fixture
def patient_cluster(kafka: KafkaCluster, tmp_path: Path) -> Iterator[FairlogCluster]:
    """The same, but owners change by hand-over alone: an owner is waited for longer than a busy machine makes it late,
    and than a test would wait.
    """
    with three_nodes(kafka, tmp_path, failover_ms=120_000) as nodes:
        yield nodes
