"""May this data directory be backed up now? Yes, if its data logs contain everything that was reported visible.

    a node has it and serves             yes
    a node has it and recovers           no: a transaction may be copied in part until it is ready (invariant 7)
    no node has it, several shards       once it is settled (`fairlog.backup.settling`): even after a clean end a shard
                                         may still hold, unplaced, a commit that another one has placed
    no node has it, cleanly closed       yes: everything was copied at the end
    no node has it, the last was killed  no: its journals have answered records that are in no data log yet
    of a node of several machines        yes: what was answered is in the streams, and each data logs' file is a prefix
                                         of its stream (`fairlog.backup.copies`)

Two files show that a node serves: it writes its number into `lock` when it takes the directory, and `open` into
`last-run` when it has recovered. `require_same_run` checks whether it is still the same run: a node that was killed and
started again while the copy began may have been recovering at that moment.

A supervisor takes the directory once, and may start single processes again. A process writes its number into the `lock`
of each shard that it serves. If there is only one shard, its lock counts like the directory's. With several shards it
does not: if one was started again, the shards do not hold to the end (`fairlog.backup.moment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datalog.lmdb_pages import DamagedPage
from fairlog.cluster.content import StoreContent
from fairlog.cluster.metadata_content import read_metadata
from fairlog.data_directory import (
    CLUSTER_STORE,
    MANIFEST,
    METADATA_COPY,
    RESTORING,
    is_of_several_machines,
    last_run_ended,
    last_run_notes,
    metadata_records,
    read_cluster_store,
    read_cluster_store_in_use,
)
from fairlog.directory import is_in_use
from fairlog_types import CorruptStorage, ShardNumber, StorageFailure
from shard.directory import ShardDirectory, shard_directories, shard_directory

_LOCK = "lock"


class BackupRefused(Exception):
    """The backup was not begun, and nothing was written. The message is one sentence: why, and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be copied."""

    shards: Sequence[ShardDirectory]
    is_served: bool
    """A node has the directory, and serves."""
    shards_of_cluster: int | None = None
    """Of a node of several machines: how many shards there are in all. Each that is here is a copy."""

    @property
    def is_to_be_settled(self) -> bool:
        """The data logs may have a part of a transaction, and no process runs that would finish it."""
        return not self.is_served and len(self.shards) > 1 and self.shards_of_cluster is None

    @property
    def names_file(self) -> str:
        """What the backup has the topics' names in: a cluster store, if it is to be restored."""
        return CLUSTER_STORE if self.shards_of_cluster in (None, 1) else METADATA_COPY


def require_source(directory: Path) -> Source:
    """What is to be copied. Raises BackupRefused, DirectoryUnusable; OSError if the directory cannot be read."""
    for name in (MANIFEST, RESTORING):
        if (directory / name).exists():
            raise BackupRefused(f"{directory} is itself a backup: copy it with any tool")
    if is_of_several_machines(directory):
        return _copies(directory)
    if not (directory / CLUSTER_STORE).is_file():
        raise BackupRefused(
            f"{directory} is not a data directory: it does not contain {CLUSTER_STORE}. Name one with --data-dir"
        )
    in_use = is_in_use(directory)
    # From the cluster store: a shard whose directory is missing must not be left out.
    content = _content_of(directory, in_use=in_use)
    shards = [shard_directory(directory, number) for number in map(ShardNumber, range(content.shards))]
    for shard in shards:
        if shard.number not in content.started:
            raise BackupRefused(
                f"shard {shard.number} was added in {directory} and has not been served yet: start the node, and back "
                "it up when it is ready"
            )
        if not shard.data_logs_file.is_file():
            name = shard.name_of(shard.data_logs_file)
            raise BackupRefused(f"{directory} is not a data directory: it does not contain {name}")
    source = Source(shards, is_served=in_use)
    if source.is_to_be_settled:
        return source
    ended = last_run_ended(directory)
    if in_use and not (ended == "open" and _is_of_this_run(directory)):
        raise BackupRefused(
            f"the node in {directory} does not serve yet, or its disk has failed: wait until the node is ready, or "
            "repair the disk and restart the node"
        )
    if not in_use and ended != "closed":
        raise BackupRefused(
            f"no node runs in {directory}, and the last one did not stop cleanly: its journals may contain answered "
            "records that are not in the data logs yet. Start the node, and back it up when it is ready"
        )
    return source


def _copies(directory: Path) -> Source:
    """Of a node of several machines. A copy shows each transaction as a whole or not at all, whatever the node does."""
    try:
        metadata = read_metadata(metadata_records(directory))
    except (CorruptStorage, DamagedPage, StorageFailure) as error:
        raise BackupRefused(
            f"{directory} cannot be backed up, because its copy of the metadata cannot be read: {error}"
        ) from error
    shards = [shard for shard in shard_directories(directory) if shard.data_logs_file.is_file()]
    if not shards:
        raise BackupRefused(f"{directory} is that of a node of several machines, and has no copy of a shard in it")
    return Source(shards, is_served=is_in_use(directory), shards_of_cluster=metadata.placement.shards)


def _content_of(directory: Path, *, in_use: bool) -> StoreContent:
    try:
        return (read_cluster_store_in_use if in_use else read_cluster_store)(directory)
    except (CorruptStorage, DamagedPage, StorageFailure) as error:
        raise BackupRefused(
            f"{directory} cannot be backed up, because its cluster store cannot be read: {error}"
        ) from error


def run_of(directory: Path) -> int:
    """A number that changes when a node takes the directory again, or a process its only shard. Raises OSError."""
    shards = shard_directories(directory)
    places = [directory, *(shard.path for shard in shards if len(shards) == 1)]
    locks = [place / _LOCK for place in places]
    return max((lock.stat().st_mtime_ns for lock in locks if lock.exists()), default=0)


def require_same_run(directory: Path, run: int) -> None:
    """Raises StorageFailure if `run_of` does not answer `run` any more; OSError."""
    if run_of(directory) != run:
        raise StorageFailure(
            f"a node was started in {directory} meanwhile, or one of its processes, and the copy may contain part of "
            "the recovery; try again"
        )


def _is_of_this_run(directory: Path) -> bool:
    return all(note.stat().st_mtime_ns >= run_of(directory) for note in last_run_notes(directory))
