"""One run of the simulation: a plan in, a verdict out, the same one each time.

    clients ──▶ network ──▶ node (the real leaders, coordinator, journals, copier) ──▶ disk, data logs' engine
       └──────────── history: what was sent, answered and read ◀── readers ──┘

The event loop is trio's, on a clock that jumps when nothing is left to do, with its scheduler seeded. The node dies and
starts again as the plan says; behind each recovery, before clients are served, everything is read from the
beginning and held against the history. Then the disk is healed, the clients come to an end, and a last start is judged;
on that, nobody waits for a transaction that is left open (`beside`).
"""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from unittest import mock
from uuid import UUID

import structlog
import trio
import trio.testing

import coordinator.housekeeping
import datalog.environment
import partition.partition
import shard.cutting
import shard.holding
import shard.links
from copier.reclaim import Reclaimer
from fairlog_types import CorruptStorage, LogId, Offset
from tests.simulation.beside import nobody_waits
from tests.simulation.clients import Client, PatientProducer, PlainProducer, Reader, TransactionalProducer
from tests.simulation.deadlines import watch
from tests.simulation.deleting import Deleter
from tests.simulation.grid import run_grid
from tests.simulation.history import History
from tests.simulation.machine import Machine, Node
from tests.simulation.network import AT_THE_ONE, Network
from tests.simulation.plan import Death, Plan
from tests.simulation.process_faults import suspending
from tests.simulation.replicas import run_replicas
from tests.simulation.shards import run_shards
from tests.simulation.sinks import drivers
from tests.simulation.stuck import VIRTUAL_S_MAX, Stuck, stop_when_stuck
from tests.simulation.world import Violation, World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    plan: Plan
    violation: Violation | None
    transcript: list[str]
    counts: dict[str, int]
    digest: str
    seconds: float
    """Of real time."""
    virtual_s: float

    @property
    def crashes(self) -> int:
        return self.counts.get("power cut", 0) + self.counts.get("kill", 0)


class Scheduler(trio.abc.Instrument):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._machine.step()


def run(plan: Plan) -> Outcome:
    """Run the plan. Never raises for what the node does."""
    world = World(plan.seed)
    started = time.perf_counter()
    with deterministic(world), suspending() if max(plan.shards, plan.nodes) > 1 else nullcontext():
        try:
            trio.run(_kind_of(plan), world, plan, clock=world.clock)
        except (Stuck, trio.TrioInternalError) as error:
            cause = error.__cause__ if isinstance(error, trio.TrioInternalError) else error
            if not isinstance(cause, Stuck):
                raise
            world.clock._real_clock = time.perf_counter
            world.violation = world.violation or Violation(8, "the run does not come to an end")
        except Exception as error:  # noqa: BLE001 (whatever the node raises is what the run has found)
            world.violation = world.violation or _verdict_on(error)
            world.transcript.append(f"            VIOLATION {world.violation}")
            world.transcript += traceback.format_exception(error)
    seconds = time.perf_counter() - started
    virtual_s = world.clock.current_time()
    return Outcome(plan, world.violation, world.transcript, world.counts, world.digest(), seconds, virtual_s)


def _kind_of(plan: Plan) -> Callable[[World, Plan], Awaitable[None]]:
    if plan.nodes > 1:
        return run_replicas if plan.shards == 1 else run_grid
    return _run if plan.shards == 1 else run_shards


def _verdict_on(error: BaseException) -> Violation:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CorruptStorage):
        verdict = Violation(5, f"a start refuses the disk: {error}")
    else:
        verdict = Violation(0, f"{type(error).__name__}: {error}")
    verdict.__cause__ = error
    return verdict


@contextmanager
def deterministic(world: World) -> Iterator[None]:
    """Seed all that is random, and keep the node from talking."""
    runner = trio._core._run  # type: ignore[attr-defined]
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    bits = world.stream("salts").getrandbits
    runner._r.seed(f"{world.seed}/scheduler")
    try:
        with (
            mock.patch.object(runner, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            mock.patch.object(secrets, "randbits", bits),
            mock.patch.object(coordinator.housekeeping, "SNAPSHOT_BYTES_MIN", 3000),
            mock.patch.object(datalog.environment, "make_room", return_value=None),
            mock.patch.object(partition.partition, "DELETE_BATCHES_MAX", 3),
            mock.patch.dict(Reclaimer.__init__.__kwdefaults__, interval_s=0.1),
            mock.patch.object(shard.links, "REPEAT_AFTER_S", 0.05),
            mock.patch.object(shard.holding, "HOLD_S", 0.2),
            mock.patch.object(shard.cutting, "HOLD_S", 0.2),
            mock.patch.object(shard.holding, "DRAIN_S", 0.2),
            mock.patch.object(shard.cutting, "DRAIN_S", 0.2),
        ):
            yield
    finally:
        structlog.reset_defaults()


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent


async def _run(world: World, plan: Plan) -> None:
    logs = [LogId.of_topic(UUID(int=7), partition) for partition in range(plan.logs)]
    machine = Machine(world, plan, logs)
    history = History(world, logs)
    trio.lowlevel.add_instrument(Scheduler(machine))
    trio.lowlevel.spawn_system_task(stop_when_stuck, world)
    with machine.calls.installed(), machine.workers.installed(), world.finished:
        async with trio.open_nursery() as nursery:
            network = Network(world, plan, [machine], nursery)
            clients = _clients(world, plan, network, history)
            running = trio.Event()

            async def run_clients() -> None:
                async with trio.open_nursery() as all_clients:
                    for client in clients:
                        all_clients.start_soon(client.run)
                running.set()

            nursery.start_soon(run_clients)
            nursery.start_soon(_disturb, machine, plan)
            nursery.start_soon(watch, machine, history.deadlines)
            for death in plan.deaths:
                await _run_once(machine, history, death, trio.Event())
            world.stopping.set()
            machine.heal()
            await _run_once(machine, history, Death("stop", VIRTUAL_S_MAX), running)
            await _run_once(machine, history, Death("stop", 0.01), trio.Event(), last=True)
            nursery.cancel_scope.cancel()


def _clients(world: World, plan: Plan, network: Network, history: History) -> list[Client]:
    clients: list[Client] = []
    for number in range(plan.transactional):
        clients.append(TransactionalProducer(world, network, history, f"t{number}", f"id-{number}"))
        if number < plan.rivals:
            clients.append(TransactionalProducer(world, network, history, f"t{number}x", f"id-{number}"))
    clients += [PlainProducer(world, network, history, f"p{number}") for number in range(plan.plain)]
    clients += drivers(world, plan, network, history)
    for number in range(plan.patient):
        clients.append(PatientProducer(world, network, history, f"w{number}", f"waits-{number}"))
    clients += [Reader(world, network, history, f"r{number}") for number in range(plan.readers)]
    clients += [Deleter(world, network, history, f"d{number}") for number in range(plan.deleters)]
    return clients


async def _run_once(machine: Machine, history: History, death: Death, until: trio.Event, *, last: bool = False) -> None:
    async def judge(node: Node) -> None:
        starts = dict.fromkeys(history.logs, 0)
        found = await node.read(dict.fromkeys(history.logs, Offset(0)))
        ends = history.view(f"start {node.number}", starts, found)
        history.settled(f"after start {node.number}", ends)
        history.deadlines.after_start(node)
        known = node.producers(history.logs) if node.tail_kept else None
        history.fences(f"after start {node.number}", history.logs, known)
        if last:
            await nobody_waits(machine.world, [node], [machine], AT_THE_ONE, history)

    await machine.run_node(death, until=until, after_recovery=judge)


async def _disturb(machine: Machine, plan: Plan) -> None:
    """Let the disk fail at times."""
    rng: Random = machine.world.stream("disturbance")
    while not machine.world.stopping.is_set():
        faults = machine.calls.faults
        faults.write_error, faults.sync_error = plan.write_error, plan.sync_error
        faults.commit_error = plan.commit_error
        faults.full = rng.random() < plan.disk_full
        await trio.sleep(0.05 * rng.random())
