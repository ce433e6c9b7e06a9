"""Batches of a sink, committed by a coordinator between doubles: all of the winners, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
import trio.testing

from coordinator.answers import Granted, Refusal
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkRefusal,
    SinkRefused,
    Winner,
)
from fairlog_types import LogId, Offset, Placement

from .conftest import World


@dataclass
class Writer:
    """A task attempt that has joined, and its producer."""

    world: World
    lane: Lane
    name: str
    granted: Granted
    connection: int

    async def write(self, log: LogId, records: int) -> None:
        """Add the log and produce to it."""
        answer = await self.world.add(self.granted, log, connection=self.connection, name=self.name)
        assert answer == {log: None}, answer
        assert self.world.produce(log, records, name=self.name)


def lane(partition: int = 0, attempt: int = 0, *, batch: int = 0, run: str = "r1", query: str = "q", sink: str = "s"):
    return Lane(sink, query, run, batch, partition, attempt)


def commit(*winners: tuple[int, int, int], batch: int = 0, run: str = "r1", query: str = "q", sink: str = "s"):
    return CommitBatch(sink, query, run, batch, tuple(Winner(*winner) for winner in winners))


async def join(world: World, it: Lane, connection: int | None = None) -> Writer:
    joined = await world.coordinator.join_batch(it)
    assert isinstance(joined, LaneGranted), joined
    connection = 100 + it.partition * 10 + it.attempt if connection is None else connection
    granted = await world.init(connection=connection, name=joined.transactional_id)
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


def refused(answer: object, why: SinkRefusal) -> str:
    assert isinstance(answer, SinkRefused), answer
    assert answer.why is why, answer
    return answer.sentence


async def test_commit_publishes_the_winners_as_one_and_discards_the_others(running, logs, autojump_clock):
    """One record, one placing, one fence; the answer says where all is."""
    winners = await write_batch(running, logs)
    answer = await running.coordinator.commit_batch(commit(*winners))
    places = (Placement(logs[0], Offset(0), 3), Placement(logs[1], Offset(0), 2))
    assert answer == BatchCommitted(0, places, already=False)
    (together,) = running.participants.together
    assert len(together) == 2
    assert len(running.participants.discarded) == 1
    (sink,) = running.coordinator.sinks()
    assert (sink.batch, sink.placements, sink.open_lanes, sink.run) == (0, places, (), "r1")


async def test_restart_after_a_commit_knows_the_fence(running, logs, nursery, autojump_clock):
    """Killed at once, or behind the copy: the replay hears "committed", with the places."""
    winners = await write_batch(running, logs)
    answer = await running.coordinator.commit_batch(commit(*winners))
    for settled in (False, True):
        if settled:
            await trio.testing.wait_all_tasks_blocked()
        after = running.restarted(power_lost=not settled)
        await after.coordinator.recover(tail_kept=settled)
        assert await after.coordinator.join_batch(lane(0, 0, run="r2")) == BatchCommitted(
            0, answer.placements, already=True
        )
        again = await after.coordinator.commit_batch(commit(run="r2"))
        assert again == BatchCommitted(0, answer.placements, already=True)


async def test_second_grant_is_refused(running, logs, autojump_clock):
    """A lane is granted once."""
    first = await join(running, lane())
    assert await running.init(connection=first.connection, name=first.name) == first.granted
    assert await running.init(connection=9, name=first.name) is Refusal.FENCED
    assert await running.init(connection=9, name="fairlog.lane.7.s") is Refusal.NOT_JOINED
    assert await running.end(first.granted, name=first.name, connection=first.connection) is Refusal.LANE
