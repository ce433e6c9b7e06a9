"""Logs of marker mode that members of one transactional group write to: a producer's marker comes before its next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from coordinator.settings import CoordinatorSettings
from coordinator.transaction_groups import journal_of
from partition.modes import MARKERS
from tests.shard.neighbours import COUNT, SETTINGS, log_of, open_cluster, shard_of

OWN, OTHER = log_of(0), log_of(1)
GROUP = next(name for name in map(str, range(100)) if journal_of(name, COUNT) == 0)
SLOW, FAST = f"{GROUP}::slow", f"{GROUP}::fast"
GROUPED = replace(SETTINGS, coordinator=CoordinatorSettings(group_separator="::"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_next_transaction_is_not_mixed_with_a_commit_that_waits_in_its_group(
    tmp_path: Path, commits: bool
) -> None:
    """Regression, of seed sinks1.70: its batch stood before the marker of the commit, which then ended both.

    A member of the group cannot prepare yet in the other shard. What commits behind it is answered, and waits.
    """
    async with open_cluster(tmp_path, mode=MARKERS, settings=GROUPED) as cluster, trio.open_nursery() as nursery:
        slow, fast = await cluster.writer(SLOW), await cluster.writer(FAST)
        await slow.write({OTHER: [b"slow"]})
        await fast.write({OWN: [b"first"]})
        cluster.disks[shard_of(OTHER)].hold(f"local/{OTHER}")
        nursery.start_soon(slow.end)
        await trio.sleep(0.2)
        assert await fast.end() is None

        ended = trio.Event()

        async def go_on() -> None:
            await fast.write({OWN: [b"second"]})
            assert await fast.end(commit=commits) is None
            ended.set()

        nursery.start_soon(go_on)
        await trio.sleep(0.2)
        cluster.disks[shard_of(OTHER)].let_go()
        with trio.fail_after(10):
            await ended.wait()
        assert await cluster.committed(OWN) == [b"first", b"second"][: 1 + commits]
