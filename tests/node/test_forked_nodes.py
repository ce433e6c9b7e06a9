"""A forked node behaves as one that is started as a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import node_process
from scripts.node_process import NodeDidNotStart, NodeProcess, StartChild, start_program
from tests import forked_nodes

pytestmark = pytest.mark.slow

WAYS = (start_program, forked_nodes.start)


@pytest.fixture(params=WAYS, ids=["program", "forked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StartChild:
    monkeypatch.setattr(node_process, "start_child", request.param)
    return request.param


@pytest.mark.usefixtures("way")
def test_node_ends_by_the_signal_that_it_gets(tmp_path: Path) -> None:
    """The status says which; SIGTERM is an end in order."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    assert node.running
    assert os.getpgid(node.pid) == node.pid != os.getpgid(0)
    node.kill()
    assert (node.running, node.wait_end(0)) == (False, -9)
    node.start()
    assert (node.stop(), node.running) == (0, False)


@pytest.mark.usefixtures("way")
def test_bad_setting_ends_it_with_a_status_and_a_sentence(tmp_path: Path) -> None:
    """The environment is the node's own, and what it writes to standard error is in the log."""
    node = NodeProcess(tmp_path / "data", {"FAIRLOG_JOURNAL_FSYNC": "perhaps"})
    with pytest.raises(NodeDidNotStart, match="status 1") as ended:
        node.start()
    assert "FAIRLOG_JOURNAL_FSYNC" in str(ended.value)
    node.environment.clear()
    node.start()
    node.stop()


def test_only_what_is_just_the_node_is_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable for the loader of libraries is read when a program is started, and never again."""
    monkeypatch.setattr(node_process, "start_child", forked_nodes.start)
    names: list[list[bytes]] = []
    for environment in (dict[str, str](), {"MALLOC_ARENA_MAX": "1"}):
        node = NodeProcess(tmp_path / "data", environment)
        node.start()
        names.append(Path(f"/proc/{node.pid}/cmdline").read_bytes().split(b"\0")[1:3])
        node.stop()
    assert [name == [b"-m", b"fairlog.cli"] for name in names] == [False, True]
