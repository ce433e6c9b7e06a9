"""The simulated machine: its disk, the node that runs on it, and its deaths and starts.

A start does what `fairlog.node` does between opening the directory and serving: the shard is put together by
`shard.shard.open_shard`, and comes up and down in the same order. What differs stands in for something: the shard's
flusher runs on simulated workers, its data logs on an engine in memory; the cluster store and the note of the last run
are what the machine durably remembers. Between two starts lies an end:

    power cut   the disk becomes one of its legal images; the data logs lose at most the last commit
    kill        the process is gone, all that it wrote is there, though not durable yet
    stop        in good order

A power cut or a kill can come at any system call, at any step of the event loop, at any failpoint, and at any time.
The dead node's tasks are unwound, but nothing they do then has an effect: every system call fails, every answer is
dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState
from datalog.batch import parse_batch_header_untrusted
from datalog.interface import DataLogs, OffsetOutOfRange, ReadRequest, ReadResult
from datalog.layout import LOGS, decode_log_record
from fairlog.groups.committed import CommittedOffsets
from fairlog.groups.offset_index import OffsetIndex
from fairlog_types import LeaderEpoch, LogId, Offset, StorageFailure
from journal import failpoints
from journal.journal import Fsync
from journal.segment import base_of
from partition.answers import Appended, DuplicateOf, RefusedAppend
from partition.modes import JOURNAL, MARKERS
from partition.partition import Partition
from shard.directory import FIRST_SHARD, ShardDirectory, shard_directory
from shard.shard import Neighbours, Shard, ShardSettings, ShardStorage, open_shard
from tests.simulation.disk import Disk
from tests.simulation.found import Found, found_by_markers
from tests.simulation.memory_lmdb import MemoryEnvironment, open_memory_logs
from tests.simulation.plan import Death, Plan
from tests.simulation.system_calls import ROOT, SystemCalls
from tests.simulation.workers import CooperativeLock, SimulatedFlusher, Workers
from tests.simulation.world import Crashed, World

T = TypeVar("T")

SHARD = shard_directory(Path(ROOT), FIRST_SHARD)
SETTINGS = CoordinatorSettings(check_interval_ms=40, min_timeout_ms=80, max_timeout_ms=20_000)
PATIENCE_S = 60.0
"""So long a request may take on a healthy node, by the virtual clock, before the run is judged to hang."""


MakeOffsets = Callable[[Shard, OffsetIndex], CommittedOffsets]


class EffectUnknown(Exception):
    """The node says itself that it does not know."""


@dataclass
class Durable:
    """What the machine remembers beside its disk: the cluster store's part, and the note of the last run."""

    starts: int = 0
    next_producer_id: int = 1000
    group_journals_begun: bool = False
    boot: int = 0
    note: tuple[int, str, LeaderEpoch] | None = None
    """As `fairlog.last_run` keeps it: the boot, how the last run ended, and since which leader epoch all is whole."""


NOTHING_LOST = LeaderEpoch(0)


@dataclass
class LastRun:
    """The note's rules (`fairlog.last_run`), on what is durable here. A `TailWatcher`."""

    durable: Durable
    world: World
    tail_kept: bool = True
    has_failed: bool = False
    _whole_since: LeaderEpoch = NOTHING_LOST

    def __post_init__(self) -> None:
        note = self.durable.note
        if note is not None:
            boot, ended, self._whole_since = note
            self.tail_kept = ended == "closed" or (ended == "open" and boot == self.durable.boot)
        else:
            self.tail_kept = self.durable.starts <= 1

    @property
    def whole_since(self) -> LeaderEpoch:
        return self._whole_since if self.tail_kept else LeaderEpoch(self.durable.starts)

    def tail_cut(self, interrupted: bool) -> None:
        killed = self.durable.note is not None and self.durable.note[1] == "open"
        if self.tail_kept and not (interrupted and killed):
            self._write("lost")
            self.tail_kept = False

    def failed(self) -> None:
        self.has_failed = True
        with suppress(Crashed):
            self._write("lost")

    def begin(self) -> None:
        self._whole_since = self.whole_since
        if not self.has_failed:
            self._write("open")

    def end(self) -> None:
        if not self.has_failed:
            self._write("closed")

    def _write(self, ended: str) -> None:
        if self.world.crashed:
            raise Crashed
        self.durable.note = self.durable.boot, ended, self._whole_since


class ProducerIds:
    """In place of the cluster store."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable

    async def allot_producer_ids(self, count: int) -> range:
        await trio.sleep(0.0002)
        first = self._durable.next_producer_id
        self._durable.next_producer_id += count
        return range(first, first + count)


@dataclass
class Node:
    """One run of the program, as clients see it."""

    number: int
    shard: Shard
    serving: trio.Nursery
    tail_kept: bool
    """The run before this one has left all that it had written."""
    world: World
    offsets: CommittedOffsets | None = None
    serves_since_s: float = field(default_factory=trio.current_time)
    connections: itertools.count[int] = field(default_factory=itertools.count)
    begins: dict[LogId, Offset] = field(default_factory=dict)
    """Where somebody was told that a log begins, or has found it."""
    alive: bool = True

    @property
    def coordinator(self) -> Coordinator:
        return self.shard.coordinator

    @property
    def data_logs(self) -> DataLogs:
        return self.shard.data_logs

    def partition(self, log: LogId) -> Partition:
        return self.shard.partitions.by_log[log]

    async def produce(
        self, transactional_id: str | None, log: LogId, data: bytearray
    ) -> Appended | DuplicateOf | RefusedAppend:
        """What the handler of Produce does with acks=all. Raises EffectUnknown."""
        header = parse_batch_header_untrusted(data)
        try:
            outcome = await self.partition(log).append(
                data, header, self.shard.partitions.open_transaction_of(header.producer_id)
            )
        except StorageFailure:
            return RefusedAppend.STORAGE
        if outcome is RefusedAppend.NOT_IN_TRANSACTION:
            current = self.coordinator.epoch_of(header.producer_id)
            if current is not None and header.producer_epoch < current:
                return RefusedAppend.FENCED
            description = None if transactional_id is None else self.coordinator.describe(transactional_id)
            if description is not None and description.state == IdState.MUST_ABORT.name:
                return RefusedAppend.MUST_ABORT
        if isinstance(outcome, Appended | DuplicateOf):
            try:
                if outcome.durable_at is not None:
                    await self.partition(log).durable(outcome.durable_at)
                    if outcome.base_offset is not None:
                        end = Offset(outcome.base_offset + header.record_count)
                        await self.partition(log).keep_pace(end, header.size_bytes)
            except StorageFailure as failure:
                raise EffectUnknown(str(failure)) from failure
        return outcome

    def producers(self, logs: Sequence[LogId]) -> dict[LogId, dict[int, int]]:
        """What DescribeProducers says of each of these: the epoch of each producer, by its id."""
        return {
            log: {each.producer_id: each.producer_epoch for each in self.partition(log).describe_producers()}
            for log in logs
        }

    async def read(self, positions: dict[LogId, Offset]) -> dict[LogId, Found]:
        """What all logs hold from these offsets on, in one cut, for readers of committed records.

        Of a log that begins later, from there on: a client that is told so goes on there.
        """
        marked = [log for log in positions if self.partition(log).mode.has_markers]
        at, known = dict(positions), dict(self.begins)

        def work() -> list[ReadResult]:
            while True:
                requests = [ReadRequest(log, offset, 1 << 30) for log, offset in at.items()]
                requests += [ReadRequest(log, at[log], 1 << 30, committed_only=True) for log in marked]
                found: list[ReadResult] = []
                for answer in self.data_logs.read(requests, bytes_max=1 << 30):
                    if isinstance(answer, OffsetOutOfRange) and answer.log_start_offset > at[answer.log]:
                        at[answer.log] = answer.log_start_offset
                        break
                    assert isinstance(answer, ReadResult), answer
                    found.append(answer)
                else:
                    return found

        answers = await trio.to_thread.run_sync(work)
        found = {answer.log: Found(answer.batches) for answer in answers[: len(positions)]}
        everything = {answer.log: answer for answer in answers[: len(positions)]}
        for answer in answers[len(positions) :]:
            found[answer.log] = found_by_markers(everything[answer.log], answer, partial(self._violate, answer.log))
        for log, answer in everything.items():
            if answer.log_start_offset < known.get(log, 0):
                self._violate(log, 5, f"it began at {known[log]}, and begins at {answer.log_start_offset} now")
            self.log_begins(log, answer.log_start_offset)
        return {
            log: replace(part, read_from=at[log], log_start=everything[log].log_start_offset)
            for log, part in found.items()
        }

    def log_begins(self, log: LogId, at: Offset) -> None:
        """From here on, in this run of the node: it does not go back."""
        self.begins[log] = max(at, self.begins.get(log, at))

    def _violate(self, log: LogId, invariant: int, what: str) -> None:
        self.world.violate(invariant, f"{log}, start {self.number}: {what}")


class Machine:
    """Runs nodes one after the other on one disk."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        logs: Sequence[LogId],
        *,
        markers: Collection[LogId] = (),
        settings: CoordinatorSettings = SETTINGS,
        make_offsets: MakeOffsets | None = None,
        directory: ShardDirectory = SHARD,
        workers: Workers | None = None,
        process: int | None = None,
    ) -> None:
        """Of `logs`, those in `markers` are of marker mode; with `make_offsets`, each node has committed offsets, too.

        `directory` and `workers` are given where several machines stand for the processes of one (`shards`), and
        `process`, the number of the process, where that is not the shard's (`replicas`).
        """
        self.world = world
        self.plan = plan
        self.logs = logs
        self._by_mode = {
            JOURNAL: [log for log in logs if log not in markers],
            MARKERS: [log for log in logs if log in markers],
        }
        self._settings = settings
        self._make_offsets = make_offsets
        self.directory = directory
        self.durable = Durable()
        self.producer_ids = ProducerIds(self.durable)
        self.node: Node | None = None
        self.ended_by: dict[int, str] = {}
        """How each start has ended so far: power cut, kill, stop, or refused."""
        self.came_up = trio.Event()
        """Set while a node serves."""
        self.workers = workers or Workers(world, pause_probability=plan.pause_probability)
        disk, root = Disk(), str(directory.data_dir)
        disk.make_root(root)
        self.calls = SystemCalls(
            world,
            disk,
            slow_sync_s=plan.slow_sync_s,
            root=root,
            number=directory.number if process is None else process,
        )
        self.calls.maybe_pause = self.workers.maybe_pause
        self.calls.may_delete = self._may_delete
        self.env = MemoryEnvironment(at_commit=self._at_commit, fails=self._commit_fails)
        self._rng = world.stream("machine")
        self._rng_of_commits = world.stream("commits of the data logs")
        self._life: trio.CancelScope | None = None
        self._alive: trio.CancelScope | None = None
        """While it serves: what ends with its time."""
        self._stopped = False
        """All but the files is stopped in good order."""
        self._died = ""
        self._after = disk, self.env
        self._steps_left: int | None = None
        self._where = ""
        self._failpoints = Failpoints(self, Death("stop", 0))
        self._kind = "kill"
        self._clock_offset_ms = 0
        world.on_crash = self._crash

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._clock_offset_ms + int(self.world.clock.current_time() * 1000)

    # --- deaths ---

    def _crash(self, where: str) -> None:
        """The machine dies in this very moment."""
        if self.world.crashed:
            return
        self.world.crashed = True
        self._takes_no_more()
        if self._kind == "power cut":
            image, lost = self.calls.disk.power_cut(self._rng)
            env = self.env.after_power_cut(self._rng)
            undone = "" if env.state is self.env.state else ", the data logs' last commit is undone"
            self._died = f"power cut {where}: {lost}{undone}"
            self.durable.boot += 1
        else:
            image, env = self.calls.disk, self.env.after_end(self._rng_of_commits)
            self._died = f"killed {where}"
        self._after = image, env

    def _at_commit(self) -> None:
        self.workers.maybe_pause()
        if self.world.crashed:
            raise Crashed
        if self.env.has_failed:
            self.world.violate(12, "the data logs' file is written to after it has failed")
        self._failpoints.reached("datalog.commit")

    def _commit_fails(self, part: str) -> bool:
        probability = self.calls.faults.commit_error
        if not probability or self._rng_of_commits.random() >= probability:
            return False
        self.world.note("data logs", f"commit fails: {part}")
        self.world.count("failed commits of the data logs")
        return True

    def arm(self, death: Death) -> None:
        """How and where the next death comes; if its place is not reached, it comes when its time is up."""
        self._kind = death.kind
        self._failpoints = Failpoints(self, death)
        self.watch_failpoints(self._failpoints)
        self.calls.die_at_call = death.at_call
        self._steps_left, self._where = death.at_step, f"at step {death.at_step}"

    def watch_failpoints(self, watcher: Failpoints | None) -> None:
        """Let it be asked at each of the node's failpoints."""
        failpoints._armed = watcher  # type: ignore[assignment]

    def die(self, kind: str) -> None:
        """Now, if a node runs: `kind` is a power cut or a kill."""
        if self._life is not None:
            self._kind = kind
            with suppress(Crashed):
                self._crash("at a request")

    def dies_at(self, point: str, steps_later: int) -> bool:
        """The point at which it is to die is reached; False if some steps are left."""
        if steps_later:
            self._steps_left, self._where = steps_later, f"{steps_later} steps behind {point}"
            return False
        self._crash(f"at {point}")
        return True

    def answered(self, what: str) -> None:
        """A client has an answer: a point like those of the node."""
        if not self.world.crashed:
            with suppress(Crashed):
                self._failpoints.reached(f"client.{what}")

    def step(self) -> None:
        """Before each step of the event loop."""
        if self.world.violation is not None:
            self.world.finished.cancel()
        if self._steps_left is not None and not self.world.crashed:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._steps_left = None
                self._crash(self._where)
        if self.world.crashed and self._life is not None:
            self._life.cancel()

    def end_now(self) -> None:
        """Let the run that serves end as it will when its time is up."""
        if self._alive is not None:
            self._alive.cancel()

    def heal(self) -> None:
        """From now on the disk and the network do what they should."""
        self.calls.faults.write_error = self.calls.faults.sync_error = self.calls.faults.commit_error = 0.0
        self.calls.faults.full = False

    # --- one run of the node ---

    async def run_node(
        self, death: Death, *, until: trio.Event, after_recovery: Callable[[Node], Awaitable[None]]
    ) -> None:
        """Start, serve, and end as `death` says, or when `until` is set. Raises CorruptStorage, AssertionError."""
        world = self.world
        self.arm(death)
        self._stopped = False
        try:
            async with trio.open_nursery(strict_exception_groups=True) as machine:
                # What runs in `machine` stands for threads and the kernel: it ends by itself.
                with trio.CancelScope() as self._life:
                    await self._live(machine, death, until, after_recovery)
        except BaseExceptionGroup as group:
            # What the dead node's tasks say while they are unwound means nothing.
            rest = group.split(Exception if world.crashed else StorageFailure)[1]
            if rest is not None:
                raise rest from None
            if not world.crashed:
                what = "cannot be closed" if self._stopped else "cannot start"
                world.note("node", f"{what}: the disk refuses")
                world.count("refused ends" if self._stopped else "refused starts")
                self.ended_by[self.durable.starts] = "refused"
        self._life = None
        self.calls.die_at_call = self._steps_left = None
        self.watch_failpoints(None)
        if world.crashed:
            world.note("machine", self._died)
            world.count(self._kind)
            self.ended_by[self.durable.starts] = self._kind
            image, env = self._after
            self.calls.restart(image)
            self.env = env
            world.crashed = False
        else:
            self.calls.restart(self.calls.disk)
            self.env = self.env.after_end(self._rng_of_commits)
        if death.down_s:
            await trio.sleep(death.down_s)

    async def _live(
        self,
        machine: trio.Nursery,
        death: Death,
        until: trio.Event,
        after_recovery: Callable[[Node], Awaitable[None]],
    ) -> None:
        world, durable = self.world, self.durable
        async with self._open(machine) as (shard, index, last_run), AsyncExitStack() as hearing:
            for mode, logs in self._by_mode.items():
                if logs:
                    await shard.lead(logs, mode)
            offsets = None if self._make_offsets is None else self._make_offsets(shard, index)
            if offsets is not None:
                await shard.lead(offsets.logs())
            await hearing.enter_async_context(self.hearing(shard))
            await shard.recover()
            async with trio.open_nursery(strict_exception_groups=True) as background:
                background.start_soon(shard.partitions.run)
                await shard.drain()
                last_run.begin()
                if offsets is not None:
                    await offsets.load()
                background.start_soon(shard.coordinator.run)
                async with self._serving(), trio.open_nursery(strict_exception_groups=True) as serving:
                    node = Node(durable.starts, shard, serving, last_run.tail_kept, world, offsets)
                    world.count("recoveries")
                    world.note("node", f"start {durable.starts} serves, tail kept: {last_run.tail_kept}")
                    await after_recovery(node)
                    if world.crashed:
                        raise Crashed
                    self.node = node
                    self.came_up.set()
                    with trio.move_on_after(death.after_s) as self._alive:
                        await until.wait()
                    if death.kind != "stop" and not until.is_set():
                        self._crash("when its time was up")
                        raise Crashed
                    self._takes_no_more()
                    self.stopping(shard)
                    serving.cancel_scope.cancel()
                if shard.failure is None:
                    await shard.drain()
                background.cancel_scope.cancel()
            self._stopped = True
        if shard.failure is None:
            last_run.end()
        self.ended_by[durable.starts] = "stop"
        world.note("node", "stopped in good order")
        world.count("stops")

    @asynccontextmanager
    async def hearing(self, _shard: Shard) -> AsyncIterator[None]:
        """While it hears other shards: this one is alone."""
        yield

    def stopping(self, _shard: Shard) -> None:
        """It stops in good order: what is asked of it is given up, or carried out."""

    def neighbours(self) -> Neighbours | None:
        """The other shards: there are none."""
        return None

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._takes_no_more()

    def _takes_no_more(self) -> None:
        """Nothing comes to the node any more, and no answer of it goes out."""
        if self.node is not None:
            self.node.alive, self.node, self.came_up = False, None, trio.Event()

    @asynccontextmanager
    async def _open(self, machine: trio.Nursery) -> AsyncIterator[tuple[Shard, OffsetIndex, LastRun]]:
        durable, plan = self.durable, self.plan
        durable.starts += 1
        last_run = LastRun(durable, self.world)
        index = OffsetIndex(self.now_ms)
        data_logs = open_memory_logs(self.directory.data_logs, self.env)
        data_logs._write_lock = CooperativeLock()  # type: ignore[assignment]
        flusher = SimulatedFlusher(self.workers, machine, self.calls, ring=plan.ring, watcher=last_run)

        async def note_begun() -> None:
            durable.group_journals_begun = True

        async with AsyncExitStack() as stack:
            stack.push_async_callback(_closed, partial(trio.to_thread.run_sync, data_logs.close))
            shard = await stack.enter_async_context(
                open_shard(
                    self.directory,
                    ShardStorage(data_logs, flusher),
                    ShardSettings(
                        fsync=Fsync.COMMIT,
                        fsync_interval_ms=0,
                        segment_bytes_max=plan.segment_bytes,
                        group_segment_bytes_max=plan.segment_bytes,
                        group_journals=plan.group_journals,
                        producer_expiration_ms=86_400_000,
                        coordinator=self._settings,
                    ),
                    leader_epoch=LeaderEpoch(durable.starts),
                    producer_ids=self.producer_ids,
                    begun=durable.group_journals_begun,
                    note_begun=note_begun,
                    whole_since=lambda: last_run.whole_since,
                    offsets_decided=index.decided,
                    now_ms=self.now_ms,
                    neighbours=self.neighbours(),
                )
            )
            yield shard, index, last_run

    # --- invariant 11, as the disk sees it ---

    def _may_delete(self, path: str) -> None:
        """A local journal's segment goes: whatever a power cut left of the data logs must not need it."""
        segment = Path(path)
        if base_of(segment.name) is None or segment.parent.parent != self.directory.local_journals:
            return
        later = [base for name in self.calls.disk.children(str(segment.parent)) if (base := base_of(name)) is not None]
        end = min((base for base in later if base > (base_of(segment.name) or 0)), default=None)
        for state in self.env.survivors():
            found = state[LOGS].values.get(segment.parent.name.encode())
            needed_from = 0 if found is None else decode_log_record(found).replay_from
            if end is None or needed_from < end:
                self.world.violate(11, f"{segment.name} of {segment.parent.name} goes, but {needed_from} is needed")


class Failpoints:
    """What `journal.failpoints` calls at each point: it may be where the machine dies."""

    name = ""

    def __init__(self, machine: Machine, death: Death) -> None:
        self._machine = machine
        self._death = death
        self._left = death.nth

    def reached(self, name: str) -> None:
        if self._machine.world.crashed:
            raise Crashed
        if name == self._death.at_point:
            self._left -= 1
            if self._left == 0 and self._machine.dies_at(name, self._death.steps_later):
                raise Crashed


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True), suppress(StorageFailure, OSError):
        await close()
