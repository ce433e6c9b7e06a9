"""One Spark session for all tests of a process, over real nodes.

Spark's Python workers are processes of their own, which find this project by PYTHONPATH. What a Java 17 is needed for,
and how it comes here, stands in `scripts/java.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import java
import pytest
from peers import kafka_artifacts

from scripts.node_process import ROOT, NodeProcess
from tests.fresh_nodes import fresh_nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For all of Spark's processes, which live for seconds: the second compiler would take most of their time."""


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, no console; with the Kafka connector, where its jars are at hand."""
    if java.find() is None:
        pytest.skip(java.MISSING)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("fairlog tests")
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    connector = kafka_artifacts.connector_at_hand()
    if connector is not None:
        builder = builder.config("spark.jars", ",".join(map(str, sorted(connector.glob("*.jar")))))
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The module's: for tests that make topics of their own, and leave it as it is.

    Some of their records are of 1970: it lives longer than the five minutes after which it would look for such.
    """
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", {"FAIRLOG_RETENTION_CHECK_INTERVAL_MS": "86400000"})
    node.start()
    yield node
    node.stop()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of three processes, for one test."""
    node = NodeProcess(tmp_path / "node", processes=3)
    node.start()
    yield node
    node.stop()


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """A factory of nodes of one's own, started: `fresh_node(FAIRLOG_…="…")`. All are stopped at the end."""
    with fresh_nodes(tmp_path, {"FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100"}) as make:
        yield make
