"""The clock that jumps: what the process sees of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts import c_compiler
from tests.history.wall_clock import WallClock


@contextmanager
def running(program: str, clock: WallClock) -> Iterator[Callable[[], str]]:
    """A program with this clock, which says a line each time that it is asked."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        asked, told = child.stdin, child.stdout
        assert asked is not None
        assert told is not None

        def ask() -> str:
            asked.write("\n")
            asked.flush()
            return told.readline()

        yield ask
        asked.close()


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
    with running(PROGRAM, clock) as told:
        for seconds in (0.0, 3600.0, -3600.0, 2 * year_s, 0.0):
            clock.jump(seconds)
            before = time.time(), time.monotonic()
            wall, monotonic, year = told().split()
            after = time.time(), time.monotonic()
            assert before[0] + seconds <= float(wall) <= after[0] + seconds
            assert before[1] <= float(monotonic) <= after[1]
            assert year == time.strftime("%Y", time.gmtime(float(wall)))


WAITING = """
import sys, time
from confluent_kafka import Consumer
consumer = Consumer({"group.id": "g", "log_level": 0})  # of no broker, so nothing happens meanwhile
for line in sys.stdin:
    began = time.monotonic()
    consumer.poll(0.05)
    print(time.monotonic() - began, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(c_compiler.find() is None, reason=c_compiler.MISSING)
def test_waits_by_the_wall_clock_take_as_long_as_they_were_meant_to(tmp_path: Path) -> None:
    """librdkafka's: a node whose clock has jumped an hour ahead would else read nothing for an hour."""
    clock = WallClock(tmp_path)
    with running(WAITING, clock) as told:
        for seconds in (0.0, 30.0, -30.0):
            clock.jump(seconds)
            assert 0.04 < float(told()) < 20
