"""`spark.readStream.format("fairlog")` over real nodes: micro-batches, restarts, limits, and what is lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from scripts.node_process import NodeProcess
from tests.node.nodes import wait_for_the_copy
from tests.spark import topics
from tests.spark.streams import Batches, frame, run, start

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.slow


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def assert_whole(rows: list[Row], shares: dict[str, int]) -> None:
    """Of each transaction, whose number is its records' value, there are so many records in each topic, or none."""
    found = Counter((row.value, row.topic) for row in rows)
    for value in {row.value for row in rows}:
        assert {topic: found[value, topic] for topic in shares} == shares, f"transaction {value!r} is split"


def test_stream_goes_on_from_its_checkpoint(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Stopped and started again, also with nothing new: each record is in one micro-batch, and none is missed."""
    name = topics.make(node.address, "checkpoint", 2)
    batches = Batches()
    stream = frame(spark, node.address, subscribe=name, startingOffsets="earliest")
    for round_ in range(3):
        topics.produce(node.address, name, numbers(10 * round_, 10 * round_ + 10))
        topics.produce(node.address, name, numbers(0, round_), partition=1)
        run(stream, batches, tmp_path)
        run(stream, batches, tmp_path)
    assert len(batches.seen) == 3
    assert batches.offsets(name) == list(range(30))
    assert batches.offsets(name, 1) == [0, 1, 2]


def test_stream_from_latest_begins_where_the_log_ended(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """The default; what comes while it runs is seen within the next micro-batches."""
    name = topics.make(node.address, "latest")
    topics.produce(node.address, name, [b"old"])
    batches = Batches()
    query = start(frame(spark, node.address, subscribe=name), batches, tmp_path)
    try:
        query.processAllAvailable()
        topics.produce(node.address, name, [b"new"])
        query.processAllAvailable()
        progress = query.lastProgress
    finally:
        query.stop()
    assert batches.values(name) == [b"new"]
    assert progress is not None
    assert json.loads(progress.sources[0].latestOffset) == {name: {"0": 2}}


def test_batch_that_failed_is_replayed_as_it_was(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Records that came in between are in the next one: `Batches` compares."""
    name = topics.make(node.address, "replayed")
    topics.produce(node.address, name, numbers(0, 5))
    batches = Batches(fail_at=0)
    stream = frame(spark, node.address, subscribe=name, startingOffsets="earliest")
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        run(stream, batches, tmp_path)
    topics.produce(node.address, name, numbers(5, 9))
    run(stream, batches, tmp_path)
    assert [len(rows) for _, rows in sorted(batches.seen.items())] == [5, 4]
    assert batches.offsets(name) == list(range(9))


def test_first_batch_from_latest_that_is_replayed_reads_neither_more_nor_less(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Where the log ends is another place by then: what came meanwhile is in the next batch, what was there is not."""
    name = topics.make(node.address, "latest-replayed")
    topics.produce(node.address, name, [b"old"] * 5)
    batches = Batches(fail_at=0)
    stream = frame(spark, node.address, subscribe=name)
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        run(stream, batches, tmp_path)
    topics.produce(node.address, name, [b"new"] * 3)
    run(stream, batches, tmp_path)
    assert batches.values(name) == [b"new"] * 3
    assert batches.offsets(name) == [5, 6, 7]


SHARES = {"left": 3, "right": 2}
"""Of each transaction, so many records are in each topic."""


@pytest.fixture(scope="module")
def shared(node: NodeProcess) -> dict[str, int]:
    """Twenty transactions over two topics, and their shares."""
    for name in SHARES:
        topics.make(node.address, name)
    producer = topics.transactional(node.address, "shared")
    for number in range(20):
        topics.transact(producer, {name: [b"%d" % number] * count for name, count in SHARES.items()})
    topics.wait_for_end(node.address, "left", 60)
    return SHARES


@pytest.mark.parametrize("limit", [1, 7, 25, 1000])
def test_limit_never_splits_a_transaction_over_two_topics(
    spark: SparkSession, node: NodeProcess, shared: dict[str, int], tmp_path: Path, limit: int
) -> None:
    """It falls inside one, is smaller than one, or larger than all: each micro-batch holds whole transactions."""
    batches = Batches()
    options = {"subscribe": ",".join(shared), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(limit)}
    run(frame(spark, node.address, **options), batches, tmp_path)
    for rows in batches.seen.values():
        assert_whole(rows, shared)
    for name, count in shared.items():
        assert batches.offsets(name) == list(range(20 * count))


def test_limit_makes_micro_batches_of_about_its_size(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Cuts are dense enough that a backlog comes in pieces, none larger than the limit."""
    name = topics.make(node.address, "backlog")
    for at in range(20):
        topics.produce(node.address, name, numbers(1000 * at, 1000 * at + 1000))
        wait_for_the_copy(node.address, name)  # a cut is never within what was copied at once
    batches = Batches()
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6000"}
    run(frame(spark, node.address, **options), batches, tmp_path)
    assert batches.offsets(name) == list(range(20_000))
    sizes = [len(rows) for rows in batches.seen.values()]
    assert len(sizes) >= 4
    assert max(sizes) <= 6000


def test_available_now_ends_where_it_began_to_end(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Records that come while it runs are for the next run."""
    name = topics.make(node.address, "available")
    topics.produce(node.address, name, numbers(0, 5))

    class Writing(Batches):
        def __call__(self, rows: object, batch: int) -> None:
            super().__call__(rows, batch)  # type: ignore[arg-type]
            topics.produce(node.address, name, [b"late"])

    batches = Writing()
    stream = frame(spark, node.address, subscribe=name, startingOffsets="earliest")
    run(stream, batches, tmp_path)
    assert batches.offsets(name) == list(range(5))
    run(stream, batches, tmp_path)
    assert batches.offsets(name) == list(range(6))


def test_hung_transaction_does_not_stall_the_stream(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Invariant 8 through Spark: others' records go by; it comes itself when it commits."""
    name = topics.make(node.address, "hung")
    hung, other = topics.transactional(node.address, "hung"), topics.transactional(node.address, "other")
    hung.begin_transaction()
    hung.produce(name, b"hung")
    hung.flush(topics.WAIT_S)
    batches = Batches()
    query = start(frame(spark, node.address, subscribe=name, startingOffsets="earliest"), batches, tmp_path)
    try:
        for number in range(3):
            topics.transact(other, {name: [b"%d" % number]})
            topics.wait_for_end(node.address, name, number + 1)
            query.processAllAvailable()
            assert batches.values(name) == numbers(0, number + 1)
        hung.commit_transaction(topics.WAIT_S)
        topics.wait_for_end(node.address, name, 4)
        query.processAllAvailable()
    finally:
        query.stop()
    assert batches.values(name) == [*numbers(0, 3), b"hung"]


def test_topic_made_while_a_pattern_is_read_joins_in(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """From its first record, though the query began at the latest; internal topics never match."""
    first = topics.make(node.address, "joining-1")
    topics.produce(node.address, first, [b"old"])
    batches = Batches()
    query = start(frame(spark, node.address, subscribePattern="joining-.*|__.*"), batches, tmp_path)
    try:
        query.processAllAvailable()
        second = topics.make(node.address, "joining-2", 2)
        topics.produce(node.address, second, [b"a", b"b"], partition=1)
        topics.produce(node.address, first, [b"new"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert batches.values(first) == [b"new"]
    assert batches.offsets(second, 1) == [0, 1]
    assert {row.topic for row in batches.rows} == {first, second}


def test_records_deleted_under_a_stream_fail_it_or_are_left_out(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """`failOnDataLoss`: the failure says what is gone and what to do, and the checkpoint can be gone on with."""
    name = topics.make(node.address, "deleted")
    batches = Batches()
    options = {"subscribe": name, "startingOffsets": "earliest"}
    topics.produce(node.address, name, numbers(0, 1))
    run(frame(spark, node.address, **options), batches, tmp_path)
    for number in range(1, 6):
        topics.produce(node.address, name, numbers(number, number + 1))
    topics.delete_records(node.address, name, {0: 4})
    with pytest.raises(StreamingQueryException, match=r"the records 1 to 3 of deleted-0 are deleted.*failOnDataLoss"):
        run(frame(spark, node.address, **options), batches, tmp_path)
    run(frame(spark, node.address, **options, failOnDataLoss="false"), batches, tmp_path)
    assert batches.offsets(name) == [0, 4, 5]


def test_topic_deleted_under_a_stream_fails_it_or_is_left_out(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """The other topics are read on; made anew, it is read from its beginning."""
    gone, stays = topics.make(node.address, "gone"), topics.make(node.address, "stays")
    batches = Batches()
    options = {"subscribe": f"{gone},{stays}", "startingOffsets": "earliest"}
    for name in (gone, stays):
        topics.produce(node.address, name, numbers(0, 3))
    run(frame(spark, node.address, **options), batches, tmp_path)
    topics.delete(node.address, gone)
    topics.produce(node.address, stays, numbers(3, 5))
    with pytest.raises(StreamingQueryException, match="gone-0 is not there any more"):
        run(frame(spark, node.address, **options), batches, tmp_path)
    lenient = frame(spark, node.address, **options, failOnDataLoss="false")
    run(lenient, batches, tmp_path)
    assert batches.offsets(stays) == list(range(5))
    topics.make(node.address, gone)
    topics.produce(node.address, gone, [b"anew"])
    run(lenient, batches, tmp_path)
    assert batches.values(gone) == [*numbers(0, 3), b"anew"]


def test_topic_made_anew_that_has_outgrown_the_query_fails_it_or_is_read_from_its_beginning(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Offsets do not tell the two topics apart; the id in the checkpoint does."""
    name = topics.make(node.address, "outgrown")
    batches = Batches()
    options = {"subscribe": name, "startingOffsets": "earliest"}
    topics.produce(node.address, name, numbers(0, 3))
    run(frame(spark, node.address, **options), batches, tmp_path)
    topics.delete(node.address, name)
    topics.make(node.address, name)
    topics.produce(node.address, name, numbers(100, 105))
    with pytest.raises(StreamingQueryException, match="outgrown-0 is another one than the query had read, up to 3"):
        run(frame(spark, node.address, **options), batches, tmp_path)
    run(frame(spark, node.address, **options, failOnDataLoss="false"), batches, tmp_path)
    run(frame(spark, node.address, **options), batches, tmp_path)
    assert batches.values(name) == [*numbers(0, 3), *numbers(100, 105)]


def test_checkpoint_of_the_connector_is_gone_on_with(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    """Its offsets have no topic ids; neither had those of earlier releases."""
    name = topics.make(node.address, "connectors")
    batches = Batches()
    stream = frame(spark, node.address, subscribe=name, startingOffsets="earliest")
    topics.produce(node.address, name, numbers(0, 3))
    run(stream, batches, tmp_path)
    noted = max((tmp_path / "offsets").glob("[0-9]*"))
    *before, offsets = noted.read_text().split("\n")
    assert json.loads(offsets)["#version"] == 2
    noted.write_text("\n".join([*before, json.dumps({name: {"0": 3}})]))
    (noted.parent / f".{noted.name}.crc").unlink()
    topics.produce(node.address, name, numbers(3, 5))
    run(stream, batches, tmp_path)
    assert batches.values(name) == numbers(0, 5)


def test_node_that_is_killed_under_a_stream_is_waited_for(
    spark: SparkSession, fresh_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    """The query goes on when it is back, and no record is missed or seen twice."""
    node = fresh_node()
    name = topics.make(node.address, "killed")
    batches = Batches()
    query = start(frame(spark, node.address, subscribe=name, startingOffsets="earliest"), batches, tmp_path)
    try:
        for round_ in range(3):
            topics.produce(node.address, name, numbers(10 * round_, 10 * round_ + 10))
            query.processAllAvailable()
            node.kill()
            node.start()
        topics.produce(node.address, name, [b"last"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert batches.offsets(name) == list(range(31))
