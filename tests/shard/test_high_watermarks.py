"""How far the logs of other shards can be read, as these say, and without those that do not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fairlog_types import LogId, ShardNumber
from shard import high_watermarks
from shard.high_watermarks import WAIT_S, FindHighWatermarks
from tests.shard.neighbours import Cluster, log_of, open_cluster
from tests.shard.test_cutting import is_command

OWN, OTHER, GONE = log_of(0), log_of(1), log_of(1, 7)


async def told(cluster: Cluster) -> dict[LogId, int]:
    """To shard 0."""
    with trio.fail_after(20):
        return dict(await cluster.shards[ShardNumber(0)].high_watermarks_elsewhere((OWN, OTHER, GONE)))


async def copied(cluster: Cluster, counts: dict[LogId, int]) -> None:
    """Return once so many records can be read: a commit is answered before all shards have heard of it."""
    with trio.fail_after(20):
        while {log: len(values) for log, values in (await cluster.values(*counts)).items()} != counts:  # noqa: ASYNC110 - several shards
            await trio.sleep(0.01)


async def test_other_shard_tells_how_far_its_logs_can_be_read(tmp_path: Path) -> None:
    """Of its own logs nobody is asked, and one that is not led there is left out."""
    async with open_cluster(tmp_path) as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("w")
        await writer.write({OWN: [b"a"], OTHER: [b"a", b"b"]})
        assert await writer.end() is None
        await copied(cluster, {OTHER: 2})
        assert await told(cluster) == {OTHER: 2}


async def test_shard_that_is_down_is_left_out_after_a_moment_and_not_asked_more(tmp_path: Path) -> None:
    """The one question is said again until it is back; then it is asked again."""
    async with open_cluster(tmp_path) as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("w")
        await writer.write({OTHER: [b"a"]})
        assert await writer.end() is None
        await copied(cluster, {OTHER: 1})
        left = cluster.kill(1)
        began_s = trio.current_time()
        assert await told(cluster) == {}
        assert WAIT_S <= trio.current_time() - began_s < WAIT_S + 5
        assert await told(cluster) == {}
        questions = {message.number for _, _, message in cluster.way.carried if is_command(message, FindHighWatermarks)}
        assert len(questions) == 1
        await cluster.start_again(1, left)
        with trio.fail_after(20):
            while await told(cluster) != {OTHER: 1}:  # noqa: ASYNC110 - what was asked before is answered first
                await trio.sleep(0.05)


async def test_many_logs_are_asked_about_in_several_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are told."""
    monkeypatch.setattr(high_watermarks, "LOGS_PER_QUESTION", 2)
    logs = [log_of(1, number) for number in range(5)]
    async with open_cluster(tmp_path, logs_each=len(logs)) as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("w")
        await writer.write({log: [b"a"] * number for number, log in enumerate(logs)})
        assert await writer.end() is None
        await copied(cluster, {log: number for number, log in enumerate(logs)})
        with trio.fail_after(20):
            found = await cluster.shards[ShardNumber(0)].high_watermarks_elsewhere(logs)
        assert found == {log: number for number, log in enumerate(logs)}
        questions = {message.number for _, _, message in cluster.way.carried if is_command(message, FindHighWatermarks)}
        assert len(questions) == 3
