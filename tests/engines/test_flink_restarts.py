"""Flink's exactly-once sink when the node is killed between a checkpoint and its commit.

What is flushed before a checkpoint is committed after it, by the same process or by the one that takes its place; so an
open transaction has to survive the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import Mode
from tests.engines import topics
from tests.engines.flink_job import COUNT, Job, assert_all_rows, written
from tests.engines.full import FULL, ONE_MODE_ON_CI
from tests.engines.losing_proxy import LosingProxy

END_TXN = 26


@pytest.fixture
def proxy(processes: int) -> Iterator[LosingProxy]:
    """Between the job and the node."""
    with LosingProxy(processes) as proxy:
        yield proxy


@pytest.fixture
def node(fresh_node: Callable[..., NodeProcess], proxy: LosingProxy) -> NodeProcess:
    """A node whose clients reach it through the proxy."""
    node = fresh_node(FAIRLOG_ADVERTISED=proxy.address)
    proxy.pass_on_to(node.listening)
    return node


@ONE_MODE_ON_CI
@pytest.mark.parametrize("job_too", [pytest.param(False, marks=FULL), True], ids=["node", "node-and-job"])
def test_flink_commit_that_meets_a_kill_of_the_node_is_made_up_for(
    node: NodeProcess, mode: Mode, proxy: LosingProxy, make_job: Callable[[str, str], Job], job_too: bool
) -> None:
    """The checkpoint is done, the commit is lost, the node killed, with or without the job: each row is there once."""
    topic = topics.make(proxy.address, "numbers")
    job = make_job(proxy.address, topic)
    job.start()
    job.wait_until(lambda: written(proxy.address, topic) >= 0.3 * COUNT, "a third")
    proxy.lose_request(END_TXN)
    proxy.wait_until_lost()
    if job_too:
        job.kill()
    node.kill()
    node.start()
    if job_too:
        job.start()
    job.finish()
    assert_all_rows(proxy.address, topic, mode)
