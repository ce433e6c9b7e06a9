"""The clock that jumps: what the process sees of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import c_compiler
from tests.history.wall_clock import WallClock

PROGRAM = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), time.strftime("%Y", time.gmtime()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(c_compiler.find() is None, reason=c_compiler.MISSING)
def test_wall_clock_jumps_and_the_monotonic_one_goes_on(tmp_path: Path) -> None:
    """Forth, back, and to where it should be; by clock_gettime and by time alike."""
    clock = WallClock(tmp_path)
    year_s = 366 * 24 * 3600.0
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for seconds in (0.0, 3600.0, -3600.0, 2 * year_s, 0.0):
            clock.jump(seconds)
            before = time.time(), time.monotonic()
            child.stdin.write("\n")
            child.stdin.flush()
            wall, monotonic, year = child.stdout.readline().split()
            after = time.time(), time.monotonic()
            assert before[0] + seconds <= float(wall) <= after[0] + seconds
            assert before[1] <= float(monotonic) <= after[1]
            assert year == time.strftime("%Y", time.gmtime(float(wall)))
        child.stdin.close()
