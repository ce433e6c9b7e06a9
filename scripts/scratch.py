"""The directory for the tests' files: `with scratch.directory() as path`.

It is in memory (/dev/shm), if there is enough space. No test depends on the speed of a disk, but each has clients that
give up after half a minute, and a shared disk may take longer for one sync. Tests of power loss do not depend on the
file system either: they record what was synced, and drop the rest themselves. Without enough memory, the system's
directory for temporary files is used. Standard library only.

A run that was not green leaves its files, some GiB, for inspection: until the next run begins, which deletes all that
earlier ones have left. Else a few such runs would fill the memory that the next run's programs need. A run that goes on
has its directory locked, and keeps it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
MEMORY_INFORMATION = Path("/proc/meminfo")
ROOM = 8 << 30
"""Bytes that must be free there, and in memory: twice the size of a whole run's files."""

_PREFIX = "fairlog-tests-"


@contextmanager
def directory() -> Iterator[Path]:
    """A new directory, which is deleted at the end. If the program exits before, it is kept for inspection, and its
    name is printed.
    """
    for place in (MEMORY, Path(tempfile.gettempdir())):
        _delete_what_is_left(place)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY if _serves() else None))
    made.chmod(0o711)  # some tests read as another user
    with _locked(made):
        try:
            yield made
        except SystemExit:
            print(f"what is left of the tests is in {made}, until the next run", flush=True)
            raise
    shutil.rmtree(made, ignore_errors=True)


def _delete_what_is_left(place: Path) -> None:
    for left in place.glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Raises OSError if another process has it locked."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _serves() -> bool:
    """Whether there is enough memory, and tests may run programs that they have compiled there."""
    if not MEMORY.is_dir():
        return False
    system = os.statvfs(MEMORY)
    room = min(system.f_bavail * system.f_frsize, _available_bytes())
    return room >= ROOM and not system.f_flag & os.ST_NOEXEC


def _available_bytes() -> int:
    """What programs can still take, which may be less than the room of a file system in memory."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", MEMORY_INFORMATION.read_text("ascii"), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
