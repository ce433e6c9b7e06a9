"""One run of several shards: a process each, with a disk of its own, and messages between them.

    clients ──▶ network ──▶ process 0 ◀┈┈ messages ┈┈▶ process 1 ◀┈┈▶ process 2
       └────── history ◀─ readers ─┘                        └─ its own disk, journals, data logs, deaths, starts

Each process is a `Machine` (`machine`), put together with its neighbours. It is killed alone, or its disk loses power
alone or with all others; it stays down for a while, and starts again beside those that live on. It is suspended, its
disk is full, its wall clock jumps (`process_faults`).

Fault model of the way between shards: a message is lost, doubled, or late, also later than the next start of either
shard; two of them change places; in one direction nothing gets through for a while. What arrives is what was sent: it
goes through the codec of the processes.

After each recovery the logs of that process are judged, as in a run of one (`simulation`). In the end the network and
the disks are whole, and all processes up: then each transaction is visible in all logs of all shards, or in none, and
nothing stays open or prepared. That is judged once more after a last start, and nobody waits for what is left open.
Then the cuts are judged that were taken over all shards meanwhile (`cuts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from unittest import mock
from uuid import UUID

import trio
import trio.lowlevel

from coordinator.states import IdState
from coordinator.transaction_groups import group_of, journal_of
from fairlog.interbroker.codec import decode_untrusted, encode
from fairlog_types import LogId, Offset, ShardNumber
from journal import failpoints
from shard.conversation import Command, Message, Reply
from shard.directory import ShardDirectory, shard_directory
from shard.placement import Placement
from shard.shard import Neighbours, Shard
from tests.simulation.beside import nobody_waits
from tests.simulation.clients import (
    Client,
    EpochProducer,
    PatientProducer,
    PlainProducer,
    Reader,
    TransactionalProducer,
)
from tests.simulation.cuts import Cutter, LimitedReader, TakenCuts
from tests.simulation.deadlines import LOOK_S
from tests.simulation.deleting import Deleter
from tests.simulation.found import Found
from tests.simulation.history import Answered, History, Transaction, log_name
from tests.simulation.machine import SETTINGS, Durable, Failpoints, Machine, Node
from tests.simulation.network import Network
from tests.simulation.plan import Death, Plan
from tests.simulation.process_faults import Faults, resume
from tests.simulation.sinks import drivers
from tests.simulation.stuck import VIRTUAL_S_MAX, stop_when_stuck
from tests.simulation.system_calls import ROOT
from tests.simulation.workers import Workers
from tests.simulation.world import CURRENT, Crashed, Process, World

SEPARATOR = "."
"""Between the group and the member in a transactional id."""
GRACE_S = 2.0
"""So long a process that stops waits for others."""
SETTLED_S = 60.0
"""So long it may take until nothing is open any more, once all processes are up."""
SERVES_S = 60.0
"""So long a process may take to start: by then all others have been up, and well, at some time."""
HOUR_S = 3600.0
"""So far, at most, all clocks jump while a transaction is left open at the end: no other time is counted by them."""
JUMPS_BETWEEN_STARTS = 0.3
"""How likely it is that a wall clock is set between two starts."""
RESTARTED_S = 10.0
"""So long after its disk has failed a process that serves is restarted by its operator, if it does not end before."""


class Placed:
    """Which process serves what: as the node places it."""

    def __init__(self, plan: Plan) -> None:
        self._placement = Placement(plan.shards)
        self._group_journals = plan.group_journals

    def of_log(self, log: LogId) -> int:
        return self._placement.shard_of(log, together=False)

    def of_id(self, transactional_id: str) -> int:
        journal = journal_of(group_of(transactional_id, SEPARATOR), self._group_journals)
        return self._placement.shard_of_group_journal(journal)


def marked(plan: Plan, logs: Sequence[LogId]) -> Sequence[LogId]:
    """Those of marker mode."""
    return logs[: plan.markers]


class ShardMachine(Machine):
    """The process of one shard, with its disk."""

    world: Process

    def __init__(self, process: Process, plan: Plan, logs: Sequence[LogId], workers: Workers, where: Placed) -> None:
        self.number = ShardNumber(process.number)
        super().__init__(
            process,
            plan,
            [log for log in logs if where.of_log(log) == process.number],
            markers=marked(plan, logs),
            settings=replace(SETTINGS, group_separator=SEPARATOR),
            directory=shard_directory(Path(f"{ROOT}/{process.number}"), self.number),
            workers=workers,
        )
        self.others: list[ShardMachine] = []
        self.way: Way | None = None
        self.hears: Shard | None = None
        """What takes in messages, as long as it runs."""
        self._stops = False
        self._links: trio.Nursery | None = None
        self._placed = where
        self._everywhere = False
        self._rng_of_clock = process.stream("clock")
        self.jump_clock()
        self._failed_s: float | None = None
        """When it was seen that the disk of the node that serves has failed."""

    def neighbours(self) -> Neighbours | None:
        assert self.way is not None
        return neighbours_of(self, self.way, self._placed)

    @asynccontextmanager
    async def hearing(self, shard: Shard) -> AsyncIterator[None]:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            await nursery.start(shard.run_links)
            self.hears, self._links, self._stops = shard, nursery, False
            for other in self.others:
                other.reaches(self.number)
            nursery.start_soon(self._serves_in_time)
            try:
                yield
            finally:
                self.hears = None
                for other in self.others:
                    other.loses(self.number)
            nursery.cancel_scope.cancel()

    async def _serves_in_time(self) -> None:
        """It may have to wait for a process that stands still."""
        began_s = -1.0
        while began_s < self.world.another_stands_still_until_s:
            began_s = trio.current_time()
            with trio.move_on_after(SERVES_S):
                await self.came_up.wait()
                return
        self.world.violate(8, f"process {self.number} has started, and does not serve after {SERVES_S:.0f} s")

    def jump_clock(self, by_s: float | None = None) -> None:
        """Its wall clock shows another time from now on; by default as wrong as the plan has it."""
        by_s = self.plan.clocks_apart_s if by_s is None else by_s
        self._clock_offset_ms = int(1000 * by_s * self._rng_of_clock.uniform(-1.0, 1.0))
        self.world.note("clock", f"is {self._clock_offset_ms / 1000:.3f} s fast")
        self.world.count("jumps of a wall clock")

    def starts_again(self) -> None:
        """Its clock may have been set meanwhile."""
        if self._rng_of_clock.random() < JUMPS_BETWEEN_STARTS * (self.plan.clock_jumps > 0):
            self.jump_clock()

    def loses(self, other: ShardNumber) -> None:
        """The connection to another process has ended: only a shard that stops does anything about it."""
        if self._stops and self.hears is not None:
            self.hears.disconnected(other)

    def reaches(self, other: ShardNumber) -> None:
        """The other process has started again."""
        if self._stops and self.hears is not None:
            self.hears.connected(other)

    def stopping(self, shard: Shard) -> None:
        self._stops = True
        shard.stop()
        for other in self.others:
            if other.hears is None:
                shard.disconnected(other.number)

        async def close_links() -> None:
            await trio.sleep(GRACE_S)
            shard.close_links()

        assert self._links is not None
        self._links.start_soon(close_links)

    def step(self) -> None:
        """Be the operator, too: others that start may have to wait for this process (docs/operating.md)."""
        super().step()
        if self.node is None or self.node.shard.failure is None:
            self._failed_s = None
        elif self._failed_s is None:
            self._failed_s = trio.current_time()
        elif trio.current_time() >= self._failed_s + RESTARTED_S:
            self._failed_s = None
            self.world.note("operator", f"restarts process {self.number}, whose disk has failed")
            self.world.count("restarts after a failure of the disk")
            self.end_now()

    def is_copied(self, transaction: Transaction) -> bool:
        """Whether its coordinator, if that serves, says that all of its producer's commits are visible everywhere.

        What is answered may still wait, in the order of its group, for what another shard has not prepared. A sink's
        batch is answered when it is visible.
        """
        if transaction.batch is not None:
            return True
        at = self._placed.of_id(transaction.transactional_id)
        return says_is_copied(next((each for each in self.others if each.number == at), self).node, transaction)

    def watch_failpoints(self, watcher: Failpoints | None) -> None:
        """`_ByProcess` asks, at the failpoints of this process."""

    def reached(self, point: str) -> None:
        """Raises Crashed if this is where it dies."""
        self._failpoints.reached(point)

    def arm(self, death: Death) -> None:
        super().arm(death)
        self._everywhere = death.everywhere

    def _crash(self, where: str) -> None:
        if self.world.crashed:
            return
        super()._crash(where)
        resume(self.world)
        if self._kind == "power cut" and self._everywhere:
            for other in self.others:
                other.loses_power()

    def loses_power(self) -> None:
        """With the others, whether it runs, is being unwound, or is down."""
        if self._life is not None and not self.world.crashed:
            self._kind, self._everywhere = "power cut", False
            self._crash("with the others")
            return
        before, env = self._after if self.world.crashed else (self.calls.disk, self.env)
        image, lost = before.power_cut(self._rng)
        env = env.after_power_cut(self._rng)
        self.durable.boot += 1
        if self.world.crashed:
            self._kind, self._after = "power cut", (image, env)
            self._died += f"; power cut: {lost}"
        else:
            self.calls.restart(image)
            self.env = env
            self.world.note("machine", f"power cut while it is down: {lost}")


def says_is_copied(coordinator: Node | None, transaction: Transaction) -> bool:
    """Whether the coordinator, if it serves, says that all commits of the producer are visible everywhere."""
    if coordinator is None:
        return False
    return all(txid.producer_id != transaction.producer[0] for txid in coordinator.coordinator.undecided())


class _ByProcess:
    """Asks the process whose code has come to a failpoint."""

    name = ""

    def __init__(self, machines: Sequence[ShardMachine]) -> None:
        self._machines = machines

    def reached(self, name: str) -> None:
        process = CURRENT.get()
        if isinstance(process, Process):
            self._machines[process.number].reached(name)


class Scheduler(trio.abc.Instrument):
    """Counts the steps of each process; and ends what is dead."""

    def __init__(self, world: World, machines: Sequence[ShardMachine]) -> None:
        self._world = world
        self._machines = machines
        self.also: Sequence[Callable[[], None]] = ()
        """What else is to be done before each step."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._world.violation is not None:
            self._world.finished.cancel()
        process = task.context.get(CURRENT)
        for machine in self._machines:
            if machine.world is process or machine.world.crashed:
                machine.step()
        for step in self.also:
            step()


# --- the way between shards ---


WAITING_MAX = 1000
"""So many messages wait for a process that does not read; what has no room is lost, as in `interbroker.peers`."""


class Hears(Protocol):
    """A process that hears other shards, at times."""

    world: Process
    number: int
    plan: Plan
    durable: Durable
    directory: ShardDirectory

    @property
    def hears(self) -> Shard | None:
        """What takes in messages, as long as it runs."""
        ...

    def reached(self, point: str) -> None: ...


class Way:
    """Carries messages. `nursery` holds what is on its way."""

    def __init__(self, world: World, plan: Plan, machines: Sequence[Hears], nursery: trio.Nursery) -> None:
        self._world = world
        self._machines = machines
        self._nursery = nursery
        self._rng = world.stream("messages")
        self._rng_of_cuts = world.stream("messages of cuts")
        self.lost, self.late, self.doubled = plan.lost_messages, plan.late_messages, plan.doubled_messages
        self.cut: set[tuple[int, int]] = set()
        """From whom to whom nothing gets through."""
        self._waiting: Counter[int] = Counter()
        """How many messages have not come to each process."""

    def heal(self) -> None:
        self.lost = self.late = self.doubled = 0.0
        self.cut.clear()

    def receiver(self, _sender: Hears, to: ShardNumber) -> Hears:
        """The process to which what is sent to that shard goes."""
        return self._machines[to]

    def carry(self, sender: Hears, to: ShardNumber, message: Message) -> None:
        if sender.world.crashed:
            return
        receiver = self.receiver(sender, to)
        data, name = encode(message), _name(message)
        self._world.count("messages between shards")
        with suppress(Crashed):
            sender.reached(f"said.{name}")
        for _ in range(2 if self._rng.random() < self.doubled else 1):
            gets_through = self._rng.random() >= self.lost and (sender.number, receiver.number) not in self.cut
            if gets_through and self._waiting[receiver.number] < WAITING_MAX:
                self._waiting[receiver.number] += 1
                delay_s = self._delay() + self._delay_of_cut(name)
                self._nursery.start_soon(self._deliver, sender.directory.number, receiver, data, name, delay_s)

    def _delay(self) -> float:
        if self._rng.random() < self.late:
            return self._rng.choice((0.01, 0.1, 0.5, 1.5)) * self._rng.random()
        return 0.001 * self._rng.random()

    def _delay_of_cut(self, name: str) -> float:
        """What a cut asks of all shards at once comes to each at another time: in between, commits may come."""
        if name not in ("CutLogs", "NoteEnds", "Release", "KeepEnds"):
            return 0.0
        return self._rng_of_cuts.choice((0.0, 0.003, 0.02)) * self._rng_of_cuts.random()

    async def _deliver(self, sender: ShardNumber, to: Hears, data: bytes, name: str, delay_s: float) -> None:
        CURRENT.set(to.world)
        await trio.sleep(delay_s)
        self._waiting[to.number] -= 1
        if to.hears is None or to.world.crashed:
            return
        try:
            to.reached(f"heard.{name}")
            to.hears.receive(sender, decode_untrusted(data))
        except Exception:
            if not to.world.crashed:
                raise


def _name(message: Message) -> str:
    return type(message.body if isinstance(message, Command | Reply) else message).__name__


class Outgoing:
    """One run of a process, as its `Transport`."""

    def __init__(self, way: Way, machine: Hears) -> None:
        self._way = way
        self._machine = machine
        self._start = machine.durable.starts

    def send(self, shard: ShardNumber, message: Message) -> None:
        if self._machine.durable.starts == self._start:
            self._way.carry(self._machine, shard, message)


def neighbours_of(machine: Hears, way: Way, where: Placed) -> Neighbours:
    """The other shards, as the shard of this process sees them in this run."""

    def other(log: LogId) -> ShardNumber | None:
        shard = ShardNumber(where.of_log(log))
        return None if shard == machine.directory.number else shard

    async def all_is_known() -> None:
        """The topics were there before the first start."""

    return Neighbours(Placement(machine.plan.shards), other, all_is_known, Outgoing(way, machine))


# --- a run ---


class _Phase:
    """What all processes come to, each after its deaths."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.all_there = trio.Event()
        self.over = trio.Event()

    def arrive(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.all_there.set()


async def run_shards(world: World, plan: Plan) -> None:
    """Run a plan of several shards."""
    logs = [LogId.of_topic(UUID(int=7), partition) for partition in range(plan.logs)]
    where = Placed(plan)
    workers = Workers(world, pause_probability=plan.pause_probability)
    processes = [Process(world, number) for number in range(plan.shards)]
    machines = [ShardMachine(process, plan, logs, workers, where) for process in processes]
    for machine in machines:
        machine.others = [other for other in machines if other is not machine]
        machine.producer_ids = machines[0].producer_ids
    history = History(world, logs, markers=marked(plan, logs), group_separator=SEPARATOR)
    scheduler = Scheduler(world, machines)
    trio.lowlevel.add_instrument(scheduler)
    trio.lowlevel.spawn_system_task(stop_when_stuck, world)
    with ExitStack() as stack:
        for machine in machines:
            stack.enter_context(machine.calls.installed())
        stack.enter_context(workers.installed())
        stack.callback(setattr, failpoints, "_armed", None)
        for constant in ("KEEP_SHARE", "KEEP_PAUSE_S"):  # runs are short
            stack.enter_context(mock.patch(f"shard.cutting.{constant}", 1))
        failpoints._armed = _ByProcess(machines)  # type: ignore[assignment]
        stack.enter_context(world.finished)
        async with trio.open_nursery() as nursery:
            way = Way(world, plan, machines, nursery)
            network = Network(world, plan, machines, nursery, where)
            phases = [_Phase(plan.shards) for _ in range(3)]
            for machine in machines:
                machine.way = way
                nursery.start_soon(_live, machine, plan, history, phases)
            faults = Faults(world, plan, machines, way, where, history)
            faults.start(nursery)
            scheduler.also = [faults.step, Watch(machines, where, history).step]
            clients_done = trio.Event()
            cuts = TakenCuts(world, history)
            clients = clients_of_shards(world, plan, network, history)
            clients += [Cutter(world, network, history, f"c{number}", cuts) for number in range(plan.cutters)]
            clients += [LimitedReader(world, network, history, f"l{number}", cuts) for number in range(plan.limited)]

            async def run_clients() -> None:
                async with trio.open_nursery() as all_clients:
                    for client in clients:
                        all_clients.start_soon(client.run)
                clients_done.set()

            nursery.start_soon(run_clients)
            await phases[0].all_there.wait()
            if not faults.are_over.is_set():
                await faults.are_over.wait()
            await _come_to_an_end(
                world,
                machines,
                way,
                history,
                phases,
                clients_done,
                where,
                cuts,
                asks_for_cuts=plan.cutters > 0,
                asks_for_limits=plan.limited > 0,
            )
            nursery.cancel_scope.cancel()


async def _come_to_an_end(
    world: World,
    machines: Sequence[ShardMachine],
    way: Way,
    history: History,
    phases: Sequence[_Phase],
    clients_done: trio.Event,
    where: Placed,
    cuts: TakenCuts,
    *,
    asks_for_cuts: bool,
    asks_for_limits: bool,
) -> None:
    world.stopping.set()
    way.heal()
    for machine in machines:
        resume(machine.world)
        machine.heal()
    if all(machine.node is None or machine.node.shard.failure is None for machine in machines):
        # What a restart would forget is to end without one.
        await _all_serve(world, machines, phases[0])
        await clients_done.wait()
        await _nothing_is_left(world, machines)
        if asks_for_cuts:
            await cuts.can_be_taken(machines)
    phases[0].over.set()
    await _all_serve(world, machines, phases[1])
    await clients_done.wait()
    await _nothing_is_left(world, machines)
    if asks_for_cuts:
        await cuts.can_be_taken(machines)
    await _judge_all(machines, history, "when nothing is open any more")
    if asks_for_limits:
        await cuts.walk(machines)
    cuts.judge()
    phases[1].over.set()
    await _all_serve(world, machines, phases[2])
    await _judge_all(machines, history, "after the last start")
    nodes = [machine.node for machine in machines if machine.node is not None]

    def jump_all_clocks() -> None:
        for machine in machines:
            machine.jump_clock(HOUR_S)

    await nobody_waits(world, nodes, machines, where, history, jump_all_clocks)
    phases[2].over.set()


async def _live(machine: ShardMachine, plan: Plan, history: History, phases: Sequence[_Phase]) -> None:
    """Its deaths, one after the other; and then as long as the run needs it."""
    CURRENT.set(machine.world)
    for death in plan.deaths:
        if death.shard == machine.number:
            await _run_once(machine, history, death, trio.Event())
    for phase in phases:
        phase.arrive()
        while not phase.over.is_set():  # another one's power cut may end it, too
            await _run_once(machine, history, Death("stop", VIRTUAL_S_MAX, down_s=0.01), phase.over)


async def _run_once(machine: ShardMachine, history: History, death: Death, until: trio.Event) -> None:
    answered = history.answered()

    async def judge(node: Node) -> None:
        due = Answered(
            [it for it in answered.transactions if machine.is_copied(it)],
            answered.plain,
            {name: it for name, it in answered.batches.items() if it.is_visible},
            answered.starts,
        )
        found = await node.read(dict.fromkeys(machine.logs, Offset(0)))
        when = f"after start {node.number} of {machine.number}"
        ends = history.view(when, dict.fromkeys(machine.logs, 0), found)
        history.settled(when, ends, due)
        history.deadlines.grants_after_start(node, when)
        history.fences(when, machine.logs, node.producers(machine.logs) if node.tail_kept else None)

    machine.starts_again()
    await machine.run_node(death, until=until, after_recovery=judge)


async def _all_serve(world: World, machines: Sequence[ShardMachine], phase: _Phase) -> None:
    """Wait until each process serves in its run of that phase."""
    with trio.move_on_after(SERVES_S):
        await phase.all_there.wait()
        for machine in machines:
            await machine.came_up.wait()
        return
    waiting = ", ".join(str(machine.number) for machine in machines if machine.node is None)
    world.violate(8, f"process {waiting} does not serve after {SERVES_S:.0f} s, and all are up")
    await trio.lowlevel.checkpoint()


async def _nothing_is_left(world: World, machines: Sequence[ShardMachine]) -> None:
    """Wait until nothing is open or prepared anywhere; else that is a violation."""
    with trio.move_on_after(SETTLED_S):
        while any(_left(machine) for machine in machines):  # noqa: ASYNC110
            await trio.sleep(0.02)
        return
    left = "; ".join(said for machine in machines for said in _left(machine))
    world.violate(8, f"{SETTLED_S:.0f} s after all were up, and no client asks for anything: {left}")
    await trio.lowlevel.checkpoint()


def _left(machine: ShardMachine) -> list[str]:
    node = machine.node
    if node is None:
        return [f"{machine.number} does not serve"]
    found = [
        f"{it.transactional_id} is {it.state} in {machine.number}"
        for it in node.coordinator.describe_all()
        if it.state in (IdState.OPEN.name, IdState.PREPARING.name) or it.being_copied
    ]
    for log in machine.logs:
        for txid, transaction in node.partition(log).state.open_transactions.items():
            how = "open" if transaction.prepared_for is None else "PREPARED"
            found.append(f"{txid} is {how} in {log_name(log)}")
        visibility = node.partition(log).visibility
        if visibility.last_stable_offset != visibility.high_watermark:
            found.append(f"readers of committed records stop before the end of {log_name(log)}")
    return found


async def _judge_all(machines: Sequence[ShardMachine], history: History, when: str) -> None:
    """All logs of all shards in one cut: each transaction is in all of them, or in none."""
    found: dict[LogId, Found] = {}
    for machine in machines:
        node = machine.node
        if node is None:
            machine.world.violate(8, f"process {machine.number} does not serve {when}")
            return
        found |= await node.read(dict.fromkeys(machine.logs, Offset(0)))
    history.settled(when, history.view(when, dict.fromkeys(history.logs, 0), found))
    history.nothing_is_behind(when)


class Watch:
    """No transaction ends before its time-out while all processes go on, whatever their wall clocks show."""

    def __init__(self, machines: Sequence[ShardMachine], where: Placed, history: History) -> None:
        self._machines = machines
        self._where = where
        self._deadlines = history.deadlines
        self._look_s = self._calm_since_s = 0.0
        self._before: Sequence[int] | None = None

    def step(self) -> None:
        """Look again, if it is time to, before a step of the event loop."""
        now_s = trio.current_time()
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        now = _condition(self._machines)
        if now is None or now != self._before:
            self._calm_since_s = now_s
        self._before = now
        self._deadlines.look_at_early_ends(
            lambda name: self._machines[self._where.of_id(name)].node, self._calm_since_s
        )


def _condition(machines: Sequence[ShardMachine]) -> Sequence[int] | None:
    """Which starts serve; None if some process does not, is suspended, or has lost its disk."""
    nodes = [machine.node for machine in machines if machine.world.held is None]
    if any(node is None or node.shard.failure is not None for node in nodes) or len(nodes) < len(machines):
        return None
    return [machine.durable.starts for machine in machines]


def clients_of_shards(world: World, plan: Plan, network: Network, history: History) -> list[Client]:
    """The transactional ids are in groups of two; each group has its coordinator somewhere."""
    clients: list[Client] = []
    for number in range(plan.transactional):
        name = f"g{number // 2}{SEPARATOR}{number}"
        producer = EpochProducer if number < plan.epochs else TransactionalProducer
        clients.append(producer(world, network, history, f"t{number}", name))
        if number < plan.rivals:
            clients.append(producer(world, network, history, f"t{number}x", name))
    clients += [PlainProducer(world, network, history, f"p{number}") for number in range(plan.plain)]
    clients += drivers(world, plan, network, history)
    for number in range(plan.patient):
        clients.append(PatientProducer(world, network, history, f"w{number}", f"waits{number}"))
    clients += [Reader(world, network, history, f"r{number}") for number in range(plan.readers)]
    clients += [Deleter(world, network, history, f"d{number}") for number in range(plan.deleters)]
    return clients
