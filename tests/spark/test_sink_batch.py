"""`df.write.format("fairlog")`: a data frame becomes records, all of them at once or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.spark.counting import create_topic, messages, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.fixture
def topic(node: NodeProcess) -> str:
    """One of the test's own."""
    name = f"topic-{uuid4()}"
    create_topic(node.address, name, partitions=PARTITIONS)
    return name


def write(data: DataFrame, node: NodeProcess, topic: str, /, **options: str) -> None:
    data.write.format("fairlog").mode("append").options(
        **{"kafka.bootstrap.servers": node.address, "topic": topic} | options
    ).save()


def sinks(node: NodeProcess) -> set[str]:
    with Native.connect(node.address) as native:
        return {each.sink for each in native.sinks()}


def test_batch_write_writes_every_row_once_and_its_sink_is_forgotten(
    spark: SparkSession, node: NodeProcess, topic: str
) -> None:
    before = sinks(node)
    for _ in range(2):
        write(spark.range(30_000).repartition(3).selectExpr("cast(id as string) as value"), node, topic)
    assert numbers(node.address, topic=topic) == sorted([*range(30_000), *range(30_000)])
    assert sinks(node) == before


def test_batch_write_of_no_rows_writes_nothing(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    write(spark.range(0).selectExpr("cast(id as string) as value"), node, topic)
    assert not numbers(node.address, topic=topic)


def test_records_have_what_their_columns_say(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    """Nulls, a chosen partition, headers in their order, a topic for each row."""
    rows = [(topic, b"k", b"v", 2, [("h", b"1"), ("h", None)]), (topic, None, None, 1, None)]
    ddl = "topic string, key binary, value binary, partition int, headers array<struct<key:string,value:binary>>"
    spark.createDataFrame(rows, ddl).coalesce(1).write.format("fairlog").mode("append").option(
        "kafka.bootstrap.servers", node.address
    ).save()
    found = {each.partition(): each for each in messages(node.address, topic)}
    assert sorted(found) == [1, 2]
    assert (found[2].key(), found[2].value(), found[2].headers()) == (b"k", b"v", [("h", b"1"), ("h", None)])
    assert (found[1].key(), found[1].value(), found[1].headers()) == (None, None, None)


def test_keys_go_where_javas_clients_put_them(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    """The partitions of murmur2, as librdkafka computes them for Java's sake."""
    write(spark.range(200).selectExpr("cast(id as string) as key", "'spark' as value"), node, topic)
    producer = Producer({"bootstrap.servers": node.address, "partitioner": "murmur2_random"})
    for number in range(200):
        producer.produce(topic, b"plain", str(number))
    producer.flush()
    placed: dict[bytes, set[int]] = {}
    for each in messages(node.address, topic):
        placed.setdefault(each.key(), set()).add(each.partition())
    assert len(placed) == 200
    assert all(len(partitions) == 1 for partitions in placed.values())


def failing(spark: SparkSession) -> Any:
    """Rows of three tasks, of which one fails in the middle."""
    data = spark.range(0, 30_000, 1, 3)
    return data.selectExpr("if(id = 25000, raise_error('bad row'), cast(id as string)) as value")


def test_batch_write_that_fails_leaves_nothing(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    before = sinks(node)
    with pytest.raises(Exception, match="bad row"):
        write(failing(spark), node, topic)
    assert not numbers(node.address, topic=topic)
    assert sinks(node) == before


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("id as value", {}, "'value' is bigint, and must be string or binary"),
        ("cast(id as string) as value", {"topic": ""}, "the option topic cannot be"),
        ("cast(id as string) as value", {"kafka.acks": "1"}, "kafka.acks"),
        ("cast(id as string) as value; 9 as partition", {}, "[Uu]nknown partition"),
        ("repeat('x', 2000000) as value", {}, "2000000 bytes.*kafka.message.max.bytes"),
        ("cast(id as string) as value", {"kafka.no.such.setting": "1"}, "no.such.setting"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(
    spark: SparkSession, node: NodeProcess, topic: str, select: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        write(spark.range(1).selectExpr(*select.split("; ")), node, topic, **options)
    assert not numbers(node.address, topic=topic)


@pytest.mark.parametrize(("mode", "said"), [("overwrite", "use append"), (None, '"Append"'), ("ignore", '"Append"')])
def test_mode_that_is_not_append_is_refused(
    spark: SparkSession, node: NodeProcess, topic: str, mode: str | None, said: str
) -> None:
    """By Spark itself, also where none is said."""
    data = spark.range(1).selectExpr("cast(id as string) as value").write.format("fairlog").mode(mode)
    with pytest.raises(Exception, match=said):
        data.options(**{"kafka.bootstrap.servers": node.address, "topic": topic}).save()
