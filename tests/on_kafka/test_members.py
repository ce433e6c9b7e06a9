"""Three copies of a shard on three real brokers: owners are killed and stop, brokers are killed, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
import trio
from peers.kafka_cluster import KafkaCluster

from coordinator.answers import Granted, Refusal
from datalog.batch import parse_batch_header_untrusted
from fairlog.cluster.interface import InnerAddress
from fairlog.interbroker.getting_copies import get_copy
from fairlog.interbroker.peers import Peers
from fairlog_types import LogId, ProducerEpoch, ProducerId, StorageFailure
from partition.answers import Appended, DuplicateOf
from shard.directory import FIRST_SHARD, shard_directory
from shard.joining import falls_short
from shard.shard import Shard
from stream.engine import StreamPosition
from stream.kafka_engine import open_kafka_engine
from stream.kafka_settings import KafkaEngineSettings
from tests.clients.raw_client import batch
from tests.stream.members import Member, ProducerIds
from tests.stream.rigs import KafkaRig

LOGS = [LogId.of_topic(UUID(int=16), partition) for partition in range(2)]
WAIT_S = 60.0
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class Running:
    """Members that run, and whoever owns the shard."""

    def __init__(self, members: Sequence[Member], settings: KafkaEngineSettings, nursery: trio.Nursery) -> None:
        self.members = members
        self._settings = settings
        self._nursery = nursery

    def start(self, member: Member) -> None:
        self._nursery.start_soon(member.run, open_kafka_engine(self._settings))

    async def start_again(self, member: Member) -> None:
        with trio.fail_after(WAIT_S):
            await member.ended.wait()
        self.start(member)

    async def owner(self, *, other_than: Member | None = None) -> Member:
        """The one that owns the shard in the newest epoch, once there is one."""
        with trio.fail_after(WAIT_S):
            while True:
                found = [each for each in self.members if each.shard is not None and each is not other_than]
                if found:
                    return max(found, key=lambda member: member.epochs[-1])
                await trio.sleep(0.01)

    async def ask(self, request):
        """Ask the owner, and the next one if it does not answer, until one does."""
        with trio.fail_after(WAIT_S):
            while True:
                member = await self.owner()
                assert member.shard is not None
                with suppress(StorageFailure, _Refused):
                    with trio.move_on_after(5):
                        return await request(member.shard)
                await trio.sleep(0.02)


class _Refused(Exception):
    pass


class Writer:
    """One transactional producer, and what it was answered."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.committed: list[bytes] = []
        self.unknown: list[bytes] = []
        self._count = 0

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            await self._running.ask(self._transaction)

    async def _transaction(self, shard: Shard) -> None:
        """A new instance each time: what another owner knows of the last transaction does not matter."""
        granted = await shard.coordinator.init_producer_id("w", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
        if not isinstance(granted, Granted):
            raise _Refused(granted)
        producer_id, epoch = granted.producer_id, granted.epoch
        added = await shard.coordinator.add_logs("w", producer_id, epoch, LOGS, 0)
        if isinstance(added, Refusal) or any(added.values()):
            raise _Refused(added)
        self._count += 1
        value = f"t{self._count}".encode()
        for log in LOGS:
            data = batch([value], producer_id=producer_id, epoch=epoch, sequence=0, transactional=True)
            partition = shard.partitions.by_log[log]
            header = parse_batch_header_untrusted(data)
            answer = await partition.append(data, header, shard.partitions.open_transaction_of(producer_id))
            if not isinstance(answer, Appended | DuplicateOf):
                raise _Refused(answer)
        self.unknown.append(value)
        refusal = await shard.coordinator.end("w", producer_id, epoch, True, 0)
        if refusal is not None:
            raise _Refused(refusal)
        self.unknown.remove(value)
        self.committed.append(value)


def _values(batches: Sequence[bytes]) -> list[bytes]:
    """The values, in the order of the log: one record in each batch, and its value is the end but for the headers."""
    return [data[61:].split(b"t", 1)[0] and b"t" + data[61:].split(b"t", 1)[1].rstrip(b"\x00") for data in batches]


async def _all_equal(members: Sequence[Member]) -> list[list[bytes]]:
    with trio.fail_after(WAIT_S):
        while True:
            contents = [await trio.to_thread.run_sync(member.read) for member in members]
            first = contents[0]
            if first is not None and all(content == first for content in contents):
                return first
            await trio.sleep(0.05)


@pytest.fixture
def settings(three_replicas: KafkaRig) -> KafkaEngineSettings:
    return replace(three_replicas.settings, cluster=f"members-{next(three_replicas.numbers)}")


def members_in(directory) -> list[Member]:
    ids = ProducerIds()
    return [Member(f"n{rank}", rank, directory / f"n{rank}", LOGS, ids) for rank in range(3)]


@pytest.mark.slow
async def test_owners_are_killed_and_stop_and_nothing_that_was_answered_is_lost(tmp_path, settings) -> None:
    """Committed by one owner, read from each copy; a hand-over is no failover; what was killed comes back."""
    members = members_in(tmp_path)
    async with trio.open_nursery() as nursery:
        running = Running(members, settings, nursery)
        for member in members:
            running.start(member)
        writer = Writer(running)
        await writer.run(5)
        first = await running.owner()
        first.kill()
        second = await running.owner(other_than=first)
        await writer.run(5)
        await running.start_again(first)
        second.stop()
        third = await running.owner(other_than=second)
        await writer.run(5)
        await running.start_again(second)
        assert third.epochs[-1] > second.epochs[-1] > first.epochs[0]
        content = await _all_equal(members)
        nursery.cancel_scope.cancel()
    assert len(writer.committed) == 15
    for batches in content:
        values = _values(batches)
        assert [value for value in values if value in set(writer.committed)] == writer.committed
        assert set(values) <= {*writer.committed, *writer.unknown}


@pytest.mark.slow
async def test_brokers_of_the_engine_are_killed_and_come_back(tmp_path, settings, kafka: KafkaCluster) -> None:
    """Each in turn, while somebody commits."""
    members = members_in(tmp_path)
    async with trio.open_nursery() as nursery:
        running = Running(members, settings, nursery)
        for member in members:
            running.start(member)
        writer = Writer(running)
        await writer.run(3)
        try:
            for broker in kafka.brokers:
                await trio.to_thread.run_sync(kafka.kill, broker)
                await writer.run(3)
                await trio.to_thread.run_sync(kafka.restart, broker)
                await writer.run(3)
                while not await trio.to_thread.run_sync(kafka.is_up):  # two that are away would be no quorum
                    await writer.run(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(kafka.heal)
        content = await _all_equal(members)
        nursery.cancel_scope.cancel()
    for batches in content:
        values = _values(batches)
        assert [value for value in values if value in set(writer.committed)] == writer.committed
        assert set(values) <= {*writer.committed, *writer.unknown}


@pytest.mark.slow
async def test_third_copy_joins_a_trimmed_stream_while_somebody_commits(tmp_path, settings) -> None:
    """It is made of a replica's; and again when it was down, and the stream was trimmed past its mark."""
    first, second, third = members_in(tmp_path)
    shard = shard_directory(tmp_path / "n2", FIRST_SHARD)
    async with open_kafka_engine(settings) as engine, trio.open_nursery() as nursery:
        stream = await engine.open_stream("shard-0")
        running = Running([first, second], settings, nursery)
        running.start(first)
        running.start(second)
        writer = Writer(running)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        peers = Peers(
            FIRST_SHARD, CLUSTER, bytes(32), lambda _: None, lambda _shard, _message: None, giver=second.giver
        )
        await nursery.start(peers.run, listeners, [])

        async def trim() -> None:
            end = await stream.end()
            with trio.fail_after(WAIT_S):
                while min(_synced(first), _synced(second)) < end - 1:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            await stream.trim(StreamPosition(min(_synced(first), _synced(second))))
            assert await falls_short(shard, stream)

        async def join() -> None:
            with trio.fail_after(WAIT_S):
                await get_copy(
                    shard,
                    stream.name,
                    lambda: [InnerAddress(*listeners[0].socket.getsockname())],
                    cluster_id=CLUSTER,
                    secret=bytes(32),
                    progress=third.progress,
                )
            running.start(third)

        for _ in range(2):
            await running.owner()
            await writer.run(5)
            await trim()
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(writer.run, 5)
                await join()
            content = await _all_equal([first, second, third])
            with trio.fail_after(WAIT_S):
                while writer.committed[-1] not in _values(content[0]):  # it was answered before it was copied
                    content = await _all_equal([first, second, third])
            third.kill()
            await third.ended.wait()
        nursery.cancel_scope.cancel()
    assert len(writer.committed) == 20
    for batches in content:
        values = _values(batches)
        assert [value for value in values if value in set(writer.committed)] == writer.committed


def _synced(member: Member) -> int:
    return -1 if member.progress.report is None else member.progress.report.synced
