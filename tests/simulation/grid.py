"""One run of several shards on several nodes: each shard has a stream, and each node a copy of every shard.

                 node 0            node 1            node 2
    shard 0      owner ┈┈┈┐        copy              copy          stream 0
    shard 1      copy     └┈┈┈┈┈▶  owner ┈┈┈┐        copy          stream 1
    shard 2      copy              copy     └┈┈┈┈┈▶  owner         stream 2

It is put together of `replicas` (copies of a shard on a model of the replicated log) and `shards` (messages between
shards, and what is judged over them). A copy is a `Machine` with a disk of its own, which is simpler than one for each
node; all copies of a node die together (`everywhere`) or one by one, and they are suspended, and cut off from the
engine, together.

A message to a shard goes to the node that owns it as far as the sender's node has read that shard's stream, or, now and
then, to any node that takes messages for it. So owners that are deposed and do not know it are heard, and hear.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import cast
from uuid import UUID

import trio
import trio.lowlevel

from fairlog_types import LogId, ShardNumber
from shard.owned import OwnedShard
from shard.shard import Neighbours, Shard
from tests.simulation.clients import Client
from tests.simulation.history import Answered, History
from tests.simulation.machine import SETTINGS, Node
from tests.simulation.network import Network
from tests.simulation.plan import Death, Plan
from tests.simulation.replica_faults import stream_faults
from tests.simulation.replica_machine import ReplicaMachine, first
from tests.simulation.replicas import OwnersNetwork, ReplicaReader, run_nodes
from tests.simulation.shards import (
    SEPARATOR,
    Hears,
    Placed,
    Way,
    clients_of_shards,
    marked,
    neighbours_of,
    says_is_copied,
)
from tests.simulation.stuck import stop_when_stuck
from tests.simulation.truth import Decisions, Truth
from tests.simulation.workers import Workers
from tests.simulation.world import Process, World
from tests.stream.model_engine import ModelCluster, open_model

LAST_WORDS = ("heard.Prepared", "said.Prepared", "said.tuple", "heard.PrepareAll", "said.Welcome")
"""At these the owner of another shard dies while one is a zombie: something is PREPARED, or under way."""
GRACE_S = 0.3
"""So long an owner that stops waits for other shards."""
OUT_OF_DATE = 0.25
"""How likely it is that a node takes any of those for a shard's owner that take themselves for it."""
BELIEVED_S = 0.5
APPEND_TIMEOUT_S = 6.0
"""So long an owner that is cut off from the engine may not know that it is deposed: longer than a failover takes."""


class GridMachine(ReplicaMachine):
    """The copy of one shard on one node."""

    def __init__(
        self,
        process: Process,
        plan: Plan,
        logs: Sequence[LogId],
        workers: Workers,
        cluster: ModelCluster,
        truth: Truth,
        where: Placed,
    ) -> None:
        shard = ShardNumber(process.number % plan.shards)
        super().__init__(
            process,
            plan,
            [log for log in logs if where.of_log(log) == shard],
            workers,
            cluster,
            truth,
            markers=marked(plan, logs),
            shard=shard,
            settings=replace(SETTINGS, group_separator=SEPARATOR),
        )
        self.everyone: Sequence[GridMachine] = ()
        self.way: Way | None = None
        self.hears: Shard | None = None
        self._placed = where
        self._owned: OwnedShard | None = None
        self._everywhere = False

    @property
    def mates(self) -> Sequence[GridMachine]:
        """The other copies of its node."""
        return [each for each in self.everyone if each.at == self.at and each is not self]

    @property
    def known_owner(self) -> str | None:
        """The node that owns the shard, as far as this copy has read."""
        owner = None if self.fold_state is None else self.fold_state().owner
        return None if owner is None else owner.node

    # --- deaths ---

    def arm(self, death: Death) -> None:
        super().arm(death)
        self._everywhere = death.everywhere

    def _crash(self, where: str) -> None:
        if self.world.crashed:
            return
        super()._crash(where)
        if self._everywhere:
            for mate in self.mates:
                mate.die(self._kind)

    # --- what it hears ---

    def neighbours(self) -> Neighbours | None:
        assert self.way is not None
        return neighbours_of(self, self.way, self._placed)

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        self._owned = owned
        await super().own(owned, stop)

    @asynccontextmanager
    async def hearing(self, shard: Shard) -> AsyncIterator[None]:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            await nursery.start(shard.run_links)
            self.hears = shard
            for other in self._heard_by():
                other.connected(self.directory.number)
            try:
                with trio.CancelScope() as recovering:
                    nursery.start_soon(self._end_links, shard, recovering)
                    yield
            finally:
                self.hears = None
                if not any(cast("GridMachine", copy).hears for copy in self.others):
                    for other in self._heard_by():
                        other.disconnected(self.directory.number)
            nursery.cancel_scope.cancel()

    def _heard_by(self) -> Sequence[Shard]:
        """The owners of other shards, and those that take themselves for it."""
        number = self.directory.number
        return [each.hears for each in self.everyone if each.hears is not None and each.directory.number != number]

    async def _end_links(self, shard: Shard, recovering: trio.CancelScope) -> None:
        """When this node is to own the shard no more: what waits for other shards is given up, soon or at once."""
        assert self._owned is not None
        await first(self._stop, self._owned.over)
        if self.node is None:
            shard.close_links()
            recovering.cancel()
            return
        shard.stop()
        there = {each.directory.number for each in self.everyone if each.hears is not None}
        for number in range(self.plan.shards):
            if number != self.directory.number and number not in there:
                shard.disconnected(ShardNumber(number))
        if not self._owned.over.is_set():
            await trio.sleep(GRACE_S)
        shard.close_links()

    # --- judged ---

    async def judge(self, node: Node, due: Answered) -> None:
        """A new owner has all that was answered, and is visible everywhere, in the logs of its shard."""

        def is_copied(transactional_id: str) -> Node | None:
            at = self._placed.of_id(transactional_id)
            return next((each.node for each in self.everyone if each.directory.number == at and each.owns), None)

        visible = [it for it in due.transactions if says_is_copied(is_copied(it.transactional_id), it)]
        await super().judge(node, due._replace(transactions=visible))


class GridWay(Way):
    """Messages go to the owner, as the sender's node knows it."""

    def __init__(self, world: World, plan: Plan, machines: Sequence[GridMachine], nursery: trio.Nursery) -> None:
        super().__init__(world, plan, machines, nursery)
        self._copies = [[each for each in machines if each.directory.number == shard] for shard in range(plan.shards)]
        self._rng_of_owners = world.stream("owners as they are known")
        self._believed: dict[tuple[int, int], tuple[float, GridMachine | None]] = {}
        """By node and shard: until when it is believed which copy owns the shard, whatever the node reads."""

    def believe(self, copy: GridMachine, seconds: float) -> None:
        """All nodes take this copy for the owner."""
        for node in range(len(self._copies[0])):
            self._believed[node, copy.directory.number] = trio.current_time() + seconds, copy

    async def follow_owners(self) -> None:
        """When a node takes another copy for an owner, its shards reach that one."""
        before: dict[tuple[int, ShardNumber], GridMachine] = {}
        while True:
            for sender in [copy for copies in self._copies for copy in copies if copy.hears is not None]:
                for to in map(ShardNumber, range(len(self._copies))):
                    if to != sender.directory.number and sender.hears is not None:
                        receiver = self.receiver(sender, to)
                        if before.get((sender.number, to)) is not receiver:
                            before[sender.number, to] = receiver
                            sender.hears.connected(to)
            await trio.sleep(0.02)

    def receiver(self, sender: Hears, to: ShardNumber) -> GridMachine:
        node, copies, rng = cast("GridMachine", sender).at, self._copies[to], self._rng_of_owners
        until_s, believed = self._believed.get((node, to), (0.0, None))
        if trio.current_time() >= until_s:
            believed = None
            if rng.random() < OUT_OF_DATE and not self._world.stopping.is_set():
                believed = rng.choice([copy for copy in copies if copy.hears is not None] or copies)
            self._believed[node, to] = trio.current_time() + BELIEVED_S * rng.random(), believed
        if believed is not None:
            return believed
        known = next(copy.known_owner for copy in copies if copy.at == node)
        return next((copy for copy in copies if copy.name == known), copies[0])


async def run_grid(world: World, plan: Plan) -> None:
    """Run a plan of several shards on several nodes."""
    logs = [LogId.of_topic(UUID(int=7), partition) for partition in range(plan.logs)]
    where = Placed(plan)
    workers = Workers(world, pause_probability=plan.pause_probability)
    history = History(world, logs, markers=marked(plan, logs), group_separator=SEPARATOR)
    trio.lowlevel.spawn_system_task(stop_when_stuck, world)
    faults = replace(stream_faults(plan), append_timeout_s=APPEND_TIMEOUT_S)
    async with open_model(world.stream("stream"), faults) as cluster:
        decisions, markers = Decisions(), marked(plan, logs)
        truths = [
            Truth(world, f"run.shard-{shard}", markers=markers, decisions=decisions) for shard in range(plan.shards)
        ]
        processes = [Process(world, number) for number in range(plan.nodes * plan.shards)]
        machines = [
            GridMachine(process, plan, logs, workers, cluster, truths[process.number % plan.shards], where)
            for process in processes
        ]
        ways: list[GridWay] = []
        disturbed = trio.Event()

        def connect(nursery: trio.Nursery) -> Network:
            way = GridWay(world, plan, machines, nursery)
            ways.append(way)
            for machine in machines:
                machine.way, machine.everyone = way, machines
            nursery.start_soon(way.follow_owners)
            nursery.start_soon(_cut_ways, world, plan, way)
            nursery.start_soon(_leave_zombies, world, plan, machines, cluster, way, disturbed)
            return OwnersNetwork(world, plan, machines, nursery, where)

        def heal() -> None:
            for way in ways:
                way.heal()

        await run_nodes(world, plan, machines, cluster, history, workers, connect, _clients, heal, disturbed)


def _clients(world: World, plan: Plan, network: Network, history: History) -> list[Client]:
    return [*clients_of_shards(world, plan, network, history), ReplicaReader(world, network, history, "any")]


async def _cut_ways(world: World, plan: Plan, way: Way) -> None:
    """In one direction nothing gets through between two copies for a while."""
    rng: Random = world.stream("ways")
    while not world.stopping.is_set():
        if rng.random() < plan.cut_ways:
            pair = rng.randrange(plan.nodes * plan.shards), rng.randrange(plan.nodes * plan.shards)
            way.cut.add(pair)
            await trio.sleep(rng.choice((0.05, 0.5)) * rng.random())
            way.cut.discard(pair)
        await trio.sleep(0.1 * rng.random())


async def _leave_zombies(
    world: World,
    plan: Plan,
    machines: Sequence[GridMachine],
    cluster: ModelCluster,
    way: GridWay,
    done: trio.Event,
) -> None:
    """Cut an owner off from the log; when another one has followed it, the owner of another shard dies.

    For a while the deposed one is taken for the owner, also by the one that follows the dead one, which does not hear
    the present one.
    """
    rng: Random = world.stream("zombies")
    for _ in range(plan.zombies):
        await trio.sleep(0.5 * rng.random())
        owners = [machine for machine in machines if machine.owns]
        if not owners:
            continue
        zombie = rng.choice(owners)
        world.note("zombie", f"copy {zombie.number} is cut off from the log")
        cluster.cut(zombie.name)
        try:
            with trio.move_on_after(3.0):
                while len([each for each in machines if each.owns and each.at != zombie.at]) < plan.shards:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await trio.sleep(rng.choice((0.02, 0.3)) * rng.random())
            shard = zombie.directory.number
            others = [
                each for each in machines if each.owns and each.directory.number != shard and each.at != zombie.at
            ]
            if others and zombie.hears is not None:
                world.count("owners that live on as zombies while another shard's owner dies")
                victim = rng.choice(others)
                victim.arm(Death("kill", 0.0, at_point=rng.choice(LAST_WORDS)))
                await trio.sleep(0.3 * rng.random())
                victim.die("kill")
                unheard = {(copy.number, heir.number) for copy in zombie.others for heir in (victim, *victim.others)}
                way.cut |= unheard
                way.believe(zombie, 1.5)
                await trio.sleep(0.5 + rng.random())
                way.cut -= unheard
        finally:
            cluster.join(zombie.name)
    done.set()
