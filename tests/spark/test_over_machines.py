"""`format("fairlog")` over three nodes whose journals are on three brokers of Kafka, while nodes are killed.

The one that is killed comes back before the next one goes: with two of three gone, copies of some shards would be gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peers.fairlog_cluster import FairlogCluster

from tests.on_kafka.brokers import obtain, open_brokers
from tests.spark.shared_sink import write_while
from tests.spark.shared_transactions import read_while_they_are_written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SETTLED_S = 120.0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Kafka's bootstrap servers."""
    with open_brokers(tmp_path_factory.mktemp("kafka"), obtain()) as brokers:
        yield brokers.bootstrap


@pytest.fixture
def nodes(engine: str, tmp_path: Path) -> Iterator[FairlogCluster]:
    """Three nodes, each with a copy of all shards."""
    settings = {"FAIRLOG_CLUSTER_FAILOVER_MS": "1500", "FAIRLOG_CLUSTER_REPLICAS": "3"}
    cluster = FairlogCluster(tmp_path / "nodes", engine, name=tmp_path.name, settings=settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _kill_and_start(nodes: FairlogCluster, node: int) -> None:
    deadline = time.monotonic() + SETTLED_S
    while not all(nodes.is_in_sync(each) for each in nodes.nodes if nodes.running(each)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    nodes.kill(node)
    nodes.spawn(node)


def test_micro_batches_split_no_transaction_over_failovers(
    spark: SparkSession, nodes: FairlogCluster, tmp_path: Path
) -> None:
    """Each transaction spans the shards of three nodes, one of which is killed."""
    read_while_they_are_written(spark, nodes.bootstrap, tmp_path, disturb=lambda: _kill_and_start(nodes, 1))


def test_sink_writes_each_record_once_over_failovers(
    spark: SparkSession, nodes: FairlogCluster, tmp_path: Path
) -> None:
    """A run that has lost its lanes with an owner ends; the next one goes on with what was not committed."""
    kills = [partial(_kill_and_start, nodes, node) for node in nodes.nodes]
    write_while(spark, nodes.bootstrap, tmp_path, disturbances=kills)
