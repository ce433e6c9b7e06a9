"""When copies of shards are given to other nodes, and when not: what counts as gone."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster_node.placing import DOWN_AFTER_S, Placing
from fairlog_types import LeaderEpoch, ShardNumber
from tests.cluster.replicated_nodes import ONE, THREE, TWO, Nodes, node_record
from tests.stream.model_engine import open_model


class Heard:
    """When each node was heard last. What `Placing` uses of a `ReportsLog`, and of its `Reports`."""

    def __init__(self) -> None:
        self._at_s: dict[NodeNumber, float] = {}

    def hear(self, *nodes: NodeNumber) -> None:
        self._at_s |= dict.fromkeys(nodes, trio.current_time())

    @property
    def reports(self) -> Heard:
        return self

    def up(self, max_age_s: float) -> list[NodeNumber]:
        return [node for node, at_s in self._at_s.items() if trio.current_time() - at_s <= max_age_s]


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """It goes on by itself, too: the log waits for threads."""
    mock_clock.rate = 1.0
    return mock_clock


@pytest.fixture
async def log(tmp_path: Path, clock: MockClock) -> AsyncIterator[MetadataLog]:
    """Of a cluster of three nodes."""
    async with open_model(random.Random(1)) as cluster, Nodes(tmp_path, cluster).log("node-1") as log:
        for number in (ONE, TWO, THREE):
            await ReplicatedStore(log, number, ShardNumber(0)).announce(node_record(f"{number}.example"))
        yield log


def placed(log: MetadataLog) -> Mapping[int, Sequence[NodeNumber]]:
    return {shard: log.memory.shard(ShardNumber(shard)).replicas for shard in range(3)}


async def test_others_keep_the_copies_of_a_node_that_is_not_heard_for_ten_minutes(
    log: MetadataLog, clock: MockClock
) -> None:
    """Not before: a restart takes less."""
    heard = Heard()
    placing = Placing(log, ONE, 2, heard)  # type: ignore[arg-type]
    heard.hear(ONE, TWO, THREE)
    await placing.plan()
    before = placed(log)
    assert any(THREE in nodes for nodes in before.values())
    clock.jump(DOWN_AFTER_S - 20)
    heard.hear(ONE, TWO)
    await placing.plan()
    assert placed(log) == before
    clock.jump(21)
    await placing.plan()
    assert all({*nodes[:2]} == {ONE, TWO} for nodes in placed(log).values())


async def test_time_without_the_engine_moves_no_copy(log: MetadataLog, clock: MockClock) -> None:
    """Nobody is heard then, not even this node itself. Who is gone shows ten minutes after the reports are back."""
    heard = Heard()
    placing = Placing(log, ONE, 2, heard)  # type: ignore[arg-type]
    heard.hear(ONE, TWO, THREE)
    await placing.plan()
    before = placed(log)
    clock.jump(DOWN_AFTER_S + 1)
    await placing.plan()
    heard.hear(ONE)
    await placing.plan()
    assert placed(log) == before
    clock.jump(DOWN_AFTER_S + 1)
    heard.hear(ONE, TWO)
    await placing.plan()
    assert all({*nodes[:2]} == {ONE, TWO} for nodes in placed(log).values())


async def test_who_does_not_own_the_first_shard_any_more_plans_nothing(log: MetadataLog, clock: MockClock) -> None:
    """A node that stood still finds that another one plans by now."""
    heard = Heard()
    placing = Placing(log, ONE, 2, heard)  # type: ignore[arg-type]
    heard.hear(ONE, TWO, THREE)
    await ReplicatedStore(log, TWO, ShardNumber(0)).publish_owner(LeaderEpoch(1), [TWO])
    before = placed(log)
    await placing.plan()
    assert placed(log) == before


async def test_shard_that_is_wished_for_is_placed_first_at_that_node_until_the_wish_is_taken_back(
    log: MetadataLog, clock: MockClock
) -> None:
    """Also while the node is away for a moment, but not when it is gone."""
    heard = Heard()
    placing = Placing(log, ONE, 2, heard)  # type: ignore[arg-type]
    heard.hear(ONE, TWO, THREE)
    await placing.plan()
    store, shard = ReplicatedStore(log, ONE, ShardNumber(0)), ShardNumber(1)
    for wished in (THREE, TWO):
        await store.wish(shard, wished)
        await placing.plan()
        assert placed(log)[shard][0] == wished
    clock.jump(DOWN_AFTER_S - 20)
    heard.hear(ONE, THREE)
    await placing.plan()
    assert placed(log)[shard][0] == TWO
    clock.jump(21)
    await placing.plan()
    assert {*placed(log)[shard][:2]} == {ONE, THREE}
    heard.hear(ONE, TWO, THREE)
    await placing.plan()
    assert placed(log)[shard][0] == TWO
    await store.wish(shard, None)
    await placing.plan()
    load = [node for nodes in placed(log).values() for node in nodes[:2]]
    assert {load.count(node) for node in (ONE, TWO, THREE)} == {2}
