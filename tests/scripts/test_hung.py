"""How a test that hangs ends: `tests/hung.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.node_process import ROOT

HANGS = """
import trio
from tests import hung

async def waits_for_ever():
    await trio.sleep_forever()

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits_for_ever)

with hung.watch("tests/test_x.py::test_y", {limit_s}):
    {run}
"""


def run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[bytes]:
    """Its temporary files are in `tmp_path`."""
    command, environ = [sys.executable, "-c", program], os.environ | {"TMPDIR": str(tmp_path)}
    return subprocess.run(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, check=False, timeout=60)


def test_test_that_hangs_ends_and_tells_where_its_tasks_stood(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS.format(limit_s=0.5, run="trio.run(main)"))
    assert done.returncode == 1
    assert b"Hung: tests/test_x.py::test_y hangs: it has not ended in 0.5 s" in done.stderr
    (told,) = tmp_path.glob("hung-*.txt")
    text = told.read_text(encoding="utf-8")
    assert text.startswith("tests/test_x.py::test_y hangs\n")
    assert "in waits_for_ever" in text
    assert "thread MainThread" in text


def test_test_that_ends_in_time_is_left_alone(tmp_path: Path) -> None:
    """Also if its process goes on for longer than a test may."""
    done = run(tmp_path, HANGS.format(limit_s=0.5, run="pass") + "\ntrio.run(trio.sleep, 1)")
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())
