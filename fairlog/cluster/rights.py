"""Who may read a store: it has users' credentials and, of several machines, the secret by which nodes know each other.

New ones are for the node's user alone. Of those that are there, each opening takes away what others may do, and perhaps
the group: an earlier version made them, or somebody has opened them. LMDB's `mode` is for new files only.
The directory stays as it is: commands of other users see that there is a store, and say that they may not read it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE_MODE = 0o600
OTHERS = 0o007
GROUP_AND_OTHERS = 0o077

_FILES = ("data.mdb", "lock.mdb")


def close(directory: Path, rights: int) -> dict[Path, int]:
    """Take these rights to LMDB's files in the directory away. Answers which had some, and their modes before.

    What belongs to another user stays as it is: it is for that one to close. Raises OSError.
    """
    closed: dict[Path, int] = {}
    for path in (directory / name for name in _FILES):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & rights and status.st_uid == os.geteuid():
            path.chmod(mode & ~rights)
            closed[path] = mode
    return closed
