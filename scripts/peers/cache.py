"""Keeps directories that take long to make in `bench-cache`, which git ignores.

The environment variable BENCH_CACHE names another place, such as one in memory. A directory is made under another name
and renamed when it is complete, so an interruption leaves nothing that looks complete, and the next attempt starts from
the beginning. Everything that distinguishes directories (versions, amounts) must be in the name.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

DIRECTORY = Path(os.environ.get("BENCH_CACHE") or Path(__file__).parent.parent.parent / "bench-cache").resolve()


def kept(name: str, make: Callable[[Path], None], *, age_s_max: float = math.inf) -> Path:
    """The directory with this name; if there is none, or it is older than the limit, `make` makes it.

    `make` gets the path of a directory that does not exist yet, under its temporary name. Its exceptions pass through,
    and nothing is kept. If two processes need the same directory, the second waits for the first. The age counts from
    when `make` put the first files into it.
    """
    directory, partial = DIRECTORY / name, DIRECTORY / f"{name}.partial"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():
            if time.time() - directory.stat().st_mtime < age_s_max:
                return directory
            # Never deleted under its own name: half of it would be young, and look whole.
            shutil.rmtree(partial, ignore_errors=True)
            directory.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
        make(partial)
        partial.rename(directory)
    return directory
