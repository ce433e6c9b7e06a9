"""A new LMDB file gets its name only when it is complete and on disk.

LMDB creates a file under its final name, writes its first two pages, and syncs them with the first commit. A power cut
in between may leave one page of the two, which is not an LMDB file for the next start: it would refuse a file that has
never had any content. LMDB also syncs its file, not the directories that lead to it. So a file is created in a
directory beside its place (`making`), synced, renamed, and then its name is synced, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb

_FILE = "data.mdb"
_MAKING = "making"


def make_file(directory: Path, open_in: Callable[[Path], lmdb.Environment]) -> None:
    """Create `directory` and the LMDB file in it durably, unless it exists; a file of 0 bytes counts as missing.

    `open_in` opens an environment in a directory as it will be opened in `directory`. A start that is interrupted here
    leaves nothing that disturbs the next one. Raises lmdb.Error, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    making = directory / _MAKING
    if making.exists():
        shutil.rmtree(making)
    path = directory / _FILE
    if not path.exists() or not path.stat().st_size:
        making.mkdir()
        environment = open_in(making)
        try:
            environment.sync(force=True)
        finally:
            environment.close()
        (making / _FILE).rename(path)
        shutil.rmtree(making)
    # At each start: the one that made it may have been killed before it came to this.
    _sync_directory(directory)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
