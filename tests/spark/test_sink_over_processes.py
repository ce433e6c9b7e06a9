"""`writeStream.format("fairlog")` to a topic over three processes, each of which is killed meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from pyspark_fairlog.native import CutPartition, Native, NativeError, Topics
from scripts.node_process import NodeProcess
from tests.spark import topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PARTITIONS = 6
ROWS = 3000
PER_BATCH = 200
RUN_S = 120.0


def test_each_record_is_there_once_and_each_batch_whole(
    spark: SparkSession, three: NodeProcess, tmp_path: Path
) -> None:
    """Each record names its batch. A run that has lost its lanes with a process ends; the next one goes on."""
    topics.make(three.address, "copies", PARTITIONS)
    cuts: list[list[CutPartition]] = []
    kills = iter((0, 1, 2))
    runs, deadline, next_kill_s = 0, time.monotonic() + RUN_S, 0.0
    while True:
        assert time.monotonic() < deadline
        runs += 1
        query = (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=PER_BATCH, numPartitions=3)
            .load()
            .selectExpr("CAST(value AS STRING) AS value")
            .writeStream.format("fairlog")
            .options(**{"kafka.bootstrap.servers": three.address, "topic": "copies", "transactionalId": "copies"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        while query.isActive and time.monotonic() < deadline:
            cut = _cut(three)
            if cut is not None:
                cuts.append(cut)
                if sum(part.end for part in cut) >= ROWS and next(kills, None) is None:
                    query.stop()
                    break
            if cut is not None and sum(part.end for part in cut) and time.monotonic() > next_kill_s:
                number = next(kills, None)
                if number is not None:
                    three.kill_process(number)
                    next_kill_s = time.monotonic() + 3.0
            time.sleep(0.1)
        else:
            query.stop()
            continue
        break
    last = _cut(three, patient=True)
    assert last is not None
    records = _records(three, last)
    found = Counter(value for values in records.values() for value in values)
    assert set(found.values()) == {1}, "a record is there twice"
    assert found.keys() == set(range(len(found))), "a record is missing"
    assert len(found) >= ROWS
    for cut in [*cuts, last]:
        below = [value for part in cut for value in records[part.partition][: part.end]]
        assert sorted(below) == list(range(len(below))), "a cut has half a batch"
        assert len(below) % PER_BATCH == 0
    assert len({sum(part.end for part in cut) for cut in cuts}) > 3


def _cut(node: NodeProcess, *, patient: bool = False) -> list[CutPartition] | None:
    """None: no cut can be taken, as a process is down."""
    deadline = time.monotonic() + RUN_S
    while True:
        try:
            with Native.connect(",".join(node.addresses), timeout_s=30) as native:
                return native.cut(Topics(("copies",)))
        except (NativeError, ConnectionError):
            if not patient or time.monotonic() > deadline:
                return None
        time.sleep(0.1)


def _records(node: NodeProcess, ends: list[CutPartition]) -> dict[int, list[int]]:
    """The values by partition, in the order of their offsets, as a plain consumer sees them."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "unused", "enable.auto.commit": False})
    found: dict[int, list[int]] = {part.partition: [] for part in ends}
    left = sum(part.end for part in ends)
    deadline = time.monotonic() + RUN_S
    try:
        consumer.assign([TopicPartition("copies", part.partition, 0) for part in ends])
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
