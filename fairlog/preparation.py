"""What is done in a data directory before its shards are opened. All of it blocks.

A node of one shard does it at its start. With several shards the supervisor does it once, before it starts their
processes (`prepare`), which would all do it at the same time. So nothing is imported here that only a serving node
needs.
"""

from __future__ import annotations

import time

import structlog

from fairlog.backup.taking_over import take_over
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.config import ConfigError, Settings
from fairlog.data_directory import CLUSTER, CLUSTER_STORE, is_of_several_machines
from fairlog.interbroker import secret as broker_secret
from fairlog_types import CorruptStorage
from journal.segment import Fsync
from shard.directory import shard_directories

log = structlog.get_logger()


def prepare(settings: Settings) -> None:
    """Make what the processes of several shards share.

    First turns a backup into a data directory. Raises StoreMismatch, CorruptStorage, StorageFailure.
    """
    take_over_backup(settings)
    require_cluster_store(settings)
    EmbeddedStore.prepare(
        settings.data_dir / CLUSTER,
        node_id=settings.node_id,
        group_journal_count=settings.journal.group_journals,
        shards=settings.shards,
        group_separator=settings.transactions.group_separator,
    )
    broker_secret.load_or_make(settings.data_dir)


def take_over_backup(settings: Settings) -> None:
    """If the data directory is a backup, make it one of a node, before anything in it is opened."""
    manifest = take_over(
        settings.data_dir,
        node_id=settings.node_id,
        group_separator=settings.transactions.group_separator,
        map_bytes=settings.datalog.map_bytes,
        fsync=Fsync(settings.journal.fsync),
        now_ms=time.time_ns() // 1_000_000,
    )
    if manifest is not None:
        sinks = None if manifest.sinks is None else len(manifest.sinks)
        log.info("restored from a backup", made_ms=manifest.made_ms, cluster_id=manifest.cluster_id, sinks=sinks)
        if sinks is None:
            log.warning("the backup is of version 1 and knows no sinks: a batch that is replayed is written again")


def require_cluster_store(settings: Settings) -> None:
    """Raises CorruptStorage if there are data logs, but not the store that names them; ConfigError if a node of several
    machines has written the directory."""
    if is_of_several_machines(settings.data_dir):
        raise ConfigError(
            f"{settings.data_dir} is that of a node of several machines, whose journals are on a replicated log: name "
            "that with journal.engine (--journals), or give another data directory"
        )
    store = settings.data_dir / CLUSTER_STORE
    lost = not store.exists() or store.stat().st_size == 0
    if lost and any(shard.data_logs.exists() for shard in shard_directories(settings.data_dir)):
        # The first start makes the store first. Without it, all other data would lie there without a name.
        raise CorruptStorage(f"the cluster store {store} is missing or empty, beside data logs. Put it back.")
