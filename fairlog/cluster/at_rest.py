"""How a table of who may do what is changed while no process has the cluster store open. Blocking.

For the first user of a node that is not running yet. It counts no start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from fairlog.cluster import decisions, environments, records
from fairlog.cluster.features import FEATURES
from fairlog.cluster.opening import STORE_FILE, begin, content, named, opened, put
from fairlog.config import PROCESSES_MAX
from fairlog.security.access_kind import AccessKind
from fairlog_types import CorruptStorage
from shard.directory import FIRST_SHARD

V = TypeVar("V")


def alter_access(
    directory: Path, node_id: int, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
) -> bool:
    """As `ClusterStore.alter_access`, of the store in `directory`. The caller holds the data directory.

    `node_id` is that of shard 0. Raises StoreMismatch, CorruptStorage, StorageFailure, and what `change` raises.
    """
    if not (directory / STORE_FILE).exists():
        raise CorruptStorage(f"the cluster store {directory / STORE_FILE} is missing: start the node first")
    environment = opened(directory, PROCESSES_MAX)
    try:
        with named(directory), environment.begin(write=True) as transaction:
            shards = records.decode_shards(content(transaction))
            memory = begin(transaction, directory, node_id, 0, shards, FIRST_SHARD, FEATURES)
            changes, has_changed = decisions.alter_access(memory, kind, change)
            put(transaction, changes)
    finally:
        environments.release(directory)
    return has_changed
