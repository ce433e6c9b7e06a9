"""Pipelines over a real node, in the tests' Spark session: what comes out, what a second run adds, what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from pyspark_fairlog.pipeline.ends import TopicEnds
from pyspark_fairlog.pipeline.plan import Pipeline, PlanError, pipeline_of_file, pipeline_of_options
from pyspark_fairlog.pipeline.progress import StepProgress
from pyspark_fairlog.pipeline.running import StepFailed, run_pipeline
from pyspark_fairlog.pipeline.steps import plan_steps
from scripts.node_process import NodeProcess
from tests.spark import topics

pytestmark = pytest.mark.slow

WAIT_S = 60.0
ORDERS = "id bigint, amount double, country string, at timestamp"


class Bench:
    """A node, and what a test does with it and with the session."""

    def __init__(self, spark: SparkSession, node: NodeProcess, directory: Path) -> None:
        self.spark, self.node, self.directory = spark, node, directory

    def topics(self, *names: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.address})
        made = admin.create_topics([NewTopic(name, 1) for name in names])
        for each in made.values():
            each.result(WAIT_S)

    def write(self, topic: str, *values: object) -> None:
        """JSON of each value; bytes as they are."""
        producer = Producer({"bootstrap.servers": self.node.address})
        for value in values:
            producer.produce(topic, value if isinstance(value, bytes) else json.dumps(value).encode(), b"k")
        assert producer.flush(WAIT_S) == 0

    def read(self, topic: str) -> list[tuple[str | None, Any]]:
        """(key, value) of all records, as a plain consumer has them, and their offsets are dense."""
        consumer = Consumer({"bootstrap.servers": self.node.address, "group.id": "t", "enable.auto.commit": False})
        try:
            place = TopicPartition(topic, 0, 0)
            _, end = consumer.get_watermark_offsets(place, WAIT_S)
            consumer.assign([place])
            found: list[tuple[str | None, Any]] = []
            while len(found) < end:
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None
                assert message.offset() == len(found)
                key, value = message.key(), message.value()
                found.append((None if key is None else key.decode(), value))
            return found
        finally:
            consumer.close()

    def rows(self, topic: str) -> list[tuple[str | None, Any]]:
        return [(key, json.loads(value)) for key, value in self.read(topic)]

    def committed(self, group: str, topic: str) -> int:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        admin = AdminClient({"bootstrap.servers": self.node.address})
        (answer,) = admin.list_consumer_group_offsets([asked]).values()
        return answer.result(WAIT_S).topic_partitions[0].offset

    def plan(self, **step: object) -> Pipeline:
        return pipeline_of_options(self._settings(), {name.rstrip("_"): value for name, value in step.items()})

    def plan_file(self, text: str) -> Pipeline:
        return pipeline_of_file(text, where="file", overrides=self._settings())

    def _settings(self) -> dict[str, object]:
        where = {"bootstrap": self.node.address, "checkpoint": str(self.directory / "checkpoint")}
        return {**where, "trigger": "available-now"}

    def run(self, pipeline: Pipeline) -> Sequence[StepProgress]:
        with TopicEnds(pipeline.bootstrap) as ask_ends:
            return run_pipeline(self.spark, pipeline, threading.Event(), show=lambda _: None, ask_ends=ask_ends)

    def forget_that_it_was_done(self, pipeline: Pipeline, batch: int) -> None:
        """What a kill leaves between the commit and Spark's note of it: the batch will run again."""
        for step in pipeline.steps:
            for name in (str(batch), f".{batch}.crc"):
                (Path(step.checkpoint) / "commits" / name).unlink()


@pytest.fixture
def bench(spark: SparkSession, fresh_node: Callable[..., NodeProcess], tmp_path: Path) -> Bench:
    return Bench(spark, fresh_node(), tmp_path)


@pytest.fixture(scope="module")
def idle_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """With the topics `orders` and `out`, for steps that do not run."""
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    node.start()
    topics.make(node.address, "orders")
    topics.make(node.address, "out")
    yield node
    node.stop()


def orders(*amounts: float) -> list[dict[str, object]]:
    return [{"id": n, "amount": amount, "country": "AB"[n % 2]} for n, amount in enumerate(amounts)]


def test_rows_of_a_select_are_written_once_over_runs_and_replays(bench: Bench) -> None:
    """A second run takes what is new; a batch that runs again writes nothing; lag tools see how far it is."""
    bench.topics("orders", "large")
    bench.write("orders", *orders(5, 50, 500))
    sql = "SELECT country AS key, id, amount FROM orders WHERE amount > 10"
    pipeline = bench.plan(from_="orders", schema=ORDERS, sql=sql, to="large")
    (progress,) = bench.run(pipeline)
    first = [("B", {"id": 1, "amount": 50.0}), ("A", {"id": 2, "amount": 500.0})]
    assert bench.rows("large") == first
    assert (progress.batch, progress.rows_in, progress.rows_out, progress.behind) == (0, 3, 2, 0)
    assert bench.committed("orders-to-large", "orders") == 3

    bench.forget_that_it_was_done(pipeline, 0)
    bench.write("orders", *orders(70))
    bench.run(pipeline)
    assert bench.rows("large") == [*first, ("A", {"id": 0, "amount": 70.0})]
    assert bench.committed("orders-to-large", "orders") == 4


def test_totals_that_change_are_written_as_they_change_and_bad_values_go_aside_with_them(bench: Bench) -> None:
    """Update mode, which Spark's Python sinks do not have; one replay in it keeps state and output right."""
    bench.topics("orders", "totals", "trash")
    bench.write("orders", *orders(1, 2, 3), b"nonsense")
    sql = "SELECT country AS key, sum(amount) AS total, count(*) AS n FROM orders GROUP BY country"
    pipeline = bench.plan(from_="orders", schema=ORDERS, sql=sql, to="totals", mode="update", bad="trash")
    (progress,) = bench.run(pipeline)
    first = [("A", {"total": 4.0, "n": 2}), ("B", {"total": 2.0, "n": 1})]
    assert sorted(bench.rows("totals")) == first
    assert bench.read("trash") == [("k", b"nonsense")]
    assert (progress.rows_in, progress.rows_out, progress.state_rows) == (4, 3, 2)

    bench.forget_that_it_was_done(pipeline, 0)
    bench.write("orders", *orders(10))
    bench.run(pipeline)
    assert sorted(bench.rows("totals")[:2]) == first
    assert bench.rows("totals")[2:] == [("A", {"total": 14.0, "n": 3})]
    assert bench.read("trash") == [("k", b"nonsense")]


CHAIN = """
name = "chain"
[[step]]
name = "files"
from = "minutes"
sql = "SELECT minute, n FROM minutes"
to = "parquet:{directory}"
[[step]]
name = "count"
from = "events"
schema = "at timestamp"
watermark = "at 1 minute"
sql = "SELECT window.start AS minute, count(*) AS n FROM events GROUP BY window(at, '1 minute')"
to = "minutes"
"""


def test_steps_in_a_chain_work_off_all_that_is_there(bench: Bench) -> None:
    """The second step has what the first one wrote in the same run, with the schema that it wrote; files are whole."""
    bench.topics("events", "minutes")
    bench.write("events", *({"at": f"2026-01-01T00:0{minute}:30"} for minute in (0, 0, 1, 2, 4)))
    out = bench.directory / "out"
    count, files = bench.run(bench.plan_file(CHAIN.format(directory=out)))
    over = [("2026-01-01T00:00:00.000000Z", 2), ("2026-01-01T00:01:00.000000Z", 1), ("2026-01-01T00:02:00.000000Z", 1)]
    assert sorted((row["minute"], row["n"]) for _, row in bench.rows("minutes")) == over
    assert (count.rows_out, files.rows_in, files.rows_out) == (3, 3, 3)
    rows = [
        row for path in out.glob("batch=*/*.parquet") for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
    ]
    assert sorted((f"{row['minute']:%Y-%m-%dT%H:%M:%S.000000Z}", row["n"]) for row in rows) == over


def test_steps_share_nothing_that_spark_changes_when_it_starts_a_query(bench: Bench) -> None:
    """Two threads would change it at one moment. It is the map of variables that each source has for its processes."""
    bench.topics("events", "minutes")
    variables: list[Any] = []
    for step in plan_steps(bench.spark, bench.plan_file(CHAIN.format(directory=bench.directory / "out"))):
        relation = step.output._jdf.queryExecution().analyzed().collectLeaves().head()
        sources = step.output.sparkSession._jsparkSession.sessionState().dataSourceManager()
        variables.append(sources.lookupDataSource(relation.sourceName()).dataSourceCls().envVars())
    first, second = variables
    first["PUT_BY_THE_FIRST"] = "1"
    assert "PUT_BY_THE_FIRST" in first
    assert "PUT_BY_THE_FIRST" not in second


def test_bad_value_ends_the_pipeline_with_a_sentence(bench: Bench) -> None:
    """It is named, and nothing of its batch is written."""
    bench.topics("orders", "out")
    bench.write("orders", *orders(1), b"nonsense")
    pipeline = bench.plan(from_="orders", schema=ORDERS, sql="SELECT id FROM orders", to="out")
    with pytest.raises(StepFailed) as failed:
        bench.run(pipeline)
    assert str(failed.value) == (
        "step orders-to-out failed: the value at offset 1 of orders, partition 0, is not of the schema: nonsense"
    )
    assert bench.read("out") == []


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ({"sql": "SELECT nope FROM orders"}, "step orders-to-out: the SQL, whose table is called orders: A column"),
        ({"sql": "SELEC 1"}, "step orders-to-out: the SQL, whose table is called orders: Syntax error"),
        ({"sql": "SELECT 1 AS one"}, "step orders-to-out: the SELECT does not read the table orders"),
        ({"schema": "id bigin"}, "step orders-to-out: the schema 'id bigin': Unsupported data type \"BIGIN\""),
        ({"watermark": "nope 1 hour"}, "step orders-to-out: the watermark: A column, variable, or function"),
        (
            {"sql": "SELECT count(*) AS n FROM orders"},
            "step orders-to-out: Invalid streaming output mode: append. This output mode is not supported for "
            "aggregations without a watermark: give one, and group by its column, or the mode update",
        ),
    ],
)  # fmt: skip
def test_step_that_spark_refuses_is_a_sentence_before_anything_runs(
    spark: SparkSession, idle_node: NodeProcess, tmp_path: Path, step: dict[str, object], sentence: str
) -> None:
    """No plan, no stack trace."""
    bench = Bench(spark, idle_node, tmp_path)
    plan = {"from_": "orders", "schema": ORDERS, "sql": "SELECT id FROM orders", "to": "out"} | step
    with pytest.raises(PlanError) as refused:
        bench.run(bench.plan(**plan))
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_deleted_checkpoint_is_refused_and_skips_nothing(bench: Bench) -> None:
    """The broker knows the query that the sink belongs to."""
    bench.topics("orders", "out")
    bench.write("orders", *orders(1))
    pipeline = bench.plan(from_="orders", schema=ORDERS, sql="SELECT id FROM orders", to="out")
    bench.run(pipeline)
    Path(pipeline.checkpoint).rename(bench.directory / "deleted")
    with pytest.raises(StepFailed, match="'orders-to-out'"):
        bench.run(pipeline)
    assert len(bench.read("out")) == 1
