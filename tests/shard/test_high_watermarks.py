"""How far the logs of other shards can be read, as these say, and without those that do not answer."""

from __future__ import annotations

from pathlib import Path

import trio

from fairlog_types import LogId, ShardNumber
from shard.high_watermarks import WAIT_S, FindHighWatermarks
from tests.shard.neighbours import Cluster, log_of, open_cluster
from tests.shard.test_cutting import is_command

OWN, OTHER, GONE = log_of(0), log_of(1), log_of(1, 7)


async def told(cluster: Cluster) -> dict[LogId, int]:
    """To shard 0."""
    with trio.fail_after(20):
        return dict(await cluster.shards[ShardNumber(0)].high_watermarks_elsewhere((OWN, OTHER, GONE)))


async def test_other_shard_tells_how_far_its_logs_can_be_read(tmp_path: Path) -> None:
    """Of its own logs nobody is asked, and one that is not led there is left out."""
    async with open_cluster(tmp_path) as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("w")
        await writer.write({OWN: [b"a"], OTHER: [b"a", b"b"]})
        assert await writer.end() is None
        await cluster.values(OTHER)
        assert await told(cluster) == {OTHER: 2}


async def test_shard_that_is_down_is_left_out_after_a_moment_and_not_asked_more(tmp_path: Path) -> None:
    """The one question is said again until it is back; then it is asked again."""
    async with open_cluster(tmp_path) as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("w")
        await writer.write({OTHER: [b"a"]})
        assert await writer.end() is None
        await cluster.values(OTHER)
        left = cluster.kill(1)
        began_s = trio.current_time()
        assert await told(cluster) == {}
        assert WAIT_S <= trio.current_time() - began_s < WAIT_S + 5
        began_s = trio.current_time()
        assert await told(cluster) == {}
        assert trio.current_time() - began_s < WAIT_S
        bodies = {message.number for _, _, message in cluster.way.carried if is_command(message, FindHighWatermarks)}
        assert len(bodies) == 1
        await cluster.start_again(1, left)
        with trio.fail_after(20):
            while await told(cluster) != {OTHER: 1}:  # noqa: ASYNC110 - what was asked before is answered first
                await trio.sleep(0.05)
