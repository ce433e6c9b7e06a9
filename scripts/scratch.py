"""Where the tests keep their files: `with scratch.directory() as path`.

In memory (/dev/shm), if there is room. No test depends on the speed of a disk, but each has clients that give up after
half a minute, and a shared disk may take longer for one sync. Tests of power loss do not depend on the file system
either: they record what was synced, and forget the rest themselves. Without room in memory, the system's directory for
temporary files is used. Standard library only.
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
"""Bytes that are to be free there: twice what a whole run leaves."""


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory, which goes at the end. If the program exits before, it stays, to be looked at, and is named."""
    made = Path(tempfile.mkdtemp(prefix="fairlog-tests-", dir=MEMORY if _serves() else None))
    made.chmod(0o711)  # some tests read as another user
    try:
        yield made
    except SystemExit:
        print(f"what is left of the tests is in {made}", flush=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


def _serves() -> bool:
    """Is there memory, with room, and may the tests run what they have compiled there?"""
    if not MEMORY.is_dir():
        return False
    system = os.statvfs(MEMORY)
    return system.f_bavail * system.f_frsize >= ROOM and not system.f_flag & os.ST_NOEXEC
