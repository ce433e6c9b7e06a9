"""A pipeline's directory: one run at a time in it.

    DIR/spark.log     what Spark and its workers say; locked for as long as any of them lives
    DIR/STEP/…        Spark's checkpoint of each step

How it works. The log is locked with flock(2), and Spark's processes inherit it as their standard output: a lock belongs
to the opened file, so it is held until the last of them has ended. When a driver is killed, its JVM lives on for a
moment, and may still write to the checkpoint; the next run waits for that.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pyspark_fairlog.pipeline.plan import PlanError

LOG = "spark.log"
DYING_S = 30.0
"""So long the processes of a killed run are waited for."""
POLL_S = 0.1


@contextmanager
def held(
    directory: Path, *, patience_s: float = DYING_S, on_wait: Callable[[], None] = lambda: None
) -> Generator[BinaryIO]:
    """Hold `directory`, making it if need be; the block is given the log, to which Spark's processes are to write.

    `on_wait` is called once if another run has it. Raises PlanError if that one has it for longer than `patience_s`,
    or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        log = (directory / LOG).open("ab")
    except OSError as error:
        raise PlanError(f"cannot use {directory} for checkpoints: {error.strerror}") from error
    with log:
        _lock(log, directory, time.monotonic() + patience_s, on_wait)
        yield log


def _lock(log: BinaryIO, directory: Path, deadline: float, on_wait: Callable[[], None]) -> None:
    said = False
    while True:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise PlanError(
                    f"a pipeline runs with the checkpoints in {directory} already: stop it, or use another directory"
                ) from error
            if not said:
                on_wait()
                said = True
            time.sleep(POLL_S)
        else:
            return
