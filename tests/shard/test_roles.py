"""A copy through its roles, on the model of the engine and real files: what it says of itself, and a trim too far."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest
import trio

from coordinator.answers import Granted
from fairlog_types import LogId, ProducerEpoch, ProducerId
from shard.directory import FIRST_SHARD, shard_directory
from shard.owned import OwnedShard
from shard.progress import CopyProgress, Role
from shard.stream_mark import read_mark
from stream.engine import StreamPosition
from tests.stream.members import Member, ProducerIds, until
from tests.stream.model_engine import Faults, open_model

LOGS = [LogId.of_topic(UUID(int=16), 0)]

pytestmark = pytest.mark.slow


async def test_copies_say_how_far_they_are_in_each_role(tmp_path: Path) -> None:
    """The mark that is reported is the one on disk; an owner that was deposed is a replica again."""
    first, second = (Member(f"n{rank}", rank, tmp_path / f"n{rank}", LOGS, ProducerIds()) for rank in range(2))
    roles: list[Role | None] = []
    first.progress = CopyProgress(lambda: roles.append(first.role()))
    async with open_model(random.Random(0)) as cluster, trio.open_nursery() as nursery:
        assert first.role() is None
        nursery.start_soon(first.run, cluster.opening(first.name))
        nursery.start_soon(second.run, cluster.opening(second.name))
        await until(lambda: (first.role(), second.role()) == (Role.OWNER, Role.REPLICA))
        await until(lambda: min(first.report().synced, second.report().synced) > 5)
        for member in (first, second):
            report = member.report()
            mark = read_mark(shard_directory(tmp_path / member.name, FIRST_SHARD).stream_mark, "shard-0")
            assert mark is not None
            assert report.synced <= mark.position <= member.report().taken
            assert report.epoch == 1
        cluster.cut(first.name)
        await until(lambda: second.role() is Role.OWNER)
        assert second.report().epoch == 2
        cluster.join(first.name)
        await until(lambda: first.role() is Role.REPLICA and first.report().epoch == 2)
        first.stop()
        await until(lambda: first.role() is None)
        nursery.cancel_scope.cancel()
    assert roles == [Role.JOINING, Role.OPENING, Role.OPENING, Role.JOINING, None]  # each at its beginning


class BusyMember(Member):
    """Serves a client that begins one transaction after the other."""

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, owned)
            await super().own(owned, stop)

    async def _serve(self, owned: OwnedShard) -> None:
        coordinator = owned.shard.coordinator
        while True:
            await trio.lowlevel.checkpoint()
            granted = await coordinator.init_producer_id("t", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
            if isinstance(granted, Granted):
                await coordinator.add_logs("t", granted.producer_id, granted.epoch, LOGS, 0)


async def test_owner_that_is_cancelled_does_not_wait_for_an_engine_that_is_away(tmp_path: Path) -> None:
    """What a client asks for is shielded until it is known to be accepted. That may be never."""
    member = BusyMember("n0", 0, tmp_path / "n0", LOGS, ProducerIds())
    async with open_model(random.Random(0), Faults(append_timeout_s=15)) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(member.run, cluster.opening(member.name))
        await until(lambda: member.role() is Role.OWNER and member.report().taken > 5)
        cluster.go_away()
        await trio.sleep(0.1)
        member.kill()
        with trio.move_on_after(5):
            await member.ended.wait()
        assert member.ended.is_set()


async def test_stream_trimmed_further_than_a_copy_has_read_is_told_apart(tmp_path: Path) -> None:
    """The node has to make the copy anew: no other failure, and none in a group."""
    first, second = (Member(f"n{rank}", rank, tmp_path / f"n{rank}", LOGS, ProducerIds()) for rank in range(2))
    async with open_model(random.Random(0)) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(first.run, cluster.opening(first.name))
        await until(lambda: first.role() is Role.OWNER and first.report().synced > 5)
        stream = await cluster.engine("somebody").open_stream("shard-0")
        await stream.trim(StreamPosition(first.report().synced))
        await second.run(cluster.opening(second.name))
        assert "shard-0 was to be read from 0 on" in str(second.left_behind)
        nursery.cancel_scope.cancel()
