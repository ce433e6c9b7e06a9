"""`spark.read.format("fairlog")` over a real node."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from pyspark_fairlog.schema import DDL, arrow_schema, ddl
from scripts.node_process import NodeProcess
from tests.clients.reading import Reader
from tests.spark import topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.slow


def read(spark: SparkSession, node: NodeProcess, **options: str) -> DataFrame:
    return spark.read.format("fairlog").option("kafka.bootstrap.servers", node.address).options(**options).load()


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_arrow_types_are_what_spark_makes_of_ours(spark: SparkSession) -> None:
    """Spark compares them to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = spark.createDataFrame([], ddl(headers=True)).schema
    assert arrow_schema(tuple(DDL)).equals(to_arrow_schema(schema, timezone="UTC"))


def test_batch_read_is_what_a_plain_client_reads(spark: SparkSession, node: NodeProcess) -> None:
    """All columns of all records of all partitions, and the source is found by its name alone."""
    name = topics.make(node.address, "plain", 3)
    for partition in range(3):
        values = [b"%d" % at for at in range(5000 * partition)]
        topics.produce(node.address, name, values, partition=partition, key=b"k")
    topics.produce(node.address, name, [None], headers=[("h", b"1"), ("n", None)], timestamp=1_700_000_000_123)
    with Reader(node.address, name, 3) as reader:
        expected = sorted(reader.read_to_end(), key=lambda seen: (seen.partition, seen.offset))
    found = in_order(read(spark, node, subscribe=name, includeHeaders="true"))
    assert len(found) == len(expected) == 15_001
    for row, seen in zip(found, expected, strict=True):
        headers = tuple((header.key, header.value) for header in row.headers or ())
        assert (row.partition, row.offset, row.key, row.value) == (seen.partition, seen.offset, seen.key, seen.value)
        assert headers == seen.headers
        assert (row.topic, row.timestampType) == (name, 0)
        assert round(row.timestamp.timestamp() * 1000) == seen.timestamp_ms


def test_batch_read_without_headers_has_the_connectors_columns(spark: SparkSession, node: NodeProcess) -> None:
    """Seven, in the connector's order and with its types."""
    name = topics.make(node.address, "columns")
    expected = [(column, kind) for column, kind in DDL.items() if column != "headers"]
    assert read(spark, node, subscribe=name).dtypes == expected
    assert read(spark, node, subscribe=name).collect() == []


def test_batch_read_between_offsets_in_more_tasks(spark: SparkSession, node: NodeProcess) -> None:
    """`startingOffsets`, `endingOffsets`, `assign`, and `minPartitions` that splits the range."""
    name = topics.make(node.address, "between", 2)
    topics.produce(node.address, name, [b"%d" % at for at in range(100)], partition=1)
    frame = read(
        spark,
        node,
        assign=f'{{"{name}": [1]}}',
        startingOffsets=f'{{"{name}": {{"1": 10}}}}',
        endingOffsets=f'{{"{name}": {{"1": 90}}}}',
        minPartitions="4",
    )
    assert [row.offset for row in in_order(frame)] == list(range(10, 90))
    assert frame.rdd.getNumPartitions() == 4


def test_batch_read_of_some_columns_in_a_schema(spark: SparkSession, node: NodeProcess) -> None:
    """What a query does not name is not built."""
    name = topics.make(node.address, "some")
    topics.produce(node.address, name, [b"v"] * 3)
    reader = spark.read.format("fairlog").schema("offset bigint, value binary")
    frame = reader.option("kafka.bootstrap.servers", node.address).option("subscribe", name).load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(at, b"v") for at in range(3)]


def test_batch_read_that_is_refused_says_why(spark: SparkSession, node: NodeProcess) -> None:
    """The sentences come through Spark: a wrong option where the frame is made up, a wrong topic where it is read."""
    with pytest.raises(PySparkException, match="startingTimestamp is not one of Fairlog's"):
        read(spark, node, subscribe="a", startingTimestamp="1")
    with pytest.raises(PySparkException, match="no-such-topic"):
        read(spark, node, subscribe="no-such-topic").count()


def test_batch_read_sees_transactions_whole(spark: SparkSession, node: NodeProcess) -> None:
    """Invariant 7 through Spark: of a transaction over two topics all or nothing, however busy the writer."""
    names = [topics.make(node.address, "left"), topics.make(node.address, "right")]
    producer = topics.transactional(node.address)
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            value = b"%d" % number
            topics.transact(producer, {names[0]: [value] * 3, names[1]: [value] * 2})
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reads = [Counter(read(spark, node, subscribe=",".join(names)).collect()) for _ in range(8)]
    finally:
        done.set()
        writer.join()
    for found in reads:
        by_value = Counter((row.value, row.topic) for row in found)
        for value in {row.value for row in found}:
            assert (by_value[value, names[0]], by_value[value, names[1]]) == (3, 2)
    assert max(map(len, reads)) > 0


def test_batch_read_of_a_marker_mode_topic_ends_before_what_is_open(
    spark: SparkSession, fresh_node: Callable[..., NodeProcess]
) -> None:
    """Gaps and aborted records are no rows; what is not decided is not waited for."""
    node = fresh_node()
    name = topics.make(node.address, "markers", **topics.MARKERS)
    producer, hung = topics.transactional(node.address), topics.transactional(node.address, "hung")
    topics.transact(producer, {name: [b"a"]})
    topics.transact(producer, {name: [b"x"]}, commit=False)
    topics.transact(producer, {name: [b"b"]})
    hung.begin_transaction()
    hung.produce(name, b"open")
    hung.flush(topics.WAIT_S)
    topics.wait_for_end(node.address, name, 6)
    assert [row.value for row in in_order(read(spark, node, subscribe=name))] == [b"a", b"b"]
    hung.abort_transaction(topics.WAIT_S)
