"""An owner with a failed file of one journal: what becomes visible together is accepted together, or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio

from coordinator.answers import Granted
from datalog.batch import parse_batch_header_untrusted
from fairlog_types import LogId, ProducerEpoch, ProducerId, StorageFailure
from journal.frame import Frame, decode_replicated_untrusted
from partition.answers import Appended
from partition.record_codec import APPLY
from shard.shard import Shard
from stream.entry import Entry, EntryKind, decode_entry_untrusted, decode_frames_untrusted
from tests.clients.raw_client import batch
from tests.shard.test_replica import A, B
from tests.stream.members import Member, ProducerIds, until
from tests.stream.model_engine import ModelCluster, open_model


async def _written(shard: Shard) -> Granted:
    """A transaction with a record in each of two logs, which is open."""
    granted = await shard.coordinator.init_producer_id("t", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
    assert isinstance(granted, Granted)
    await shard.coordinator.add_logs("t", granted.producer_id, granted.epoch, [A, B], 0)
    for log in (A, B):
        data = batch([b"v"], producer_id=granted.producer_id, epoch=granted.epoch, sequence=0, transactional=True)
        partition = shard.partitions.by_log[log]
        answer = await partition.append(
            data, parse_batch_header_untrusted(data), shard.partitions.open_transaction_of(granted.producer_id)
        )
        assert isinstance(answer, Appended)
        assert answer.durable_at is not None
        await partition.durable(answer.durable_at)
    return granted


def _applied_together(cluster: ModelCluster) -> Iterator[set[LogId]]:
    """Of each entry of the stream, the logs in which it applies a commit."""
    for data in cluster.open("shard-0").entries:
        entry = decode_entry_untrusted(data)
        if isinstance(entry, Entry) and entry.kind is EntryKind.FRAMES:
            frames = decode_frames_untrusted(entry.body)
            assert isinstance(frames, list)
            logs: set[LogId] = set()
            for journal, replicated in frames:
                frame = decode_replicated_untrusted(replicated)
                assert isinstance(frame, Frame)
                if journal.startswith("local/") and frame.kind == APPLY:
                    logs.add(LogId.parse(journal.removeprefix("local/")))
            if logs:
                yield logs


async def test_commit_is_applied_in_none_of_its_logs_if_one_of_them_cannot_take_it(tmp_path: Path) -> None:
    """Regression, of seed fixed.4 with 40 owners: replicas showed the part that was accepted, and not the rest."""
    async with open_model(random.Random(1)) as cluster, trio.open_nursery() as nursery:
        member = Member("one", 0, tmp_path, [A, B], ProducerIds())

        async def run() -> None:
            with suppress(StorageFailure, ExceptionGroup):
                await member.run(cluster.opening(member.name))

        nursery.start_soon(run)
        with trio.fail_after(60):
            await until(lambda: member.shard is not None)
            shard = member.shard
            assert shard is not None
            granted = await _written(shard)
            file = shard.partitions.by_log[B].journal._file  # type: ignore[attr-defined]
            file._fail("a sync", OSError(5, "Input/output error"))
            with suppress(StorageFailure):
                await shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0)
            await member.ended.wait()
        assert all(logs == {A, B} for logs in _applied_together(cluster))
        nursery.cancel_scope.cancel()
