"""The state of one moment of an LMDB file that others may be writing: for tools, strictly read-only.

If there is a lock file, a read transaction (`datalog.foreign`) holds the pages of its moment while they are read as
bytes (`lmdb_pages`); if there is none, no process writes. The data file is not changed, and no file is created. LMDB
writes one thing into the lock file: a reader's slot, so that no writer takes the pages that are being read. As long as
it is held, the file grows instead of using pages again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from datalog.foreign import ForeignEnvironment
from datalog.lmdb_pages import DamagedPage, LmdbFile
from fairlog_types import CorruptStorage, StorageFailure

_TRIES = 100
"""A meta page is overwritten by the commit after the next, so a busy writer may overwrite it while we read it."""


@contextmanager
def lmdb_snapshot(path: Path) -> Generator[LmdbFile | None]:
    """The file `path` (a `data.mdb`) as of now; None if it is empty, as a crash during its creation leaves it.

    Raises CorruptStorage, naming the byte, if its first pages cannot be read; StorageFailure if the disk refuses, or if
    it cannot be read safely beside the node that has it open.
    """
    found = mapped_lmdb(path)  # before LMDB sees it: a wrong page size would end the process
    if found is None or path.name != "data.mdb" or not (path.parent / "lock.mdb").exists():
        yield found
        return
    environment = ForeignEnvironment.open(path.parent, databases_max=0)
    try:
        for _ in range(_TRIES):
            with environment.begin() as transaction:
                held = mapped_lmdb(path, transaction=transaction.id())
                if held is not None:
                    yield held
                    environment.still_peaceful(transaction)
                    return
        raise StorageFailure(f"{path} changes faster than it can be looked at; try again")
    finally:
        environment.close()


def mapped_lmdb(path: Path, *, transaction: int | None = None) -> LmdbFile | None:
    """The file's newest state, or that of `transaction`; None if it is empty, or no meta page has that any more.

    For a file that no process writes (that of a stopped node, a copy), or whose state a read transaction holds. Raises
    the same as `lmdb_snapshot`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return None
            # It is unmapped with the last view of it, so the data that were read stay valid as long as they are used.
            data = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageFailure(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return LmdbFile(data, transaction=transaction)
    except DamagedPage as error:
        raise CorruptStorage(f"{path}: {error}") from error
    except KeyError:
        return None
