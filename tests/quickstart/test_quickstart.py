"""The quick start's verdict is worth something: green when all is well, red when the consumer saw something else."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.node_process import ROOT
from tests.clients.raw_client import RawClient

pytestmark = pytest.mark.slow

TIMEOUT_S = 240
"""Patience: it takes some ten seconds."""


Tour = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tour(processes: int) -> Tour:
    """Runs the tour as `scripts/quickstart.py` does inside its environment, but on a node of so many processes."""
    return lambda before="", *, keep=False: run_tour(
        f"from functools import partial\nq.NodeProcess = partial(q.NodeProcess, processes={processes})\n{before}", keep
    )


def run_tour(before: str, keep: bool) -> subprocess.CompletedProcess[str]:
    """`before` is what is done to it first."""
    code = f"import sys, quickstart_tour as q\n{before}\nsys.exit(q.tour(keep={keep}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "COLUMNS": "200"},
    )


def test_quickstart_succeeds_and_leaves_nothing_running(tour: Tour) -> None:
    """What was produced, what was seen, how long it took, and how to go on."""
    done = tour()
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("saw every committed record", "no gaps", "commit until answered", "aborted records: no trace"):
        assert words in done.stdout
    assert "keeps running at" not in done.stdout


def test_quickstart_keeps_the_node_on_request(tour: Tour) -> None:
    """It names the address and the process, and that node serves."""
    done = tour(keep=True)
    found = re.search(r"keeps running at (\S+) \(process (\d+), data in (\S+)\)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    address, pid, data = found.groups()
    try:
        assert done.returncode == 0
        with RawClient(address) as client:
            assert client.list_offset("hours", 0, -1) == (0, 76)
    finally:
        os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(Path(data).parent)


@pytest.mark.parametrize(
    "fault",
    [
        # What should have been taken back is not.
        "q.Tour.abort = lambda show, producer, hour: (q.write(producer, hour), producer.commit_transaction(20))",
        # The consumer misses a record.
        "stop = q.Tail.stop\nq.Tail.stop = lambda tail: (stop(tail), tail.seen.pop(7))",
    ],
    ids=["seen though aborted", "not seen though committed"],
)
def test_quickstart_fails_if_the_consumer_saw_something_else(tour: Tour, fault: str) -> None:
    """It exits non-zero, and says in which partition."""
    done = tour(fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"✗ (departures|hours)/\d: the consumer saw \d+ records, not the \d+ committed", done.stdout)
