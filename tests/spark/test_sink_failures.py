"""Whatever fails, a plain consumer reads exactly the rows of the query: no gap, no duplicate, no part of a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.spark.counting import (
    POLL_S,
    Driver,
    Query,
    assert_counted,
    assert_whole,
    create_topic,
    numbers,
    run,
    start,
    wait_for_batch,
)
from tests.spark.held_sink import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

REACHED_S = 120.0


@pytest.fixture
def node(fresh_node: Callable[..., NodeProcess]) -> NodeProcess:
    fresh = fresh_node()
    create_topic(fresh.address)
    return fresh


@pytest.fixture
def point(tmp_path: Path) -> Path:
    """Where the query says that it has come to its point, and where it is told to go on."""
    directory = tmp_path / "point"
    directory.mkdir()
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def open_lanes(node: NodeProcess) -> tuple[str, ...]:
    """Of all sinks."""
    with Native.connect(node.address) as native:
        return tuple(lane for sink in native.sinks() for lane in sink.open_lanes)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + REACHED_S
    while not true():
        assert time.monotonic() < deadline, f"not in {REACHED_S:.0f} s"
        time.sleep(POLL_S)


POINTS = ("mid-write", "written", "before-commit", "after-commit")
STATEFUL, REPLACED, RETRIED = "stateful", "replaced", "retried"

MASTER = "local[8,4]"
"""Tasks that are held keep a core each, and one that fails is tried again."""


@dataclass(frozen=True)
class Story:
    """What came of the queries of one driver, by their names, which are those of their topics as well."""

    address: str
    directory: Path
    seen_before: list[int]
    """In the topic of the query that was replaced, when its driver woke."""
    outcomes: Mapping[str, str]
    """Of the queries that have ended."""

    def checkpoint(self, name: str) -> Path:
        return self.directory / name


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A driver whose queries are held in their third batches; one of them is replaced; and then all is killed.

    To start a driver takes longer than all that a query has to do, so they share one.
    """
    directory = tmp_path_factory.mktemp("driver")
    told = {point: f"{point} 2" for point in POINTS} | {STATEFUL: "after-commit 2", REPLACED: "mid-write 2"}
    options = {name: {"hold": f"{at} {directory / name}-point"} for name, at in told.items()}
    options[STATEFUL]["stateful"] = "yes"
    options[RETRIED] = {"fail": f"written 2 {directory / RETRIED}-point"}
    node = NodeProcess(directory / "node")
    node.start()
    try:
        for name in options:
            create_topic(node.address, name)
            Path(f"{directory / name}-point").mkdir()
        queries = {
            name: Query(node.address, str(directory / name), 4 if name == RETRIED else 9, {"topic": name} | of)
            for name, of in options.items()
        }
        driver = Driver(directory, list(queries.values()), master=MASTER)
        try:
            for name in options:
                driver.wait_for(Path(f"{directory / name}-point", "reached"))
            run(spark, node.address, directory / REPLACED, through=4, topic=REPLACED)
            seen_before = numbers(node.address, topic=REPLACED, least=500)
            Path(f"{directory / REPLACED}-point", "go").touch()
            ended = {name: queries[name].outcome_path for name in (REPLACED, RETRIED)}
            for path in ended.values():
                driver.wait_for(path)
        finally:
            driver.kill()
        outcomes = {name: path.read_text() for name, path in ended.items()}
        yield Story(node.address, directory, seen_before, outcomes)
    finally:
        node.stop()


@pytest.mark.parametrize("at", POINTS)
def test_driver_killed_at_any_point_replays_its_batch_once(spark: SparkSession, story: Story, at: str) -> None:
    """The driver and its executors are gone at once; the next run finds the batch in the checkpoint."""
    run(spark, story.address, story.checkpoint(at), through=4, topic=at)
    assert_whole(story.address, batches=5, topic=at)


def test_state_survives_the_replay_of_a_batch_that_was_committed(spark: SparkSession, story: Story) -> None:
    """The replay writes nothing, and saves its state all the same: the next batch counts on from there."""
    run(spark, story.address, story.checkpoint(STATEFUL), through=4, topic=STATEFUL, stateful="yes")
    assert_counted(story.address, topic=STATEFUL)


def test_task_that_fails_when_it_has_written_is_retried_and_counts_once(story: Story) -> None:
    """Both attempts have all their records at the node; the driver names the second."""
    assert story.outcomes[RETRIED] == ""
    assert_whole(story.address, batches=5, topic=RETRIED)


def test_run_that_was_replaced_writes_on_in_vain(story: Story) -> None:
    """A driver hangs, another takes over, and the first one wakes: of what it writes nothing is seen."""
    assert "batch 2 of the sink" in story.outcomes[REPLACED]
    assert numbers(story.address, topic=REPLACED) == story.seen_before
    assert_whole(story.address, batches=5, topic=REPLACED)


def test_commit_that_raises_when_it_has_committed_is_asked_again_and_counts_once(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """Spark calls abort for the batch then, which the node must not heed."""
    with pytest.raises(Exception, match="failed at after-commit"):
        run(spark, node.address, checkpoint, through=9, fail=f"after-commit 2 {point}")
    run(spark, node.address, checkpoint, through=4)
    assert_whole(node.address, batches=5)


@pytest.mark.parametrize("at", ["mid-write", "before-commit"])
def test_node_killed_in_mid_batch_loses_no_row_of_it(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path, at: str
) -> None:
    """What was open is aborted by the restart, so the batch is refused as a whole, and written again."""
    query = start(spark, node.address, checkpoint, hold=f"{at} 2 {point}")
    try:
        wait_for(point / "reached", REACHED_S)
        node.kill()
        node.start()
        (point / "go").touch()
        with pytest.raises(Exception, match="batch 2 of the sink"):
            query.awaitTermination(REACHED_S)
    finally:
        query.stop()
    assert numbers(node.address, least=200) == list(range(200))
    run(spark, node.address, checkpoint, through=4)
    assert_whole(node.address, batches=5)


def test_node_restarted_between_batches_is_waited_for(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """The query goes on by itself: nothing of a batch was with the node."""
    query = start(spark, node.address, checkpoint, hold=f"after-commit 2 {point}")
    try:
        wait_for(point / "reached", REACHED_S)
        node.kill()
        (point / "go").touch()
        node.start()
        wait_for_batch(query, 4)
    finally:
        query.stop()
    assert_whole(node.address, batches=5)


def test_batch_that_takes_longer_than_its_time_out_is_refused_with_what_to_do(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """The node takes its lane back, and nothing of it is seen; with more time its replay is there once."""
    hold = {"hold": f"written 0 {point}", "kafka.transaction.timeout.ms": "1000"}
    query = start(spark, node.address, checkpoint, **hold)
    try:
        wait_for(point / "reached", REACHED_S)
        wait_until(lambda: not open_lanes(node))
        (point / "go").touch()
        with pytest.raises(Exception, match=r"batch 0 of the sink.*not committed.*kafka\.transaction\.timeout\.ms"):
            query.awaitTermination(REACHED_S)
    finally:
        query.stop()
    assert numbers(node.address) == []
    run(spark, node.address, checkpoint, through=2)
    assert_whole(node.address, batches=3)


def test_query_that_is_started_again_in_mid_batch_takes_over(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """Spark stops the run that is there, whose lanes nobody commits: the new one writes the batch."""
    first = start(spark, node.address, checkpoint, hold=f"mid-write 2 {point}")
    try:
        wait_for(point / "reached", REACHED_S)
        assert open_lanes(node)
        run(spark, node.address, checkpoint, through=4)
        assert not first.isActive
    finally:
        first.stop()
    assert_whole(node.address, batches=5)


def test_second_query_on_a_sink_is_refused_by_name_and_the_first_goes_on(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Side by side, each with a checkpoint of its own; what the first one writes meanwhile is whole."""
    first = start(spark, node.address, tmp_path / "first", transactionalId="totals")
    try:
        wait_for_batch(first, 0)
        with pytest.raises(Exception, match=r"sink 'totals' belongs to query.*transactionalId"):
            run(spark, node.address, tmp_path / "second", through=0, transactionalId="totals")
        wait_for_batch(first, first.lastProgress["batchId"] + 2)
    finally:
        first.stop()
    assert_whole(node.address, batches=3)


def test_deleted_checkpoint_is_refused_and_skips_nothing(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Batches that count from 0 again are no replays; who wants them chooses another sink, or forgets this one."""
    run(spark, node.address, tmp_path / "first", through=2, transactionalId="totals")
    before = numbers(node.address, least=300)
    with pytest.raises(Exception, match=r"sink 'totals' belongs to query.*fairlog sink forget.*transactionalId"):
        run(spark, node.address, tmp_path / "second", through=2, transactionalId="totals")
    assert numbers(node.address) == before
    run(spark, node.address, tmp_path / "third", through=0, transactionalId="others")
    assert numbers(node.address, least=len(before) + 100) != before
