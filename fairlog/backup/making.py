"""Make a backup of a node that may be running: `fairlog backup`.

    an empty backup.json.new      so that what follows is known to be unfinished
    the data logs of the shard    LMDB's own compacting copy: one read transaction, a consistent cut (invariant 7);
                                  when it has begun, the group journals are read for the sinks' fences
    cluster/data.mdb              after them, so that it knows all topics whose logs were copied, or has deleted them
    backup.json                   sizes, checksums, high watermarks, fences; written into the .new file, synced, renamed

The journals are left out: everything that was visible when the copy began is in the data logs, except the fences, which
the manifest has. The read transaction lasts as long as the copying of the data logs; meanwhile the node's file grows
instead of using pages again.

A backup that fails is removed, and the directory is as empty as before. One that is killed leaves `backup.json.new`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import lmdb

from datalog.foreign import ForeignEnvironment
from datalog.handles import Transaction
from datalog.layout import DamagedValue
from datalog.lmdb_pages import DamagedPage
from fairlog.backup.copied_logs import CopiedLogs
from fairlog.backup.fences import fences_of
from fairlog.backup.group_journals import GroupJournalsAround
from fairlog.backup.manifest import CopiedFile, Manifest, encode_manifest
from fairlog.backup.source import BackupRefused, require_same_run, require_source, run_of
from fairlog.data_directory import CLUSTER_STORE, MANIFEST, UNFINISHED, read_cluster_store
from fairlog_types import CorruptStorage, StorageFailure
from journal.segment_file import sync_directory, write_all
from shard.directory import shard_directories

_Beginning = Callable[[ForeignEnvironment], AbstractContextManager[Transaction]]
"""Begins the read transaction that is copied."""

_HASHED_AT_ONCE = 1 << 20
_LOOK_S = 0.1
"""How often the progress is looked at."""


class BackupFailed(Exception):
    """The backup could not be finished; what there was of it is gone. The message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a backup is."""

    doing: str
    done_bytes: int
    total_bytes: int
    """An estimate while a file is copied: without its free pages it gets smaller."""


def make_backup(
    source: Path, target: Path, *, now_ms: Callable[[], int], told: Callable[[Progress], None] = lambda _: None
) -> Manifest:
    """Back up the data directory `source` into `target`, which is made, or is empty. Blocking.

    Raises BackupRefused (nothing was written), BackupFailed (nothing is left), DirectoryUnusable. A KeyboardInterrupt
    passes, and leaves an unfinished backup, which says that it is one.
    """
    _require_patched_lmdb()
    run = run_of(source)
    require_source(source)
    _make_empty(source, target)
    made_ms = now_ms()
    (shard,) = shard_directories(source)
    data_logs, journals = shard.name_of(shard.data_logs_file), GroupJournalsAround(shard)
    # The cluster store is the last one to be copied.
    beginnings: dict[str, _Beginning] = {data_logs: journals.begin, CLUSTER_STORE: ForeignEnvironment.begin}
    try:
        _write(target / UNFINISHED, b"")
        sync_directory(target)
        for name, begin in beginnings.items():
            (target / name).parent.mkdir(parents=True)
            _copy(source / name, target / name, told, begin)
        require_same_run(source, run)
        files = {name: _checked(target / name, told) for name in beginnings}
        content = read_cluster_store(target)
        copied = CopiedLogs(target / data_logs, content)
        manifest = Manifest(
            cluster_id=content.node.cluster_id,
            node_id=content.node.node_id,
            made_ms=made_ms,
            files=files,
            logs=copied.listed(),
            sinks=fences_of(journals.told, copied),
        )
        for name in beginnings:
            for place in _between(target, target / name):
                sync_directory(place)
        _write(target / UNFINISHED, encode_manifest(manifest))
        (target / UNFINISHED).rename(target / MANIFEST)
        sync_directory(target)
        sync_directory(target.parent)
    except (OSError, lmdb.Error, StorageFailure) as error:
        _take_away(target, beginnings)
        raise BackupFailed(f"the backup into {target} failed and was removed: {_sentence(error)}") from error
    except (CorruptStorage, DamagedPage, DamagedValue) as error:
        _take_away(target, beginnings)
        raise BackupFailed(f"the copy in {target} is damaged and was removed: {error}") from error
    return manifest


def _require_patched_lmdb() -> None:
    """LMDB itself copies as of the moment of the copy; py-lmdb's own build of it, as of a transaction that is held."""
    if not lmdb.version(subpatch=True)[-1]:
        raise BackupRefused(
            "the installed package lmdb was built without its patch (LMDB_PURE, LMDB_FORCE_SYSTEM), and cannot copy "
            "what a read transaction sees: install the one from PyPI"
        )


def _make_empty(source: Path, target: Path) -> None:
    if target.resolve().is_relative_to(source.resolve()):
        raise BackupRefused(f"{target} is inside the data directory: choose another place")
    try:
        target.mkdir(parents=True, exist_ok=True)
        left = sorted(path.name for path in target.iterdir())
    except OSError as error:
        raise BackupRefused(f"cannot write into {target}: {error.strerror}") from error
    if UNFINISHED in left:
        raise BackupRefused(f"{target} contains an unfinished backup: delete it, or choose another place")
    if left:
        raise BackupRefused(f"{target} is not empty (it has {left[0]}): choose another place")


def _take_away(target: Path, names: Iterable[str]) -> None:
    for name in names:
        (target / name).unlink(missing_ok=True)
        for place in _between(target, target / name):
            if place.exists() and not any(place.iterdir()):
                place.rmdir()
    (target / UNFINISHED).unlink(missing_ok=True)


def _between(target: Path, file: Path) -> Iterator[Path]:
    """The directories that were made for the file, from its own up."""
    return takewhile(lambda place: place != target, file.parents)


def _copy(source: Path, target: Path, told: Callable[[Progress], None], begin: _Beginning) -> None:
    """LMDB's copy in a thread, while its growth is looked at. Raises lmdb.Error, OSError."""
    estimate = source.stat().st_size
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    outcome: list[Exception] = []

    def work() -> None:
        try:
            _copy_to(descriptor, source.parent, begin)
            os.fsync(descriptor)
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            outcome.append(error)

    # A daemon: nothing calls LMDB back, and an interrupted backup must not wait for it.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            told(Progress(f"copying {source.parent.name}", os.fstat(descriptor).st_size, estimate))
        if outcome:
            raise outcome[0]
    finally:
        if not thread.is_alive():  # else it goes on writing there, and the number must not become another file's
            os.close(descriptor)


def _copy_to(descriptor: int, directory: Path, begin: _Beginning) -> None:
    environment = ForeignEnvironment.open(directory, databases_max=0)
    try:
        if environment.locked:
            environment.env.reader_check()  # an earlier backup that was killed holds its pages until somebody looks
        with begin(environment) as transaction:
            environment.env.copyfd(descriptor, compact=True, txn=transaction)
            environment.still_peaceful(transaction)
    finally:
        environment.close()


def _checked(path: Path, told: Callable[[Progress], None]) -> CopiedFile:
    size_bytes = path.stat().st_size
    return CopiedFile(size_bytes, checksum(path, lambda done: told(Progress("checksums", done, size_bytes))))


def checksum(path: Path, told: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file, as 64 hex digits. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file.read):
            found.update(chunk)
            told(file.tell())
    return found.hexdigest()


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while chunk := read(_HASHED_AT_ONCE):
        yield chunk


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        write_all(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sentence(error: Exception) -> str:
    if isinstance(error, lmdb.DiskError):
        return "the disk is full. Free space, or choose another place. The node's data was not changed"
    return f"{error}. The node's data was not changed"
