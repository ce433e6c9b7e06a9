"""How a data directory gets one more shard, while no process has its cluster store open.

One synced LMDB transaction writes all of it, so a crash leaves the old number of shards or the new one. The new shard
has no record of its own before its first start. Nothing else changes its place (`shard.placement`).

One shard counts its starts under `starts`; of several each has a record. So shard 0 takes its starts with it: leader
epochs never go back. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairlog.cluster import records
from fairlog.cluster.at_rest import changing
from fairlog.cluster.opening import StoreMismatch, put
from fairlog.config import PROCESSES_MAX
from journal.failpoints import reach
from shard.directory import FIRST_SHARD


def add_shard(directory: Path, *, node_id: int, move_note: Callable[[], None]) -> int:
    """Add a shard to the store in `directory`, durably; answers how many there are then.

    `node_id` is that of shard 0. From one shard to two, `move_note` is called before this is committed, and not if the
    shard is refused (`fairlog.last_run.move_note`); the next `EmbeddedStore.prepare` fixes the group separator. Raises
    StoreMismatch if there cannot be one more, CorruptStorage, StorageFailure, and what `move_note` raises.
    """
    with changing(directory, node_id) as (transaction, memory):
        shards = memory.shards
        if shards == PROCESSES_MAX:
            raise StoreMismatch(f"there are {shards} shards already, which is the most there may be: add none")
        if shards == 1:
            move_note()
            put(transaction, {records.shard_key(FIRST_SHARD): records.encode_shard(memory.record_of(FIRST_SHARD))})
            transaction.delete(records.GROUP_JOURNALS_BEGUN_KEY)
        if memory.first_shards is None:
            transaction.put(records.FIRST_SHARDS_KEY, records.encode_count(shards))
        version = max(records.GROWN_VERSION, records.decode_format(memory.raw[records.FORMAT_KEY]))
        transaction.put(records.FORMAT_KEY, records.encode_format(version))
        transaction.put(records.SHARDS_KEY, records.encode_count(shards + 1))
        reach("shards.add.before_commit")
    reach("shards.add.after_commit")
    return shards + 1
