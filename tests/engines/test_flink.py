"""Flink's exactly-once sink, with the job killed and resumed from its last checkpoint, and the node killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import Mode
from tests.engines import topics
from tests.engines.flink_job import COUNT, Job, assert_all_rows, written
from tests.engines.full import FULL, ONE_MODE_ON_CI
from tests.processes import kill_some


def write_under_kills(node: NodeProcess, job: Job, topic: str, mode: Mode, kill: Callable[[], None]) -> None:
    """Run the job, with two kills on its way: each row is there once."""
    job.start()
    for share in (0.2, 0.6):
        job.wait_until(lambda share=share: written(node.address, topic) >= share * COUNT, f"{share:.0%}")
        kill()
    job.finish()
    assert_all_rows(node.address, topic, mode)


@ONE_MODE_ON_CI
def test_flink_job_killed_and_resumed_writes_each_row_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, make_job: Callable[[str, str], Job]
) -> None:
    """The job is SIGKILLed twice, and goes on from its last checkpoint."""
    node = fresh_node()
    topic = topics.make(node.address, "numbers")
    job = make_job(node.address, topic)

    def kill() -> None:
        job.kill()
        job.start()

    write_under_kills(node, job, topic, mode, kill)


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=FULL) for mode in Mode], ids=lambda mode: mode.value)
def test_flink_job_over_kills_of_the_node_writes_each_row_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, make_job: Callable[[str, str], Job]
) -> None:
    """The node is killed twice; the job goes on by itself, from its last checkpoint if it has to."""
    node = fresh_node()
    topic = topics.make(node.address, "numbers")
    kills = itertools.count()

    def kill() -> None:
        kill_some(node, next(kills))

    write_under_kills(node, make_job(node.address, topic), topic, mode, kill)
