"""From topics to topics: the source's offsets in the sink's commit; and writes inside of foreachBatch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from scripts.node_process import NodeProcess
from tests.spark import topics
from tests.spark.counting import PARTS, ROWS, RUN_S, TOPIC, assert_counted, create_topic, numbers, wait_for_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def node(fresh_node: Callable[..., NodeProcess]) -> NodeProcess:
    fresh = fresh_node()
    create_topic(fresh.address)
    return fresh


def copy(spark: SparkSession, node: NodeProcess, checkpoint: Path, **options: str) -> Any:
    """Copy what is in `orders` now, in batches of some hundred, and end."""
    source = spark.readStream.format("fairlog").options(
        **{"kafka.bootstrap.servers": node.address, "subscribe": "orders"}, startingOffsets="earliest"
    )
    query = (
        source.option("maxOffsetsPerTrigger", "100")
        .load()
        .select("key", "value")
        .writeStream.format("fairlog")
        .options(**{"kafka.bootstrap.servers": node.address, "topic": TOPIC} | options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def committed(node: NodeProcess, group: str) -> dict[int, int]:
    """The group's offsets in `orders`, as lag tools see them."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
    try:
        found = consumer.committed([TopicPartition("orders", number) for number in range(2)], timeout=30)
        return {each.partition: each.offset for each in found}
    finally:
        consumer.close()


def test_group_is_where_the_written_batches_end(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Also when the query is started again, and in no later commit than that of the rows."""
    topics.make(node.address, "orders", 2)
    values = [str(number).encode() for number in range(600)]
    topics.produce(node.address, "orders", values[:300], partition=0)
    topics.produce(node.address, "orders", values[300:400], partition=1)
    copy(spark, node, tmp_path / "checkpoint", commitGroup="readers")
    assert committed(node, "readers") == {0: 300, 1: 100}
    topics.produce(node.address, "orders", values[400:], partition=1)
    copy(spark, node, tmp_path / "checkpoint", commitGroup="readers")
    assert committed(node, "readers") == {0: 300, 1: 300}
    assert numbers(node.address, least=600) == list(range(600))


def test_group_of_a_batch_that_is_refused_stays_where_it_was(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Rows and offsets are one commit: none without the other."""
    topics.make(node.address, "orders", 2)
    topics.produce(node.address, "orders", [b"1"], partition=0)
    copy(spark, node, tmp_path / "first", commitGroup="readers", transactionalId="totals")
    topics.produce(node.address, "orders", [b"2"], partition=0)
    with pytest.raises(Exception, match="sink 'totals' belongs to query"):
        copy(spark, node, tmp_path / "second", commitGroup="readers", transactionalId="totals")
    assert committed(node, "readers")[0] == 1
    assert numbers(node.address, least=1) == [1]


@pytest.mark.parametrize("batches", [1, 2])
def test_checkpoint_that_was_set_back_is_refused_and_skips_nothing(
    spark: SparkSession, node: NodeProcess, tmp_path: Path, batches: int
) -> None:
    """Its batches are planned anew, with what has come since, and are no replays; the newest checkpoint goes on."""
    topics.make(node.address, "orders", 2)
    current, older, newest = (tmp_path / name for name in ("current", "older", "newest"))

    def write_ten(first: int) -> None:
        topics.produce(node.address, "orders", [str(number).encode() for number in range(first, first + 10)])

    write_ten(0)
    copy(spark, node, current)
    shutil.copytree(current, older)
    for batch in range(1, 1 + batches):
        write_ten(10 * batch)
        copy(spark, node, current)
    current.rename(newest)
    older.rename(current)
    there = 10 * (1 + batches)
    write_ten(there)
    for _ in range(2):  # what it has planned anew stands in the checkpoint from the first time on
        with pytest.raises(Exception, match=r"checkpoint is an older copy.*set-back.*newest checkpoint"):
            copy(spark, node, current)
    assert numbers(node.address) == list(range(there))
    shutil.rmtree(current)
    newest.rename(current)
    copy(spark, node, current)
    assert numbers(node.address, least=there + 10) == list(range(there + 10))


@pytest.mark.parametrize("partitions", [1, 2])
def test_continuous_trigger_comes_to_a_stand_and_skips_nothing(
    spark: SparkSession, node: NodeProcess, tmp_path: Path, partitions: int
) -> None:
    """Spark would note the epochs of a source that has it as done, and never calls `write` of a sink in Python."""
    checkpoint = tmp_path / "checkpoint"
    ticks = spark.readStream.format("rate").options(rowsPerSecond="10", numPartitions=str(partitions)).load()
    query = (
        ticks.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("fairlog")
        .options(**{"kafka.bootstrap.servers": node.address, "topic": TOPIC})
        .option("checkpointLocation", str(checkpoint))
        .trigger(continuous="1 second")
        .start()
    )
    deadline = time.monotonic() + RUN_S
    try:
        while len(numbered(checkpoint / "offsets")) < 3:
            assert time.monotonic() < deadline, "no epochs go by"
            assert not query.awaitTermination(1), query.exception()
        assert not numbered(checkpoint / "commits")
    finally:
        query.stop()
    for epoch in numbered(checkpoint / "offsets"):  # by which it is told from a micro-batch's plan
        assert not (checkpoint / "offsets" / f"{epoch}").read_text().split("\n")[1]


def test_checkpoint_without_its_epochs_is_gone_on_with(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """With them, Spark does nothing. Without, nothing is skipped or doubled, nor of an unfinished micro-batch."""
    topics.make(node.address, "orders", 2)
    topics.make(node.address, "elsewhere", 1)
    checkpoint = tmp_path / "checkpoint"
    for batch in range(4):  # the sink has the first two; of the others, only the ends are left
        topics.produce(node.address, "orders", [str(number).encode() for number in range(10 * batch, 10 * batch + 10)])
        copy(spark, node, checkpoint, **{"topic": "elsewhere", "transactionalId": "elsewhere"} if batch > 1 else {})
    for batch in (1, 2, 3):  # the driver was killed before Spark had noted that the second is done
        forget(checkpoint / "commits", batch)
    for epoch in (2, 3):
        blank(checkpoint / "offsets", epoch)
    with pytest.raises(Exception, match="Batch 3 metadata not found"):
        copy(spark, node, checkpoint)
    for epoch in (2, 3):
        forget(checkpoint / "offsets", epoch)
    copy(spark, node, checkpoint)
    assert numbers(node.address, least=40) == list(range(40))


def forget(log: Path, batch: int) -> None:
    """Delete a batch from a log of a checkpoint."""
    (log / f"{batch}").unlink()
    (log / f".{batch}.crc").unlink(missing_ok=True)


def blank(offsets: Path, batch: int) -> None:
    """Make a batch what continuous processing writes of an epoch."""
    version, _when, *sources = (offsets / f"{batch}").read_text().split("\n")
    (offsets / f"{batch}").write_text("\n".join([version, "", *sources]))
    (offsets / f".{batch}.crc").unlink()


def numbered(directory: Path) -> list[int]:
    """What a log of a checkpoint has."""
    return sorted(int(entry.name) for entry in directory.glob("[0-9]*"))


def test_write_inside_of_foreach_batch_counts_once_over_a_replay(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """For the output mode update, which Spark does not let data sources in Python have."""
    failed: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        data = rows.selectExpr("cast(rest as string) as key", "cast(count as string) as value")
        data.write.format("fairlog").mode("append").options(
            **{"kafka.bootstrap.servers": node.address, "topic": TOPIC}, transactionalId="totals", batchId=str(batch)
        ).save()
        if batch == 1 and not failed:
            failed.append(batch)
            raise RuntimeError("failed after the write as the test wished")

    def run_through(number: int) -> None:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        counted = source.groupBy((source["value"] % PARTS).alias("rest")).count()
        writer = counted.writeStream.outputMode("update").foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            wait_for_batch(query, number)
        finally:
            query.stop()

    with pytest.raises(Exception, match="failed after the write"):
        run_through(3)
    run_through(3)
    assert_counted(node.address)
