"""The query that the sink's tests run: Spark's own counting source, written to a topic, batch after batch.

The source is `rate-micro-batch`, which gives each batch the next `ROWS` numbers and so the same ones in each replay.
What has to be in the topic then is known: 0, 1, 2, … up to a whole number of batches, each once. Run as a program, this
is a driver of its own with several such queries, which a test may kill with all its processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.node_process import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100
TOPIC = "numbers"
PARTS = 4
STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}
"""With this format a batch's state is known by which attempt saved it: what a replay does not save is missed."""
RUN_S = 240.0
VISIBLE_S = 30.0
POLL_S = 0.05


def start(spark: SparkSession, address: str, checkpoint: Path, *, stateful: str = "", **options: str) -> Any:
    """The running query; `stateful` makes it one that counts the numbers by their remainder, `PARTS` of them."""
    from tests.spark.held_sink import HeldSource

    spark.dataSource.register(HeldSource)
    counted = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    key = "value"
    if stateful:
        counted = counted.groupBy((counted["value"] % PARTS).alias("rest")).count().withColumnRenamed("count", "value")
        key = "rest"
        for name, value in STATE.items():
            spark.conf.set(name, value)
    try:
        return (
            counted.selectExpr(f"cast({key} as string) as key", "cast(value as string) as value")
            .writeStream.format("fairlog-held")
            .outputMode("complete" if stateful else "append")
            .options(**{"kafka.bootstrap.servers": address, "topic": TOPIC} | options)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
    finally:
        for name in STATE:
            spark.conf.unset(name)


def run(spark: SparkSession, address: str, checkpoint: Path, *, through: int, **options: str) -> None:
    """Run the query until it has done batch `through`, and stop it. Raises what it fails with."""
    query = start(spark, address, checkpoint, **options)
    try:
        wait_for_batch(query, through)
    finally:
        query.stop()


def is_done(query: Any, number: int) -> bool:
    """Has the query done its batch of that number?"""
    return query.lastProgress is not None and query.lastProgress["batchId"] >= number


def wait_for_batch(query: Any, number: int) -> None:
    deadline = time.monotonic() + RUN_S
    while not is_done(query, number):
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
        assert time.monotonic() < deadline, f"batch {number} was not done after {RUN_S:.0f} s"
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Query:
    """What a driver of its own is to run until batch `through` is done. Its files are beside its checkpoint."""

    address: str
    checkpoint: str
    through: int
    options: Mapping[str, str]

    @property
    def outcome_path(self) -> Path:
        """Made when it has ended: empty, or what it has failed with."""
        return Path(self.checkpoint).with_suffix(".outcome")


class Driver:
    """Queries in a driver of its own; `kill` ends it and all its processes at once."""

    def __init__(self, directory: Path, queries: Sequence[Query], *, master: str) -> None:
        asked = json.dumps([asdict(query) for query in queries])
        self._output_path = directory / "driver.out"
        with self._output_path.open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.counting", master, asked],
                cwd=directory,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")]), "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, path: Path, timeout_s: float = RUN_S) -> None:
        """Return when the file is there. The driver must not end before."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert self._child.poll() is None, f"the driver ended with {self._child.returncode}:\n{self._output()}"
            assert time.monotonic() < deadline, f"{path.name} was not there after {timeout_s:.0f} s:\n{self._output()}"
            time.sleep(POLL_S)

    def _output(self) -> str:
        return self._output_path.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and Spark's Python workers."""
        kill_session(self._child.pid)
        self._child.wait()


def kill_session(session: int) -> None:
    """SIGKILL to all processes of a session. Those of one program of Spark are one session, but several groups."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            try:
                os.kill(int(stat.parent.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def create_topic(address: str, name: str = TOPIC, *, partitions: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result()


def messages(address: str, topic: str = TOPIC) -> list[Any]:
    """What a plain consumer reads from all partitions of the topic, to their ends."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "plain", "isolation.level": "read_uncommitted"})
    try:
        found: list[Any] = []
        for partition in consumer.list_topics(topic).topics[topic].partitions:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            consumer.assign([TopicPartition(topic, partition, 0)])
            left = end
            while left:
                got = consumer.consume(left, 30)
                assert got, f"{left} of {end} records of partition {partition} did not come"
                assert all(message.error() is None for message in got)
                found += got
                left -= len(got)
        return found
    finally:
        consumer.close()


def numbers(address: str, *, topic: str = TOPIC, least: int = 0) -> list[int]:
    """The numbers in the topic, sorted, once there are as many: a commit is answered before its records are copied."""
    deadline = time.monotonic() + VISIBLE_S
    while len(found := messages(address, topic)) < least:
        assert time.monotonic() < deadline, f"{len(found)} of {least} records are there after {VISIBLE_S:.0f} s"
        time.sleep(POLL_S)
    return sorted(int(message.value()) for message in found)


def assert_whole(address: str, *, batches: int, topic: str = TOPIC) -> None:
    """At least so many batches come to be in the topic, and nothing but whole ones: no gap, no duplicate."""
    found = numbers(address, topic=topic, least=batches * ROWS)
    assert found == list(range(len(found)))
    assert len(found) % ROWS == 0


def assert_counted(address: str, *, topic: str = TOPIC) -> None:
    """Each batch of a stateful query has said once how many numbers there are by then."""
    numbers(address, topic=topic, least=4 * PARTS)  # waits until they are there
    found: dict[int, list[int]] = {}
    for each in messages(address, topic):
        found.setdefault(int(each.key()), []).append(int(each.value()))
    assert sorted(found) == list(range(PARTS))
    for counts in found.values():
        assert counts == [ROWS // PARTS * (batch + 1) for batch in range(len(counts))]
        assert len(counts) >= 4


def main(master: str, asked: str) -> None:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import SPARK_CONF

    builder = SparkSession.builder.master(master)
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    queries = [Query(**each) for each in json.loads(asked)]
    running = [(query, start(spark, query.address, Path(query.checkpoint), **query.options)) for query in queries]
    while running:
        for query, started in running:
            if started.isActive and is_done(started, query.through):
                started.stop()
            if not started.isActive:
                said = query.outcome_path.with_suffix(".new")
                said.write_text(str(started.exception() or ""))
                said.rename(query.outcome_path)
        running = [(query, started) for query, started in running if not query.outcome_path.exists()]
        time.sleep(POLL_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
