"""Cuts over the shards of a run (`shard.cutting`): who asks for them, and what is found of them when the run has ended.

A cut is asked for at any living process, as a client's request; its answer counts although the client may have hung up.
What it must hold is not known then: offsets do not change once they can be read, so it is judged by what is in the logs
in the end:

    7   of each transaction it has all batches in all its logs, or none; and no batch in part
    13  it has what clients had been told of as committed, or appended, before it was asked for

In a log of marker mode a cut ends where the oldest open transaction begins, and lacks what is committed behind it. So
there it has to have a transaction only if nothing was open; and what it has there, it has in the logs of journal mode.

A cut in the past, which a reader with a limit finds among those that all shards keep (`shard.past_cuts`), is judged in
the same way, but may lack what was answered. Each one has to lie behind the one at which the reader has stopped before.
In the end all that can be found are walked through.

That there is no cut is an answer at any time but one: with all processes up and nothing open, one has to be taken (8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from fairlog_types import LogId, Offset, StorageFailure
from shard.cut_messages import Cuts, NoCut
from tests.simulation.clients import Client
from tests.simulation.history import Answered, Batch, History, log_name
from tests.simulation.machine import Machine, Node
from tests.simulation.network import Network, Unanswered
from tests.simulation.world import World

CUT_S = 60.0
"""So long it may take until a cut is taken, when nothing stands against it."""

TAKEN = "cuts over shards"
NOT_TAKEN = "cuts over shards that could not be taken"
AT_THE_END = "cuts over shards with nothing open"
KEPT = "cuts that shards were to keep"
FOUND = "cuts in the past"

_NOTHING = Answered((), (), {}, {})


@dataclass(frozen=True, slots=True)
class TakenCut:
    """One cut, as it was answered."""

    name: str
    answered: Answered
    """What clients had been told of when it was asked for."""
    ends: dict[LogId, Offset]
    is_whole: bool
    """Nothing was open."""


class TakenCuts:
    """All cuts of a run."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self._taken: list[TakenCut] = []
        for what in (TAKEN, NOT_TAKEN, AT_THE_END, KEPT, FOUND):
            world.count(what, 0)

    async def ask(
        self, who: str, logs: Sequence[LogId], node: Node, _connection: int = 0, *, count_as: str = TAKEN
    ) -> Cuts | NoCut:
        """Ask this process for a cut of these logs."""
        cutting = node.shard.cutting
        assert cutting is not None
        answered = self._history.answered()
        answer = await cutting.cut(logs)
        if node.world.crashed:
            return answer
        if isinstance(answer, NoCut):
            self._world.count(NOT_TAKEN)
            node.world.note("no cut", f"for {who}: {answer.reason}")
            return answer
        self._world.count(count_as)
        ends = {log: each.end for log, each in answer.by_log.items()}
        said = ", ".join(f"{log_name(log)} {end}" for log, end in sorted(ends.items()))
        name = f"cut {len(self._taken)}"
        node.world.note("cut", f"{name} for {who}: {said}")
        self._taken.append(TakenCut(name, answered, ends, is_whole=count_as == AT_THE_END))
        if ends.keys() != set(logs):
            missing = "".join(log_name(log) for log in logs if log not in ends)
            self._world.violate(7, f"{name} is without {missing}")
        return answer

    async def keep(self, node: Node, _connection: int = 0) -> None:
        """Have this process have a cut kept."""
        cutting = node.shard.cutting
        assert cutting is not None
        if await cutting.keep() is None and not node.world.crashed:
            self._world.count(KEPT)
            node.world.note("cut", "kept")

    async def find(
        self, who: str, starts: dict[LogId, Offset], records_max: int, node: Node, _connection: int = 0
    ) -> dict[LogId, Offset] | None:
        """Ask this process for a cut in the past; None if there is none behind the starts."""
        past_cuts = node.shard.past_cuts
        assert past_cuts is not None
        try:
            answer = await past_cuts.find(starts, records_max=records_max)
        except StorageFailure:
            return None
        if node.world.crashed or not isinstance(answer, Cuts):
            return None
        self._world.count(FOUND)
        ends = {log: each.end for log, each in answer.by_log.items()}
        said = ", ".join(f"{log_name(log)} {end}" for log, end in sorted(ends.items()))
        name = f"past cut {len(self._taken)}"
        node.world.note("cut", f"{name} for {who}: {said}")
        self._taken.append(TakenCut(name, _NOTHING, ends, is_whole=False))
        if ends.keys() != starts.keys():
            self._world.violate(7, f"{name} is without some logs")
        elif any(end < starts[log] for log, end in ends.items()) or ends == starts:
            self._world.violate(7, f"{name} for {who} is not behind where it begins")
        return ends

    async def walk(self, machines: Sequence[Machine]) -> None:
        """In the end go from each cut that can be used to the next, at every process in turn."""
        at: dict[LogId, Offset] | None = dict.fromkeys(self._history.logs, Offset(0))
        step = 0
        while at is not None:
            node = machines[step % len(machines)].node
            assert node is not None
            at = await self.find("the end", at, 1, node)
            step += 1

    async def can_be_taken(self, machines: Sequence[Machine]) -> None:
        """All are up, and nothing is open: each process has to answer with a cut."""
        for number, machine in enumerate(machines):
            with trio.move_on_after(CUT_S) as waiting:
                while machine.node is None or not await self._is_taken(machine.node):  # noqa: ASYNC110
                    await trio.sleep(0.02)
            if waiting.cancelled_caught:
                self._world.violate(8, f"process {number} has no cut for {CUT_S:.0f} s, though nothing is open")

    async def _is_taken(self, node: Node) -> bool:
        return isinstance(await self.ask("the end", self._history.logs, node, count_as=AT_THE_END), Cuts)

    def judge(self) -> None:
        """Everything that is in the logs was seen: hold each cut against it."""
        for cut in self._taken:
            self._judge(cut)

    def _judge(self, cut: TakenCut) -> None:
        history, violate = self._history, self._world.violate
        for log, end in cut.ends.items():
            if not history.is_between_batches(log, end):
                violate(7, f"{cut.name} ends at {end} of {log_name(log)}, where no batch does")
                return
        for transaction in history.transactions:
            batches = [batch for of in transaction.batches.values() for batch in of if batch.log in cut.ends]
            without = [batch for batch in batches if self._lacks(cut, batch)]
            if without and any(self._has(cut, batch) for batch in batches):
                lacks = f"{without[0].name} in {log_name(without[0].log)}"
                violate(7, f"{cut.name} has a part of {transaction.name}, but not {lacks}")
                return
        due = [batch for it in cut.answered.transactions for of in it.batches.values() for batch in of]
        for batch in (*due, *cut.answered.plain):
            if batch.log in cut.ends and self._lacks(cut, batch):
                what = f"{batch.name} of {batch.transaction or 'no transaction'}"
                violate(13, f"{cut.name} is without {what} in {log_name(batch.log)}, which was answered before it")
                return

    def _lacks(self, cut: TakenCut, batch: Batch) -> bool:
        """Whether it is not there, and does not have to wait for what is open."""
        may_wait = batch.log in self._history.markers and not cut.is_whole
        return not may_wait and not self._has(cut, batch)

    def _has(self, cut: TakenCut, batch: Batch) -> bool:
        end = self._history.end_of(batch)
        return end is not None and end <= cut.ends[batch.log]


class Cutter(Client):
    """Asks for cuts of all logs, or of some, at one process or another."""

    def __init__(self, world: World, network: Network, history: History, name: str, cuts: TakenCuts) -> None:
        super().__init__(world, network, history, name)
        self._cuts = cuts

    async def run(self) -> None:
        while not self.done:
            machines = self.network.machines
            serving = [number for number, machine in enumerate(machines) if machine.node is not None]
            at = self.rng.choice(serving or range(len(machines)))
            logs = self.history.logs
            if self.rng.random() < 0.3:
                logs = self.rng.sample(logs, self.rng.randint(1, len(logs)))
            try:
                await self._ask("cut", partial(self._cuts.ask, self.name, logs), at)
                self.network.answered("cut")
            except Unanswered:
                pass
            await trio.sleep(self.rng.choice((0.0, 0.005, 0.05)) * self.rng.random() * self.world.pace)


class LimitedReader(Client):
    """Has cuts kept now and then, and goes from one of them to the next, for some logs; then from the beginning."""

    def __init__(self, world: World, network: Network, history: History, name: str, cuts: TakenCuts) -> None:
        super().__init__(world, network, history, name)
        self._cuts = cuts
        self._at: dict[LogId, Offset] = {}

    def _begin(self) -> None:
        logs = self.history.logs
        self._at = dict.fromkeys(self.rng.sample(logs, self.rng.randint(1, len(logs))), Offset(0))

    async def run(self) -> None:
        while not self.done:
            machines = self.network.machines
            serving = [number for number, machine in enumerate(machines) if machine.node is not None]
            at = self.rng.choice(serving or range(len(machines)))
            if not self._at or self.rng.random() < 0.1:
                self._begin()
            try:
                if self.rng.random() < 0.5:
                    await self._ask("keep", self._cuts.keep, at)
                    self.network.answered("keep")
                else:
                    records_max = self.rng.choice((1, 3, 20))
                    find = partial(self._cuts.find, self.name, self._at, records_max)
                    self._at = await self._ask("find", find, at) or self._at
                    self.network.answered("find")
            except Unanswered:
                pass
            await trio.sleep(self.rng.choice((0.0, 0.005, 0.05)) * self.rng.random() * self.world.pace)
