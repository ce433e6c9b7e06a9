"""Reserves disk space before it is needed, for writes that can be postponed.

A commit that meets a full disk fails half way, with an error that looks like a broken disk's, and after that nothing
more is written to the file (invariant 12). The copy has to take this risk. Compaction and retention do not: they first
extend the file by as much as their write may take. If this is refused (disk full, a quota, a limit), nothing has
happened.

An LMDB file may be longer than the pages in use. The caller holds the write lock: on a file system without fallocate,
the C library writes a byte into each block after the file's end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import lmdb

from datalog.interface import NoRoom


def make_room(directory: Path, env: lmdb.Environment, room_bytes: int) -> None:
    """Extend the file in `directory` to `room_bytes` after its last page in use, or to the map's end.

    Raises NoRoom, also if the file cannot be opened (no descriptor is left).
    """
    info = cast("dict[str, int]", env.info())
    page_bytes = cast("dict[str, int]", env.stat())["psize"]
    end = min((info["last_pgno"] + 1) * page_bytes + room_bytes, info["map_size"])
    path = directory / "data.mdb"
    try:
        if path.stat().st_size >= end:
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            os.posix_fallocate(descriptor, size, end - size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NoRoom(f"{path} cannot be made {end} bytes long: {error.strerror}") from error
