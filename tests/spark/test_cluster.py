"""Topic to topic on a standalone cluster of two workers, whose executors have nothing of the node."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import java
import pytest

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.spark import topics
from tests.spark.counting import messages, numbers
from tests.spark.pipeline_process import PipelineProcess
from tests.spark.standalone import POLL_S, Program, Standalone, executors_python, submit, zipped_package

pytestmark = pytest.mark.slow

RECORDS = 12_000
BATCH = 4_000
"""Records are written in transactions of so many, and a micro-batch takes no more: each takes one of them, whole."""

HELD = 7_000
"""In the second micro-batch of three, behind 1,500 other rows of its task, the first of which come to its lane."""

PAYMENTS = 6_000
CHUNK = 500

ON_LOOPBACK = (
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
)

WAIT_S = 600.0
"""Patience, for a machine that has much else to do."""

FEW_AT_ONCE = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.buffer.size": "1024"}
"""Else the rows before the one that is held would wait between Spark's processes, and come to no lane."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",  # of two tasks one is done
    "spark.speculation.efficiency.enabled": "false",  # the time counts, and not how many rows there were
    "spark.speculation.interval": "100ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@dataclass(frozen=True)
class Bench:
    """The cluster, a node with records in the topic `orders`, and what a driver and its executors need."""

    cluster: Standalone
    node: NodeProcess
    python: Path
    package: Path

    def submit(self, directory: Path, topic: str, conf: Mapping[str, str] | None = None) -> Program:
        """Copy the records to `topic`."""
        query = Path(__file__).with_name("cluster_query.py")
        arguments = (self.node.address, topic, str(directory / "checkpoint"), str(BATCH), str(HELD), str(directory))
        return submit(
            directory / "driver.out",
            self.cluster.url,
            self.python,
            self.package,
            str(query),
            *arguments,
            conf=FEW_AT_ONCE | dict(conf or {}),
        )

    def open_lanes(self, sink: str) -> int:
        with Native.connect(self.node.address) as native:
            return sum(len(each.open_lanes) for each in native.sinks() if each.sink == sink)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if java.find() is None:
        pytest.skip(java.MISSING)
    directory = tmp_path_factory.mktemp("cluster")
    python, package = executors_python(directory / "python"), zipped_package(directory)
    node = NodeProcess(directory / "node", {"FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100"})
    node.start()
    try:
        topics.make(node.address, "orders", partitions=2)
        producer = topics.transactional(node.address)
        for first in range(0, RECORDS, BATCH):
            producer.begin_transaction()
            for number in range(first, first + BATCH):
                producer.produce("orders", b"%d" % number, partition=number % 2)
            producer.commit_transaction(topics.WAIT_S)
            topics.wait_for_end(node.address, "orders", (first + BATCH) // 2)  # else two of them might become one cut
        cluster = Standalone(directory / "standalone", workers=2)
        try:
            yield Bench(cluster, node, python, package)
        finally:
            cluster.kill()
    finally:
        node.stop()


@pytest.fixture
def bench(base: Bench) -> Bench:
    """With both workers."""
    base.cluster.make_whole()
    return base


def wait_until(true: Callable[[], bool], what: str, driver: Program) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert not driver.ended, f"the driver ended before {what}:\n{driver.output}"
        assert time.monotonic() < deadline, f"not in {WAIT_S:.0f} s: {what}:\n{driver.output}"
        time.sleep(POLL_S)


def test_executors_have_nothing_of_the_node(base: Bench) -> None:
    """What docs/spark.md says that they need is all that they have."""
    foreign = "import importlib.util as u; print([m for m in ('fairlog', 'trio', 'lmdb', 'pyspark') if u.find_spec(m)])"
    found = subprocess.run([base.python, "-I", "-c", foreign], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_task_that_is_speculated_counts_once(bench: Bench, tmp_path: Path) -> None:
    """A task is slow, Spark starts it once more elsewhere, and both have written rows when the second one wins."""
    topics.make(bench.node.address, "speculated", partitions=2)
    conf = SPECULATION | {"spark.eventLog.dir": tmp_path.as_uri()}
    driver = bench.submit(tmp_path, "speculated", conf)
    try:
        wait_until((tmp_path / "retried").exists, "a task runs a second time", driver)
        # The first attempt still runs, and nobody has killed it: its lane, the second one's, and the other task's.
        wait_until(lambda: bench.open_lanes("speculated") == 3, "the node has a lane of each attempt", driver)
        (tmp_path / "go").touch()
        assert driver.wait(WAIT_S) == 0, driver.output
    finally:
        driver.kill()
    places = [bench.cluster.worker_at(Path((tmp_path / name).read_text())) for name in ("reached", "retried")]
    assert places[0] != places[1]
    assert ("Success", True) in ends_of_tasks(tmp_path)
    assert numbers(bench.node.address, topic="speculated", least=RECORDS) == list(range(RECORDS))


def ends_of_tasks(directory: Path) -> list[tuple[str, bool]]:
    """Of all attempts, from Spark's event log: how each ended, and whether it was a speculative one."""
    (log,) = (path for path in directory.iterdir() if path.name.startswith("app-"))
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [
        (event["Task End Reason"]["Reason"], event["Task Info"]["Speculative"])
        for event in events
        if event["Event"] == "SparkListenerTaskEnd"
    ]


def test_worker_killed_in_mid_batch_leaves_each_record_once(bench: Bench, tmp_path: Path) -> None:
    """Its task is tried again on the other worker; of what it wrote before nobody sees anything."""
    topics.make(bench.node.address, "copies", partitions=2)
    (tmp_path / "go").touch()
    driver = bench.submit(tmp_path, "copies")
    try:
        wait_until((tmp_path / "reached").exists, "a task is in mid-batch", driver)
        wait_until(lambda: bench.open_lanes("copies") == 2, "the node has a lane of each task", driver)
        killed = bench.cluster.worker_at(Path((tmp_path / "reached").read_text()))
        bench.cluster.kill_worker(killed)
        assert driver.wait(WAIT_S) == 0, driver.output
    finally:
        driver.kill()
    assert bench.cluster.worker_at(Path((tmp_path / "retried").read_text())) != killed

    assert numbers(bench.node.address, topic="copies", least=RECORDS) == list(range(RECORDS))


def test_pipeline_with_state_outlives_a_worker(bench: Bench, tmp_path: Path) -> None:
    """Its driver is `fairlog pipeline`; a worker is killed when there is state, and the totals are right at the end."""
    address = bench.node.address
    topics.make(address, "payments", partitions=2)
    paid = [{"id": number, "country": "ABC"[number % 3]} for number in range(PAYMENTS)]
    half = PAYMENTS // 2
    pay(address, paid[:half])
    pipeline = PipelineProcess(
        tmp_path,
        *("--name", "totals", "--bootstrap", address, "--from", "payments", "--schema", "id bigint, country string"),
        *("--sql", "SELECT country AS key, count(*) AS paid, sum(id) AS ids FROM payments GROUP BY country"),
        *("--to", "payments-totals", "--mode", "update", "--checkpoint", str(tmp_path / "checkpoint")),
        *("--records-per-batch", str(PAYMENTS // 6), "--master", bench.cluster.url),
        *(part for setting in ON_LOOPBACK for part in ("--conf", setting)),
        environment={"PYTHONPATH": str(bench.package), "PYSPARK_PYTHON": str(bench.python)},
    )

    def totals_are_of(payments: Sequence[Mapping[str, Any]]) -> bool:
        assert not pipeline.ended, pipeline.err
        last = {each.key().decode(): json.loads(each.value()) for each in messages(address, "payments-totals")}
        ids = {country: [each["id"] for each in payments if each["country"] == country] for country in "ABC"}
        return last == {country: {"paid": len(ids[country]), "ids": sum(ids[country])} for country in "ABC"}

    try:
        pipeline.wait_for_batches("totals", 1)
        bench.cluster.kill_worker(next(bench.cluster.workers()))
        pay(address, paid[half:])
        deadline = time.monotonic() + WAIT_S
        while not totals_are_of(paid):
            assert time.monotonic() < deadline, f"the totals are not right after {WAIT_S:.0f} s:\n{pipeline.err}"
            time.sleep(POLL_S)
        pipeline.interrupt()
        assert pipeline.wait() == 0, pipeline.err
    finally:
        pipeline.kill_all()
    # By Spark's own account of what it has done: one line of progress may tell of several batches.
    committed = [path for path in (tmp_path / "checkpoint" / "totals" / "commits").iterdir() if path.name.isdigit()]
    assert len(committed) >= 4


def pay(address: str, payments: Sequence[Mapping[str, Any]]) -> None:
    """Write payments to both partitions, in so many pieces that the limit of a micro-batch finds cuts."""
    for first in range(0, len(payments), CHUNK):
        for partition in (0, 1):
            chunk = [json.dumps(each).encode() for each in payments[first + partition : first + CHUNK : 2]]
            topics.produce(address, "payments", chunk, partition=partition)
