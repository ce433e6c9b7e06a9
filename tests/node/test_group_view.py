"""Consumer groups as the admin listener shows them, over real data logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from datalog.environment import LmdbDataLogs
from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey
from fairlog.admin_http.view import Place
from fairlog.group_view import GroupReader
from fairlog_types import LogId, Offset

TOPIC = UUID(int=7)
GONE = UUID(int=8)
ELSEWHERE = UUID(int=9)


class State(Enum):
    STABLE = "Stable"


@dataclass
class MemoryMembers:
    groups: dict[str, int]

    def known(self) -> Collection[str]:
        return self.groups

    def describe(self, group: str) -> Any:
        if group not in self.groups:
            return None
        return SimpleNamespace(state=State.STABLE, members=(object(),) * self.groups[group])


@pytest.fixture
def data_logs(tmp_path: Path) -> Iterator[LmdbDataLogs]:
    """Offsets of three groups, over two offsets logs."""
    logs = LmdbDataLogs.open(tmp_path, map_bytes=1 << 26)
    with logs.write() as writer:
        for shard, entries in enumerate(
            [[("a", TOPIC, 1, 4), ("a", TOPIC, 0, 9), ("b", GONE, 0, 3)], [("c", TOPIC, 0, 2), ("c", ELSEWHERE, 0, 2)]]
        ):
            writer.create(LogId.of_offsets(shard))
            values = [
                OffsetEntry(OffsetKey(group, topic.hex, partition), CommittedOffset(Offset(offset), -1, "", 0))
                for group, topic, partition, offset in entries
            ]
            writer.put_offsets(LogId.of_offsets(shard), values)
    yield logs
    logs.close()


def place_of(log: LogId) -> Place:
    return Place("orders", log.partition) if log.topic == TOPIC.hex else Place(log.topic, log.partition, deleted=True)


def reader(data_logs: LmdbDataLogs, members: Any, told: Mapping[LogId, Offset] = MappingProxyType({})) -> GroupReader:
    """`told` is what other processes say."""
    there = LogId.of_topic(ELSEWHERE, 0)

    async def high_watermarks_elsewhere(logs: Collection[LogId]) -> Mapping[LogId, Offset]:
        await trio.lowlevel.checkpoint()
        assert set(logs) <= {there}, "who leads the others is not asked"
        return told

    led: dict[LogId, Any] = {
        LogId.of_offsets(0): None,
        LogId.of_offsets(1): None,
        LogId.of_topic(TOPIC, 0): SimpleNamespace(visibility=SimpleNamespace(high_watermark=Offset(10))),
        LogId.of_topic(TOPIC, 1): SimpleNamespace(visibility=SimpleNamespace(high_watermark=Offset(10))),
    }
    return GroupReader(data_logs, led, place_of, members, lambda log: log == there, high_watermarks_elsewhere)


async def test_groups_are_those_with_offsets_and_those_with_members(data_logs: LmdbDataLogs) -> None:
    """By name; one may have either, or both."""
    groups = await reader(data_logs, MemoryMembers({"a": 2, "d": 1}))()
    assert [(group.group, group.state, group.members) for group in groups] == [
        ("a", "Stable", 2), ("b", "Empty", 0), ("c", "Empty", 0), ("d", "Stable", 1),
    ]  # fmt: skip


async def test_lag_is_what_lies_between_the_committed_offset_and_the_end(data_logs: LmdbDataLogs) -> None:
    """By partition, in order; a partition that is gone has none."""
    groups = await reader(data_logs, MemoryMembers({}))()
    assert [(str(each.place.topic), each.place.partition, each.lag) for each in groups[0].partitions] == [
        ("orders", 0, 1), ("orders", 1, 6),
    ]  # fmt: skip
    (gone,) = groups[1].partitions
    assert (gone.place.deleted, gone.high_watermark, gone.lag) == (True, None, 0)


async def test_lag_in_a_partition_that_another_process_leads_is_what_that_one_says(data_logs: LmdbDataLogs) -> None:
    """If it does not answer, the lag is not known, and not taken for none."""
    told = {LogId.of_topic(ELSEWHERE, 0): Offset(7)}
    groups = await reader(data_logs, MemoryMembers({}), told)()
    assert sorted((each.elsewhere, each.lag) for each in groups[2].partitions) == [(False, 8), (True, 5)]
    groups = await reader(data_logs, MemoryMembers({}))()
    assert sorted((each.elsewhere, each.lag) for each in groups[2].partitions) == [(False, 8), (True, None)]


async def test_groups_that_are_many_let_others_run(data_logs: LmdbDataLogs) -> None:
    """Who looks at ten thousand groups must not hold up the producers."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        # What the threads take is a turn for each; so are the groups.
        few = await reader(data_logs, MemoryMembers({}))()
        before = turns
        many = await reader(data_logs, MemoryMembers({f"m{number}": 1 for number in range(1_000)}))()
        nursery.cancel_scope.cancel()
    assert len(many) == len(few) + 1_000
    assert turns - before >= 1_000
