"""The owner of a shard trims its stream, while reports come and the engine goes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID

import trio
from trio.testing import MockClock

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.report_entry import Report, encode_report
from fairlog.cluster.reports import Reports
from fairlog.cluster.trimming import TRIM_EVERY_S, keep_trimmed
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyReport, Role
from stream.engine import StoredEntry, StreamPosition
from tests.stream.model_engine import open_model

CLUSTER, SHARD = UUID(int=5), ShardNumber(3)
ONE, TWO, THREE = map(NodeNumber, (1, 2, 3))


def synced(reports: Reports, number: int, marks: Mapping[NodeNumber, int]) -> None:
    for node, mark in marks.items():
        copy = CopyReport(Role.REPLICA, LeaderEpoch(1), StreamPosition(99), StreamPosition(mark))
        reports.take(
            [StoredEntry(StreamPosition(0), encode_report(CLUSTER, Report(node, bytes(16), number, {SHARD: copy})))]
        )


async def test_stream_is_trimmed_as_marks_move_and_members_change(autojump_clock: MockClock) -> None:
    async with open_model(random.Random(0)) as cluster, trio.open_nursery() as nursery:
        stream = await cluster.engine("a").open_stream("shard-3")
        for _ in range(100):
            cluster.land("shard-3", b"entry")
        reports = Reports(CLUSTER, trio.current_time)
        mark, members = StreamPosition(50), [ONE, TWO]

        async def start_after_a_while() -> int:
            await trio.sleep(2 * TRIM_EVERY_S)
            return await stream.start()

        async def trim() -> None:
            await keep_trimmed(stream, SHARD, ONE, reports, mark=lambda: mark, members=lambda: members, replicas=2)

        nursery.start_soon(trim)
        assert await start_after_a_while() == 0
        synced(reports, 1, {TWO: 20, THREE: 40})
        assert await start_after_a_while() == 20
        members.append(THREE)
        assert await start_after_a_while() == 40
        synced(reports, 2, {TWO: 70})
        assert await start_after_a_while() == 50
        mark = StreamPosition(60)
        cluster.go_away()
        await trio.sleep(60)
        cluster.come_back()
        assert await start_after_a_while() == 60
        nursery.cancel_scope.cancel()
