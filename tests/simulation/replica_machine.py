"""One node with a copy of a shard, on a machine of its own: replica, owner and replica again (`shard.roles`).

Before it opens its copy, it makes it anew of another node's, if the stream does not have what it needs (`joins`).

What is judged here, as soon as there is something to judge: whose epoch it owns, that a new owner has all that was
answered and all that was placed before its FENCE, that nothing is appended behind an append of unknown outcome, and
that whatever anybody reads here is accepted (`truth`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.lowlevel

from coordinator.settings import CoordinatorSettings
from fairlog_types import LogId, Offset, ShardNumber, StorageFailure, TxId
from journal.journal import Fsync
from shard.directory import FIRST_SHARD, shard_directory
from shard.giving import Giver
from shard.joining import remove_leftovers
from shard.owned import OwnedShard
from shard.partitions import Partitions
from shard.placement import Placement
from shard.progress import CopyProgress
from shard.replica import Replica, StreamTimes
from shard.roles import Copy, play_roles
from shard.shard import ShardSettings, ShardStorage, close_in_thread
from stream.engine import EngineAway, EntryGone, Stream, StreamPosition, Unknown
from stream.entry import Entry, EntryKind, decode_entry_untrusted
from stream.fold import NOTHING_READ, FoldState
from tests.simulation.disk import Directory, Disk
from tests.simulation.found import Found
from tests.simulation.history import Answered, History
from tests.simulation.joins import CopyWays, decode_mark, environment_of
from tests.simulation.machine import SETTINGS, Machine, Node
from tests.simulation.memory_lmdb import MemoryEnvironment, State, open_memory_logs
from tests.simulation.plan import Death, Plan
from tests.simulation.process_faults import resume
from tests.simulation.system_calls import ROOT
from tests.simulation.truth import Truth
from tests.simulation.workers import CooperativeLock, SimulatedFlusher, Workers
from tests.simulation.world import CURRENT, Crashed, Process
from tests.stream.model_engine import ModelCluster

TIMES = StreamTimes(failover_s=0.4, heartbeat_s=0.08, gives_up_s=2.0, mark_every_s=0.15)
HASTY_S = 0.06
"""The failover time of a node that hears of no owner between two of its heartbeats: no clock decides about safety."""


class HastyTimes:
    """In place of `StreamTimes`: too short ones, until all is to be well."""

    heartbeat_s, gives_up_s, mark_every_s = TIMES.heartbeat_s, TIMES.gives_up_s, TIMES.mark_every_s

    def __init__(self, stopping: trio.Event) -> None:
        self._stopping = stopping

    @property
    def failover_s(self) -> float:
        return TIMES.failover_s if self._stopping.is_set() else HASTY_S


@dataclass
class CopyNode(Node):
    """What anybody reads here is held against the stream."""

    truth: Truth | None = None
    name: str = ""

    async def read(self, positions: dict[LogId, Offset]) -> dict[LogId, Found]:
        found = await super().read(positions)
        assert self.truth is not None
        self.truth.check_read(self.name, found)
        return found


class ProcessStream:
    """The stream as one run of a process has it: outcomes come to its tasks, and to nobody when it is dead."""

    def __init__(self, stream: Stream, machine: ReplicaMachine, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._machine = machine
        self._nursery = nursery
        self.name, self.entry_bytes_max = stream.name, 2000
        self.open_reader, self.start, self.trim = stream.open_reader, stream.start, stream.trim
        self.end = stream.end
        self._run = machine.durable.starts
        self._under_way: dict[Callable[[StreamPosition | Unknown], None], None] = {}
        self._ended: set[int] = set()
        """The epochs in which it knows of an append no outcome."""

    def append(self, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        machine = self._machine
        if machine.world.crashed:
            raise Crashed
        entry = decode_entry_untrusted(data)
        assert isinstance(entry, Entry)
        epoch = None if entry.kind is EntryKind.FENCE else entry.epoch
        if epoch in self._ended:
            what = f"entry {entry.sequence} of epoch {epoch} behind one of unknown outcome"
            machine.world.violate("M7", f"{machine.name} appends to {self.name} {what}")
        self._under_way[done] = None

        def come(outcome: StreamPosition | Unknown) -> None:
            if self._under_way.pop(done, self) is self:
                return
            if machine.durable.starts == self._run and not machine.world.crashed and machine.runs:
                self._nursery.start_soon(self._tell, done, outcome, epoch)

        self._stream.append(data, come)

    def die(self) -> None:
        """Its tasks that wait where nobody can cancel them are unwound."""
        while self._under_way:
            self._under_way.popitem()[0](Unknown("the machine is dead"))

    async def _tell(
        self,
        done: Callable[[StreamPosition | Unknown], None],
        outcome: StreamPosition | Unknown,
        epoch: int | None,
    ) -> None:
        CURRENT.set(self._machine.world)
        await trio.lowlevel.checkpoint()
        if isinstance(outcome, Unknown) and epoch is not None:
            self._ended.add(epoch)
        done(outcome)


class ReplicaMachine(Machine):
    """One node, with its disk."""

    world: Process

    def __init__(
        self,
        process: Process,
        plan: Plan,
        logs: Sequence[LogId],
        workers: Workers,
        cluster: ModelCluster,
        truth: Truth,
        *,
        markers: Collection[LogId],
        shard: ShardNumber = FIRST_SHARD,
        settings: CoordinatorSettings = SETTINGS,
    ) -> None:
        super().__init__(
            process,
            plan,
            logs,
            markers=markers,
            settings=settings,
            directory=shard_directory(Path(f"{ROOT}/{process.number}"), shard),
            workers=workers,
            process=process.number,
        )
        self.number = process.number
        self.at = process.number // plan.shards
        """The number of its node."""
        self.rank = (self.at + shard) % plan.nodes
        """The first owners of the shards are spread over the nodes."""
        self.name = f"n{self.at}"
        self.truth = truth
        self.cluster = cluster
        self.others: list[ReplicaMachine] = []
        self.runs = False
        self.reads: Node | None = None
        """The node for readers, whether it owns the shard or not."""
        self.progress = CopyProgress()
        self.giver = Giver()
        self.giving: trio.Nursery | None = None
        """Where copies are given to others: while it has a role."""
        self.copies: CopyWays | None = None
        self.joins = False
        """It makes its copy anew."""
        self.loses_disk = False
        """The next end of its program takes the disk along."""
        self.has_lost_disk = False
        """It has, and has no mark since."""
        self.fold_state: Callable[[], FoldState] | None = None
        """Where the fold of this copy is, of this run or the last one."""
        self._env_in: Directory | None = None
        """The directory that the data logs' environment lies in."""
        self._clock_offset_ms = int(1000 * plan.clocks_apart_s * process.stream("clock").uniform(-1, 1))
        self._times = TIMES if self.at >= plan.hasty else cast("StreamTimes", HastyTimes(process.stopping))
        self.history: History | None = None
        self._stop = trio.Event()
        self._stream: ProcessStream | None = None
        self._storage: ShardStorage | None = None
        self._after_recovery = nothing_more
        self._successors = process.stream("successors")

    @property
    def owns(self) -> bool:
        """Whether the stream says that the node that serves here is the owner."""
        return self.node is not None and self.node.number == self.truth.epoch

    def mark_on_disk(self) -> StreamPosition:
        """The position in the mark that a power cut would leave; NOTHING_READ without."""
        data = self.calls.disk.durable_bytes(str(self.directory.stream_mark))
        state = None if data is None else decode_mark(data)
        return NOTHING_READ if state is None else state.position

    def _takes_no_more(self) -> None:
        super()._takes_no_more()
        if self.reads is not None:
            self.reads.alive, self.reads = False, None
        self.runs = False

    def watch_failpoints(self, watcher: Any) -> None:
        """`_ByProcess` asks, at the failpoints of this process."""

    def reached(self, point: str) -> None:
        self._failpoints.reached(point)

    def step(self) -> None:
        super().step()
        if self.world.crashed and self._stream is not None:
            self._stream.die()

    def _crash(self, where: str) -> None:
        if not self.world.crashed:
            super()._crash(where)
            resume(self.world)
            if self.loses_disk:
                self.loses_disk, self.has_lost_disk = False, True
                self._after = Disk(), MemoryEnvironment()
                self._after[0].make_root(str(self.directory.data_dir))

    # --- one run of the program ---

    async def _live(
        self,
        machine: trio.Nursery,
        death: Death,
        until: trio.Event,
        after_recovery: Callable[[Node], Awaitable[None]],
    ) -> None:
        world = self.world
        self.durable.starts += 1
        self.runs, self._stopped = True, False
        self._stop = trio.Event()
        async with trio.open_nursery(strict_exception_groups=True) as roles:
            engine = self.cluster.engine(self.name)
            stream = self._stream = ProcessStream(cast("Stream", await _opened(engine, self.truth.stream)), self, roles)
            done = trio.Event()
            roles.start_soon(self._keep_copy, machine, cast("Stream", stream), after_recovery, done)
            with trio.move_on_after(death.after_s) as self._alive:
                await until.wait()
            if death.kind != "stop" and not until.is_set():
                self._crash("when its time was up")
                raise Crashed
            self._stop.set()
            await done.wait()
            self.runs = False
            roles.cancel_scope.cancel()
        self._stopped = True
        world.note("node", "stopped in good order")
        world.count("stops")

    async def _keep_copy(
        self,
        machine: trio.Nursery,
        stream: Stream,
        after_recovery: Callable[[Node], Awaitable[None]],
        done: trio.Event,
    ) -> None:
        """As `fairlog.cluster_node.shard_copy.keep_copy`."""
        try:
            await trio.to_thread.run_sync(remove_leftovers, self.directory.data_dir)
            while not self._stop.is_set():
                if self.copies is not None:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_cancel_when, self._stop, nursery.cancel_scope)
                        await self.copies.make_anew_if_it_falls_short(self, stream, self.progress)
                        nursery.cancel_scope.cancel()
                if not self._stop.is_set():
                    await self._play_roles(machine, stream, after_recovery)
        finally:
            self.runs = False
        done.set()

    async def _play_roles(
        self, machine: trio.Nursery, stream: Stream, after_recovery: Callable[[Node], Awaitable[None]]
    ) -> None:
        if self.copies is not None:
            known, make = (self._env_in, self.env), self._new_environment
            self._env_in, self.env = environment_of(self.calls.disk, self.directory, known, make)
        data_logs = open_memory_logs(self.directory.data_logs, self.env)
        data_logs._write_lock = CooperativeLock()  # type: ignore[assignment]
        flusher = SimulatedFlusher(self.workers, machine, self.calls, ring=self.plan.ring, watcher=cast("Any", None))
        storage = ShardStorage(data_logs, flusher)
        self._after_recovery, self._storage = after_recovery, storage
        settings = ShardSettings(
            fsync=Fsync.COMMIT,
            fsync_interval_ms=0,
            segment_bytes_max=self.plan.segment_bytes,
            group_segment_bytes_max=self.plan.segment_bytes,
            group_journals=self.plan.group_journals,
            producer_expiration_ms=86_400_000,
            coordinator=self._settings,
        )
        copy = Copy(
            self.directory,
            storage,
            settings,
            Placement(self.plan.shards).group_journals(self.directory.number, self.plan.group_journals),
            stream,
            self.name,
            self.rank,
            self._times,
            self.producer_ids,
            self.now_ms,
            self.neighbours(),
            self.progress,
            self.giver,
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_closed, partial(close_in_thread, data_logs.close))
            try:
                await play_roles(copy, self, self._stop)
            except EntryGone as gone:
                self.world.note("node", f"is left behind: {gone}")
                self.world.count("copies that were left behind")
                if self.copies is None:
                    self.world.violate("M9", f"{self.name} cannot go on from its mark: {gone}")
                await trio.lowlevel.checkpoint()

    def _new_environment(self, state: State) -> MemoryEnvironment:
        return MemoryEnvironment(state, at_commit=self._at_commit, fails=self._commit_fails)

    # --- what it does in its roles (`shard.roles.Roles`) ---

    async def lead(self, partitions: Partitions) -> None:
        for mode, logs in self._by_mode.items():
            if logs:
                await partitions.lead(logs, mode)

    async def adopt(self, _partitions: Partitions, _log: LogId) -> bool:
        """The topics were there before the first start."""
        return False

    @asynccontextmanager
    async def following(self, replica: Replica) -> AsyncIterator[None]:
        self.world.note("node", f"follows from {replica.fold.next_position} on")
        assert self._storage is not None
        self.fold_state = lambda: replica.fold.state
        self.truth.check_fold(self.name, replica.fold.state)
        seen = SimpleNamespace(partitions=replica.partitions, data_logs=self._storage.data_logs, failure=None)
        reads = self.reads = CopyNode(
            0, cast("Any", seen), cast("Any", None), False, self.world, truth=self.truth, name=self.name
        )
        try:
            async with self._gives():
                yield
        finally:
            reads.alive, self.reads = False, None

    @asynccontextmanager
    async def _gives(self) -> AsyncIterator[None]:
        """Copies are given to others."""
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            self.giving = nursery
            try:
                yield
            finally:
                self.giving = None
            nursery.cancel_scope.cancel()

    def offsets_decided(self, _log: LogId, _txid: TxId, _offset: Offset | None) -> None:
        """No offsets are committed here."""

    def successor(self) -> str | None:
        return self._successors.choice([*(other.name for other in self.others), None])

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        state = owned.state_at_first
        assert self.history is not None
        self.fold_state = lambda: owned.writer.state
        self.truth.check_owner(self.name, self.durable.starts, state)
        due = self.history.answered() if self.truth.epoch == state.epoch else None
        try:
            await self._serve(owned, state.epoch, due, stop)
        finally:
            if owned.writer.ended is not None:
                self.world.count("owners that found out that they are deposed, or know no outcome")
                self.ended_by[state.epoch] = "power cut"
            else:
                self.ended_by[state.epoch] = "stop"

    async def _serve(
        self,
        owned: OwnedShard,
        epoch: int,
        due: Answered | None,
        stop: trio.Event,
    ) -> None:
        world, shard = self.world, owned.shard
        for mode, logs in self._by_mode.items():
            if logs:
                await shard.lead(logs, mode)
        async with self.hearing(shard):
            await shard.recover()
            async with trio.open_nursery(strict_exception_groups=True) as background:
                background.start_soon(shard.partitions.run)
                await shard.drain()
                background.start_soon(shard.coordinator.run)
                async with self._gives(), trio.open_nursery(strict_exception_groups=True) as serving:
                    node = CopyNode(epoch, shard, serving, True, world, truth=self.truth, name=self.name)
                    try:
                        await self._serve_as(node, due, owned, stop)
                    finally:
                        node.alive = False
                    serving.cancel_scope.cancel()
                background.cancel_scope.cancel()

    async def _serve_as(self, node: Node, due: Answered | None, owned: OwnedShard, stop: trio.Event) -> None:
        self.world.count("recoveries")
        self.world.note("node", f"owns epoch {node.number}")
        if due is not None:
            await self.judge(node, due)
        await self._after_recovery(node)
        if self.world.crashed:
            raise Crashed
        self.node = self.reads = node
        self.came_up.set()
        await first(stop, owned.over)
        runs = self.runs
        self._takes_no_more()
        self.runs = runs

    async def judge(self, node: Node, due: Answered) -> None:
        """A new owner has all that was placed, and all that was answered, before it was the owner."""
        assert self.history is not None
        found = await node.read(dict.fromkeys(self.logs, Offset(0)))
        self.truth.check_recovered(self.name, node.number, found)
        if self.truth.epoch != node.number:
            return  # others have read more by now than it can have
        when = f"at the begin of epoch {node.number} of {self.name}"
        ends = self.history.view(when, dict.fromkeys(self.logs, 0), found)
        self.history.settled(when, ends, due)
        self.history.deadlines.grants_after_start(node, when)
        self.history.fences(when, self.logs, node.producers(self.logs))
        self.truth.check_grants(when, self.history.deadlines.granted_epochs, self.history.begun)


async def nothing_more(_node: Node) -> None:
    """The machine judges."""


async def _opened(engine: Any, stream: str) -> Any:
    while True:
        try:
            return await engine.open_stream(stream)
        except EngineAway:
            await trio.sleep(0.05)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def first(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(_cancel_when, event, nursery.cancel_scope)


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True), suppress(StorageFailure, OSError):
        await close()
