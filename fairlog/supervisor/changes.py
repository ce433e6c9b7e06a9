"""Changes of a node's shards on disk, while those that they are about are not served. Blocking.

The supervisor of a running node makes them when it has halted the shards; `fairlog shard` makes them itself in a data
directory that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairlog.cluster.growing import add_shard
from fairlog.config import Settings
from fairlog.data_directory import CLUSTER
from fairlog.last_run import move_note
from fairlog.supervisor import allotment
from fairlog_types import StorageFailure


def write(settings: Settings, processes: Sequence[int], shards: int) -> None:
    """Give each shard its process. If there are more processes than the `shards` so far, make one more shard.

    Which process a new shard has is written first: what is noted beyond the shards that there are is not read. Raises
    StoreMismatch if there cannot be one more, CorruptStorage, StorageFailure.
    """
    allotment.save(settings.data_dir, processes)
    if len(processes) > shards:
        directory = settings.data_dir / CLUSTER
        add_shard(directory, node_id=settings.node_id, move_note=lambda: _move_note(settings.data_dir))


def _move_note(data_dir: Path) -> None:
    try:
        move_note(data_dir)
    except OSError as error:
        raise StorageFailure(f"cannot move the note of the last run in {data_dir}: {error.strerror}") from error
