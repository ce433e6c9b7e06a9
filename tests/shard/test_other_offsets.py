"""Offsets of a group in one shard, written for a transaction that another shard coordinates."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fairlog_types import ProducerEpoch, ProducerId, ShardNumber, StorageFailure
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets
from tests.shard.neighbours import Cluster, log_of, open_cluster

pytestmark = pytest.mark.slow

OFFSETS = (("00" * 16, 0, 7),)
OTHER = ShardNumber(1)


class Groups:
    """The group's half: notes what it is to write, and answers as a test wants."""

    def __init__(self) -> None:
        self.written: list[WriteOffsets] = []
        self.asked = trio.Event()
        self.answer: OffsetsRefused | None = None
        self.failure: StorageFailure | None = None

    async def write(self, message: WriteOffsets) -> OffsetsRefused | None:
        await trio.lowlevel.checkpoint()
        self.written.append(message)
        self.asked.set()
        if self.failure is not None:
            raise self.failure
        return self.answer


async def begin(cluster: Cluster) -> None:
    """The transaction has a log of the other shard, which has been heard of by then."""
    await (await cluster.writer("id")).write({log_of(1): [b"x"]})


async def write(cluster: Cluster) -> OffsetsRefused | None:
    offsets = cluster.shards[ShardNumber(0)].other_offsets
    assert offsets is not None
    with trio.fail_after(20):
        return await offsets.write(OTHER, "group", "id", ProducerId(5), ProducerEpoch(2), OFFSETS)


@pytest.mark.parametrize("seed", range(3))
async def test_offsets_are_written_once_and_the_answer_comes_back(tmp_path: Path, seed: int) -> None:
    """However often the way doubles the command; a disk that fails is a refusal."""
    async with open_cluster(tmp_path, seed=seed) as cluster:
        await begin(cluster)
        groups = Groups()
        cluster.shards[OTHER].serve_offsets(groups.write)
        assert await write(cluster) is None
        groups.answer = OffsetsRefused(WhyNotWritten.GROUP_IN_USE, "members")
        assert await write(cluster) == groups.answer
        groups.failure = StorageFailure("the disk is full")
        assert await write(cluster) == OffsetsRefused(WhyNotWritten.STORAGE, "the disk is full")
        expected = WriteOffsets(1, "group", "id", ProducerId(5), ProducerEpoch(2), OFFSETS)
        assert groups.written == [expected] * 3


async def test_offsets_wait_until_groups_are_served(tmp_path: Path) -> None:
    """A shard hears of them before its groups are loaded."""
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        await begin(cluster)
        groups = Groups()
        nursery.start_soon(write, cluster)
        await trio.sleep(0.2)
        assert groups.written == []
        cluster.shards[OTHER].serve_offsets(groups.write)
        with trio.fail_after(5):
            await groups.asked.wait()
    assert len(groups.written) == 1


async def test_later_start_does_not_write_what_the_last_one_may_have_written(tmp_path: Path) -> None:
    """Else the transaction has them twice, and its batch another count."""
    async with open_cluster(tmp_path / "data") as cluster:
        await begin(cluster)
        answers: list[OffsetsRefused | None] = []

        async def ask() -> None:
            answers.append(await write(cluster))

        groups = Groups()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.2)
            left = cluster.kill(1)
            await cluster.reopen(1, left)
            cluster.shards[OTHER].serve_offsets(groups.write)
            await cluster.recover(OTHER)
        assert [it.why for it in answers if it is not None] == [WhyNotWritten.STARTED_AGAIN]
        assert groups.written == []
        assert await write(cluster) is None
