"""Batches of a sink whose coordinator is in one shard and whose lanes have logs in two, over a way that loses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from coordinator.lane_ids import group_of_sink
from coordinator.sinks.committing import Committing
from coordinator.sinks.messages import BatchCommitted, CommitBatch, Lane, LaneGranted, SinkRefusal, SinkRefused, Winner
from coordinator.transaction_groups import journal_of
from fairlog_types import LogId, ShardNumber
from journal.journal import NoFiles
from tests.shard.neighbours import COUNT, Cluster, log_of, open_cluster, shard_of

OWN, OTHER = log_of(0), log_of(1)
SINK = next(name for name in map(str, range(100)) if journal_of(group_of_sink(name), COUNT) == 0)
LANES = 2
WINNERS = tuple(Winner(partition, 0, 3) for partition in range(LANES))
NOTHING: dict[LogId, list[bytes]] = {OWN: [], OTHER: []}

pytestmark = pytest.mark.slow


async def write(cluster: Cluster, batch: int, run: str = "r") -> None:
    """Two lanes, each with a record in the own log and two in the other one."""
    for partition in range(LANES):
        granted = await cluster.coordinator(0).join_batch(Lane(SINK, "q", run, batch, partition, 0))
        assert isinstance(granted, LaneGranted), granted
        writer = await cluster.writer(granted.transactional_id)
        await writer.write({OWN: [b"a"], OTHER: [b"b", b"c"]})


async def commit(cluster: Cluster, batch: int, run: str = "r") -> BatchCommitted | SinkRefused:
    with trio.fail_after(20):
        return await cluster.coordinator(0).commit_batch(CommitBatch(SINK, "q", run, batch, WINNERS))


def times(count: int) -> dict[LogId, list[bytes]]:
    """What so many batches leave."""
    return {OWN: [b"a"] * LANES * count, OTHER: [b"b", b"c"] * LANES * count}


@pytest.mark.parametrize("seed", range(3))
async def test_batch_over_shards_is_placed_in_both(tmp_path: Path, seed: int) -> None:
    """Its places are of both; asked for again, it is the same batch."""
    async with open_cluster(tmp_path, seed=seed) as cluster:
        for batch in range(3):
            await write(cluster, batch)
            done = await commit(cluster, batch)
            assert isinstance(done, BatchCommitted), done
            assert {(it.log, it.base_offset, it.count) for it in done.placements} == {
                (OWN, LANES * batch, LANES),
                (OTHER, 2 * LANES * batch, 2 * LANES),
            }
            assert await commit(cluster, batch) == BatchCommitted(batch, done.placements, already=True)
        assert await cluster.values(OWN, OTHER) == times(3)


async def test_another_count_is_refused_before_anything_is_decided(tmp_path: Path) -> None:
    """Both shards have prepared by then; what they hold is discarded, and the batch can be written again."""
    async with open_cluster(tmp_path) as cluster:
        await write(cluster, 0)
        wrong = CommitBatch(SINK, "q", "r", 0, (Winner(0, 0, 3), Winner(1, 0, 2)))
        refused = await cluster.coordinator(0).commit_batch(wrong)
        assert isinstance(refused, SinkRefused)
        assert refused.why is SinkRefusal.WRONG_COUNT
        await write(cluster, 0)
        assert isinstance(await commit(cluster, 0), BatchCommitted)
        assert await cluster.values(OWN, OTHER) == times(1)


@pytest.mark.parametrize("deleted", [OWN, OTHER], ids=["own", "other"])
async def test_batch_goes_without_a_log_that_is_deleted_meanwhile(tmp_path: Path, deleted: LogId) -> None:
    """What it has held is counted by nobody, and the other logs do not suffer, whichever shard has led it."""
    async with open_cluster(tmp_path) as cluster:
        await write(cluster, 0)
        await cluster.shards[shard_of(deleted)].drop([deleted])
        done = await commit(cluster, 0)
        assert isinstance(done, BatchCommitted), done
        (left,) = {OWN, OTHER} - {deleted}
        assert {it.log for it in done.placements} == {left}
        assert await cluster.values(left) == {left: times(1)[left]}


async def test_want_of_files_after_the_counts_aborts_the_batch_and_refuses_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other shards count, other commits may take the room that was made. The next try is good."""
    async with open_cluster(tmp_path) as cluster:
        await write(cluster, 0)
        make_room = Committing._make_room
        calls = [0]

        async def without_files(*arguments: Any) -> None:
            calls[0] += 1
            if calls[0] == 2:
                raise NoFiles("too many open files")
            await make_room(*arguments)

        monkeypatch.setattr(Committing, "_make_room", without_files)
        refused = await commit(cluster, 0)
        assert isinstance(refused, SinkRefused)
        assert refused.why is SinkRefusal.LANE_ABORTED
        assert "too many open files" in refused.sentence
        assert calls == [2]
        assert cluster.shards[ShardNumber(0)].failure is None
        await write(cluster, 0)
        assert isinstance(await commit(cluster, 0), BatchCommitted)
        assert await cluster.values(OWN, OTHER) == times(1)


@pytest.mark.parametrize("killed", range(COUNT))
async def test_committed_batch_is_there_after_either_shard_was_killed(tmp_path: Path, killed: int) -> None:
    """At the same places, and the next one follows it."""
    async with open_cluster(tmp_path / "data") as cluster:
        await write(cluster, 0)
        done = await commit(cluster, 0)
        assert isinstance(done, BatchCommitted), done
        await cluster.start_again(killed, cluster.kill(killed))
        assert await commit(cluster, 0, "r2") == BatchCommitted(0, done.placements, already=True)
        await write(cluster, 1, "r2")
        assert isinstance(await commit(cluster, 1, "r2"), BatchCommitted)
        assert await cluster.values(OWN, OTHER) == times(2)


async def test_other_shard_killed_while_it_prepares_prepares_again(tmp_path: Path) -> None:
    """The commit waits for it, and is answered when it has been started again."""
    async with open_cluster(tmp_path / "data") as cluster:
        await write(cluster, 0)
        cluster.disks[ShardNumber(1)].hold(f"local/{OTHER}")
        answers: list[object] = []

        async def end() -> None:
            answers.append(await commit(cluster, 0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await trio.sleep(0.3)
            assert answers == []
            await cluster.start_again(1, cluster.kill(1))
        (done,) = answers
        if isinstance(done, SinkRefused):  # it was open when it was killed, and a count may have come too late
            assert done.why is SinkRefusal.LANE_ABORTED
            await write(cluster, 0)
            assert isinstance(await commit(cluster, 0), BatchCommitted)
        assert await cluster.values(OWN, OTHER) == times(1)


async def test_batch_is_forgotten_if_its_coordinator_is_killed_before_the_decision(tmp_path: Path) -> None:
    """The other shard has PREPARED and lives on: it is told that nobody knows of it, and discards it."""
    async with open_cluster(tmp_path / "data") as cluster:
        await write(cluster, 0)
        cluster.way.cut.add((ShardNumber(1), ShardNumber(0)))  # the counts do not arrive
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(cluster.coordinator(0).commit_batch, CommitBatch(SINK, "q", "r", 0, WINNERS)))
            await trio.sleep(0.2)
            left = cluster.kill(0)
            nursery.cancel_scope.cancel()
            cluster.running[ShardNumber(0)].shard.close_links()  # what waits is shielded
        cluster.way.cut.clear()
        await cluster.start_again(0, left)
        assert await cluster.values(OWN, OTHER) == NOTHING
        await write(cluster, 0, "r2")
        assert isinstance(await commit(cluster, 0, "r2"), BatchCommitted)
        assert await cluster.values(OWN, OTHER) == times(1)


async def test_batch_in_doubt_is_committed_by_the_next_start_of_its_coordinator(tmp_path: Path) -> None:
    """SINK_PREPARE_COMMIT is written, and nothing placed in the other shard when both are killed."""
    async with open_cluster(tmp_path / "data", copying=False) as cluster:
        await write(cluster, 0)
        with trio.move_on_after(1.0):  # nothing is copied, so nothing is answered
            await cluster.coordinator(0).commit_batch(CommitBatch(SINK, "q", "r", 0, WINNERS))
        left = cluster.crash(tmp_path / "left")
    async with open_cluster(left, starts=2) as cluster:
        done = await commit(cluster, 0, "r2")
        assert isinstance(done, BatchCommitted)
        assert done.already
        assert sum(it.count for it in done.placements) == 3 * LANES
        assert await cluster.values(OWN, OTHER) == times(1)
