"""Logs of marker mode that members of one transactional group write to: a producer's marker comes before its next."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from partition.modes import MARKERS
from tests.shard.neighbours import open_cluster
from tests.shard.waiting_in_group import GROUPED, OWN, let_go, one_waits_for_another

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_next_transaction_is_not_mixed_with_a_commit_that_waits_in_its_group(
    tmp_path: Path, commits: bool
) -> None:
    """Regression, of seed sinks1.70: its batch stood before the marker of the commit, which then ended both.

    A member of the group cannot prepare yet in the other shard. What commits after it is answered, and waits.
    """
    async with open_cluster(tmp_path, mode=MARKERS, settings=GROUPED) as cluster, trio.open_nursery() as nursery:
        fast = await one_waits_for_another(cluster, nursery)
        ended = trio.Event()

        async def go_on() -> None:
            await fast.write({OWN: [b"second"]})
            assert await fast.end(commit=commits) is None
            ended.set()

        nursery.start_soon(go_on)
        await trio.sleep(0.2)
        let_go(cluster)
        with trio.fail_after(10):
            await ended.wait()
        assert await cluster.committed(OWN) == [b"first", b"second"][: 1 + commits]
