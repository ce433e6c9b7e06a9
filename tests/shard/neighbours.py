"""Shards of one node on real journals and real LMDB environments, with a bad way between them.

`Way` doubles and reorders what it carries, and loses some of it, as its seed says. `Cluster.crash` copies the files as
a killed process leaves them; with `losing` the named journals are those of an older copy: what a power cut may leave.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import trio

from coordinator.answers import Granted
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from datalog.aborted import AbortedRanges
from datalog.batch import parse_batch_header_untrusted, parse_stored_header
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, ShardNumber
from journal.flush import open_flusher
from journal.journal import Fsync
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, TransactionMode
from shard.conversation import Message
from shard.directory import shard_directory
from shard.placement import Placement
from shard.shard import Neighbours, Shard, ShardSettings, ShardStorage, open_shard
from tests.clients.raw_client import batch, records_of
from tests.shard.runs import MAP_BYTES, Disk

COUNT = 2
OVER_BOTH = Placement(COUNT)
SETTINGS = ShardSettings(
    fsync=Fsync.COMMIT,
    fsync_interval_ms=100,
    segment_bytes_max=2**20,
    group_journals=COUNT,
    producer_expiration_ms=86_400_000,
    coordinator=CoordinatorSettings(),
)


def log_of(shard: int, number: int = 0) -> LogId:
    """A log that the shard leads."""
    return LogId.of_topic(UUID(int=1), number * COUNT + shard)


def shard_of(log: LogId) -> ShardNumber:
    return ShardNumber(log.partition % COUNT)


@dataclass
class Way:
    """Carries messages between shards; `lost` and `doubled` are shares."""

    rng: random.Random
    nursery: trio.Nursery | None = None
    """Where messages are under way; None: nothing gets through yet."""
    lost: float = 0.1
    doubled: float = 0.1
    shards: dict[ShardNumber, Shard] = field(default_factory=dict[ShardNumber, Shard])
    cut: set[tuple[ShardNumber, ShardNumber]] = field(default_factory=set[tuple[ShardNumber, ShardNumber]])
    """From whom to whom nothing gets through."""
    carried: list[tuple[ShardNumber, ShardNumber, Message]] = field(
        default_factory=list[tuple[ShardNumber, ShardNumber, Message]]
    )
    _connections: dict[tuple[ShardNumber, ShardNumber], trio.MemorySendChannel[Message]] = field(
        default_factory=dict[tuple[ShardNumber, ShardNumber], trio.MemorySendChannel[Message]]
    )

    def of(self, number: ShardNumber) -> Outgoing:
        return Outgoing(self, number)

    def keep_order(self) -> None:
        """From now on nothing is lost, doubled or reordered, as on connections that do not break."""
        assert self.nursery is not None
        self.lost = self.doubled = 0.0
        for sender in self.shards:
            for to in self.shards:
                self._connections[sender, to], received = trio.open_memory_channel[Message](math.inf)
                self.nursery.start_soon(self._deliver_in_order, sender, to, received)

    def carry(self, sender: ShardNumber, to: ShardNumber, message: Message) -> None:
        self.carried.append((sender, to, message))
        if self._connections and (sender, to) not in self.cut:
            self._connections[sender, to].send_nowait(message)
            return
        for _ in range(2 if self.rng.random() < self.doubled else 1):
            is_lost = (sender, to) in self.cut or self.rng.random() < self.lost
            if self.nursery is not None and not is_lost:
                self.nursery.start_soon(self._deliver, sender, to, message)

    async def _deliver_in_order(
        self, sender: ShardNumber, to: ShardNumber, received: trio.MemoryReceiveChannel[Message]
    ) -> None:
        async for message in received:
            await self._deliver(sender, to, message)

    async def _deliver(self, sender: ShardNumber, to: ShardNumber, message: Message) -> None:
        await trio.sleep(self.rng.random() * 0.003)
        if to in self.shards:
            self.shards[to].receive(sender, message)


@dataclass
class Outgoing:
    """One shard's end of the way. A `shard.links.Transport`."""

    way: Way
    sender: ShardNumber
    is_dead: bool = False

    def send(self, shard: ShardNumber, message: Message) -> None:
        if not self.is_dead:
            self.way.carry(self.sender, shard, message)


class ProducerIds:
    """One count for all shards."""

    def __init__(self) -> None:
        self._next = 1000

    async def allot_producer_ids(self, count: int) -> range:
        await trio.lowlevel.checkpoint()
        self._next += count
        return range(self._next - count, self._next)


@dataclass
class Writer:
    """A transactional producer whose coordinator is in `shard`."""

    cluster: Cluster
    name: str
    shard: int
    granted: Granted
    sequences: dict[LogId, int] = field(default_factory=dict[LogId, int])

    async def write(self, contents: Mapping[LogId, Sequence[bytes]]) -> None:
        """Write to the logs, in the open transaction or a new one."""
        it, coordinator = self.granted, self.cluster.coordinator(self.shard)
        added = await coordinator.add_logs(self.name, it.producer_id, it.epoch, list(contents), 1)
        assert added == dict.fromkeys(contents), added
        for log, values in contents.items():
            assert not values or isinstance(await self.append(log, *values), Appended)

    async def append(self, log: LogId, *values: bytes) -> Appended | DuplicateOf | RefusedAppend:
        it, sequence = self.granted, self.sequences.get(log, 0)
        data = batch(values, producer_id=it.producer_id, epoch=it.epoch, sequence=sequence, transactional=True)
        shard = self.cluster.shards[shard_of(log)]
        if shard_of(log) != self.shard:
            await shard.hear(ShardNumber(self.shard))
        partitions = shard.partitions
        came_in = partitions.open_transaction_of(it.producer_id)
        answer = await partitions.by_log[log].append(data, parse_batch_header_untrusted(data), came_in)
        self.sequences[log] = sequence + len(values)
        return answer

    async def end(self, *, commit: bool = True) -> object:
        it = self.granted
        return await self.cluster.coordinator(self.shard).end(self.name, it.producer_id, it.epoch, commit, 1)


def copy_image(directory: Path, into: Path) -> None:
    """What a killed process would leave there. Its threads go on: a segment may get its own name meanwhile."""
    while True:
        try:
            shutil.copytree(directory, into, ignore=shutil.ignore_patterns("lock.mdb"))
        except shutil.Error:
            shutil.rmtree(into)
        else:
            return


@dataclass
class Running:
    """A shard that runs."""

    shard: Shard
    disk: Disk
    data_dir: Path
    starts: int
    outgoing: Outgoing
    nursery: trio.Nursery
    """What runs in it; cancelled, its files are closed."""


@dataclass
class Cluster:
    """Shards that serve."""

    data_dir: Path
    way: Way
    producer_ids: ProducerIds
    logs_each: int
    mode: TransactionMode
    settings: ShardSettings
    copying: bool
    placement: Placement = OVER_BOTH
    running: dict[ShardNumber, Running] = field(default_factory=dict[ShardNumber, Running])
    whole_since: dict[ShardNumber, LeaderEpoch] = field(default_factory=dict[ShardNumber, LeaderEpoch])
    """Of the shards whose tail was lost once: the leader epoch of the last start that found it so."""

    not_known_yet: set[LogId] = field(default_factory=set[LogId])
    """Logs whose topic was made a moment ago: only their leaders know them before the next `catch_up`."""

    async def catch_up(self) -> None:
        self.not_known_yet.clear()

    @property
    def shards(self) -> Mapping[ShardNumber, Shard]:
        return {number: each.shard for number, each in self.running.items()}

    @property
    def disks(self) -> Mapping[ShardNumber, Disk]:
        return {number: each.disk for number, each in self.running.items()}

    def coordinator(self, shard: int) -> Coordinator:
        return self.running[ShardNumber(shard)].shard.coordinator

    async def open(self, number: ShardNumber, data_dir: Path, starts: int, *, tail_kept: bool) -> None:
        """Put the shard together, let it lead its logs, and hear the others."""
        assert self.way.nursery is not None
        if not tail_kept:
            self.whole_since[number] = LeaderEpoch(starts)
        self.running[number] = await self.way.nursery.start(self._live, number, data_dir, starts)
        self.way.shards[number] = self.running[number].shard

    async def _live(
        self,
        number: ShardNumber,
        data_dir: Path,
        starts: int,
        *,
        task_status: trio.TaskStatus[Running],
    ) -> None:
        disk, outgoing = Disk(), self.way.of(number)
        directory = shard_directory(data_dir, number)
        async with AsyncExitStack() as stack:
            data_logs = await trio.to_thread.run_sync(
                partial(LmdbDataLogs.open, directory.data_logs, map_bytes=MAP_BYTES, sync=False)
            )
            stack.callback(data_logs.close)
            flusher = await stack.enter_async_context(open_flusher(threads=2, sync=disk))
            opening = open_shard(
                directory,
                ShardStorage(data_logs, flusher),
                self.settings,
                leader_epoch=LeaderEpoch(starts),
                producer_ids=self.producer_ids,
                begun=starts > 1,
                note_begun=trio.lowlevel.checkpoint,
                whole_since=lambda: self.whole_since.get(number, LeaderEpoch(0)),
                offsets_decided=lambda _log, _txid, _offset: None,
                now_ms=lambda: 1_000_000,
                neighbours=Neighbours(
                    self.placement,
                    lambda log: None if log in self.not_known_yet or shard_of(log) == number else shard_of(log),
                    self.catch_up,
                    outgoing,
                ),
            )
            shard = await stack.enter_async_context(opening)
            async with trio.open_nursery() as nursery:
                await shard.lead([log_of(number, each) for each in range(self.logs_each)], self.mode)
                await nursery.start(shard.run_links)
                task_status.started(Running(shard, disk, data_dir, starts, outgoing, nursery))
                await trio.sleep_forever()

    async def recover(self, number: ShardNumber) -> None:
        """The rest of the start; waits for neighbours that must be heard first."""
        it = self.running[number]
        await it.shard.recover()
        if self.copying:
            it.nursery.start_soon(it.shard.partitions.run)
            await it.shard.drain()
        await it.nursery.start(it.shard.coordinator.run)

    def kill(self, number: int) -> Path:
        """End the shard as SIGKILL does; where what it leaves is."""
        it = self.running[ShardNumber(number)]
        del self.way.shards[ShardNumber(number)]
        it.outgoing.is_dead = True
        left = self.data_dir.parent / f"shard-{number}-after-start-{it.starts}"
        of = shard_directory(it.data_dir, ShardNumber(number)).path
        copy_image(of, left / of.relative_to(it.data_dir))
        it.disk.let_go()
        it.nursery.cancel_scope.cancel()
        return left

    async def reopen(self, number: int, left: Path, *, tail_kept: bool = True) -> None:
        """Begin the start of a killed shard on what it has left; `recover` is the rest."""
        starts = self.running[ShardNumber(number)].starts + 1
        await self.open(ShardNumber(number), left, starts, tail_kept=tail_kept)

    async def start_again(self, number: int, left: Path, *, tail_kept: bool = True) -> None:
        """Start a killed shard on what it has left, beside those that run."""
        await self.reopen(number, left, tail_kept=tail_kept)
        await self.recover(ShardNumber(number))

    async def writer(self, name: str, shard: int = 0) -> Writer:
        granted = await self.coordinator(shard).init_producer_id(
            name, 60_000, ProducerId(-1), ProducerEpoch(-1), connection=1
        )
        assert isinstance(granted, Granted), granted
        return Writer(self, name, shard, granted)

    async def values(self, *logs: LogId) -> dict[LogId, list[bytes]]:
        """What can be read, once all that is placed is copied."""
        found: dict[LogId, list[bytes]] = {}
        for log in logs:
            shard = self.shards[shard_of(log)]
            await shard.drain()
            (read,) = shard.data_logs.read([ReadRequest(log, Offset(0), 1 << 20)], bytes_max=1 << 20)
            assert isinstance(read, ReadResult)
            found[log] = [value for each in read.batches for _, value in records_of(each) if value is not None]
        return found

    async def committed(self, log: LogId) -> list[bytes]:
        """As `values`, what a reader of committed records gets."""
        shard = self.shards[shard_of(log)]
        await shard.drain()
        request = ReadRequest(log, Offset(0), 1 << 20, committed_only=True)
        (read,) = shard.data_logs.read([request], bytes_max=1 << 20)
        assert isinstance(read, ReadResult)
        aborted = AbortedRanges(read.aborted)
        headers = [(parse_stored_header(data), data) for data in read.batches]
        kept = [data for header, data in headers if not (header.control or aborted.contain(header))]
        return [value for data in kept for _, value in records_of(data) if value is not None]

    def crash(self, into: Path, *, losing: Mapping[str, Path] | None = None) -> Path:
        """What is left; of journals whose path contains one of `losing`, what that older copy has."""
        copy_image(self.data_dir, into)
        for part, older in (losing or {}).items():
            (journal,) = (path for path in into.glob("shards/*/journals/*/*") if part in str(path))
            shutil.rmtree(journal)
            shutil.copytree(older / journal.relative_to(into), journal)
        return into


@asynccontextmanager
async def open_cluster(
    data_dir: Path,
    *,
    starts: int = 1,
    tail_kept: bool = True,
    logs_each: int = 2,
    mode: TransactionMode = JOURNAL,
    seed: int = 0,
    settings: ShardSettings = SETTINGS,
    copying: bool = True,
    placement: Placement = OVER_BOTH,
) -> AsyncGenerator[Cluster, None]:
    """Start both shards, and let them recover; with `copying` what is placed becomes visible."""
    way = Way(random.Random(seed))
    async with trio.open_nursery() as carrying:
        cluster = Cluster(data_dir, way, ProducerIds(), logs_each, mode, settings, copying, placement)
        way.nursery = carrying
        numbers = [ShardNumber(number) for number in range(COUNT)]
        for number in numbers:
            await cluster.open(number, data_dir, starts, tail_kept=tail_kept)
        async with trio.open_nursery() as recovering:
            for number in numbers:
                recovering.start_soon(cluster.recover, number)
        yield cluster
        carrying.cancel_scope.cancel()
