"""Make a backup of a node that may be running: `fairlog backup`.

    decided commits are finished  only for a stopped node of several shards (`fairlog.backup.settling`)
    an empty backup.json.new      so that what follows is known to be unfinished
    the data logs                 LMDB's own compacting copy of each shard's: a read transaction of each, all as of one
                                  moment, a consistent cut (invariant 7; `fairlog.backup.moment`);
                                  when they have begun, the group journals are read for the sinks' fences
    cluster/data.mdb              after them, so that it knows all topics whose logs were copied, or has deleted them;
                                  of a node of several machines, what its copy of the metadata says,
                                  without the cluster's secret
                                  (`fairlog.backup.copies`)
    backup.json                   sizes, checksums, high watermarks, fences; written into the .new file, synced, renamed

The journals are left out: everything that was visible when the copy began is in the data logs, except the fences, which
the manifest has. The shards are copied one after the other. Each read transaction lasts until its shard is copied;
meanwhile that shard's file grows instead of using pages again.

If there are users, the files are readable by their owner only: what is kept of a password can be tried out.

A backup that fails is removed, and the directory is as empty as before. One that is killed leaves `backup.json.new`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import lmdb

from datalog.foreign import ForeignEnvironment
from datalog.handles import Transaction
from datalog.layout import DamagedValue
from datalog.lmdb_pages import DamagedPage
from fairlog.backup.checksums import checksum
from fairlog.backup.copied_logs import CopiedLogs
from fairlog.backup.copies import Named, copy_metadata, make_single_store, named_in
from fairlog.backup.fences import fences_of
from fairlog.backup.group_journals import GroupJournalsAround
from fairlog.backup.manifest import CopiedFile, Manifest, encode_manifest
from fairlog.backup.moment import Moment, within_a_hold, without_a_hold
from fairlog.backup.settling import settle
from fairlog.backup.source import BackupRefused, Source, require_same_run, require_source, run_of
from fairlog.cluster.content import StoreContent
from fairlog.data_directory import CLUSTER_STORE, MANIFEST, METADATA_COPY, UNFINISHED, read_cluster_store
from fairlog_types import CorruptStorage, StorageFailure
from journal.segment_file import sync_directory, write_all
from shard.directory import ShardDirectory

_LOOK_S = 0.1
"""How often the progress is reported."""


class BackupFailed(Exception):
    """The backup could not be finished, and was removed. The message says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a backup is."""

    doing: str
    done_bytes: int
    total_bytes: int
    """An estimate while a file is copied: without its free pages it gets smaller."""


def make_backup(
    source: Path,
    target: Path,
    *,
    now_ms: Callable[[], int],
    node_id: int = 1,
    told: Callable[[Progress], None] = lambda _: None,
    settling: Callable[[], None] = lambda: None,
) -> Manifest:
    """Back up the data directory `source` into `target`, which is made, or is empty. Blocking.

    `node_id` is the one that a node of several machines has by its settings: a backup of its only shard is restored as
    that node. `settling` is called before the decided commits of a stopped node of several shards are finished in
    `source`. Raises BackupRefused (nothing was written except to finish them), BackupFailed (nothing is left),
    DirectoryUnusable. A KeyboardInterrupt passes, and may leave an unfinished backup, which is marked as such.
    """
    _require_patched_lmdb()
    run = run_of(source)
    found = require_source(source)
    shards = found.shards
    _make_empty(source, target)
    if found.is_to_be_settled:
        settling()
        run = settle(source)
    made_ms = now_ms()
    data_logs = [shard.name_of(shard.data_logs_file) for shard in shards]
    names = [*data_logs, found.names_file]
    journals = GroupJournalsAround(shards)
    is_of_copies = found.shards_of_cluster is not None
    moment = within_a_hold(source) if found.is_served and len(shards) > 1 and not is_of_copies else without_a_hold
    copy_names = partial(_copy_names, source, target, found, node_id)
    try:
        _write(target / UNFINISHED, b"")
        sync_directory(target)
        for name in names:
            (target / name).parent.mkdir(parents=True)
        (target / found.names_file).parent.chmod(0o700)  # users may be in it, whom nobody else may read meanwhile
        estimate = sum((source / name).stat().st_size for name in data_logs)
        _watch(
            lambda: _copy_all(target, shards, journals, moment, copy_names),
            [target / name for name in names],
            estimate,
            told,
        )
        named = _named(source, target, found, node_id)
        require_same_run(source, run)
        files = {name: _checked(target / name, told) for name in names}
        copied = CopiedLogs([target / name for name in data_logs], named.served)
        manifest = Manifest(
            cluster_id=named.cluster_id,
            node_id=named.node_id,
            made_ms=made_ms,
            files=files,
            logs=copied.listed(),
            sinks=fences_of(journals.told, copied) if found.names_file == CLUSTER_STORE else (),
            users=named.users,
        )
        if named.users:
            for name in names:
                (target / name).chmod(0o600)
        else:
            (target / found.names_file).parent.chmod((target / data_logs[0]).parent.stat().st_mode & 0o777)
        for name in names:
            for place in _between(target, target / name):
                sync_directory(place)
        _write(target / UNFINISHED, encode_manifest(manifest))
        (target / UNFINISHED).rename(target / MANIFEST)
        sync_directory(target)
        sync_directory(target.parent)
    except (OSError, lmdb.Error, StorageFailure) as error:
        _take_away(target, names)
        raise BackupFailed(f"the backup into {target} failed and was removed: {_sentence(error)}") from error
    except (CorruptStorage, DamagedPage, DamagedValue) as error:
        _take_away(target, names)
        raise BackupFailed(f"the copy in {target} is damaged and was removed: {error}") from error
    return manifest


def _require_patched_lmdb() -> None:
    """Plain LMDB copies the state at the moment of the copy; py-lmdb's patched build, that of a read transaction."""
    if not lmdb.version(subpatch=True)[-1]:
        raise BackupRefused(
            "the installed package lmdb was built without its patch (LMDB_PURE, LMDB_FORCE_SYSTEM), and cannot copy "
            "what a read transaction sees: install the one from PyPI"
        )


def _named(source: Path, target: Path, found: Source, node_id: int) -> Named:
    """What the backup's own file of names says. Raises CorruptStorage, StorageFailure."""
    if found.names_file != CLUSTER_STORE:
        return named_in(target, node_id)
    content = read_cluster_store(target)
    _require_shards(source, content, len(found.shards))
    return Named(content.node.cluster_id, content.node.node_id, content.served, len(content.users))


def _require_shards(source: Path, content: StoreContent, copied: int) -> None:
    """Raises StorageFailure if the cluster store, which was copied last, has more shards than were copied."""
    if content.shards != copied:
        raise StorageFailure(f"a shard was added to the node in {source} meanwhile, and is not in the copy; try again")


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


def _watch(work: Callable[[], None], files: Sequence[Path], estimate: int, told: Callable[[Progress], None]) -> None:
    """Do the work in a thread, and report how the files grow meanwhile. Raises what `work` raises."""
    outcome: list[Exception] = []

    def carry_over() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            outcome.append(error)

    # A daemon: nothing calls LMDB back, and an interrupted backup must not wait for it.
    thread = threading.Thread(target=carry_over, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_S)
        told(Progress("copying", sum(file.stat().st_size for file in files if file.exists()), estimate))
    if outcome:
        raise outcome[0]


def _copy_all(
    target: Path,
    shards: Sequence[ShardDirectory],
    journals: GroupJournalsAround,
    moment: Moment,
    copy_names: Callable[[], None],
) -> None:
    """The data logs, as of one moment, then the topics' names. Raises lmdb.Error, OSError, StorageFailure, …"""
    with ExitStack() as stack:
        environments = [stack.enter_context(_opened(shard.data_logs)) for shard in shards]
        with journals.begin(partial(moment, environments)) as transactions:
            for shard, environment, transaction in zip(shards, environments, transactions, strict=True):
                _copy(environment, transaction, target / shard.name_of(shard.data_logs_file))
                transaction.abort()  # the node may use its pages again while the others are copied
    copy_names()


def _copy_names(source: Path, target: Path, found: Source, node_id: int) -> None:
    if found.shards_of_cluster == 1:
        make_single_store(source, target / CLUSTER_STORE, node_id)
        return
    if found.shards_of_cluster is not None:
        copy_metadata(source, target / METADATA_COPY)
        return
    path = Path(found.names_file)
    with _opened(source / path.parent) as environment, environment.begin() as transaction:
        _copy(environment, transaction, target / path)


@contextmanager
def _opened(directory: Path) -> Generator[ForeignEnvironment]:
    environment = ForeignEnvironment.open(directory, databases_max=0)
    try:
        if environment.locked:
            environment.env.reader_check()  # frees pages that an earlier, killed backup still holds
        yield environment
    finally:
        environment.close()


def _copy(environment: ForeignEnvironment, transaction: Transaction, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        environment.env.copyfd(descriptor, compact=True, txn=transaction)
        environment.still_peaceful(transaction)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checked(path: Path, told: Callable[[Progress], None]) -> CopiedFile:
    size_bytes = path.stat().st_size
    return CopiedFile(size_bytes, checksum(path, lambda done: told(Progress("checksums", done, size_bytes))))


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
