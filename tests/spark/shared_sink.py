"""A sink that writes numbered rows to a topic over several shards, and what is in the topic."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from pyspark_fairlog.native import CutPartition, Native, NativeError, Topics
from tests.spark import topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

TOPIC, PARTITIONS = "copies", 6
ROWS = 3000
PER_BATCH = 200
RUN_S = 600.0
BETWEEN_S = 3.0


def write_while(
    spark: SparkSession, address: str, directory: Path, *, disturbances: Sequence[Callable[[], None]]
) -> None:
    """Each record is there once, and each cut has whole micro-batches; a run that ends is followed by another one."""
    topics.make(address, TOPIC, PARTITIONS)
    cuts: list[list[CutPartition]] = []
    left = list(disturbances)
    deadline, next_s = time.monotonic() + RUN_S, 0.0
    query = None
    while left or sum(part.end for part in cuts[-1]) < ROWS:
        assert time.monotonic() < deadline
        if query is None or not query.isActive:
            query = _start(spark, address, directory)
        cut = _cut(address)
        if cut is not None:
            cuts.append(cut)
            if left and sum(part.end for part in cut) and time.monotonic() > next_s:
                began_s = time.monotonic()
                left.pop(0)()
                deadline += time.monotonic() - began_s  # it may wait until the one before is over
                next_s = time.monotonic() + BETWEEN_S
        time.sleep(0.1)
    assert query is not None
    query.stop()
    last = _cut(address, patient=True)
    assert last is not None
    records = _records(address, last)
    found = Counter(value for values in records.values() for value in values)
    assert set(found.values()) == {1}, "a record is there twice"
    assert found.keys() == set(range(len(found))), "a record is missing"
    assert len(found) >= ROWS
    for cut in [*cuts, last]:
        below = [value for part in cut for value in records[part.partition][: part.end]]
        assert sorted(below) == list(range(len(below))), "a cut has half a batch"
        assert len(below) % PER_BATCH == 0
    assert len({sum(part.end for part in cut) for cut in cuts}) > 3


def _start(spark: SparkSession, address: str, directory: Path) -> StreamingQuery:
    return (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=PER_BATCH, numPartitions=3)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("fairlog")
        .options(**{"kafka.bootstrap.servers": address, "topic": TOPIC, "transactionalId": TOPIC})
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )


def _cut(address: str, *, patient: bool = False) -> list[CutPartition] | None:
    """None: no cut can be taken, as a shard has no owner."""
    deadline = time.monotonic() + RUN_S
    while True:
        try:
            with Native.connect(address, timeout_s=30) as native:
                return native.cut(Topics((TOPIC,)))
        except (NativeError, ConnectionError):
            if not patient or time.monotonic() > deadline:
                return None
        time.sleep(0.1)


def _records(address: str, ends: list[CutPartition]) -> dict[int, list[int]]:
    """The values by partition, in the order of their offsets, as a plain consumer sees them."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    found: dict[int, list[int]] = {part.partition: [] for part in ends}
    left = sum(part.end for part in ends)
    deadline = time.monotonic() + RUN_S
    try:
        consumer.assign([TopicPartition(TOPIC, part.partition, 0) for part in ends])
        while left:
            assert time.monotonic() < deadline
            for message in consumer.consume(500, 1.0):
                value, partition = message.value(), message.partition()
                assert message.error() is None
                assert value is not None
                assert partition is not None
                found[partition].append(int(value))
                left -= 1
    finally:
        consumer.close()
    return found
