"""What the node's tests share: nodes as processes, and for topics leaders over a directory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.shard.conftest import open_run as open_run


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
