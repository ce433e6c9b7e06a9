"""One run of several nodes that keep a copy of one shard each, whose journals are on a replicated log.

    clients ──▶ network ──▶ the owner ──▶ stream (tests.stream.model_engine) ──▶ replicas ◀── readers
       └────── history ◀───────────────────────────────────────────────────────────┘

Each node is a `Machine` with a disk of its own. It begins as a replica, becomes the owner when it hears of none, and is
deposed when another one has appended a FENCE. It is killed, loses its power, is suspended and wakes, and cannot reach
the stream for a while; all of them cannot. Entries are lost, doubled and late, and outcomes stay unknown. Clients go to
the newest owner, or to one that does not know yet that it is deposed; some readers go to replicas. Nodes come late,
lose their disks and are left behind by the trimming: they get copies of others (`joins`).

Judged: each new owner has all that was answered before its FENCE (5); readers anywhere see committed records only, as
one prefix (7); in the end all nodes are up and well, have the same data logs, and nothing is left open. All of it is
held against the stream itself, too, while it goes on (`truth`: M1 to M9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, cast
from uuid import UUID

import trio
import trio.lowlevel

from coordinator.states import IdState
from fairlog_types import LogId, Offset, StorageFailure
from journal import failpoints
from tests.simulation.clients import Client, PatientProducer, PlainProducer, Reader, TransactionalProducer
from tests.simulation.deleting import Deleter
from tests.simulation.found import Found
from tests.simulation.history import History, log_name
from tests.simulation.joins import CopyWays, joining
from tests.simulation.machine import Node
from tests.simulation.network import Connection, Network
from tests.simulation.plan import Death, Plan
from tests.simulation.process_faults import resume
from tests.simulation.replica_faults import disturb, lose_disks, stream_faults, trim, watch_folds
from tests.simulation.replica_machine import ReplicaMachine, nothing_more
from tests.simulation.shards import Scheduler, _ByProcess, _Phase
from tests.simulation.stuck import VIRTUAL_S_MAX, stop_when_stuck
from tests.simulation.truth import Truth
from tests.simulation.workers import Workers
from tests.simulation.world import CURRENT, Process, World
from tests.stream.model_engine import Faults as StreamFaults
from tests.stream.model_engine import ModelCluster, open_model

STREAM = "run.shard-0"
SERVES_S = 60.0
RESPITE_S = 5.0
"""A node that has died again and again lives for so long if nobody has become the owner meanwhile."""
TO_A_DEPOSED_ONE = 0.15
"""How likely it is that a client goes to any node that takes requests, and not to the newest owner."""


class OwnersNetwork(Network):
    """Clients go to the owner, as they know it."""

    machines: Sequence[ReplicaMachine]  # type: ignore[assignment]

    async def connect(self, at: int = 0) -> Connection:
        while True:
            await trio.sleep(0.0005 * self._rng.random())
            machines = [machine for machine in self.machines if machine.directory.number == at]
            serving = [machine for machine in machines if machine.node is not None]
            if serving:
                newest = max(serving, key=lambda machine: cast("Node", machine.node).number)
                chosen = self._rng.choice(serving) if self._rng.random() < TO_A_DEPOSED_ONE else newest
                return Connection(self, cast("Node", chosen.node))
            await trio.sleep(0.01)


class ReplicaReader(Reader):
    """Reads from any node, from here to there: never anything that another reader has not seen there, and no less."""

    async def run(self) -> None:
        machines = cast("OwnersNetwork", self.network).machines
        positions = dict.fromkeys(self.history.logs, Offset(0))
        while not self.done:
            await trio.sleep(0.03 * self.rng.random())
            machine = self.rng.choice(machines)
            node = machine.reads
            if node is None or not node.alive:
                continue
            there = {log: positions[log] for log in machine.logs}
            with suppress(StorageFailure, OSError):
                found = await node.read(there)
                if node.alive:
                    self.history.view(f"{self.name} at {machine.number}", dict.fromkeys(there, 0), found)
                    self.world.count("reads at any node")


async def run_replicas(world: World, plan: Plan) -> None:
    """Run a plan of several nodes."""
    logs = [LogId.of_topic(UUID(int=7), partition) for partition in range(plan.logs)]
    workers = Workers(world, pause_probability=plan.pause_probability)
    history = History(world, logs, markers=logs[: plan.markers])
    truth = Truth(world, STREAM, markers=history.markers)
    trio.lowlevel.spawn_system_task(stop_when_stuck, world)
    async with open_model(world.stream("stream"), stream_faults(plan)) as cluster:
        processes = [Process(world, number) for number in range(plan.nodes)]
        machines = [
            ReplicaMachine(process, plan, logs, workers, cluster, truth, markers=history.markers)
            for process in processes
        ]

        ways = CopyWays(world, plan, machines)
        if plan.synced_by:
            for machine in machines:
                machine.copies = ways

        def connect(nursery: trio.Nursery) -> Network:
            nursery.start_soon(lose_disks, world, plan, machines, cluster)
            return OwnersNetwork(world, plan, machines, nursery)

        with joining(world, ways):
            await run_nodes(world, plan, machines, cluster, history, workers, connect, _clients)


async def run_nodes(
    world: World,
    plan: Plan,
    machines: Sequence[ReplicaMachine],
    cluster: ModelCluster,
    history: History,
    workers: Workers,
    connect: Callable[[trio.Nursery], Network],
    clients_of: Callable[[World, Plan, Network, History], list[Client]],
    heal: Callable[[], None] = lambda: None,
    disturbed: trio.Event | None = None,
) -> None:
    """Run all copies of all shards; `connect` makes the network, and whatever else the nodes need to go on.

    `heal` is called when all is to be well from then on, after `disturbed` is set.
    """
    truths = {machine.truth.stream: machine.truth for machine in machines}
    for shard in _by_shard(machines):
        ended_by: dict[int, str] = {}
        for machine in shard:
            machine.others = [other for other in shard if other is not machine]
            machine.producer_ids = machines[0].producer_ids
            machine.history, machine.ended_by = history, ended_by
    scheduler = Scheduler(world, cast("Any", machines))
    streams = [(truth, cluster.open(name)) for name, truth in truths.items()]
    scheduler.also = [partial(_look, truth, log) for truth, log in streams]
    trio.lowlevel.add_instrument(scheduler)
    with ExitStack() as stack:
        for machine in machines:
            stack.enter_context(machine.calls.installed())
        stack.enter_context(workers.installed())
        stack.callback(setattr, failpoints, "_armed", None)
        failpoints._armed = _ByProcess(cast("Any", machines))  # type: ignore[assignment]
        stack.enter_context(world.finished)
        await _run(world, plan, machines, cluster, history, connect, clients_of, heal, disturbed)


def _look(truth: Truth, log: Any) -> None:
    truth.look(log.entries)


def _by_shard(machines: Sequence[ReplicaMachine]) -> Sequence[Sequence[ReplicaMachine]]:
    """The copies of each shard."""
    found: dict[int, list[ReplicaMachine]] = {}
    for machine in machines:
        found.setdefault(machine.directory.number, []).append(machine)
    return list(found.values())


async def _run(
    world: World,
    plan: Plan,
    machines: Sequence[ReplicaMachine],
    cluster: ModelCluster,
    history: History,
    connect: Callable[[trio.Nursery], Network],
    clients_of: Callable[[World, Plan, Network, History], list[Client]],
    heal: Callable[[], None],
    disturbed: trio.Event | None,
) -> None:
    shards = _by_shard(machines)
    async with trio.open_nursery() as nursery:
        network = connect(nursery)
        phases = [_Phase(len(machines)) for _ in range(2)]
        for machine in machines:
            nursery.start_soon(_lives, machine, plan, phases)
        nursery.start_soon(disturb, world, plan, machines, cluster)
        nursery.start_soon(watch_folds, machines)
        for shard in shards:
            nursery.start_soon(trim, world, plan, shard, cluster)
        clients_done = trio.Event()
        clients = clients_of(world, plan, network, history)

        async def run_clients() -> None:
            async with trio.open_nursery() as all_clients:
                for client in clients:
                    all_clients.start_soon(client.run)
            clients_done.set()

        nursery.start_soon(run_clients)
        await phases[0].all_there.wait()
        if disturbed is not None:
            await disturbed.wait()
        world.stopping.set()
        cluster.faults = StreamFaults(append_timeout_s=1.0)
        cluster.come_back()
        heal()
        for machine in machines:
            cluster.join(machine.name)
            resume(machine.world)
            machine.heal()
        await _well(world, shards, "when all nodes are up")
        await clients_done.wait()
        await _nothing_is_left(world, shards)
        await _all_equal(world, shards, history, "when nothing is open any more")
        phases[0].over.set()
        await phases[1].all_there.wait()
        await _well(world, shards, "after the last start")
        await _all_equal(world, shards, history, "after the last start")
        phases[1].over.set()
        nursery.cancel_scope.cancel()


async def _lives(machine: ReplicaMachine, plan: Plan, phases: Sequence[_Phase]) -> None:
    CURRENT.set(machine.world)
    if machine.at == plan.nodes - 1:
        await trio.sleep(plan.comes_late_s)
    deaths = [death for death in plan.deaths if death.shard == machine.number]
    for death in deaths:
        await machine.run_node(death, until=trio.Event(), after_recovery=nothing_more)
    while deaths and machine.truth.epoch < plan.changes:
        before = machine.truth.epoch
        for death in deaths:
            await machine.run_node(death, until=trio.Event(), after_recovery=nothing_more)
        if machine.truth.epoch == before:  # it may die too soon to do anything, and others may wait for its copy
            respite = Death("stop", RESPITE_S, down_s=0.01)
            await machine.run_node(respite, until=trio.Event(), after_recovery=nothing_more)
    for phase in phases:
        phase.arrive()
        while not phase.over.is_set():
            last = Death("stop", VIRTUAL_S_MAX, down_s=0.01)
            await machine.run_node(last, until=phase.over, after_recovery=nothing_more)


async def _well(world: World, shards: Sequence[Sequence[ReplicaMachine]], when: str) -> None:
    """Wait until one node owns each shard, and all others follow."""

    def is_well(shard: Sequence[ReplicaMachine]) -> bool:
        return any(machine.owns for machine in shard) and all(machine.reads for machine in shard)

    with trio.move_on_after(SERVES_S):
        while not all(is_well(shard) for shard in shards):  # noqa: ASYNC110
            await trio.sleep(0.02)
        return
    roles = ", ".join(
        f"{machine.name} {'serves' if machine.node else 'follows' if machine.reads else 'is down'}"
        for shard in shards
        if not is_well(shard)
        for machine in shard
    )
    world.violate(8, f"no owner {SERVES_S:.0f} s {when}: {roles}")
    await trio.lowlevel.checkpoint()


async def _nothing_is_left(world: World, shards: Sequence[Sequence[ReplicaMachine]]) -> None:
    def left() -> list[str]:
        return [said for shard in shards for said in _left(shard)]

    with trio.move_on_after(SERVES_S):
        while left():  # noqa: ASYNC110
            await trio.sleep(0.02)
        return
    world.violate(8, f"{SERVES_S:.0f} s after all were up, and no client asks for anything: {'; '.join(left())}")
    await trio.lowlevel.checkpoint()


def _left(machines: Sequence[ReplicaMachine]) -> list[str]:
    owner = next((machine.node for machine in machines if machine.owns), None)
    if owner is None:
        return ["nobody owns the shard"]
    found = [
        f"{it.transactional_id} is {it.state}"
        for it in owner.coordinator.describe_all()
        if it.state in (IdState.OPEN.name, IdState.PREPARING.name) or it.being_copied
    ]
    for log, partition in owner.shard.partitions.by_log.items():
        for txid, transaction in partition.state.open_transactions.items():
            how = "open" if transaction.prepared_for is None else "PREPARED"
            found.append(f"{txid} is {how} in {log_name(log)}")
    return found


async def _all_equal(world: World, shards: Sequence[Sequence[ReplicaMachine]], history: History, when: str) -> None:
    """All copies of a shard have the same data logs, before long; and together they hold all that was answered."""
    found: dict[LogId, Found] = {}
    for machines in shards:
        contents: list[Any] = []
        everything = dict.fromkeys(machines[0].logs, Offset(0))
        with trio.move_on_after(SERVES_S):
            while True:
                nodes = [machine.reads for machine in machines]
                contents = [await _content(node, everything) for node in nodes]
                if contents[0] is not None and all(each == contents[0] for each in contents):
                    break
                await trio.sleep(0.05)
        owner = next((machine.node for machine in machines if machine.owns), None)
        if owner is None or any(each != contents[0] for each in contents):
            sizes = ["-" if each is None else sum(len(found.batches) for found in each.values()) for each in contents]
            world.violate(4, f"the nodes' data logs differ {when}: {sizes} batches")
            await trio.lowlevel.checkpoint()
            return
        found |= await owner.read(everything)
    history.settled(when, history.view(when, dict.fromkeys(history.logs, 0), found))
    history.nothing_is_behind(when)


async def _content(node: Node | None, logs: dict[LogId, Offset]) -> dict[LogId, Found] | None:
    """None as long as the node opens its copy, or makes it anew."""
    with suppress(StorageFailure):
        return None if node is None else await node.read(logs)
    return None


def _clients(world: World, plan: Plan, network: Network, history: History) -> list[Client]:
    clients: list[Client] = []
    for number in range(plan.transactional):
        clients.append(TransactionalProducer(world, network, history, f"t{number}", f"id-{number}"))
        if number < plan.rivals:
            clients.append(TransactionalProducer(world, network, history, f"t{number}x", f"id-{number}"))
    clients += [PlainProducer(world, network, history, f"p{number}") for number in range(plan.plain)]
    for number in range(plan.patient):
        clients.append(PatientProducer(world, network, history, f"w{number}", f"waits-{number}"))
    clients += [Reader(world, network, history, f"r{number}") for number in range(plan.readers)]
    clients.append(ReplicaReader(world, network, history, "any"))
    clients += [Deleter(world, network, history, f"d{number}") for number in range(plan.deleters)]
    return clients
