"""A pipeline's directory: one run at a time in it.

DIR/lock          held for as long as the pipeline runs
DIR/spark.log     what Spark and its workers say
DIR/STEP/…        Spark's checkpoint of each step
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pyspark_fairlog.pipeline.plan import PlanError

LOG = "spark.log"


@contextmanager
def held(directory: Path) -> Generator[Path]:
    """Hold `directory`, making it if need be; the block is given the path of Spark's log.

    Raises PlanError if another process has it, or it cannot be made. The system lets go of it when the process ends,
    however it ends.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PlanError(f"cannot use {directory} for checkpoints: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PlanError(
                f"a pipeline runs with the checkpoints in {directory} already: stop it, or use another directory"
            ) from error
        yield directory / LOG
    finally:
        os.close(descriptor)
