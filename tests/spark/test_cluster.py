"""Topic to topic on a standalone cluster of two workers, whose executors have nothing of the node."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import java
import pytest

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.spark import topics
from tests.spark.counting import numbers
from tests.spark.standalone import POLL_S, Program, Standalone, executors_python, submit, zipped_package

pytestmark = pytest.mark.slow

RECORDS = 12_000
HELD = 7_000
"""In the second micro-batch of three, behind the first rows that its task has handed to its lane."""

CHUNK = 500
"""Records are written in so many pieces that the limit of a micro-batch finds cuts."""

WAIT_S = 600.0
"""Patience, for a machine that has much else to do."""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    if java.find() is None:
        pytest.skip(java.MISSING)
    return executors_python(tmp_path / "python")


@pytest.fixture
def cluster(tmp_path: Path, python: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path / "cluster", workers=2)
    yield cluster
    cluster.kill()


def wait_until(true: Callable[[], bool], what: str, driver: Program) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert not driver.ended, f"the driver ended before {what}:\n{driver.output}"
        assert time.monotonic() < deadline, f"not in {WAIT_S:.0f} s: {what}:\n{driver.output}"
        time.sleep(POLL_S)


def open_lanes(node: NodeProcess) -> int:
    with Native.connect(node.address) as native:
        return sum(len(sink.open_lanes) for sink in native.sinks())


def test_worker_killed_in_mid_batch_leaves_each_record_once(
    fresh_node: Callable[..., NodeProcess], python: Path, cluster: Standalone, tmp_path: Path
) -> None:
    """Its task is tried again on the other worker; of what it wrote before nobody sees anything."""
    foreign = "import importlib.util as u; print([m for m in ('fairlog', 'trio', 'lmdb', 'pyspark') if u.find_spec(m)])"
    found = subprocess.run([python, "-I", "-c", foreign], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

    node = fresh_node()
    for name in ("orders", "copies"):
        topics.make(node.address, name, partitions=2)
    for first in range(0, RECORDS, CHUNK):
        chunk = [b"%d" % number for number in range(first, first + CHUNK)]
        for partition in (0, 1):
            topics.produce(node.address, "orders", chunk[partition::2], partition=partition)

    query = (str(Path(__file__).with_name("cluster_query.py")), node.address, str(tmp_path / "checkpoint"))
    reached, retried = tmp_path / "reached", tmp_path / "retried"
    package = zipped_package(tmp_path)
    driver = submit(tmp_path / "driver.out", cluster.url, python, package, *query, str(HELD), str(tmp_path))
    try:
        wait_until(reached.exists, "a task is in mid-batch", driver)
        wait_until(lambda: open_lanes(node) > 0, "the node has a lane of the batch", driver)
        killed = cluster.worker_at(Path(reached.read_text()))
        cluster.kill_worker(killed)
        assert driver.wait(WAIT_S) == 0, driver.output
    finally:
        driver.kill()
    assert cluster.worker_at(Path(retried.read_text())) != killed

    assert numbers(node.address, topic="copies", least=RECORDS) == list(range(RECORDS))
