"""A shard is put together of its files, and taken apart."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from unittest.mock import AsyncMock, Mock, call

import pytest
import trio

from coordinator.settings import CoordinatorSettings
from datalog.batch import parse_batch_header_untrusted
from datalog.environment import LmdbDataLogs
from fairlog_types import CorruptStorage, LeaderEpoch, StorageFailure
from journal.flush import open_flusher
from journal.journal import Fsync
from shard.directory import FIRST_SHARD, shard_directory
from shard.shard import Shard, ShardSettings, ShardStorage, open_shard
from tests.clients.raw_client import batch
from tests.shard.runs import MAP_BYTES, A, Disk

SETTINGS = ShardSettings(
    fsync=Fsync.COMMIT,
    fsync_interval_ms=100,
    segment_bytes_max=2**20,
    group_journals=2,
    producer_expiration_ms=86_400_000,
    coordinator=CoordinatorSettings(),
)


class ProducerIds:
    async def allot_producer_ids(self, count):
        await trio.lowlevel.checkpoint()
        return range(count)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def over_storage(tmp_path, disk):
    """A shard of one directory, to be opened, over a storage that is; `begun`: an earlier start has opened it."""

    async def note_begun():
        await trio.lowlevel.checkpoint()

    directory = shard_directory(tmp_path, FIRST_SHARD)

    @asynccontextmanager
    async def opening(*, begun=False):
        data_logs = await trio.to_thread.run_sync(
            partial(LmdbDataLogs.open, directory.data_logs, map_bytes=MAP_BYTES, sync=False)
        )
        try:
            async with open_flusher(threads=2, sync=disk) as flusher:
                yield open_shard(
                    directory,
                    ShardStorage(data_logs, flusher),
                    SETTINGS,
                    leader_epoch=LeaderEpoch(1),
                    producer_ids=ProducerIds(),
                    begun=begun,
                    note_begun=note_begun,
                    whole_since=lambda: LeaderEpoch(0),
                    offsets_decided=lambda _log, _txid, _offset: None,
                    now_ms=lambda: 1_000_000,
                )
        finally:
            data_logs.close()

    return opening


async def run_until_the_disk_fails(opening, disk, *, error=None):
    """The journal of one log fails; then the shard is closed, because of `error` or in good order."""
    async with opening as shard:
        disk.failing = f"local/{A}"
        await shard.lead([A])
        await shard.recover()
        data = batch([b"x"])
        await shard.partitions.by_log[A].append(data, parse_batch_header_untrusted(data), None)
        if error is not None:
            raise error


async def test_journal_that_cannot_be_closed_is_told(over_storage, disk):
    """It has no close mark then; the next start has to know."""
    async with over_storage() as opening:
        with pytest.raises(StorageFailure):
            await run_until_the_disk_fails(opening, disk)


async def test_error_that_ends_a_shard_is_told_also_if_its_journals_cannot_be_closed(over_storage, disk):
    """The disk that then fails as well is not why it ended."""
    async with over_storage() as opening:
        with pytest.raises(CorruptStorage, match="what a start has found"):
            await run_until_the_disk_fails(opening, disk, error=CorruptStorage("what a start has found"))


async def test_shard_that_lacks_a_group_journal_is_refused(over_storage):
    """An earlier start has made all of them, so that one is lost with what it says was decided."""
    async with over_storage(begun=True) as opening:
        with pytest.raises(CorruptStorage, match="group/0 is missing"):
            async with opening:
                pass


async def test_drain_places_what_is_decided_and_then_waits_for_all_that_is_placed():
    """The last commits before a stop were answered, and may not be placed yet."""
    order = Mock()
    order.partitions.drain = AsyncMock()
    await Shard(order.partitions, Mock(), order.coordinator).drain()
    assert order.mock_calls == [call.coordinator.place_due(), call.partitions.drain()]
