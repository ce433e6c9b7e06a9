"""Random histories: several nodes append to several streams, read them, ask for their ends and trim them, while the
engine is disturbed. Everything that they are told goes into a `StreamHistory`.

A trial ends with the engine healed: all outcomes are waited for, and each node reads each stream to its end.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

import trio
from peers.kafka_cluster import KafkaCluster

from stream.engine import Engine, EngineAway, Stream, StreamPosition, Unknown
from tests.stream.disturbances import LASTS_S, disturb_kafka, disturb_model
from tests.stream.history import START, StreamHistory
from tests.stream.model_engine import STORMY, Faults
from tests.stream.rigs import KafkaRig, ModelRig, ModelWorld, World

RECOVERS_S = 180.0
"""How long a cluster may take until everything is told and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is done."""

    seed: int
    seconds: float
    nodes: int = 3
    streams: int = 2
    pause_s_max: float = 0.05
    """Of an appender, after a burst."""
    burst_max: int = 6
    bytes_max: int = 2000
    outcome_wait_s: float = 60.0


async def run_trial(
    world: World, plan: Plan, disturb: Callable[[], Awaitable[None]], heal: Callable[[], Awaitable[None]]
) -> list[StreamHistory]:
    """The histories, checked; they have no `findings` if the contract was kept. `disturb` is cancelled at the end."""
    histories = [StreamHistory(f"shard-{number}") for number in range(plan.streams)]
    async with AsyncExitStack() as stack:
        engines = {
            f"node-{n}": await stack.enter_async_context(world.open_engine(f"node-{n}")) for n in range(plan.nodes)
        }
        users = [
            _User(plan, node, await _opened(engine, history.name), history, number)
            for number, history in enumerate(histories)
            for node, engine in engines.items()
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb)
            for user in users:
                nursery.start_soon(user.append)
                nursery.start_soon(user.read)
                nursery.start_soon(user.ask)
            nursery.start_soon(_trim, plan, users)
            await trio.sleep(plan.seconds)
            nursery.cancel_scope.cancel()
        await heal()
        with trio.move_on_after(plan.outcome_wait_s):
            for user in users:
                await user.all_told()
        for user in users:
            await user.read_to_the_end()
    for history in histories:
        history.finish()
    return histories


async def _opened(engine: Engine, name: str) -> Stream:
    while True:
        try:
            return await engine.open_stream(name)
        except EngineAway:
            await trio.sleep(0.1)


class _User:
    """What one node does to one stream."""

    def __init__(self, plan: Plan, node: str, stream: Stream, history: StreamHistory, number: int) -> None:
        self.node = node
        self.stream = stream
        self.history = history
        self.position = START
        """Up to where it has read."""
        self.reopened_from = START
        self._plan = plan
        self._random = random.Random(f"{plan.seed}/{node}/{number}")
        self._count = 0
        self._under_way = 0
        self._told = trio.Event()

    async def append(self) -> None:
        chosen = self._random
        while True:
            for _ in range(chosen.randint(1, self._plan.burst_max)):
                self._begin()
            if chosen.random() < 0.3:
                await self.all_told()
            await trio.sleep(chosen.uniform(0, self._plan.pause_s_max))

    def _begin(self) -> None:
        self._count += 1
        head = f"{self.node}/{self._count}/".encode()
        begun = self.history.begin(self.node, head + bytes(self._random.randint(0, self._plan.bytes_max)))
        self._under_way += 1

        def done(outcome: StreamPosition | Unknown) -> None:
            self.history.told(begun, outcome)
            self._under_way -= 1
            if not self._under_way:
                self._told.set()
                self._told = trio.Event()

        self.stream.append(begun.data, done)

    async def all_told(self) -> None:
        while self._under_way:
            await self._told.wait()

    async def read(self) -> None:
        """From wherever it was, or a little before, until it is cancelled."""
        while True:
            start = StreamPosition(self._random.randint(self.history.trimmed, max(self.history.trimmed, self.position)))
            async with self._reading(start) as go_on:
                with trio.move_on_after(self._random.uniform(0.5, 5)):
                    while True:
                        await go_on()

    @asynccontextmanager
    async def _reading(self, start: StreamPosition) -> AsyncGenerator[Callable[[], Awaitable[StreamPosition]]]:
        due = self.reopened_from = start
        async with self.stream.open_reader(start) as reader:

            async def go_on() -> StreamPosition:
                nonlocal due
                due = self.history.read(self.node, due, await reader.next())
                self.position = max(self.position, due)
                return due

            yield go_on

    async def ask(self) -> None:
        while True:
            answered = self.history.answered_max
            try:
                self.history.end_told(self.node, answered, await self.stream.end())
            except EngineAway:
                await trio.sleep(0.05)
            await trio.sleep(self._random.uniform(0, 0.3))

    async def read_to_the_end(self) -> None:
        while True:
            answered = self.history.answered_max
            try:
                end = await self.stream.end()
                break
            except EngineAway:
                await trio.sleep(0.1)
        self.history.end_told(self.node, answered, end)
        async with self._reading(self.history.trimmed) as go_on:
            while await go_on() < end:
                pass


async def _trim(plan: Plan, users: list[_User]) -> None:
    """Now and then, up to where all have read and none begins any more."""
    chosen = random.Random(f"{plan.seed}/trim")
    while True:
        await trio.sleep(chosen.uniform(0.5, 3))
        history = chosen.choice(users).history
        its = [user for user in users if user.history is history]
        before = min(min(user.position, user.reopened_from) for user in its)
        history.trimmed = max(history.trimmed, StreamPosition(before // 2))
        with suppress(EngineAway):
            await its[0].stream.trim(history.trimmed)


def model_trial(seed: int, seconds: float, faults: Faults = STORMY, *, disturbed: bool = True) -> list[StreamHistory]:
    """One history on the model, checked."""
    result: list[StreamHistory] = []
    plan = Plan(seed=seed, seconds=seconds, pause_s_max=0.3)
    nodes = [f"node-{n}" for n in range(plan.nodes)]

    async def trial(world: World) -> None:
        assert isinstance(world, ModelWorld)

        async def heal() -> None:
            world.cluster.come_back()
            for node in nodes:
                world.cluster.join(node)

        async def disturb() -> None:
            if disturbed:
                await disturb_model(world.cluster, random.Random(seed), nodes)

        result.extend(await run_trial(world, plan, disturb, heal))

    ModelRig(faults, seed).run(trial)
    return result


def kafka_trial(rig: KafkaRig, cluster: KafkaCluster, seed: int, seconds: float) -> list[StreamHistory]:
    """One history on a cluster, checked. The cluster is healed at the end."""
    result: list[StreamHistory] = []

    async def trial(world: World) -> None:
        async def heal() -> None:
            await trio.to_thread.run_sync(cluster.heal)

        plan = Plan(seed=seed, seconds=seconds, pause_s_max=0.1)
        result.extend(await run_trial(world, plan, lambda: disturb_kafka(cluster, random.Random(seed)), heal))

    try:
        # Shorter than what happens lasts: some outcomes have to be unknown.
        replace(rig, settings=replace(rig.settings, append_timeout_s=LASTS_S / 2)).run(
            trial, timeout_s=seconds + RECOVERS_S
        )
    finally:
        cluster.heal()
    return result
