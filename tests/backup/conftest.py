"""Nodes as processes, their backups, and nodes that start from these."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlog.backup.making import make_backup
from fairlog.backup.manifest import Manifest
from scripts.node_process import NodeProcess
from tests.cli.in_process import FairlogCommand, fairlog_command
from tests.three_processes import three as three

ENVIRONMENT = {"FAIRLOG_JOURNAL_GROUP_JOURNALS": "2", "FAIRLOG_TOPICS_PARTITIONS_DEFAULT": "2"}

NewNode = Callable[..., NodeProcess]
Restore = Callable[[Path], NodeProcess]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def back_up(node: NodeProcess, target: Path) -> Manifest:
    """Of a node that may be running."""
    return make_backup(node.data_dir, target, now_ms=now_ms)


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    """A factory of nodes over a directory; none outlives its test."""
    nodes: list[NodeProcess] = []

    def make(directory: Path | None = None, **environment: str) -> NodeProcess:
        node = NodeProcess(directory or tmp_path / f"node{len(nodes)}" / "data", ENVIRONMENT | environment)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture
def restore(new_node: NewNode, tmp_path: Path) -> Restore:
    """A node over a copy of the backup, not started."""
    copies: list[Path] = []

    def over_copy(backup: Path) -> NodeProcess:
        copies.append(tmp_path / f"restored{len(copies)}" / "data")
        shutil.copytree(backup, copies[-1])
        return new_node(copies[-1])

    return over_copy


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process: exit code, stdout, stderr."""
    return fairlog_command(monkeypatch, capsys)
