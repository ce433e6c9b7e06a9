"""What all tests share: their order, what properties promise, how nodes start (`forked_nodes.py`) and on how many
processes they run (`processes.py`), which of their combinations run (`pairs.py`), what CI may skip (`lacking.py`), and
how one that hangs ends (`hung.py`).

A process runs all tests of a file, and all those of tests/on_kafka: they share three brokers, which end with the last
of them. What takes longest comes first, lest one process be left with it when the others are done. No property promises
that an example takes some time at the most: a shared machine stalls now and then.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from scripts import node_process
from tests import forked_nodes, hung, lacking
from tests.pairs import drop_other_halves
from tests.processes import processes as processes
from tests.processes import skip_on_several, spread

LONGEST_FIRST = (
    "crash",
    "engines",
    "on_kafka",
    "stream",
    "spark",
    "history",
    "simulation",
    "console",
    "limits",
    "node",
    "clients",
)
"""Folders with files that take a minute or more. The others follow as they were collected."""

ONE_CLUSTER = "tests/on_kafka/"

_HERE = Path(__file__).parent

settings.register_profile("fairlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fairlog")

node_process.start_child = forked_nodes.start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, help="start nodes of so many processes (tests/processes.py)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    spread(metafunc)


class _ByFileOrCluster(LoadFileScheduling):
    """How tests are dealt out to processes."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_CLUSTER if nodeid.startswith(ONE_CLUSTER) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return _ByFileOrCluster(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_on_several(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    drop_other_halves(config, items)
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with hung.watch(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    lacking.judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    lacking.judge(report)
    return report
