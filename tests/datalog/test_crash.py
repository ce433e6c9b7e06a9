"""SIGKILL inside and around a write: what was committed is there, what was not has left nothing.

A real process is killed, so that the lock file, the half-written pages and the write lock are left as a crash leaves
them. (A crash of the machine is not this test's: it needs a disk that forgets.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from datalog.environment import LmdbDataLogs
from datalog.interface import Bounds, Mark, ReadRequest, ReadResult
from fairlog_types import JournalPosition, LogId, Offset, ProducerId
from tests.datalog.crashing_writer import BATCHES_PER_BLOCK, FIRST, PASSING, POINTS, SECOND

ROOT = Path(__file__).parents[2]


def start(directory: Path, point: str = "never", at_block: int = 0) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(Path(__file__).with_name("crashing_writer.py")),
        str(directory),
        point,
        str(at_block),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def blocks_in(directory: Path) -> int:
    """Open after a crash; check that the state is exactly that of some block's end; answer which."""
    logs = LmdbDataLogs.open(directory, map_bytes=1 << 30)
    try:
        blocks = logs.bounds(FIRST).next_offset // BATCHES_PER_BLOCK
        end = Offset(blocks * BATCHES_PER_BLOCK)
        kept_from = Offset((blocks - 1) * BATCHES_PER_BLOCK)
        position = JournalPosition(blocks * 100)
        assert logs.mark(FIRST) == logs.mark(SECOND) == Mark(position, position, end)
        assert offsets_from(logs, FIRST, Offset(0)) == list(range(end))
        assert offsets_from(logs, SECOND, kept_from) == list(range(kept_from, end))
        size = BATCHES_PER_BLOCK * batch_bytes(logs)
        assert logs.bounds(SECOND) == Bounds(kept_from, end, size, end)
        assert logs.producers(FIRST) == [(ProducerId(1), str(blocks).encode())]
        assert (PASSING in logs.logs()) == bool(blocks % 2)
        assert logs.max_timestamp(FIRST) is not None
        for records_max in range(1, 2 * end, 2):
            ends = logs.cut_within({FIRST: Offset(0), SECOND: Offset(0)}, records_max=records_max)
            assert ends[FIRST] % BATCHES_PER_BLOCK == 0
            assert ends[SECOND] == max(kept_from, ends[FIRST])
    finally:
        logs.close()
    return blocks


def offsets_from(logs: LmdbDataLogs, log: LogId, offset: Offset) -> list[int]:
    (answer,) = logs.read([ReadRequest(log, offset, 1 << 30)], bytes_max=1 << 30)
    assert isinstance(answer, ReadResult)
    return [int.from_bytes(data[:8], "big") for data in answer.batches]


def batch_bytes(logs: LmdbDataLogs) -> int:
    (answer,) = logs.read([ReadRequest(FIRST, Offset(0), 1)], bytes_max=1)
    assert isinstance(answer, ReadResult)
    return len(answer.batches[0])


@pytest.mark.slow
def test_process_killed_at_each_point_leaves_the_last_committed_block(tmp_path: Path) -> None:
    """Killed inside a write: not a trace of it. Killed behind the commit: all of it. Writing goes on after either."""
    committed = 0
    for point in POINTS:
        # two blocks of each run are committed; "after create" lies in odd blocks, "after drop" in even ones
        at_block = committed + 3
        at_block += {"after create": (at_block + 1) % 2, "after drop": at_block % 2}.get(point, 0)
        process = start(tmp_path, point, at_block)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == -9, point
        said_blocks = [int(line) for line in said.split()]
        assert said_blocks == list(range(committed + 1, at_block)), point
        committed = blocks_in(tmp_path)
        assert committed == (at_block if point == "after commit" else at_block - 1), point


@pytest.mark.slow
def test_process_killed_at_any_moment_keeps_what_it_has_said(tmp_path: Path) -> None:
    """Killed from outside in full flight, again and again: no block that was said is missing, none is half there."""
    for lines in (1, 3, 6, 10, 15):
        process = start(tmp_path)
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(lines)]
        process.kill()
        said += [int(line) for line in process.stdout.read().split()]
        process.wait(timeout=30)
        process.stdout.close()
        assert blocks_in(tmp_path) in (said[-1], said[-1] + 1)
