"""A process that writes to data logs until it is killed, or kills itself at a named point.

    python crashing_writer.py <directory> <point> <at block>

It says the number of each block on its standard output once the block is committed. Blocks are numbered from 1 and go
on where the environment ends; each appends `BATCHES_PER_BLOCK` one-record batches to both logs and moves both marks.
At block `at block` it kills itself at `point`; "never" waits to be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from uuid import UUID

from datalog.environment import LmdbDataLogs
from datalog.interface import DataLogWriter, Mark
from fairlog_types import JournalPosition, LogId, Offset, ProducerId
from tests.datalog.batches import batch

FIRST = LogId.of_topic(UUID(int=1), 0)
SECOND = LogId.of_topic(UUID(int=2), 0)
PASSING = LogId.of_topic(UUID(int=3), 0)
BATCHES_PER_BLOCK = 3
VALUE = b"v" * 3000
POINTS = ("first batch", "between logs", "before mark", "after create", "after drop", "after delete", "after commit")


def reach(point: str) -> None:
    """Die here, if this is the point."""
    if armed == point:
        os.kill(os.getpid(), signal.SIGKILL)


def append(writer: DataLogWriter, log: LogId, block: int) -> None:
    for offset in range((block - 1) * BATCHES_PER_BLOCK, block * BATCHES_PER_BLOCK):
        writer.append(log, Offset(offset), 1, 1000 + offset, batch(offset, [1000 + offset], value=VALUE))
        reach("first batch")
    position = JournalPosition(block * 100)
    reach("before mark")
    writer.put_mark(log, Mark(position, position, Offset(block * BATCHES_PER_BLOCK)))


def write_block(writer: DataLogWriter, block: int) -> None:
    append(writer, FIRST, block)
    reach("between logs")
    append(writer, SECOND, block)
    writer.put_producer(FIRST, ProducerId(1), str(block).encode())
    if block % 2:
        writer.create(PASSING)
        writer.append(PASSING, Offset(0), 1, 1, batch(0, [1]))
        reach("after create")
    else:
        writer.drop(PASSING)
        reach("after drop")
    writer.delete_before(SECOND, Offset((block - 1) * BATCHES_PER_BLOCK))
    reach("after delete")


if __name__ == "__main__":
    directory, point, at_block = sys.argv[1:]
    armed = ""
    logs = LmdbDataLogs.open(Path(directory), map_bytes=1 << 30)
    with logs.write() as opening:
        opening.create(FIRST)
        opening.create(SECOND)
    block = logs.bounds(FIRST).next_offset // BATCHES_PER_BLOCK
    while True:
        block += 1
        armed = point if block == int(at_block) else ""
        with logs.write() as writing:
            write_block(writing, block)
            writing.put_cut(block)
        reach("after commit")
        print(block, flush=True)  # noqa: T201  the parent reads it
