"""Two members of one transactional group: the commit of one waits, although it was answered, for that of the other."""

from __future__ import annotations

from dataclasses import replace

import trio

from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState
from coordinator.transaction_groups import journal_of
from tests.shard.neighbours import COUNT, SETTINGS, Cluster, Writer, log_of, shard_of

OWN, OTHER = log_of(0), log_of(1)
"""The logs of the group's coordinator and of the other shard."""
GROUP = next(name for name in map(str, range(100)) if journal_of(name, COUNT) == 0)
SLOW, FAST = f"{GROUP}::slow", f"{GROUP}::fast"
GROUPED = replace(SETTINGS, coordinator=CoordinatorSettings(group_separator="::"))


async def one_waits_for_another(cluster: Cluster, nursery: trio.Nursery) -> Writer:
    """FAST, which has committed b"first" to OWN; SLOW, before it in the group, cannot prepare until `let_go`."""
    slow, fast = await cluster.writer(SLOW), await cluster.writer(FAST)
    await slow.write({OTHER: [b"slow"]})
    await fast.write({OWN: [b"first"]})
    cluster.disks[shard_of(OTHER)].hold(f"local/{OTHER}")
    nursery.start_soon(slow.end)
    with trio.fail_after(10):
        while (told := cluster.coordinator(0).describe(SLOW)) is None or told.state != IdState.PREPARING.name:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert await fast.end() is None
    return fast


def let_go(cluster: Cluster) -> None:
    """SLOW can prepare."""
    cluster.disks[shard_of(OTHER)].let_go()
