"""The directory for the tests' files: `with scratch.directory() as path`.

It is in memory (/dev/shm), if there is enough space. No test depends on the speed of a disk, but each has clients that
give up after half a minute, and a shared disk may take longer for one sync. Tests of power loss do not depend on the
file system either: they record what was synced, and drop the rest themselves. Without enough memory, the system's
directory for temporary files is used. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 8 << 30
"""Bytes that must be free there: twice the size of a whole run's files."""


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory, which is deleted at the end. If the program exits before, it is kept for inspection, and its
    name is printed.
    """
    made = Path(tempfile.mkdtemp(prefix="fairlog-tests-", dir=MEMORY if _serves() else None))
    made.chmod(0o711)  # some tests read as another user
    try:
        yield made
    except SystemExit:
        print(f"what is left of the tests is in {made}", flush=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


def _serves() -> bool:
    """Whether there is enough memory, and tests may run programs that they have compiled there."""
    if not MEMORY.is_dir():
        return False
    system = os.statvfs(MEMORY)
    return system.f_bavail * system.f_frsize >= ROOM and not system.f_flag & os.ST_NOEXEC
