"""Where tests find what a node of one shard has written, and how they make two shards of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb

from datalog.environment import LmdbDataLogs
from fairlog.cluster import records
from fairlog.data_directory import CLUSTER, LAST_RUN
from fairlog_types import LogId, ShardNumber
from shard.directory import FIRST_SHARD, ShardDirectory, shard_directory

MAP_BYTES = 1 << 28


def shard_in(data_dir: Path) -> ShardDirectory:
    """The shard of a data directory or backup, which need not exist."""
    return shard_directory(data_dir, FIRST_SHARD)


def split_in_two(data_dir: Path) -> tuple[ShardDirectory, ShardDirectory]:
    """Deal out what a stopped node has: odd partitions, offsets logs and group journals go to a second shard."""
    shards = shard_in(data_dir), shard_directory(data_dir, ShardNumber(1))
    shutil.copytree(shards[0].path, shards[1].path)
    if (note := data_dir / LAST_RUN).exists():
        for shard in shards:
            shutil.copyfile(note, shard.path / LAST_RUN)
        note.unlink()
    _note_two_shards(data_dir)
    for shard in shards:
        logs = LmdbDataLogs.open(shard.data_logs, map_bytes=MAP_BYTES)
        with logs.write() as writer:
            for log in logs.logs():
                if log.partition % 2 != shard.number:
                    writer.drop(log)
        logs.sync()
        logs.close()
        for journal in list(shard.local_journals.iterdir()):
            if LogId.parse(journal.name).partition % 2 != shard.number:
                shutil.rmtree(journal)
        for journal in list(shard.group_journals.iterdir()):
            if int(journal.name) % 2 != shard.number:
                shutil.rmtree(journal)
    return shards


def _note_two_shards(data_dir: Path) -> None:
    """As the cluster store would have them."""
    with lmdb.open(str(data_dir / CLUSTER)) as store, store.begin(write=True) as txn:
        starts = records.decode_count(bytes(txn.get(records.STARTS_KEY)), "starts")
        begun = txn.delete(records.GROUP_JOURNALS_BEGUN_KEY)
        txn.put(records.SHARDS_KEY, records.encode_count(2))
        for number in range(2):
            value = records.encode_shard(records.ShardRecord(starts, begun))
            txn.put(records.shard_key(ShardNumber(number)), value)
