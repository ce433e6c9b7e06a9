"""What a partition says before it is written to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from fairlog_types import LogId, StorageFailure
from partition.partition import Partition

ROOM_BYTES, BACKLOG_BYTES = 1_000, 500


def partition() -> tuple[Partition, Any]:
    """With room for so many bytes in its journal, and for fewer in the copier's backlog; and its shard."""
    state: Any = SimpleNamespace(log=LogId.of_topic(UUID(int=1), 0))
    journal: Any = SimpleNamespace(has_room=lambda payload_bytes: payload_bytes <= ROOM_BYTES)
    shard: Any = SimpleNamespace(failure=None, is_copier_behind=lambda payload_bytes: payload_bytes > BACKLOG_BYTES)
    unused: Any = None
    return Partition(state, journal, unused, unused, shard), shard


def test_batch_has_place_if_journal_and_copier_have_room_for_it() -> None:
    """Else it waits, or is refused."""
    it, shard = partition()
    assert it.has_place(BACKLOG_BYTES)
    assert not it.has_place(BACKLOG_BYTES + 1), "the copier is behind"
    shard.is_copier_behind = lambda _payload_bytes: False
    assert it.has_place(ROOM_BYTES)
    assert not it.has_place(ROOM_BYTES + 1), "the journal has no room"


def test_no_batch_has_place_where_nothing_is_written() -> None:
    """In a log that is being deleted, or a shard that has failed."""
    gone, _ = partition()
    gone.has_gone = True
    assert not gone.has_place(1)
    failed, shard = partition()
    shard.failure = StorageFailure("the disk has failed")
    assert not failed.has_place(1)
