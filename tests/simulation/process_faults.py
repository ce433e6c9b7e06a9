"""What happens to the processes of a run of several shards while they run (`shards`), beside their deaths.

    disks        fail at times; the disk of one process is full for a while
    ways         in one direction nothing gets through for a while
    suspensions  a process stands still, for up to a second, or once for up to a minute; then it goes on as if no time
                 had passed. What comes to it waits
    clocks       each process has a wall clock of its own, which is wrong, and jumps while it runs and between two runs.
                 All share the monotonic clock

While one process stands still for long, and while its disk is full, all others have to go on: each of those that serve
takes a transaction and a plain batch for its own logs (8). So does the process itself when the fault is over.
A process whose disk was full is started again, if it refuses writes when there is space (docs/decisions/0013).

Each fault has a stream of random numbers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import trio
import trio.lowlevel

from tests.simulation.beside import goes_on
from tests.simulation.network import Where
from tests.simulation.world import CURRENT, Process, World

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.machine import Node
    from tests.simulation.plan import Plan
    from tests.simulation.shards import ShardMachine, Way

RESTS = 100.0
"""So many times as long as usual clients rest while a process stands still for long: a minute would cost too much."""


class Faults:
    """Those of one run."""

    def __init__(
        self, world: World, plan: Plan, machines: Sequence[ShardMachine], way: Way, where: Where, history: History
    ) -> None:
        self._world = world
        self._plan = plan
        self._machines = machines
        self._way = way
        self._where = where
        self._history = history
        self._asked = 0
        self._rng_of_clocks = world.stream("clock jumps")
        self._clocks_s = 0.0
        """When they may jump next."""
        self.are_over = trio.Event()
        """What lasts for long has come to its end."""

    def start(self, nursery: trio.Nursery) -> None:
        """Disturb, until the clients are to come to an end."""
        nursery.start_soon(self._disturb)
        if self._plan.long_suspension_s or self._plan.full_s:
            nursery.start_soon(self._disturb_for_long)
        else:
            self.are_over.set()

    def step(self) -> None:
        """Before each step of the event loop: clocks jump. No task of its own, which would change what others do."""
        if trio.current_time() >= self._clocks_s and not self._world.stopping.is_set():
            self._clocks_s = trio.current_time() + 0.05 * self._rng_of_clocks.random() * self._world.pace
            if self._rng_of_clocks.random() < self._plan.clock_jumps:
                self._rng_of_clocks.choice(self._machines).jump_clock()

    async def _disturb(self) -> None:
        """If the run breaks off, no task stays suspended."""
        try:
            await self._disturb_until_it_stops()
        finally:
            for machine in self._machines:
                resume(machine.world)

    async def _disturb_until_it_stops(self) -> None:
        plan, world, way = self._plan, self._world, self._way
        rng: Random = world.stream("disturbance")
        async with trio.open_nursery() as nursery:
            while not world.stopping.is_set():
                for machine in self._machines:
                    faults = machine.calls.faults
                    faults.write_error, faults.sync_error = plan.write_error, plan.sync_error
                    faults.commit_error = plan.commit_error
                if rng.random() < plan.cut_ways:
                    sender, to = rng.sample(range(plan.shards), 2)
                    way.cut.add((sender, to))
                    nursery.start_soon(_after, rng.choice((0.05, 0.5)) * rng.random(), way.cut.discard, (sender, to))
                if rng.random() < plan.suspensions:
                    process = rng.choice(self._machines).world
                    if process.held is None and not process.crashed:
                        world.count("suspensions")
                        suspend(process)
                        nursery.start_soon(_after, rng.choice((0.02, 0.2, 1.0)) * rng.random(), resume, process)
                await trio.sleep(0.05 * rng.random() * world.pace)

    async def _disturb_for_long(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._plan.long_suspension_s:
                nursery.start_soon(self._suspend_for_long)
            if self._plan.full_s:
                nursery.start_soon(self._fill_a_disk)
        self.are_over.set()

    async def _suspend_for_long(self) -> None:
        rng, seconds = self._world.stream("long suspension"), self._plan.long_suspension_s
        await trio.sleep(rng.choice((0.1, 1.0)) * rng.random())
        machine = rng.choice(self._machines)
        while machine.world.held is not None or machine.node is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        self._world.count("suspensions of 10 s and more")
        self._world.note("suspended", f"process {machine.number} for {seconds:.1f} s")
        self._world.pace = RESTS
        until_s = trio.current_time() + seconds
        machine.world.stands_still_until_s = self._world.stands_still_until_s = until_s
        suspend(machine.world)
        try:
            for _ in range(3):
                await trio.sleep(seconds / 4)
                await self._others_go_on(machine, "stands still")
            await trio.sleep(max(until_s - trio.current_time(), 0.0))
        finally:
            self._world.pace = 1.0
            resume(machine.world)
        await self._goes_on_itself(machine, "after it stood still")

    async def _fill_a_disk(self) -> None:
        rng = self._world.stream("full disk")
        await trio.sleep(rng.choice((0.1, 1.0)) * rng.random())
        machine = rng.choice(self._machines)
        self._world.count("full disks")
        self._world.note("disk", f"of process {machine.number} is full for {self._plan.full_s:.3f} s")
        machine.calls.faults.full = True
        try:
            await trio.sleep(self._plan.full_s / 2)
            await self._others_go_on(machine, "has a full disk")
            await trio.sleep(self._plan.full_s / 2)
        finally:
            machine.calls.faults.full = False
        await trio.sleep(rng.random())
        if machine.node is not None and machine.node.shard.failure is not None:
            self._world.note("operator", f"restarts process {machine.number}, whose disk has space again")
            self._world.count("restarts after a full disk")
            machine.end_now()
        await self._goes_on_itself(machine, "though its disk has space again")

    # --- who goes on ---

    async def _others_go_on(self, machine: ShardMachine, how: str) -> None:
        async with trio.open_nursery() as nursery:
            for other in machine.others:
                if other.node is not None:
                    nursery.start_soon(self._goes_on, other, other.node, f"while process {machine.number} {how}")

    async def _goes_on_itself(self, machine: ShardMachine, when: str) -> None:
        if machine.node is not None:
            await self._goes_on(machine, machine.node, when)

    async def _goes_on(self, machine: ShardMachine, node: Node, when: str) -> None:
        """Whether it takes writes to its own logs, unless it ends, or has a fault of its own meanwhile."""
        if not node.alive or node.shard.failure is not None or machine.world.held is not None or not machine.logs:
            return
        self._asked += 1
        name = f"beside{self._asked}"
        at = next(f"{name}-{n}" for n in range(1000) if self._where.of_id(f"{name}-{n}") == machine.number)
        began_s, done = trio.current_time(), trio.Event()

        async def ask() -> None:
            CURRENT.set(machine.world)
            try:
                refusal = await goes_on(node, machine.number, self._machines, self._where, self._history, at)
                stood_still = machine.world.stands_still_until_s > began_s
                is_disturbed = not node.alive or node.shard.failure is not None or stood_still
                if refusal is None:
                    self._world.count("times that a process went on beside another one's fault, or after its own")
                elif not is_disturbed:
                    self._world.violate(8, f"process {machine.number} does not go on {when}: {refusal}")
            finally:
                done.set()

        node.serving.start_soon(ask)
        await done.wait()


async def _after(seconds: float, call: Callable[[Any], None], what: Any) -> None:
    await trio.sleep(seconds)
    call(what)


# --- suspended processes ---


def suspend(process: Process) -> None:
    """From now on none of its tasks runs."""
    queue = _runner().runq
    process.held = [task for task in queue if task.context.get(CURRENT) is process]
    for task in process.held:
        queue.remove(task)


def resume(process: Process) -> None:
    if process.held is not None:
        _runner().runq.extend(process.held)
        process.held = None


def _runner() -> Any:
    return trio._core._run.GLOBAL_RUN_CONTEXT.runner  # type: ignore[attr-defined]


@contextmanager
def suspending() -> Iterator[None]:
    """Tasks of suspended processes that are to run are held, for as long as this is entered."""
    runner = trio._core._run.Runner  # type: ignore[attr-defined]
    really: Callable[..., None] = runner.reschedule

    def reschedule(self: Any, task: trio.lowlevel.Task, *outcome: Any) -> None:
        really(self, task, *outcome)
        process = task.context.get(CURRENT)
        if isinstance(process, Process) and process.held is not None:
            process.held.append(self.runq.pop())

    with mock.patch.object(runner, "reschedule", reschedule):
        yield
