"""What lies in a data directory beside its shards (`shard.directory`), and how tools read its files: as they are.

Blocking. Damage raises CorruptStorage or DamagedPage, an error of the disk OSError or StorageFailure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from datalog.lmdb_pages import LmdbFile
from datalog.snapshot import lmdb_snapshot, mapped_lmdb
from fairlog.cluster.content import StoreContent, read_content
from fairlog.cluster.metadata_content import MetadataContent, read_metadata
from fairlog_types import CorruptStorage, JournalPosition
from journal.read_only import ReadOnlyJournal
from journal.segment import file_offset
from journal.segment_file import read_range
from shard.directory import shard_directories

CLUSTER = "cluster"
CLUSTER_STORE = f"{CLUSTER}/data.mdb"
METADATA = "metadata"
METADATA_COPY = f"{METADATA}/data.mdb"
"""A node of several machines has its copy of the metadata there, and no cluster store."""
LAST_RUN = "last-run"
_WORST_FIRST = (None, "lost", "open", "closed")
"""What it may say of a run's end; None if it says nothing."""

UNFINISHED = "backup.json.new"
MANIFEST = "backup.json"
RESTORING = "restoring.json"
RESTORED = "restored-from.json"
"""A backup's manifest; by its names `fairlog.backup.manifest` tells how far a backup has come."""

_Content = TypeVar("_Content")


def read_cluster_store(directory: Path) -> StoreContent:
    """Of a directory that no node uses, or of a backup."""
    path = directory / CLUSTER_STORE
    return _content(path, mapped_lmdb(path))


def read_cluster_store_in_use(directory: Path) -> StoreContent:
    """As of now, whether a node writes it meanwhile or not. LMDB notes the reader in the lock file, if there is one."""
    path = directory / CLUSTER_STORE
    with lmdb_snapshot(path) as file:
        return _content(path, file)


def is_of_several_machines(directory: Path) -> bool:
    """Whether a node of several machines has written it: there is a copy of its cluster's metadata."""
    return (directory / METADATA_COPY).exists() and not (directory / CLUSTER_STORE).exists()


def read_metadata_copy(directory: Path) -> MetadataContent:
    """Of the directory of a node of several machines, which does not run."""
    path = directory / METADATA_COPY
    return _read(path, mapped_lmdb(path), read_metadata)


def metadata_records(directory: Path) -> dict[bytes, bytes]:
    """All of the same, as of now, whether the node runs or not."""
    path = directory / METADATA_COPY
    with lmdb_snapshot(path) as file:
        return _read(path, file, dict)


def _content(path: Path, file: LmdbFile | None) -> StoreContent:
    return _read(path, file, read_content)


def _read(path: Path, file: LmdbFile | None, read: Callable[[Mapping[bytes, bytes]], _Content]) -> _Content:
    if file is None:
        raise CorruptStorage(f"{path} is empty")
    try:
        return read({item.key: bytes(item.value) for item in file.items(file.meta.main)})
    except CorruptStorage as error:
        raise CorruptStorage(f"{path}: {error}") from error


def names_in(directory: Path) -> list[str]:
    """The entries of a directory; none if it does not exist."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def bytes_below(directory: Path) -> int:
    """Of all files in it, at any depth: for a progress bar."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def payload_head(journal: ReadOnlyJournal, position: JournalPosition, count: int) -> bytes:
    """`count` bytes from `position` of a frame that was checked when it was read."""
    for segment in journal.segments:
        if segment.base <= position < segment.end:
            return bytes(read_range(segment.open_file.fd, file_offset(position, segment.base), count))
    return b""


def last_run_notes(directory: Path) -> Sequence[Path]:
    """Where the notes on the last run are, or would be: of several shards each has its own (`fairlog.last_run`)."""
    notes = [shard.path / LAST_RUN for shard in shard_directories(directory)]
    # Of several shards all but one may be lost.
    return notes if len(notes) > 1 or any(note.exists() for note in notes) else [directory / LAST_RUN]


def last_run_ended(directory: Path) -> str | None:
    """What the notes say of the last node here: open, closed or lost; None if nothing.

    Of several shards it is the worst that any has: nothing, lost, open, closed.
    """
    return min(map(_ended, last_run_notes(directory)), key=_WORST_FIRST.index)


def _ended(note: Path) -> str | None:
    try:
        _, ended, *_ = note.read_text(encoding="ascii").split()
    except (FileNotFoundError, ValueError):
        return None
    return ended if ended in _WORST_FIRST else None
