"""Nodes report to each other over real brokers, and the stream of reports is trimmed."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from fairlog.cluster import reports_log
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.reports_log import ReportsLog
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyProgress, Role
from stream.engine import StreamPosition
from stream.fold import FoldState
from tests.stream.rigs import KafkaRig, World

pytestmark = pytest.mark.slow

CLUSTER, SHARD = UUID(int=5), ShardNumber(3)


def test_nodes_hear_each_other_and_old_reports_are_trimmed(
    three_replicas: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that changes is heard long before the next time."""
    monkeypatch.setattr(reports_log, "KEPT_S", 2.0)

    async def trial(world: World) -> None:
        copies = {SHARD: CopyProgress()}
        async with world.open_engine("a") as one, world.open_engine("b") as two:
            first = ReportsLog(await one.open_stream("reports"), CLUSTER, NodeNumber(1), bytes(16), {})
            stream = await two.open_stream("reports")
            second = ReportsLog(stream, CLUSTER, NodeNumber(2), bytes(16), copies, every_s=60.0)
            copies[SHARD] = CopyProgress(second.report_now)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run)
                nursery.start_soon(second.run)
                with trio.fail_after(30):
                    while NodeNumber(1) not in second.reports.up(60.0):  # noqa: ASYNC110
                        await trio.sleep(0.05)
                    while NodeNumber(1) not in first.reports.up(60.0):  # noqa: ASYNC110
                        await trio.sleep(0.05)
                    copies[SHARD].opens(lambda: FoldState(StreamPosition(70), LeaderEpoch(4)))
                    while not first.reports.of(SHARD):  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    (found,) = first.reports.of(SHARD).values()
                    assert (found.role, found.epoch, found.taken) == (Role.OPENING, 4, 70)
                    while await stream.start() == 0:
                        await trio.sleep(0.5)
                        await first.trim()
                nursery.cancel_scope.cancel()

    three_replicas.run(trial)
