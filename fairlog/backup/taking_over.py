"""The first start in a backup: make an ordinary data directory of it, or refuse.

    backup.json       of this node, sizes and checksums are right, there are no other files, the clock is not too early
      │ renamed
    restoring.json    cluster store:  producer ids and leader epoch jump ahead of all that were given out since
      │               layout:         of a backup of an earlier version the data logs move to where a shard has them
      │               data logs:      logs of topics that were deleted while the backup was made are dropped;
      │                               the replay begins at the mark; who was in a consumer group is forgotten
      │               journals:       each begins, empty, where its data log's mark is, so no position comes twice;
      │                               group journals begin with the sinks' fences, if there are any
      │ renamed
    restored-from.json

Every step may be repeated. A crash between the two renamings leaves a directory that the next start finishes. Nothing
is served meanwhile: of several shards the supervisor takes over all, before it starts their processes. The group
journals begin anew: no transactional id is known, so a producer that had one must ask for it again, and gets a new
producer id. This fences all producers from before the restore, on all partitions (invariant 9;
docs/decisions/0029-backups-without-journals.md). The group journals begin with a snapshot that has each sink's last
batch in the data logs, as if the node had just taken it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.group_journal import begin_with_snapshot
from coordinator.group_records import SinkRecord
from coordinator.lane_ids import group_of_sink
from coordinator.transaction_groups import journal_of
from datalog.environment import LmdbDataLogs
from datalog.interface import Mark
from fairlog.backup.checksums import checksum
from fairlog.backup.copies import require_restorable
from fairlog.backup.manifest import BadManifest, Manifest, decode_manifest_untrusted
from fairlog.cluster.content import StoreContent
from fairlog.cluster.opening import of_another_node, of_another_separator
from fairlog.cluster.restored import continue_restored
from fairlog.data_directory import (
    CLUSTER,
    CLUSTER_STORE,
    LAST_RUN,
    MANIFEST,
    METADATA_COPY,
    RESTORED,
    RESTORING,
    UNFINISHED,
    is_of_several_machines,
    read_cluster_store,
)
from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch, LogId, LogKind, StorageFailure
from journal.segment import Fsync, JournalKind
from journal.segment_file import begin_at, make_directory, sync_directory
from shard.directory import FIRST_SHARD, ShardDirectory, shard_directories, shard_directory


def take_over(
    directory: Path, *, node_id: int, group_separator: str, map_bytes: int, fsync: Fsync, now_ms: int
) -> Manifest | None:
    """If `directory` is a backup, make a data directory of it, and answer its manifest; else None. Blocking.

    To be called with the directory locked, before anything in it is opened. Raises StoreMismatch if it is the backup of
    a node other than `node_id`, or of several shards with another separator of groups; CorruptStorage with a sentence
    if it is unfinished, damaged or not alone; StorageFailure if the disk refuses.
    """
    try:
        return _take_over(directory, node_id, group_separator, map_bytes, fsync, now_ms)
    except OSError as error:
        raise StorageFailure(f"the backup in {directory} cannot be restored: {error}") from error


def _take_over(
    directory: Path, node_id: int, group_separator: str, map_bytes: int, fsync: Fsync, now_ms: int
) -> Manifest | None:
    if (directory / RESTORING).exists():
        manifest = read_manifest(directory / RESTORING)
        _require_node(directory, manifest, node_id)
        _require_shards(directory)
    elif (directory / MANIFEST).exists():
        require_restorable(directory)
        manifest = read_manifest(directory / MANIFEST)
        _require_node(directory, manifest, node_id)
        _require_alone(directory)
        _require_clock(directory, manifest, now_ms)
        check_files(directory, manifest)
        _require_shards(directory)
        _require_separator(directory, group_separator)
        (directory / MANIFEST).rename(directory / RESTORING)
        sync_directory(directory)
    elif (directory / UNFINISHED).exists():
        raise CorruptStorage(
            f"{directory} contains an unfinished backup, from which no node can be started. Use another backup"
        )
    else:
        return None
    content = continue_restored(directory / CLUSTER, now_ms=now_ms)
    for shard in map(_in_its_place, shard_directories(directory)):
        _settle(shard, content, manifest.sinks or (), map_bytes=map_bytes, fsync=fsync, now_ms=now_ms)
    (directory / RESTORING).rename(directory / RESTORED)
    sync_directory(directory)
    return manifest


def _settle(
    shard: ShardDirectory,
    content: StoreContent,
    sinks: Sequence[SinkRecord],
    *,
    map_bytes: int,
    fsync: Fsync,
    now_ms: int,
) -> None:
    """Prepare one shard: its data logs, and journals that fit them."""
    served = {log for topic in content.served for log in topic.logs()}
    leaving = {log for topic in content.deleting for log in topic.logs()}
    for log, base in _settle_data_logs(shard.data_logs, map_bytes, served, leaving).items():
        begin_at(shard.local_journal(log), JournalKind.LOCAL, fsync, base)
    fences, placement = _by_journal(sinks, content.node.group_journal_count), content.placement
    for number in placement.group_journals(shard.number, content.node.group_journal_count):
        if number in fences:
            epoch = LeaderEpoch(content.started[shard.number].starts)
            begin_with_snapshot(shard.group_journal(number), fsync, epoch, fences[number], timestamp_ms=now_ms)


def read_manifest(path: Path) -> Manifest:
    """Raises CorruptStorage, OSError."""
    try:
        return decode_manifest_untrusted(path.read_bytes())
    except BadManifest as error:
        raise CorruptStorage(f"{path}: the manifest {error}") from error


def check_files(directory: Path, manifest: Manifest) -> None:
    """Are the backup's files what its manifest says? Raises CorruptStorage, naming the file; OSError."""
    shards = shard_directories(directory) or [shard_directory(directory, FIRST_SHARD)]
    names_file = METADATA_COPY if is_of_several_machines(directory) else CLUSTER_STORE
    for name in (*(shard.name_of(shard.data_logs_file) for shard in shards), names_file):
        if name not in manifest.files:
            raise CorruptStorage(
                f"the manifest of the backup in {directory} does not name {name}: the backup was changed"
            )
    for name, file in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise CorruptStorage(f"{path} is missing: the backup was not copied completely. Copy it again")
        size_bytes = path.stat().st_size
        if size_bytes != file.size_bytes:
            raise CorruptStorage(
                f"{path} has {size_bytes} bytes, but the backup's manifest says {file.size_bytes}: the file was not "
                "copied completely, or was changed. Copy it again"
            )
        if checksum(path) != file.sha256:
            raise CorruptStorage(
                f"{path} does not have the SHA-256 of the backup's manifest: it was damaged, or changed. Copy it again"
            )


def _require_node(directory: Path, manifest: Manifest, node_id: int) -> None:
    if manifest.node_id != node_id:
        raise of_another_node(directory, manifest.node_id, node_id)


def _require_alone(directory: Path) -> None:
    of_shards = [path for shard in shard_directories(directory) for path in (shard.journals, shard.path / LAST_RUN)]
    for path in (*of_shards, directory / LAST_RUN):
        if path.exists():
            name = path.relative_to(directory)
            raise CorruptStorage(
                f"{directory} contains a backup and also {name} of another run: put the backup into a directory of "
                "its own"
            )


def _require_shards(directory: Path) -> None:
    """Raises CorruptStorage if shards are missing, or too many."""
    shards = read_cluster_store(directory).shards
    found = [shard.number for shard in shard_directories(directory)]
    if found != [*range(shards)]:
        names = ", ".join(map(str, found)) or "none"
        raise CorruptStorage(
            f"the backup in {directory} is of {shards} shards, from 0 on, and contains {names}: it was changed"
        )


def _require_separator(directory: Path, group_separator: str) -> None:
    """Raises StoreMismatch before anything is changed; without it the start would, when all is taken over."""
    fixed = read_cluster_store(directory).group_separator
    if fixed is not None and fixed != group_separator:
        raise of_another_separator(directory, fixed, group_separator)


def _in_its_place(found: ShardDirectory) -> ShardDirectory:
    """The shard's place; the data logs of a backup of an earlier version are moved there."""
    shard = shard_directory(found.data_dir, found.number)
    if found != shard:
        make_directory(shard.path)
        found.data_logs.rename(shard.data_logs)
        sync_directory(shard.path)
        sync_directory(found.path)
    return shard


def _require_clock(directory: Path, manifest: Manifest, now_ms: int) -> None:
    """The clock must be later than the backup: producer ids and the leader epoch continue from it."""
    if now_ms < manifest.made_ms:
        raise CorruptStorage(
            f"the backup in {directory} was made {(manifest.made_ms - now_ms) // 1000 + 1} s after this machine's "
            "current time: set its clock"
        )


def _by_journal(fences: Iterable[SinkRecord], journals: int) -> dict[int, list[SinkRecord]]:
    """The fences, by the number of the group journal that they belong to."""
    found: dict[int, list[SinkRecord]] = {}
    for fence in fences:
        found.setdefault(journal_of(group_of_sink(fence.sink), journals), []).append(fence)
    return found


def _settle_data_logs(
    directory: Path, map_bytes: int, served: set[LogId], leaving: set[LogId]
) -> dict[LogId, JournalPosition]:
    """Drop logs without a topic, forget who was in groups, let no replay begin before a mark.

    Answers the logs with a past, and their marks.
    """
    logs = LmdbDataLogs.open(directory, map_bytes=map_bytes)
    try:
        marks: dict[LogId, Mark] = {}
        for log in logs.logs():
            mark = logs.mark(log)
            assert mark is not None, log
            marks[log] = mark
        kept: dict[LogId, JournalPosition] = {}
        with logs.write() as writer:
            for log, mark in marks.items():
                if log.kind == LogKind.TOPIC.value and log not in served | leaving:
                    writer.drop(log)
                elif log not in leaving and mark.copied_through > 0:
                    writer.forget_groups(log)
                    writer.put_mark(log, Mark(mark.copied_through, mark.copied_through, mark.next_offset))
                    kept[log] = mark.copied_through
        logs.sync()
        return kept
    finally:
        logs.close()
