"""Streams under test: run to their end or to a standstill, with each micro-batch kept as it was seen."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

WAIT_S = 120
POLL_S = 0.02
START_TRIES = 3


@dataclass
class Batches:
    """What the micro-batches of a query held, by batch id; a batch that comes again must be the same."""

    seen: dict[int, list[Row]] = field(default_factory=dict["int", "list[Row]"])
    fail_at: int | None = None
    """A batch that is seen and then fails, as if the driver had died before its commit."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))
        assert batch not in self.seen or self.seen[batch] == rows, f"batch {batch} came again, and is another one"
        self.seen[batch] = rows
        if batch == self.fail_at:
            self.fail_at = None
            raise RuntimeError("failed on purpose")

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.seen) for row in self.seen[batch]]

    def offsets(self, topic: str, partition: int = 0) -> list[int]:
        """In the order in which they were seen."""
        return [row.offset for row in self.rows if (row.topic, row.partition) == (topic, partition)]

    def values(self, topic: str) -> list[bytes | None]:
        return [None if row.value is None else bytes(row.value) for row in self.rows if row.topic == topic]


def frame(spark: SparkSession, address: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("fairlog").option("kafka.bootstrap.servers", address)
    return reader.options(**options).load()


def start(stream: DataFrame, batches: Batches, checkpoint: Path) -> StreamingQuery:
    """Run until stopped, one micro-batch after the other."""
    return _begun(stream.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint)))


def run(stream: DataFrame, batches: Batches, checkpoint: Path) -> None:
    """Run until all is read that was there at the start. Raises what the query has failed of."""
    writer = stream.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))
    query = _begun(writer.trigger(availableNow=True))
    try:
        assert query.awaitTermination(WAIT_S), f"the query did not end within {WAIT_S} s"
    finally:
        query.stop()


def _begun(writer: DataStreamWriter) -> StreamingQuery:
    """The query, past the start of the source's process: Spark gives that ten seconds, and a busy machine may not."""
    for tries_left in reversed(range(START_TRIES)):
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(POLL_S)
        failure = query.exception()
        if failure is None or "Python worker failed to connect back" not in str(failure) or tries_left == 0:
            return query
    raise AssertionError("the last try returns")
