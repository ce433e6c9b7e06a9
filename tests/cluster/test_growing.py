"""A store that gets one shard more, and one more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlog.cluster.embedded import EmbeddedStore, StoreMismatch
from fairlog.cluster.growing import add_shard
from fairlog.cluster.restored import continue_restored
from fairlog.config import PROCESSES_MAX
from fairlog.data_directory import LAST_RUN
from fairlog.last_run import LastRun, move_note
from fairlog_types import LeaderEpoch, ShardNumber
from shard.directory import shard_directory


def opened(directory: Path, shards: int, shard: int = 0) -> EmbeddedStore:
    return EmbeddedStore.open(directory, node_id=1, group_journal_count=16, shards=shards, shard=ShardNumber(shard))


def grow(directory: Path) -> int:
    return add_shard(directory, node_id=1, move_note=lambda: None)


async def test_store_that_grows_keeps_every_log_in_its_place(tmp_path: Path) -> None:
    """Also those of partitions that come later; a new topic is spread over all shards there are."""
    directory = tmp_path / "cluster"
    store = opened(directory, 1)
    topics = {(await store.create_topic("of-1", partitions=3, configs={}, now_ms=0)).topic_id: {0}}
    await store.note_group_journals_begun()
    epochs, given = [store.starts], [await store.allot_producer_ids(10)]
    store.close()
    for shards in (2, 3):
        assert grow(directory) == shards
        store = opened(directory, shards)
        try:
            assert store.group_journals_begun
            epochs.append(store.starts)
            given.append(await store.allot_producer_ids(10))
            await store.add_partitions("of-1", 3 * shards)
            topic = await store.create_topic(f"of-{shards}", partitions=6, configs={}, now_ms=0)
            topics[topic.topic_id] = set(range(shards))
            for topic_id, over in topics.items():
                known = store.topic_by_id(topic_id)
                assert known is not None
                assert {store.shard_of(log) for log in known.logs()} == over
                assert {leader.node_id - 1 for leader in store.leaders(known)} == over
            assert store.placement.at_first == 1
        finally:
            store.close()
    assert epochs == [1, 2, 3]
    assert [each.start for each in given] == [0, 10, 20]


def test_more_shards_than_there_may_be_are_refused(tmp_path: Path) -> None:
    """Nothing is written."""
    directory = tmp_path / "cluster"
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=64, shards=PROCESSES_MAX - 1)
    assert grow(directory) == PROCESSES_MAX
    with pytest.raises(StoreMismatch, match="add none"):
        grow(directory)


async def test_separator_of_groups_is_fixed_when_a_store_of_two_shards_is_prepared(tmp_path: Path) -> None:
    """One shard alone may have had others before."""
    directory = tmp_path / "cluster"
    opened(directory, 1).close()
    assert grow(directory) == 2
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=2, group_separator="::")
    with pytest.raises(StoreMismatch, match="have the group separator '::'"):
        EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=2, group_separator="-")


async def test_restored_store_that_has_grown_keeps_every_log_in_its_place(tmp_path: Path) -> None:
    """So a backup finds its topics and its group journals in the shards that it has copied."""
    directory = tmp_path / "cluster"
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=2)
    store = opened(directory, 2)
    before = await store.create_topic("before", partitions=6, configs={}, now_ms=0)
    store.close()
    assert grow(directory) == 3
    store = opened(directory, 3)
    later = await store.create_topic("later", partitions=6, configs={}, now_ms=0)
    places = [store.shard_of(log) for topic in (before, later) for log in topic.logs()]
    placement = store.placement
    store.close()
    content = continue_restored(directory, now_ms=1_800_000_000_000)
    assert content.placement == placement
    store = opened(directory, 3, 2)
    assert [store.shard_of(log) for topic in (before, later) for log in topic.logs()] == places
    assert placement.group_journals(ShardNumber(2), 16) == range(0)
    assert store.starts == 1_800_000_000_000 // 60_000 + 1
    store.close()


def test_note_moves_once_and_is_never_wrongly_good(tmp_path: Path) -> None:
    """After a crash before the shard is added, the one shard finds no note; what it says then counts."""
    shard = shard_directory(tmp_path, ShardNumber(0))
    shard.journals.mkdir(parents=True)
    alone = LastRun.read(tmp_path)
    alone.begin(LeaderEpoch(1))
    alone.end()
    move_note(tmp_path)
    move_note(tmp_path)
    assert not (tmp_path / LAST_RUN).exists()
    assert LastRun.read(tmp_path, shard).tail_kept
    again = LastRun.read(tmp_path)
    assert not again.tail_kept
    again.tail_cut(interrupted=False)
    move_note(tmp_path)
    assert not LastRun.read(tmp_path, shard).tail_kept
