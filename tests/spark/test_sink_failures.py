"""Whatever fails, a plain consumer reads exactly the rows of the query: no gap, no duplicate, no part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.node_process import NodeProcess
from tests.spark.counting import Driver, assert_whole, create_topic, numbers, run, start, wait_for_batch
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


@pytest.mark.parametrize("at", ["mid-write", "written", "before-commit", "after-commit"])
def test_driver_killed_at_any_point_replays_its_batch_once(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path, at: str
) -> None:
    """The driver and its executors are gone at once; the next run finds the batch in the checkpoint."""
    driver = Driver(node.address, checkpoint, through="9", hold=f"{at} 2 {point}")
    try:
        driver.wait_for(point / "reached")
    finally:
        driver.kill()
    run(spark, node.address, checkpoint, through=4)
    assert_whole(node.address, batches=5)


def test_task_that_fails_when_it_has_written_is_retried_and_counts_once(
    node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """Both attempts have all their records at the node; the driver names the second."""
    driver = Driver(node.address, checkpoint, master="local[2,4]", through="4", fail=f"written 2 {point}")
    try:
        assert driver.wait() == 0, driver.output()
    finally:
        driver.kill()
    assert (point / "reached").exists()
    assert_whole(node.address, batches=5)


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


def test_run_that_was_replaced_writes_on_in_vain(
    spark: SparkSession, node: NodeProcess, checkpoint: Path, point: Path
) -> None:
    """A driver hangs, another takes over, and the first one wakes: of what it writes nothing is seen."""
    zombie = Driver(node.address, checkpoint, through="9", hold=f"mid-write 2 {point}")
    try:
        zombie.wait_for(point / "reached")
        run(spark, node.address, checkpoint, through=4)
        before = numbers(node.address, least=500)
        (point / "go").touch()
        assert zombie.wait() != 0
        assert "batch 2 of the sink" in zombie.output()
    finally:
        zombie.kill()
    assert numbers(node.address) == before
    assert_whole(node.address, batches=5)


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
