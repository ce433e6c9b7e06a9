"""Turns LMDB's errors into messages: what happened, where, and what to do.

A full map and a full disk are `StorageFailure`, like all other refusals of the disk; damage that LMDB finds is
`CorruptStorage`. No `lmdb.Error` leaves this package.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from datalog.interface import NoRoom, TooManyLogs
from datalog.layout import DamagedValue
from datalog.offset_entries import MalformedEntries
from fairlog_types import CorruptStorage, StorageFailure

_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)


@contextmanager
def storage_errors(directory: Path, doing: str) -> Generator[None]:
    """Turn LMDB's errors inside the block into StorageFailure or CorruptStorage. `doing` completes "while …"."""
    try:
        yield
    except lmdb.Error as error:
        raise explain(error, directory, doing) from error
    except (DamagedValue, MalformedEntries) as error:
        raise damaged(error, directory, doing) from error


def explain(error: lmdb.Error, directory: Path, doing: str) -> StorageFailure | CorruptStorage:
    """The exception to raise in place of `error`."""
    where = f"data logs in {directory}, while {doing}"
    if isinstance(error, _DAMAGE):
        return damaged(error, directory, doing)
    if isinstance(error, lmdb.MapFullError):
        return NoRoom(f"{where}: the map is full. Open with a larger map (map_bytes), or shorten retention.")
    if isinstance(error, lmdb.DiskError):
        return StorageFailure(f"{where}: the disk is full. Free space, then restart.")
    if isinstance(error, lmdb.DbsFullError):
        return TooManyLogs(f"{where}: too many logs. Delete topics; names of deleted ones are freed at a restart.")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageFailure(f"{where}: LMDB's reader table is full. End some of the processes that read there.")
    return StorageFailure(f"{where}: {error}{_room_in(directory)}. Check the disk, then restart.")


def _room_in(directory: Path) -> str:
    """The free space of the file system: LMDB reports a write that was cut short by a full disk as an I/O error."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return ""  # the directory may be what has failed; that is in the message already
    return f" (the file system has {found.f_bavail * found.f_frsize} bytes free)"


def damaged(error: Exception, directory: Path, doing: str) -> CorruptStorage:
    """The file's content is not what was written."""
    where = f"data logs in {directory}, while {doing}"
    return CorruptStorage(f"{where}: {directory / 'data.mdb'} is not what was written: {error}. Restore it.")
