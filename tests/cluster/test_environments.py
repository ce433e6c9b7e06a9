"""Two stores of one process on one directory, as a process that serves two shards has them."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest
import trio

from fairlog.cluster import environments
from fairlog.cluster.embedded import EmbeddedStore
from fairlog_types import ShardNumber


def opened(directory: Path, shard: int) -> EmbeddedStore:
    return EmbeddedStore.open(directory, node_id=1, group_journal_count=2, shards=2, shard=ShardNumber(shard))


async def test_two_stores_of_one_process_see_what_the_other_one_changes(tmp_path: Path) -> None:
    """As those of two processes do; and neither is disturbed when the other one is closed, which may be done twice."""
    EmbeddedStore.prepare(tmp_path, node_id=1, group_journal_count=2, shards=2)
    one, two = opened(tmp_path, 0), opened(tmp_path, 1)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(_create, (one, two)[number % 2], f"topic-{number}")
    for store in (one, two):
        await store.catch_up()
        assert len(store.topics()) == 10
    one.close()
    one.close()
    await _create(two, "one-more")
    two.close()
    again = opened(tmp_path, 0)
    assert (len(again.topics()), again.starts) == (11, 2)
    again.close()


async def _create(store: EmbeddedStore, name: str) -> None:
    await store.create_topic(name, partitions=1, configs={}, now_ms=0)


def test_environment_is_closed_with_its_last_user(tmp_path: Path) -> None:
    """Only then: LMDB takes a second one in the same process for a mistake."""
    first = environments.acquire(tmp_path, lambda: lmdb.open(str(tmp_path)))
    assert environments.acquire(tmp_path / "x" / "..", lambda: pytest.fail("opened twice")) is first
    environments.release(tmp_path)
    with pytest.raises(lmdb.Error, match="already open in this process"):
        lmdb.open(str(tmp_path))
    environments.release(tmp_path)
    lmdb.open(str(tmp_path)).close()
