"""Spark's own Kafka connector over a real node: it reads and writes as it is, and a query moves from it by one word.

Its jars come from Maven: on CI `scripts/test.py` has them, elsewhere the benchmark (`scripts/bench.py spark`). Where
they are not at hand these tests are skipped, but on CI.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from peers import kafka_artifacts

from scripts.node_process import NodeProcess
from tests.spark import topics
from tests.spark.counting import messages
from tests.spark.streams import Batches, run, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        kafka_artifacts.connector_at_hand() is None,
        reason="the Kafka connector's jars are not here: `python3 scripts/bench.py spark --quick` has them from Maven",
    ),
]

OURS, CONNECTOR = "fairlog", "kafka"
FORMATS = (OURS, CONNECTOR)


def read(spark: SparkSession, kind: str, node: NodeProcess, **options: str) -> DataFrame:
    return spark.read.format(kind).option("kafka.bootstrap.servers", node.address).options(**options).load()


def stream(spark: SparkSession, kind: str, node: NodeProcess, name: str) -> DataFrame:
    """From the first record on, as any consumer of committed records."""
    options = {"kafka.bootstrap.servers": node.address, "kafka.isolation.level": "read_committed"}
    reader = spark.readStream.format(kind).options(**options, subscribe=name, startingOffsets="earliest")
    return reader.load()


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("headers", ["true", "false"])
def test_both_formats_read_the_same_rows_of_the_same_columns(
    spark: SparkSession, node: NodeProcess, headers: str
) -> None:
    """Keys, tombstones, headers, timestamps; plain records, and those of a transaction."""
    name = topics.make(node.address, f"read-{headers}", 2)
    topics.produce(node.address, name, numbers(0, 500), key=b"k", headers=[("h", b"1"), ("n", None)])
    topics.produce(node.address, name, [None, b"v"], partition=1, timestamp=1_700_000_000_123)
    topics.transact(topics.transactional(node.address, name), {name: numbers(500, 600)})
    topics.wait_for_end(node.address, name, 600)
    ours, theirs = (read(spark, kind, node, subscribe=name, includeHeaders=headers) for kind in FORMATS)
    assert ours.dtypes == theirs.dtypes
    assert len(in_order(theirs)) == 602
    assert in_order(ours) == in_order(theirs)


def test_both_formats_take_the_same_offsets(spark: SparkSession, node: NodeProcess) -> None:
    """`assign` and offsets in JSON, edges among them."""
    name = topics.make(node.address, "offsets", 2)
    for partition in range(2):
        topics.produce(node.address, name, numbers(0, 100), partition=partition)
    options = {
        "assign": f'{{"{name}": [0, 1]}}',
        "startingOffsets": f'{{"{name}": {{"0": 10, "1": -2}}}}',
        "endingOffsets": f'{{"{name}": {{"0": -1, "1": 90}}}}',
    }
    ours, theirs = (in_order(read(spark, kind, node, **options)) for kind in FORMATS)
    assert [(row.partition, row.offset) for row in theirs] == [(0, at) for at in range(10, 100)] + [
        (1, at) for at in range(90)
    ]
    assert ours == theirs


def test_both_formats_write_the_same_records_to_the_same_partitions(spark: SparkSession, node: NodeProcess) -> None:
    """Keys decide alike, the column `partition` does, and headers are written."""
    rows = spark.range(0, 400, 1, 2).selectExpr(
        "cast(id as string) as key",
        "if(id % 7 = 0, null, cast(id as string)) as value",
        "if(id % 5 = 0, 1, null) as partition",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) as headers",
    )
    found: dict[str, list[tuple[object, ...]]] = {}
    for kind in FORMATS:
        name = topics.make(node.address, f"written-{kind}", 3)
        options = {"kafka.bootstrap.servers": node.address, "topic": name, "includeHeaders": "true"}
        rows.write.format(kind).mode("append").options(**options).save()
        found[kind] = sorted(
            (int(each.key()), each.partition(), each.value(), each.headers()) for each in messages(node.address, name)
        )
    assert [number for number, *_ in found[CONNECTOR]] == list(range(400))
    assert found[OURS] == found[CONNECTOR]


def test_query_of_the_connector_is_gone_on_with_by_one_word(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """The checkpoint that the connector has written is the new format's: each record is in one micro-batch."""
    name = topics.make(node.address, "moved", 2)
    batches = Batches()
    topics.produce(node.address, name, numbers(0, 30))
    topics.produce(node.address, name, numbers(0, 5), partition=1)
    run(stream(spark, CONNECTOR, node, name), batches, tmp_path)
    assert batches.offsets(name) == list(range(30))
    topics.produce(node.address, name, numbers(30, 50))
    run(stream(spark, OURS, node, name), batches, tmp_path)
    topics.produce(node.address, name, numbers(5, 8), partition=1)
    run(stream(spark, OURS, node, name), batches, tmp_path)
    assert len(batches.seen) == 3
    assert batches.offsets(name) == list(range(50))
    assert batches.offsets(name, 1) == list(range(8))


@pytest.mark.parametrize(("kind", "mode"), [(OURS, "journal"), (CONNECTOR, "journal"), (CONNECTOR, "markers")])
def test_hung_transaction_stops_the_connector_in_marker_mode_and_nobody_in_journal_mode(
    spark: SparkSession, node: NodeProcess, tmp_path: Path, kind: str, mode: str
) -> None:
    """Plain records are written behind those of a transaction that nobody ends."""
    name = topics.make(node.address, f"hung-{kind}-{mode}", fairlog__transactions=mode)
    topics.produce(node.address, name, numbers(0, 3))
    hung = topics.transactional(node.address, name)
    batches = Batches()
    query = start(stream(spark, kind, node, name), batches, tmp_path)
    try:
        query.processAllAvailable()
        hung.begin_transaction()
        hung.produce(name, b"hung")
        assert hung.flush(topics.WAIT_S) == 0
        topics.produce(node.address, name, numbers(3, 6))
        query.processAllAvailable()
        meanwhile = batches.values(name)
        hung.commit_transaction(topics.WAIT_S)
        topics.wait_for_end(node.address, name, 7)
        query.processAllAvailable()
    finally:
        query.stop()
    assert meanwhile == numbers(0, 3 if mode == "markers" else 6)
    assert sorted(value or b"" for value in batches.values(name)) == [*numbers(0, 6), b"hung"]
