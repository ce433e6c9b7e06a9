"""How the cluster store is changed while no process has it open. Blocking.

For one more shard (`fairlog.cluster.growing`), and for the first user of a node that is not running yet. It counts no
start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import lmdb

from fairlog.cluster import decisions, environments, records
from fairlog.cluster.features import FEATURES
from fairlog.cluster.memory import StoreMemory
from fairlog.cluster.opening import STORE_FILE, begin, content, named, opened, put
from fairlog.config import PROCESSES_MAX
from fairlog.security.access_kind import AccessKind
from fairlog_types import CorruptStorage
from shard.directory import FIRST_SHARD

V = TypeVar("V")


@contextmanager
def changing(directory: Path, node_id: int) -> Generator[tuple[lmdb.Transaction, StoreMemory]]:
    """A transaction in the store in `directory`, committed and synced at the end, and what shard 0 finds in it.

    `node_id` is that of shard 0. The caller holds the data directory. Raises StoreMismatch, CorruptStorage,
    StorageFailure.
    """
    if not (directory / STORE_FILE).exists():
        raise CorruptStorage(f"the cluster store {directory / STORE_FILE} is missing: start the node first")
    environment = opened(directory, PROCESSES_MAX)
    try:
        with named(directory), environment.begin(write=True) as transaction:
            shards = records.decode_shards(content(transaction))
            yield transaction, begin(transaction, directory, node_id, 0, shards, FIRST_SHARD, FEATURES)
    finally:
        environments.release(directory)


def alter_access(
    directory: Path, node_id: int, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
) -> bool:
    """As `ClusterStore.alter_access`, of the store in `directory`. Raises as `changing`, and what `change` raises."""
    with changing(directory, node_id) as (transaction, memory):
        changes, has_changed = decisions.alter_access(memory, kind, change)
        put(transaction, changes)
    return has_changed
