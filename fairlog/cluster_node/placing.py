"""Which nodes keep which shards: one node plans, and all carry it out.

    metadata, who is up ──▶ `spread` ──▶ replicas of each shard, in the metadata ──▶ each node: copies come and go
                                         └─ the first one should own it ──▶ its owner hands it over

The owner of shard 0 plans, whenever the metadata change; so does a node at its start, for as long as there is no owner
yet. Two that plan at once do no harm: a plan is made of what the metadata say, and a change that was decided on older
ones is decided again.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog
import trio

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.common_memory import Changes
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster.reports_log import ReportsLog
from fairlog.cluster.spreading import spread
from fairlog_types import ShardNumber, StorageFailure

log = structlog.get_logger("fairlog.placing")

PAUSE_S = 1.0
"""Between two plans: nodes come and go together."""

DOWN_AFTER_S = 600.0
"""A node that was not heard for so long is not expected back: others keep its copies then. Until that, as over a
restart or a repair, the shards have a copy less."""


DEAF_AFTER_S = 30.0
"""A node that has not read a report of its own for so long does not hear the others either."""


class Placing:
    """Plans on behalf of one node."""

    def __init__(self, metadata: MetadataLog, node: NodeNumber, replicas: int, reports: ReportsLog) -> None:
        self._metadata = metadata
        self._node = node
        self._replicas = replicas
        self._reports = reports
        self._deaf_s = trio.current_time()
        """When nothing was heard yet, or not any more."""

    async def plan(self) -> None:
        """Let the shards be kept as they should be. Raises StorageFailure."""
        await self._metadata.change(lambda: (self._changes(), None))

    def _changes(self) -> Changes:
        memory = self._metadata.memory
        if memory.shard(ShardNumber(0)).owner not in (None, self._node):
            return memory.spread({})  # another node has begun to plan
        shards = {shard: memory.shard(shard) for shard in map(ShardNumber, range(memory.shards))}
        plans = spread(self._up(), shards, self._replicas, memory.wishes)
        changed = {shard: plan.replicas for shard, plan in plans.items() if plan.replicas != shards[shard].replicas}
        if changed:
            log.info("shards are placed", nodes={shard: list(nodes) for shard, nodes in changed.items()})
        return memory.spread(changed)

    def _up(self) -> Collection[NodeNumber]:
        """The nodes that count as up: whoever was heard not long ago. At first, and again after a time in which
        nothing was heard, not even this node itself, everybody.
        """
        nodes, now_s = self._metadata.memory.nodes, trio.current_time()
        if self._node not in self._reports.reports.up(DEAF_AFTER_S):
            self._deaf_s = now_s
        if now_s < self._deaf_s + DOWN_AFTER_S:
            return nodes.keys()
        return {node for node in self._reports.reports.up(DOWN_AFTER_S) if node in nodes} | {self._node}

    async def run(self, store: ReplicatedStore) -> None:
        """Plan for as long as this node owns shard 0, or nobody does; until cancelled."""
        while True:
            changed = store.changed()
            owner = self._metadata.memory.shard(ShardNumber(0)).owner
            if owner in (None, self._node):
                try:
                    await self.plan()
                except StorageFailure as failure:
                    log.warning("shards could not be placed", reason=str(failure))
                await self._reports.trim()
            with trio.move_on_after(10 * PAUSE_S):  # who is up changes without the metadata
                await changed.wait()
            await trio.sleep(PAUSE_S)
