"""The end of a log, asked for while a commit that was answered waits in its transactional group for another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from partition.modes import JOURNAL, MARKERS, TransactionMode
from shard.ends import AskedEnds, EndRefusal
from tests.shard.asked_owner import AskedOwner
from tests.shard.neighbours import Cluster, open_cluster, shard_of
from tests.shard.waiting_in_group import GROUPED, OWN, let_go, one_waits_for_another


async def ask(cluster: Cluster, wait_s: float) -> AskedEnds:
    shard = cluster.shards[shard_of(OWN)]
    return await AskedEnds.ask(AskedOwner(shard.partitions, shard.coordinator), [OWN], wait_s=wait_s)


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS], ids=["journal", "markers"])
async def test_end_has_a_commit_that_waits_in_its_group(tmp_path: Path, mode: TransactionMode) -> None:
    """It was answered before the question, so the question waits until it is placed."""
    async with open_cluster(tmp_path, settings=GROUPED, mode=mode) as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        await one_waits_for_another(cluster, nursery)
        asked = await ask(cluster, 20.0)
        assert not asked.can_be_read
        nursery.start_soon(release_later, cluster)
        assert await asked.reached(OWN) is None
        end = asked.end(OWN)
        assert end is not None
        assert end >= 1
        assert await cluster.committed(OWN) == [b"first"]


async def test_end_is_refused_if_the_disk_fails_meanwhile(tmp_path: Path) -> None:
    """The commit is placed after a restart: until then no end has it, so none is told."""
    async with open_cluster(tmp_path, settings=GROUPED) as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        await one_waits_for_another(cluster, nursery)
        asked = await ask(cluster, 20.0)
        refusals: list[EndRefusal | None] = []

        async def wait() -> None:
            refusals.append(await asked.reached(OWN))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert refusals == []
        cluster.shards[shard_of(OWN)].partitions.refuse_writes("the disk has failed")
        with trio.fail_after(10):
            while not refusals:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert refusals == [EndRefusal.STORAGE]
        later = await ask(cluster, 20.0)
        assert await later.reached(OWN) is EndRefusal.STORAGE
        let_go(cluster)


async def release_later(cluster: Cluster) -> None:
    await trio.sleep(0.2)
    let_go(cluster)


async def test_end_is_refused_if_that_takes_too_long(tmp_path: Path) -> None:
    """The question may be asked again; no end is told that is too low."""
    async with open_cluster(tmp_path, settings=GROUPED) as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        await one_waits_for_another(cluster, nursery)
        asked = await ask(cluster, 0.3)
        assert await asked.reached(OWN) is EndRefusal.NOT_YET
        let_go(cluster)
        again = await ask(cluster, 20.0)
        assert await again.reached(OWN) is None
        assert again.end(OWN) == 1
