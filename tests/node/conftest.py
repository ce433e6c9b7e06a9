"""What the node's tests share: leaders over a directory of their own, nodes as processes, failpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from journal import failpoints
from scripts.node_process import NodeProcess
from tests.node import runs


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[runs.Run]]:
    """Open leaders over a directory, by default one and the same; each time in the next leader epoch."""
    epochs = count(1)

    def open_one(directory: Path | None = None, **settings: Any) -> AbstractAsyncContextManager[runs.Run]:
        return runs.open_run(directory or tmp_path / "run", leader_epoch=next(epochs), **settings)

    return open_one


@pytest.fixture
def arm() -> Iterator[Callable[[str], None]]:
    """Arm one failpoint by its specification, `<name>:fail:<nth>`; disarmed after the test."""
    yield lambda specification: failpoints.arm({"FAIRLOG_FAILPOINT": specification})
    failpoints.arm({})


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """A factory of nodes as processes, not started: `new_node(FAIRLOG_…="…")`. None outlives its test."""
    nodes: list[NodeProcess] = []

    def make(**environment: str) -> NodeProcess:
        defaults = {"FAIRLOG_LOG_FORMAT": "console", "FAIRLOG_JOURNAL_GROUP_JOURNALS": "2"}
        node = NodeProcess(tmp_path / f"node{len(nodes)}", defaults | environment)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.kill()
