"""The work of the Spark scenario's client processes: jobs in a session of their own, and group commits without Spark.

`Jobs` has a driver and its executors in one JVM, `local[2]`, with the Kafka connector's jars on its class path; it runs
the same job with either format. `Committer` does the same as a micro-batch's tasks and driver do with a sink, so that
the commit can be timed separately.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from node_process import ROOT

from benchmarks.spark_sinks import TIMES, NothingSource, TimedSource, times_ms

RECORD_BYTES = 1000
WAIT_S = 300.0
_POLL_S = 0.02

OURS, CONNECTOR = "fairlog", "kafka"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LARGE_BATCHES = {"kafka.batch.size": "1000000", "kafka.linger.ms": "5"}
"""The defaults of librdkafka, and so of our sink; the connector's producer has 16 KB and 0 ms."""


class Jobs:
    """A Spark session, and jobs on topics of one broker."""

    def __init__(self, address: str, jars: str) -> None:
        """`jars` is the directory with the connector's."""
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        from pyspark.sql import SparkSession

        self._address = address
        self._directory = tempfile.TemporaryDirectory(prefix="fairlog-bench-spark-")
        settings = {
            "spark.jars": ",".join(str(path) for path in sorted(Path(jars).glob("*.jar"))),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.numRecentProgressUpdates": "100000",
            "spark.sql.warehouse.dir": self._directory.name,
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master("local[2]").appName("fairlog benchmark")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("OFF")  # a query that is stopped in mid-batch is no error here
        for source in (TimedSource, NothingSource):
            self._spark.dataSource.register(source)
        self._queries = 0
        self._query: Any = None

    def read(self, kind: str, topic: str, isolation: str = COMMITTED) -> tuple[float, int]:
        """Read the whole topic and drop the rows. Returns the seconds, and the number of rows, counted afterwards.

        Both formats make a row of seven columns for Spark: one by one from the client's records, or from an Arrow batch
        that comes from Python.
        """
        started = time.perf_counter()
        self._rows(kind, topic, isolation).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started, self._rows(kind, topic, isolation).count()

    def write(self, kind: str, topic: str, rows: int, options: Mapping[str, str] | None = None) -> tuple[float, int]:
        """Write this many generated rows of 1 KB from two tasks. Returns the seconds, and the number of records
        written.
        """
        made = self._spark.range(0, rows, 1, 2).selectExpr(
            "cast(id as string) as key", f"rpad(cast(id as string), {RECORD_BYTES}, 'x') as value"
        )
        before = self._records(topic)
        started = time.perf_counter()
        self._to(made.write.format(kind).mode("append"), topic).options(**(options or {})).save()
        return time.perf_counter() - started, self._records(topic) - before

    def micro_batches(self, kind: str, topic: str, count: int, rows: int) -> tuple[list[float], list[float]]:
        """A stream of this many micro-batches of `rows` small rows into the topic.

        Returns the milliseconds that Spark took to add each, and those of each commit in the driver's Python, if `kind`
        is the one that notes them.
        """
        source = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", 2)
            .load()
            .selectExpr("cast(value as string) as key", "cast(value as string) as value")
        )
        checkpoint = self._checkpoint()
        times = Path(f"{checkpoint}.times")
        writer = self._to(source.writeStream.format(kind), topic).option("checkpointLocation", checkpoint)
        query = writer.option(TIMES, str(times)).start()
        try:
            deadline = time.monotonic() + WAIT_S
            while (progress := query.recentProgress) is None or len(progress) < count:
                self._check(query, deadline)
            return [float(each["durationMs"]["addBatch"]) for each in progress[:count]], times_ms(times)[:count]
        finally:
            query.stop()

    def follow(self, kind: str, topic: str) -> None:
        """Begin to read the topic as a stream of committed records, from its end on; returns when it has started."""
        stream = (
            self._of(kind, self._spark.readStream.format(kind), topic)
            .option("startingOffsets", "latest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .trigger(processingTime="100 milliseconds")
        )
        self._query = stream.start()
        deadline = time.monotonic() + WAIT_S
        while not self._query.recentProgress:
            self._check(self._query, deadline)

    def followed(self) -> int:
        """How many rows the stream has read so far."""
        return sum(each["numInputRows"] for each in self._query.recentProgress)

    def follow_until(self, rows: int) -> None:
        """Return when the stream has read this many rows, and end it. Raises TimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while self.followed() < rows:
            self._check(self._query, deadline)
        self._query.stop()

    def _records(self, topic: str) -> int:
        """The number of records in the topic, from the ends of its partitions as a plain consumer sees them."""
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "counting", "log_level": 0})
        try:
            partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
            ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), WAIT_S) for number in partitions]
            return sum(end - begin for begin, end in ends)
        finally:
            consumer.close()

    def _rows(self, kind: str, topic: str, isolation: str) -> Any:
        return self._of(kind, self._spark.read.format(kind), topic, isolation).load()

    def _of(self, kind: str, reader: Any, topic: str, isolation: str = COMMITTED) -> Any:
        reader = reader.option("kafka.bootstrap.servers", self._address).option("subscribe", topic)
        return reader.option("kafka.isolation.level", isolation) if kind == CONNECTOR else reader

    def _to(self, writer: Any, topic: str) -> Any:
        return writer.option("kafka.bootstrap.servers", self._address).option("topic", topic)

    def _checkpoint(self) -> str:
        self._queries += 1
        return f"{self._directory.name}/checkpoint-{self._queries}"

    def _check(self, query: Any, deadline: float) -> None:
        if (failed := query.exception()) is not None:
            raise RuntimeError(f"the query has failed: {failed}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query was not done within {WAIT_S:.0f} s")
        time.sleep(_POLL_S)


class Filler:
    """Writes plain records."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
        self._topic, self._partitions = topic, partitions

    def fill(self, records: int) -> None:
        """Write this many records of 1 KB, in turn to all partitions; returns when all are answered."""
        value = os.urandom(RECORD_BYTES)
        for number in range(records):
            while True:
                try:
                    self._producer.produce(self._topic, value, partition=number % self._partitions)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        if self._producer.flush(WAIT_S):
            raise TimeoutError(f"not all of {records} records were answered within {WAIT_S:.0f} s")


class Committer:
    """The lanes and the driver of a sink, without Spark."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._address, self._topic, self._partitions = address, topic, partitions
        self._batch = 0

    def commits(self, count: int, lanes: int, records: int) -> list[tuple[float, float]]:
        """Commit this many batches, each of this many lanes with this many small records in all partitions.

        Returns for each the milliseconds of the joins of all lanes, and those of the commit.
        """
        from pyspark_fairlog.native import Native

        taken: list[tuple[float, float]] = []
        with Native.connect(self._address) as native:
            for _ in range(count):
                of = {"sink": "committer", "query": "query", "run": "run", "batch": self._batch}
                self._batch += 1
                started = time.perf_counter()
                ids = [native.join(**of, partition=lane, attempt=0) for lane in range(lanes)]
                joined = time.perf_counter() - started
                for transactional_id in ids:
                    self._write(str(transactional_id), records)
                started = time.perf_counter()
                native.commit(**of, winners=[(lane, 0, records) for lane in range(lanes)])
                taken.append((joined * 1e3, (time.perf_counter() - started) * 1e3))
        return taken

    def _write(self, transactional_id: str, records: int) -> None:
        producer = Producer({"bootstrap.servers": self._address, "transactional.id": transactional_id, "log_level": 0})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for number in range(records):
            producer.produce(self._topic, b"record", partition=number % self._partitions)
        if producer.flush(WAIT_S):
            raise TimeoutError("a lane's records were not answered")
