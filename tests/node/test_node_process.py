"""A node as a child process: what is said of one that does not come."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import pytest

from scripts import node_process
from scripts.node_process import NodeDidNotStart, NodeNotReady, NodeProcess, kept_waiting_s

pytestmark = pytest.mark.slow

SILENT = "import time; time.sleep(3600)"
LATE = "import time; time.sleep(0.5); print('fairlog ready on 127.0.0.1:1', flush=True); time.sleep(3600)"


TWO_OF_THREE = """
import time
for port in (1, 2):
    print(f'fairlog ready on 127.0.0.1:{port}\\nfairlog console on http://127.0.0.1:{port + 10}/', flush=True)
time.sleep(3600)
"""


def node(tmp_path: Path, program: str, *, processes: int = 1) -> NodeProcess:
    return NodeProcess(tmp_path / "data", program=("-c", program), processes=processes)


def test_node_that_says_nothing_in_time_is_not_ready(tmp_path: Path) -> None:
    """It runs, and may yet come: that is told from one that has ended."""
    silent = node(tmp_path, SILENT)
    silent.spawn()
    try:
        with pytest.raises(NodeNotReady, match="not ready after 0 s"):
            silent.wait_ready(0.1)
        assert silent.running
    finally:
        silent.kill()


def test_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    """Whoever cannot start a node has none to end."""
    silent = node(tmp_path, SILENT)
    with pytest.raises(NodeNotReady):
        silent.start(0.1)
    assert not silent.running


def test_node_that_ends_did_not_start(tmp_path: Path) -> None:
    """Whatever time there was left."""
    with pytest.raises(NodeDidNotStart, match="status 3") as ended:
        node(tmp_path, "raise SystemExit(3)").start()
    assert not isinstance(ended.value, NodeNotReady)


def test_node_that_was_kept_from_the_processor_has_that_time_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine full of other work a start takes longer by what the others have used."""
    monkeypatch.setattr(node_process, "kept_waiting_s", lambda _pid: 3600.0)
    late = node(tmp_path, LATE)
    try:
        late.start(0.1)
        assert late.address == "127.0.0.1:1"
    finally:
        late.kill()


def test_kept_waiting_is_nothing_for_a_process_that_is_not_there() -> None:
    """And grows for one that is."""
    assert kept_waiting_s(2**22 + 1) == 0.0
    assert kept_waiting_s(os.getpid()) >= 0.0


def test_port_of_a_node_that_is_down_is_kept_for_it(tmp_path: Path) -> None:
    """Nobody else is given it, clients are refused, and the node may listen there; in the end it is given back."""
    silent = node(tmp_path, SILENT)
    address = silent.listening
    host, _, port = address.partition(":")
    place = host, int(port)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(place)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    with socket.create_server(place), socket.create_connection(place):
        assert silent.listening == address
    del silent
    gc.collect()
    with socket.socket() as stranger:
        stranger.bind(place)


def test_node_of_several_processes_is_ready_when_all_are(tmp_path: Path) -> None:
    """Their addresses are told in one, in the order of their numbers; the console is the first one's."""
    partly = node(tmp_path, TWO_OF_THREE, processes=3)
    with pytest.raises(NodeNotReady):
        partly.start(0.5)
    both = node(tmp_path, TWO_OF_THREE, processes=2)
    both.start()
    both.kill()
    assert (both.address, both.console) == ("127.0.0.1:1,127.0.0.1:2", "http://127.0.0.1:11/")
    assert list(both.addresses) == ["127.0.0.1:1", "127.0.0.1:2"]


def test_ports_of_a_node_of_several_processes_are_kept(tmp_path: Path) -> None:
    """One for each."""
    held = node(tmp_path, SILENT, processes=3).listening.split(",")
    assert len(set(held)) == 3


def test_process_that_is_killed_is_started_again_under_its_address(tmp_path: Path) -> None:
    """The others are not disturbed; the end of the supervisor is waited for together with theirs."""
    several = NodeProcess(tmp_path / "data", processes=3)
    several.start()
    try:
        address, before = several.address, several.pids
        assert len(set(before)) == 3
        several.kill_process(1)
        several.kill_process(1)
        after = several.pids
        assert {before[0], before[2]} <= set(after)
        assert before[1] not in after
        assert several.memory_bytes() > 3 << 20
    finally:
        several.kill()
    assert not several.pids
    assert not any(Path(f"/proc/{pid}").exists() and _runs(pid) for pid in (*before, *after))
    several.start()
    assert several.address == address
    assert several.stop() == 0


def _runs(pid: int) -> bool:
    """Not if it is dead, and only not reaped yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
