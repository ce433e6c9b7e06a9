"""Spark at a node with all its locks: source, sink and Spark's own connector, by the same options; and what is refused.

The node has two processes, so sinks are asked for at a broker that the other has named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType
from peers import kafka_artifacts

from fairlog_client_security import ClientSecurity
from pyspark_fairlog import sink, source
from pyspark_fairlog.native import Native, NativeError, Offsets, Topics
from pyspark_fairlog.options import Partition, read_options
from pyspark_fairlog.pipeline.ends import TopicEnds
from pyspark_fairlog.pipeline.plan import pipeline_of_options
from pyspark_fairlog.pipeline.steps import _sink_options, _source_options
from pyspark_fairlog.planning import Range
from pyspark_fairlog.reading import _ask
from pyspark_fairlog.sink_options import parse
from pyspark_fairlog.writing import BatchIdentity
from tests.security.locked import WAIT_S, LockedNode, locked_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

USER, SINK = "spark", "totals"
RUN_S = 120
HERE = ["kafka"] if kafka_artifacts.connector_at_hand() is not None else []


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockedNode]:
    """With topics, of which the user may read `orders`, write `totals`, and only see `hidden`."""
    with locked_node(tmp_path_factory.mktemp("locked"), processes=2) as locked:
        locked.add(USER)
        topics = [NewTopic(name, num_partitions=2) for name in ("orders", "totals", "hidden", "secret")]
        for future in locked.admin.create_topics(topics).values():
            future.result(WAIT_S)
        producer = Producer(locked.librdkafka("admin"))
        for number in range(20):
            for topic in ("orders", "hidden"):
                producer.produce(topic, b"%d" % number, partition=number % 2)
        assert producer.flush(WAIT_S) == 0
        read, write, see = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
        for kind, name, *operations in (
            (ResourceType.TOPIC, "orders", read),
            (ResourceType.TOPIC, "totals", read, write),
            (ResourceType.TOPIC, "hidden", see),
            (ResourceType.TRANSACTIONAL_ID, f"fairlog.sink.{SINK}", write),
        ):
            locked.allow(USER, kind, name, *operations)
        locked.allow(USER, ResourceType.TRANSACTIONAL_ID, "fairlog.sink.spark-", write, prefixed=True)
        locked.allow(USER, ResourceType.GROUP, "spark-kafka-", read, prefixed=True)  # the connector's
        yield locked


def options(locked: LockedNode, **changed: str) -> dict[str, str]:
    """As the connector has them: a query moves by one word."""
    return {
        "kafka.bootstrap.servers": ",".join(locked.addresses),
        **{f"kafka.{name}": value for name, value in locked.java(USER, **changed).items()},
    }


def read(spark: SparkSession, kind: str, locked: LockedNode, topic: str, **changed: str) -> DataFrame:
    return spark.read.format(kind).options(**options(locked, **changed), subscribe=topic).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_stream_and_batches_go_through_a_locked_node_and_leave_no_password(
    spark: SparkSession, locked: LockedNode, tmp_path: Path
) -> None:
    """In neither the checkpoint, nor Spark's descriptions of the query."""
    stream = spark.readStream.format("fairlog").options(
        **options(locked), subscribe="orders", startingOffsets="earliest"
    )
    query = (
        stream.load()
        .selectExpr("value")
        .writeStream.format("fairlog")
        .options(**options(locked), topic="totals", transactionalId=SINK, checkpointLocation=str(tmp_path / "stream"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(RUN_S)
        described = [str(query.lastProgress), query._jsq.explainInternal(True)]
    finally:
        query.stop()
    for kind in ("fairlog", *HERE):
        written = read(spark, kind, locked, "orders").selectExpr("value")
        written.write.format(kind).mode("append").options(
            **options(locked, mechanism="SCRAM-SHA-256"), topic="totals"
        ).save()
        described.append(written._jdf.queryExecution().toString())
    assert values(read(spark, "fairlog", locked, "totals", mechanism="PLAIN")) == sorted([*range(20)] * (2 + len(HERE)))
    files = [file for file in (tmp_path / "stream").rglob("*") if file.is_file()]
    assert files
    secret = locked.password(USER)
    assert not [file for file in files if secret.encode() in file.read_bytes()]
    assert not [text for text in described if secret in text]


def test_what_is_not_allowed_ends_in_a_sentence(spark: SparkSession, locked: LockedNode) -> None:
    """At once, and without the password."""
    secret = locked.password(USER)

    def write(topic: str) -> None:
        rows = spark.range(2).selectExpr("cast(id as string) as value")
        rows.write.format("fairlog").mode("append").options(**options(locked), topic=topic).save()

    for refused, why in (
        (lambda: read(spark, "fairlog", locked, "hidden").collect(), "the user may not read hidden"),
        (lambda: read(spark, "fairlog", locked, "orders", password="wrong").collect(), "does not let the client in"),
        (lambda: write("orders"), "ACL for WRITE"),
    ):
        with pytest.raises(Exception, match=why) as error:
            refused()
        assert secret not in str(error.value)


def test_pipeline_hands_its_clients_settings_to_source_and_sink(locked: LockedNode) -> None:
    """What `fairlog --client-properties` says; the plan's `repr` has no password."""
    security = ClientSecurity.of({name: str(value) for name, value in locked.librdkafka(USER).items()})
    step = {"from": "orders", "raw": True, "sql": "SELECT value FROM orders", "to": "totals"}
    plan = dataclasses.replace(
        pipeline_of_options({"bootstrap": locked.address, "name": SINK}, step), client=security.settings
    )
    assert locked.password(USER) not in repr(plan)
    assert read_options(_source_options(plan, plan.steps[0])).security == security
    sink_options = {**_sink_options(plan, plan.steps[0]), "checkpointLocation": "/checkpoint"}
    assert parse(sink_options, streaming=True).security == security


def test_every_question_of_ours_is_asked_by_who_is_let_in(locked: LockedNode, caplog: pytest.LogCaptureFixture) -> None:
    """Also those that are rare: of a range that is gone, of a batch that is given up, of a pipeline's progress."""
    reading = read_options({**options(locked), "subscribe": "orders"})
    writing = parse({**options(locked), "topic": "totals"}, streaming=False)
    node = source.Node(reading.bootstrap, reading.patience_ms, reading.security)
    assert len(node.existing(reading.selection)) == 2
    node.close()
    assert _ask(reading, Range(Partition("orders", 1), 0, 10)).high == 10
    with TopicEnds(reading.bootstrap, reading.security) as ends:
        assert ends(["orders"]) == {("orders", 0): 10, ("orders", 1): 10}
    group = Offsets("g", (("orders", 0, 5), ("gone", 0, 5)))
    assert sink._there(group, writing) == Offsets("g", (("orders", 0, 5),))
    batch = BatchIdentity("spark-given-up", "q", "q", 0)
    sink.give_up(batch, writing)
    sink._forget(batch, writing, 0)
    assert not caplog.records


def test_brokers_that_are_named_by_others_are_secured_as_well(locked: LockedNode) -> None:
    """Both have sinks; whoever asks one of them comes to the right one."""
    security = ClientSecurity.of({name: str(value) for name, value in locked.librdkafka(USER).items() if "." in name})
    with Native.connect(locked.address, security=security) as native:
        for number in range(12):
            sink = f"spark-{number}"
            asked = {"sink": sink, "query": "q", "run": "r", "batch": 0}
            assert native.join(**asked, partition=0, attempt=0)
            native.abort(**asked)
        assert len(native._others) == 1
        assert native.is_idle
        with pytest.raises(NativeError, match="not-authorized"):
            native.cut(Topics(("secret",)))
        with pytest.raises(NativeError, match="not-authorized"):
            native.join(**asked | {"sink": "another"}, partition=0, attempt=0)
    other = ClientSecurity.of({"security.protocol": "SSL"}, prefix="kafka.")
    with pytest.raises(NativeError, match=r"certificate is not taken: .*self-signed|unable to get local issuer"):
        Native.connect(locked.address, security=other)
    with pytest.raises(ConnectionError, match=r"is kafka\.security\.protocol plaintext there"):
        Native.connect(locked.address)
