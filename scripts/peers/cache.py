"""What takes long to have is had once: directories that are kept in `bench-cache`, which git ignores.

The environment variable BENCH_CACHE names another place, such as one in memory. A directory is made under another name
and renamed when it is whole, so an interrupted making leaves nothing that is taken for one; the next making begins
anew. What tells one from another (versions, amounts) must be in its name.
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
    """The directory of this name; if there is none, or one that is older than that, `make` makes it.

    `make` gets the path of a directory that is not there yet, under the name that it has meanwhile. What it raises
    passes, and nothing is kept. Of two processes that want the same one the second waits for the first. The age counts
    from when `make` put the first files into it.
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
