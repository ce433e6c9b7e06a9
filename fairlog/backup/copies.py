"""What a backup of a node of several machines has of the cluster's metadata.

Each data logs' file is one moment of a copy of a shard. If the cluster has one shard, this is a consistent cut, as on
one machine: the metadata become a cluster store, and the backup is one like any other. If it has several, their copies
have no moment in common (docs/decisions/0069-tools-on-copies.md): the backup keeps the metadata, can be read and
checked, and no node starts from it.

Neither has the cluster's secret: whoever knows it is taken for a node.

Blocking.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from fairlog.cluster import cluster_records
from fairlog.cluster.interface import Topic
from fairlog.cluster.metadata_content import read_metadata
from fairlog.cluster.records import decode_access
from fairlog.cluster.single_store import single_store
from fairlog.data_directory import METADATA_COPY, is_of_several_machines, metadata_records, read_metadata_copy
from fairlog.security.users import USERS
from fairlog_types import CorruptStorage

_MAP_BYTES = 256 * 1024 * 1024
_MODE = 0o640
"""Of the file, as of all files of a backup."""


@dataclass(frozen=True, slots=True)
class Named:
    """What the manifest needs to know of the cluster."""

    cluster_id: str
    node_id: int
    served: Sequence[Topic]
    users: int


def named_in(backup: Path, node_id: int) -> Named:
    """Of a backup of several shards, made by the node that would have this id. Raises CorruptStorage."""
    metadata = read_metadata_copy(backup)
    users = sum(each.kind == USERS.name for each in decode_access(metadata_records(backup)))
    return Named(metadata.cluster.cluster_id, node_id, metadata.served, users)


def make_single_store(source: Path, target: Path, node_id: int) -> None:
    """Make the file `target`, a cluster store, of the metadata in the directory `source`, which may be in use.

    Raises CorruptStorage, OSError, lmdb.Error.
    """
    content = metadata_records(source)
    read_metadata(content)
    _make(target, single_store(content, node_id))


def copy_metadata(source: Path, target: Path) -> None:
    """Make the file `target` of the metadata in the directory `source`, which may be in use, without the secret.

    Raises CorruptStorage, OSError, lmdb.Error.
    """
    content = metadata_records(source)
    read_metadata(content)
    cluster = cluster_records.without_secret(content[cluster_records.CLUSTER_KEY])
    _make(target, {**content, cluster_records.CLUSTER_KEY: cluster})


def _make(target: Path, content: Mapping[bytes, bytes]) -> None:
    """A new file, so that nothing else is in it, not even in its free pages."""
    with tempfile.TemporaryDirectory(dir=target.parent) as making:
        with (
            lmdb.open(making, map_size=_MAP_BYTES, max_dbs=0, mode=_MODE) as environment,
            environment.begin(write=True) as txn,
        ):
            for key, value in content.items():
                txn.put(key, value)
        (Path(making) / target.name).rename(target)


def require_restorable(directory: Path) -> None:
    """Raises CorruptStorage if the backup in `directory` has copies of several shards."""
    if is_of_several_machines(directory):
        raise CorruptStorage(
            f"{directory} is a backup of a node of several machines ({METADATA_COPY}), whose copies of shards have no "
            "moment in common: no node can be started from it. Read it with fairlog consume --data-dir, or with plain "
            "readers, and write what it has to another cluster"
        )
