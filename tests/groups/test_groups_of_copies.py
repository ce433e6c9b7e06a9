"""A shard's groups on every copy of it: its next owner goes on with their members. On a model of the engine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from datalog.offset_entries import name_digest
from fairlog.groups.committed import OffsetsStorage
from fairlog.groups.groups_log import GroupsLog
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember, encode_group
from fairlog_types import LogId
from shard.offsets import OffsetsLogs
from tests.stream.members import Member, ProducerIds
from tests.stream.model_engine import ModelCluster, ModelEngine, open_model

pytestmark = pytest.mark.slow

LOG = LogId.of_offsets(0)
WAIT_S = 30.0
GROUP = PersistedClassicGroup(
    7,
    "consumer",
    "range",
    "a-1",
    (PersistedMember("a-1", None, "a", "/127.0.0.1", 10_000, 60_000, (("range", b"t"),), b"all"),),
)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[list[Member]]:
    """Three copies of a shard that has one offsets log."""
    ids = ProducerIds()
    members = [Member(f"n{rank}", rank, directory / f"n{rank}", [LOG], ids) for rank in range(3)]
    async with open_model(random.Random(0)) as cluster, trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(member.run, _engine(cluster, member.name))
        yield members
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _engine(cluster: ModelCluster, name: str) -> AsyncIterator[ModelEngine]:
    await trio.lowlevel.checkpoint()
    yield cluster.engine(name)


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not is_so():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def owner_among(members: list[Member]) -> Member:
    await until(lambda: any(member.shard is not None for member in members))
    return next(member for member in members if member.shard is not None)


def groups_log(owner: Member) -> GroupsLog:
    assert owner.shard is not None
    shard = owner.shard
    storage = OffsetsStorage(1, [LOG], OffsetsLogs(shard.partitions, shard.coordinator), shard.data_logs)
    return GroupsLog(storage, record_bytes_max=1 << 19)


async def test_group_is_on_every_copy_and_the_next_owner_goes_on_with_it(tmp_path: Path) -> None:
    """With its generation, members and assignments; so does the one after that, and what was forgotten stays so."""
    async with running(tmp_path) as members:
        first = await owner_among(members)
        assert await groups_log(first).write({"g": replace(GROUP, generation=6), "gone": GROUP}) == {}
        assert await groups_log(first).write({"g": GROUP, "gone": None}) == {}
        kept = [(name_digest("g"), encode_group("g", GROUP))]
        await until(lambda: all(member.groups(LOG) == kept for member in members))
        first.kill()
        others = [member for member in members if member is not first]
        second = await owner_among(others)
        assert await groups_log(second).load() == {"g": GROUP}
        changed = replace(GROUP, generation=8)
        assert await groups_log(second).write({"g": changed}) == {}
        second.stop()
        (last,) = (member for member in others if member is not second)
        assert await groups_log(await owner_among([last])).load() == {"g": changed}


async def test_owner_that_was_keeps_no_group(tmp_path: Path) -> None:
    """So its members are told nothing, and find the coordinator anew."""
    async with running(tmp_path) as members:
        first = await owner_among(members)
        stale = groups_log(first)
        assert await stale.write({"g": GROUP}) == {}
        first.stop()
        second = await owner_among([member for member in members if member is not first])
        refused = await stale.write({"g": replace(GROUP, generation=8)})
        assert refused.keys() == {"g"}
        assert await groups_log(second).load() == {"g": GROUP}
