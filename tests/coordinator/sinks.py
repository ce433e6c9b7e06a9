"""Writers and drivers of sinks, for tests: whoever joins, writes and commits over a `World`."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

import trio
import trio.testing

from coordinator.answers import Granted
from coordinator.ending import DECIDED_MAX
from coordinator.sinks.messages import CommitBatch, Lane, LaneGranted, SinkRefusal, SinkRefused, Winner
from fairlog_types import LogId

from .conftest import World


@dataclass
class Writer:
    """A task attempt that has joined, and its producer."""

    world: World
    lane: Lane
    name: str
    granted: Granted
    connection: int

    async def add(self, *logs: LogId):
        return await self.world.add(self.granted, *logs, connection=self.connection, name=self.name)

    async def write(self, log: LogId, records: int) -> None:
        """Add the log and produce to it."""
        answer = await self.add(log)
        assert answer == {log: None}, answer
        assert self.world.produce(log, records, name=self.name)

    async def end(self, *, commit: bool):
        return await self.world.end(self.granted, commit, connection=self.connection, name=self.name)

    @property
    def open_txid(self):
        description = self.world.coordinator.describe(self.name)
        assert description is not None
        return description.txid


def lane(partition: int = 0, attempt: int = 0, *, batch: int = 0, run: str = "r1", query: str = "q", sink: str = "s"):
    return Lane(sink, query, run, batch, partition, attempt)


def commit(
    *winners: tuple[int, int, int],
    batch: int = 0,
    run: str = "r1",
    query: str = "q",
    sink: str = "s",
    planned_ms: int | None = None,
):
    return CommitBatch(sink, query, run, batch, tuple(Winner(*winner) for winner in winners), planned_ms)


async def join(world: World, it: Lane, connection: int | None = None, timeout_ms: int = 60_000) -> Writer:
    """Join, and be granted the lane's id."""
    joined = await world.coordinator.join_batch(it)
    assert isinstance(joined, LaneGranted), joined
    connection = 100 + it.partition * 10 + it.attempt if connection is None else connection
    granted = await world.init(connection=connection, name=joined.transactional_id, timeout_ms=timeout_ms)
    assert isinstance(granted, Granted), granted
    return Writer(world, it, joined.transactional_id, granted, connection)


async def write_batch(world: World, logs: list[LogId], batch: int = 0, run: str = "r1") -> list[tuple[int, int, int]]:
    """Three lanes: two winners of 2 and 3 records, and a loser of 5. Answers the winners."""
    first = await join(world, lane(0, 0, batch=batch, run=run))
    second = await join(world, lane(1, 1, batch=batch, run=run))
    loser = await join(world, lane(1, 0, batch=batch, run=run))
    await first.write(logs[0], 2)
    await second.write(logs[0], 1)
    await second.write(logs[1], 2)
    await loser.write(logs[0], 5)
    return [(0, 0, 2), (1, 1, 3)]


def ask(nursery: trio.Nursery, request: Awaitable[object]) -> list[object]:
    """Have the request carried out beside all else; what is answered comes to be in the list."""
    answers: list[object] = []

    async def told() -> None:
        answers.append(await request)

    nursery.start_soon(told)
    return answers


async def settle() -> None:
    """Let what runs in the background come to rest."""
    await trio.testing.wait_all_tasks_blocked()


async def decide_as_many_as_may_be(world: World, logs: list[LogId], nursery: trio.Nursery) -> list[list[object]]:
    """Batches whose copy hangs; answers the lists in which their answers come to be."""
    world.participants.copying = trio.Event()
    answers: list[list[object]] = []
    for batch in range(DECIDED_MAX):
        winners = await write_batch(world, logs, batch)
        answers.append(ask(nursery, world.coordinator.commit_batch(commit(*winners, batch=batch))))
        await settle()
    return answers


async def recovered(world: World, nursery: trio.Nursery, *, tail_kept: bool = True) -> World:
    """The world, which serves after a restart."""
    await world.coordinator.recover(tail_kept=tail_kept)
    await nursery.start(world.run)
    return world


def kinds(world: World, *types: type) -> list[str]:
    """The records of these types in the group journal, in their order."""
    return [type(record).__name__ for record in world.journal.records if isinstance(record, types)]


def refused(answer: object, why: SinkRefusal) -> str:
    """The sentence of a refusal of that kind."""
    assert isinstance(answer, SinkRefused), answer
    assert answer.why is why, answer
    return answer.sentence
