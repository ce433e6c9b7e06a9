"""An LMDB environment of another process, opened read-only: with its lock file, or if no writer is active.

LMDB's writer uses pages again as soon as no entry in the reader table (`lock.mdb`) says that a reader still needs them.
So a reader beside a running writer must have an entry, and for that must write to `lock.mdb`, to that file alone. If it
may not, or if there is no such file, LMDB can be told to do without; then the writer does not know about the reader,
and pages may change while it reads them. This module does the following:

    lock.mdb may be written           with the lock file. Safe beside a running node. The directory and data.mdb may be
                                      read-only.
    it may not, or is missing:
      … and a process has it open     refused: one sentence that says which file to make writable
      … and no process has            without the lock file: a stopped node's directory, a backup, a read-only mount.
                                      `still_peaceful` is called around each read, and refuses as soon as a process
                                      has opened the environment or has committed to it.

LMDB itself is less careful: on a read-only file system it silently drops the lock, even if the node writes to the same
files through another mount.

The check whether a process has it open takes no lock: LMDB holds a POSIX record lock on byte 0 of `lock.mdb` as long as
it is open, and F_GETLK reports this on a descriptor that is open for reading only. `lock.mdb` is opened here only if
this process cannot have the environment open itself: POSIX locks are lost as soon as their process closes any
descriptor of the file.

A missing `lock.mdb` is not created: it would belong to the reader's user, and a node that runs as another user could
not open it.

Source: https://github.com/LMDB/lmdb/blob/LMDB_0.9.33/libraries/liblmdb/mdb.c (mdb_env_setup_locks, mdb_find_oldest)
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

import lmdb

from datalog.handles import Database, Transaction
from datalog.lmdb_file import check_length
from fairlog_types import CorruptStorage, StorageFailure

_LMDB_0_9 = 0
"""The engine is part of the file's format, so it does not depend on the binding's default."""

_FLOCK = struct.Struct("hhqqi4x")
"""Linux's `struct flock` on 64 bits: type, whence, start, length, process id."""

_EFFECTIVE = os.access in os.supports_effective_ids

_LENGTH_CHECKS = 3
"""The length is compared while another process may be writing: one comparison may fall between two of its writes."""


class ForeignEnvironment:
    """An open environment, and whether this process is in its reader table."""

    def __init__(self, directory: Path, env: lmdb.Environment, *, locked: bool) -> None:
        self.directory = directory
        self.env = env
        self.locked = locked
        """Whether the writer knows about this reader (module head)."""

    @classmethod
    def open(cls, directory: Path, *, databases_max: int) -> ForeignEnvironment:
        """Open `directory`, which another process may have open and write to at the same time.

        Raises StorageFailure if there is none or it cannot be opened safely, CorruptStorage if it is damaged.
        """
        data = directory / "data.mdb"
        if not os.access(data, os.R_OK, effective_ids=_EFFECTIVE):
            there = "this user may not read it" if os.path.lexists(data) else "it is not there"
            raise StorageFailure(f"{data} cannot be read: {there}")
        _check_length_of_a_live_file(data)
        locked = _may_write_lock(directory)
        if not locked:
            _refuse_if_open_elsewhere(directory)
        try:
            env = lmdb.open(
                str(directory),
                map_size=0,  # as large as the writer has made it
                max_dbs=databases_max,
                readonly=True,
                create=False,
                lock=locked,
                lib_version=_LMDB_0_9,
            )
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise CorruptStorage(f"{data} is not readable from byte 0: {error}") from error
        except lmdb.LockError as error:
            raise StorageFailure(_same_process_id(directory)) from error
        except lmdb.Error as error:
            raise StorageFailure(f"{directory} cannot be opened: {error}") from error
        return cls(directory, env, locked=locked)

    def close(self) -> None:
        self.env.close()

    def open_database(self, name: bytes) -> Database:
        """The handle of a named database, for all transactions that begin later. Raises lmdb.Error as LMDB does.

        In a transaction of its own: py-lmdb forgets a handle that was opened in a read transaction given to it.
        """
        return self.env.open_db(name, create=False)

    def begin(self) -> Transaction:
        """A read transaction. Raises StorageFailure; lmdb.MapResizedError if the file has outgrown the map."""
        if not self.locked:
            _refuse_if_open_elsewhere(self.directory)
        try:
            return self.env.begin(buffers=True)
        except lmdb.LockError as error:
            raise StorageFailure(_same_process_id(self.directory)) from error

    def is_newest(self, txn: Transaction) -> bool:
        """Whether nothing has been committed since `txn` began."""
        return self.env.info()["last_txnid"] == txn.id()

    def still_peaceful(self, txn: Transaction) -> None:
        """Raise StorageFailure if what was read in `txn` may have been overwritten meanwhile.

        Call it before using data that was copied out of the map. LMDB does not change the pages of a committed state
        before two more commits; this refuses after one.
        """
        if not self.locked and not self.is_newest(txn):
            raise StorageFailure(
                f"{self.directory} has been written to while it was read without its lock file."
                f" {_how_to_allow(self.directory)}"
            )


def _check_length_of_a_live_file(path: Path) -> None:
    for left in reversed(range(_LENGTH_CHECKS)):
        try:
            check_length(path)
        except CorruptStorage:
            if not left:
                raise
        else:
            return


def _may_write_lock(directory: Path) -> bool:
    return os.access(directory / "lock.mdb", os.R_OK | os.W_OK, effective_ids=_EFFECTIVE)


def _refuse_if_open_elsewhere(directory: Path) -> None:
    """Raise StorageFailure if any process has the environment open with its lock file."""
    try:
        descriptor = os.open(directory / "lock.mdb", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageFailure(f"{directory / 'lock.mdb'} cannot be read: {error.strerror}") from error
    try:
        holder = _holder_of_byte_0(descriptor)
    finally:
        os.close(descriptor)
    if holder is not None:
        raise StorageFailure(f"{directory} is open in {holder}. {_how_to_allow(directory)}")


def _holder_of_byte_0(descriptor: int) -> str | None:
    if sys.platform != "linux":
        return "another process, perhaps: this system cannot tell"
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, process_id = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else f"process {process_id}"


def _same_process_id(directory: Path) -> str:
    """LMDB locks the byte of its process id in the lock file; this checks whether it is locked."""
    return (
        f"{directory} is open in another process with the id {os.getpid()}, perhaps in a container with a PID namespace"
        " of its own. Give this one another process id, or the same namespace."
    )


def _how_to_allow(directory: Path) -> str:
    return (
        f"Let this user write to {directory / 'lock.mdb'} (no data is in it: it tells the node which pages are being"
        " read), or stop the node."
    )
