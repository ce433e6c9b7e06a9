"""Topics of marker mode as what Spark writes and reads: each row once for who reads what is committed.

An attempt that is given up leaves its records and an abort marker in the topic, so offsets have gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pyspark_fairlog.native import Native, Topics
from scripts.node_process import NodeProcess
from tests.spark.held_sink import HeldSource
from tests.spark.streams import WAIT_S, Batches, frame, run
from tests.spark.topics import MARKERS, make, transact, transactional

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

PARTITIONS = 2


@pytest.fixture
def topic(node: NodeProcess) -> str:
    """Of marker mode, and the test's own."""
    return make(node.address, f"markers-{uuid4()}", PARTITIONS, **MARKERS)


def write(data: DataFrame, node: NodeProcess, topic: str) -> None:
    options = {"kafka.bootstrap.servers": node.address, "topic": topic}
    data.write.format("fairlog").mode("append").options(**options).save()


def read(spark: SparkSession, node: NodeProcess, topic: str, **options: str) -> list[int]:
    reader = spark.read.format("fairlog").options(**{"kafka.bootstrap.servers": node.address, "subscribe": topic})
    return sorted(int(row.value) for row in reader.options(**options).load().select("value").collect())


def test_batch_writes_with_one_that_fails_between_them_are_read_once(
    spark: SparkSession, node: NodeProcess, topic: str
) -> None:
    """By Spark and by any consumer of what is committed, whole or in pieces that begin within what was aborted."""
    rows = spark.range(0, 20_000, 1, 2)
    write(rows.selectExpr("cast(id as string) as value"), node, topic)
    with pytest.raises(Exception, match="bad row"):
        write(rows.selectExpr("if(id = 19000, raise_error('bad row'), cast(id as string)) as value"), node, topic)
    write(rows.selectExpr("cast(id + 20000 as string) as value"), node, topic)
    assert read(spark, node, topic) == list(range(40_000))
    assert read(spark, node, topic, minPartitions="7") == list(range(40_000))


def test_stream_between_marker_topics_is_exact_over_a_batch_that_is_given_up(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """Its task fails when all its rows are in the topic; the next run writes the batch anew. The source has aborted
    transactions, of which some micro-batches have nothing else."""
    source = make(node.address, f"{topic}-source", 1, **MARKERS)
    writer = transactional(node.address, source)
    for first in range(0, 3000, 1000):
        values = [str(number).encode() for number in range(first, first + 1000)]
        transact(writer, {source: values})
        transact(writer, {source: values}, commit=False)
    spark.dataSource.register(HeldSource)
    options = {"kafka.bootstrap.servers": node.address, "topic": topic, "transactionalId": topic, "commitGroup": topic}
    (tmp_path / "point").mkdir()

    def begin(**more: str) -> None:
        records = frame(spark, node.address, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="1000")
        query = (
            records.select("key", "value")
            .writeStream.format("fairlog-held")
            .options(**options, checkpointLocation=str(tmp_path / "checkpoint"), **more)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_S), "the query did not end"
        finally:
            query.stop()

    with pytest.raises(Exception, match="failed at written"):
        begin(fail=f"written 0 {tmp_path / 'point'}")
    assert read(spark, node, topic) == []
    begin()
    assert read(spark, node, topic) == list(range(3000))
    with Native.connect(node.address) as native:
        assert sum(each.high for each in native.cut(Topics((topic,)))) > 4000, "what was given up is there, too"
    batches = Batches()
    copy = frame(spark, node.address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="500")
    run(copy, batches, tmp_path / "copy")
    assert sorted(int(row.value) for row in batches.rows) == list(range(3000))
