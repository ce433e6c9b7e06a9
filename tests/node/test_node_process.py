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


def node(tmp_path: Path, program: str) -> NodeProcess:
    return NodeProcess(tmp_path / "data", program=("-c", program))


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
