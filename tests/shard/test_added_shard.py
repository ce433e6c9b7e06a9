"""A shard that was added: it has no group journals, and coordinates nothing."""

from __future__ import annotations

from pathlib import Path

import trio

from coordinator.answers import Refusal
from shard.placement import Placement
from tests.shard.neighbours import COUNT, log_of, open_cluster


async def test_shard_without_group_journals_serves_and_starts_again(tmp_path: Path) -> None:
    """Transactions of the other one's coordinator have records there, before and after a kill."""
    async with open_cluster(tmp_path / "data", placement=Placement(COUNT, 1)) as cluster:
        with trio.fail_after(20):
            writer = await cluster.writer("w", 0)
            await writer.write({log_of(0): [b"a"], log_of(1): [b"b"]})
            ended = await writer.end()
            assert not isinstance(ended, Refusal), ended
            await cluster.start_again(1, cluster.kill(1))
            again = await cluster.writer("w", 0)
            await again.write({log_of(1): [b"c"]})
            ended = await again.end()
            assert not isinstance(ended, Refusal), ended
