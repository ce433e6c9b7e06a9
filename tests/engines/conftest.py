"""Nodes for engines, in each of the two modes of transactions, and the job of Flink's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import Mode
from tests.engines.flink_job import Job
from tests.engines.jvm import FLINK
from tests.fresh_nodes import fresh_nodes

ENVIRONMENT = {
    "FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100",
    "FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS": "500",
    "FAIRLOG_GROUPS_CONSUMER_MIN_SESSION_TIMEOUT_MS": "500",
    "FAIRLOG_GROUPS_CONSUMER_SESSION_TIMEOUT_MS": "3000",
    "FAIRLOG_GROUPS_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "FAIRLOG_GROUPS_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
    "FAIRLOG_LOG_FORMAT": "console",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is here starts processes that take seconds."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def mode() -> Mode:
    """How transactions reach the topics of a test, unless it says otherwise (`modes.BOTH_MODES`)."""
    return Mode.JOURNAL


@pytest.fixture
def fresh_node(tmp_path: Path, mode: Mode, processes: int) -> Iterator[Callable[..., NodeProcess]]:
    """A factory of nodes of one's own, started: `fresh_node(FAIRLOG_…="…")`. All are stopped at the end.

    Their topics are of the test's mode.
    """
    environment = ENVIRONMENT | {"FAIRLOG_TOPICS_TRANSACTIONS": mode.value}
    with fresh_nodes(tmp_path, environment, processes=processes) as make:
        yield make


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[[str, str], Job]]:
    """A factory of jobs: `make_job(address, topic)`. They are killed at the end."""
    FLINK.require()
    made: list[Job] = []

    def make(address: str, topic: str) -> Job:
        made.append(Job(address, topic, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.kill()
