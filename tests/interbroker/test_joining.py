"""A third node joins two that go on, by a copy over a connection: on the model of the engine, with real files."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
import structlog.testing
import trio

from datalog.batch import parse_batch_header_untrusted
from fairlog.cluster.interface import InnerAddress
from fairlog.interbroker.getting_copies import get_copy
from fairlog.interbroker.peers import Peers
from fairlog_types import LogId
from partition.answers import Appended
from shard.copy_parts import FileBegins, Part
from shard.directory import FIRST_SHARD, shard_directory
from shard.joining import Draft, falls_short, remove_leftovers
from shard.progress import Role
from stream.engine import Stream
from tests.clients.raw_client import batch
from tests.stream.members import Member, ProducerIds, until
from tests.stream.model_engine import ModelCluster, open_model

LOGS = [LogId.of_topic(UUID(int=16), partition) for partition in range(2)]
CLUSTER, SECRET = "MkU3OEVBNTcwNTJENDM2Qg", bytes(range(32))
WAIT_S = 30.0

pytestmark = pytest.mark.slow


class Cluster:
    """Two members that run, and one that does not yet."""

    def __init__(self, model: ModelCluster, directory: Path, nursery: trio.Nursery) -> None:
        ids = ProducerIds()
        self.members = [Member(f"n{rank}", rank, directory / f"n{rank}", LOGS, ids) for rank in range(3)]
        self.third_dir = directory / "n2"
        self.model = model
        self._nursery = nursery

    def start(self, member: Member) -> None:
        self._nursery.start_soon(member.run, self.model.opening(member.name))

    async def stream(self) -> Stream:
        return await self.model.engine("somebody").open_stream("shard-0")

    async def serve(self, member: Member) -> InnerAddress:
        """Where the member gives copies."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        peers = Peers(FIRST_SHARD, CLUSTER, SECRET, lambda _: None, lambda _shard, _message: None, giver=member.giver)
        await self._nursery.start(peers.run, listeners, [])
        return InnerAddress(*listeners[0].socket.getsockname())

    async def write(self, count: int, size: int = 5000) -> None:
        shard = next(member.shard for member in self.members if member.shard is not None)
        for number in range(count):
            data = batch([random.Random(number).randbytes(size)])
            partition = shard.partitions.by_log[LOGS[number % len(LOGS)]]
            answer = await partition.append(data, parse_batch_header_untrusted(data), None)
            assert isinstance(answer, Appended), answer

    async def trim(self) -> None:
        """Before what both have synced of all that was written by now."""
        first, second = self.members[:2]
        end = first.report().taken
        await until(lambda: min(first.report().synced, second.report().synced) >= end)
        before = min(first.report().synced, second.report().synced)
        await (await self.stream()).trim(before)

    async def get(self, *givers: InnerAddress, told: Callable[[int, int], None] = lambda _done, _total: None) -> None:
        third = self.members[2]
        shard = shard_directory(self.third_dir, FIRST_SHARD)
        with trio.fail_after(WAIT_S):
            await get_copy(
                shard,
                "shard-0",
                lambda: givers,
                cluster_id=CLUSTER,
                secret=SECRET,
                progress=third.progress,
                told=told,
            )

    async def falls_short(self) -> bool:
        return await falls_short(shard_directory(self.third_dir, FIRST_SHARD), await self.stream())

    async def all_equal(self) -> None:
        """All copies have the same content at the same position of the stream."""
        first = self.members[0]
        end = max(each.report().taken for each in self.members)
        up = (Role.REPLICA, Role.OWNER)
        await until(lambda: all(each.role() in up and each.report().taken >= end for each in self.members))
        await until(lambda: all(member.read() == first.read() for member in self.members))


@asynccontextmanager
async def two_of_three(directory: Path) -> AsyncIterator[Cluster]:
    async with open_model(random.Random(0)) as model, trio.open_nursery() as nursery:
        cluster = Cluster(model, directory, nursery)
        first, second, _ = cluster.members
        cluster.start(first)
        await until(lambda: first.shard is not None)  # the second would own it if it came to its turn first
        cluster.start(second)
        await until(lambda: second.role() is Role.REPLICA)
        yield cluster
        nursery.cancel_scope.cancel()


async def test_third_node_joins_by_a_copy_of_a_trimmed_stream_while_the_others_go_on(tmp_path: Path) -> None:
    """First of a replica; when it was down, and the stream was trimmed past its mark, again, of the owner. Then it
    owns the shard."""
    async with two_of_three(tmp_path) as cluster:
        first, second, third = cluster.members
        await cluster.write(60)
        await cluster.trim()
        assert await cluster.falls_short()
        of_replica, of_owner = await cluster.serve(second), await cluster.serve(first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.write, 60)
            await cluster.get(of_replica)
            assert third.role() is Role.JOINING
        assert not await cluster.falls_short()
        cluster.start(third)
        await until(lambda: third.role() is Role.REPLICA)
        await cluster.all_equal()
        assert sum(map(len, first.read() or [])) == 120
        third.kill()
        await third.ended.wait()
        await cluster.write(20)
        await cluster.trim()
        cluster.start(third)
        await until(lambda: third.left_behind is not None)
        await third.ended.wait()
        assert await cluster.falls_short()
        await cluster.get(of_owner)
        cluster.start(third)
        await cluster.all_equal()
        assert sum(map(len, first.read() or [])) == 140
        content = first.read()
        first.kill()
        second.kill()
        await until(lambda: third.shard is not None)
        assert third.read() == content
        await cluster.write(2)
        await until(lambda: sum(map(len, third.read() or [])) == 142)


async def test_node_that_is_killed_while_it_joins_joins_anew(tmp_path: Path) -> None:
    """At several moments; what a kill leaves is removed at the start, and nothing else is there."""
    async with two_of_three(tmp_path) as cluster:
        _, second, third = cluster.members
        await cluster.write(60, 30_000)
        await cluster.trim()
        address = await cluster.serve(second)
        for kill_after in (0, 100_000, 1_000_000):
            with trio.CancelScope() as life:

                def told(done: int, _total: int, life: trio.CancelScope = life, kill_after: int = kill_after) -> None:
                    if done > kill_after:
                        life.cancel()

                await cluster.get(address, told=told)
            assert life.cancelled_caught
            remove_leftovers(cluster.third_dir)
            assert not shard_directory(cluster.third_dir, FIRST_SHARD).path.exists()
            assert await cluster.falls_short()
        await cluster.get(address)
        cluster.start(third)
        await until(lambda: third.role() is Role.REPLICA)
        await cluster.all_equal()


@pytest.mark.parametrize("what", ["dies", "becomes the owner"])
async def test_copy_survives_its_givers_change_of_role_and_begins_anew_if_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """While the journals are sent. If it dies, the other one gives."""
    begun, go_on, real = trio.Event(), trio.Event(), Draft.take

    def take(self: Draft, part: Part) -> None:
        if isinstance(part, FileBegins) and part.name.startswith("journals"):
            trio.from_thread.run_sync(begun.set)
            trio.from_thread.run(go_on.wait)
        real(self, part)

    monkeypatch.setattr(Draft, "take", take)
    async with two_of_three(tmp_path) as cluster:
        first, second, third = cluster.members
        await cluster.write(60, 30_000)
        await cluster.trim()
        of_replica, of_owner = await cluster.serve(second), await cluster.serve(first)
        with structlog.testing.capture_logs() as lines:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.get, of_replica, of_owner)
                await begun.wait()
                if what == "dies":
                    second.kill()
                    await trio.sleep(0.1)
                else:
                    cluster.model.cut(first.name)
                    await until(lambda: second.shard is not None)
                    cluster.model.join(first.name)
                go_on.set()
        assert len([line for line in lines if line["event"] == "no copy of the shard"]) == (what == "dies")
        cluster.start(third)
        if what == "dies":
            cluster.start(second)
        await until(lambda: third.role() is Role.REPLICA)
        await cluster.all_equal()
