"""The clients of a sink: a driver that commits batches, and the tasks that write for it, as Spark's do.

    driver, run r:  batch b ─▶ tasks: join ─▶ init ─▶ add, produce … ─▶ how many records   (several attempts, some die)
                            ─▶ commit (the winners, with their counts) ─▶ the checkpoint: next is b + 1

A driver that does not know whether its batch was committed starts again, as another run, at the batch that the
checkpoint names; so may a second driver of the same query, which knows of no other. What makes trouble: tasks that go
on writing when the batch is decided, two attempts that both write, counts that are not true, requests that are
repeated, strangers that want a grant for a lane, lanes that want to commit by themselves, and another query.

A sink is at one machine, where all its lanes are coordinated (docs/decisions/0055); drivers, tasks and strangers go
there at once. The lanes write wherever the logs are.

To the `History` a commit is one transaction: its batches are those of the winning lanes, in the order in which the
driver has named them. A lane's batches belong to a transaction that nobody commits until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from coordinator.answers import Granted, Refusal
from coordinator.lane_ids import lane_id
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkRefusal,
    SinkRefused,
    Winner,
)
from coordinator.states import IdState
from fairlog_types import LogId, ProducerEpoch, ProducerId
from partition.answers import RefusedAppend
from tests.simulation.clients import REPEATS, Client, Producer, init
from tests.simulation.history import History, Transaction
from tests.simulation.machine import Node
from tests.simulation.network import Network, Unanswered
from tests.simulation.plan import Plan
from tests.simulation.world import World

_TIMEOUTS_MS = (80, 1000, 1000)


class _BatchIsCommitted(Exception):
    """A task was told that there is nothing to write."""


class _TaskFailed(Exception):
    """An attempt that cannot win."""


@dataclass
class Checkpoint:
    """What a query remembers of a sink, over all of its runs: which batch is next."""

    sink: str
    query: str
    next_batch: int = 0
    runs: int = 0
    committed: bool = False
    """It was answered that one of its batches is committed."""


@dataclass
class _Attempt:
    """A lane, as its task knows it."""

    lane: Lane
    written: Transaction
    records: int = 0
    transactional_id: str = ""
    granted: tuple[int, int] = (-1, -1)


@dataclass
class _Written:
    """What the tasks of a batch have done."""

    done: list[_Attempt] = field(default_factory=list)
    others: list[_Attempt] = field(default_factory=list)
    is_committed: bool = False


class Task(Producer):
    """One attempt at a partition of a batch."""

    def __init__(self, driver: Driver, name: str, attempt: _Attempt) -> None:
        super().__init__(driver.world, driver.network, driver.history, name)
        self.at = driver.at
        self.attempt = attempt
        self.timeout_ms = self.rng.choice(_TIMEOUTS_MS)

    async def write(self) -> None:
        """Join, and write. Raises _BatchIsCommitted, _TaskFailed, Unanswered."""
        attempt = self.attempt
        await self._join()
        await self._get_granted()
        logs = self.rng.sample(self.history.logs, self.rng.randint(0, len(self.history.logs)))
        if logs:
            await self._add(logs)
        for log in [self.rng.choice(logs) for _ in range(self.rng.randint(0, 4))] if logs else []:
            if self.rng.random() < 0.04:
                raise _TaskFailed  # it dies
            batch, data = self.new_batch(log, attempt.written)
            answer = await self.send(batch, data, repeats=2)
            if isinstance(answer, RefusedAppend):
                raise _TaskFailed
            attempt.records += batch.records
            await self.pause()
        if self.rng.random() < 0.03:
            await self._commit_alone()

    async def write_too_late(self) -> None:
        """One batch more, though the driver has gone on: nobody has counted it, so it may not be seen."""
        transaction = Transaction(f"{self.name}.late", self.attempt.written.transactional_id, self.attempt.granted)
        log = self.rng.choice(self.history.logs)
        if self.rng.random() < 0.5:
            await self._add([log])
        batch, data = self.new_batch(log, transaction)
        await self.send(batch, data, repeats=0)

    async def _join(self) -> None:
        lane = self.attempt.lane
        answer = await self.ask_again(f"joins batch {lane.batch}", lambda node, _: node.coordinator.join_batch(lane))
        if isinstance(answer, BatchCommitted):
            raise _BatchIsCommitted
        if not isinstance(answer, LaneGranted):
            raise _TaskFailed
        self.attempt.transactional_id = answer.transactional_id

    async def _get_granted(self) -> None:
        answer = await self.ask("init", init(self.attempt.transactional_id, self.timeout_ms, -1, -1))
        if not isinstance(answer, Granted):
            raise _TaskFailed
        self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.epoch, {}
        self.attempt.granted = self.producer_id, self.epoch
        self.attempt.written.producer = self.attempt.granted

    async def _add(self, logs: Sequence[LogId]) -> None:
        producer_id, epoch = ProducerId(self.producer_id), ProducerEpoch(self.epoch)
        answer = await self.ask_again(
            "adds",
            lambda node, connection: node.coordinator.add_logs(
                self.attempt.transactional_id, producer_id, epoch, tuple(logs), connection
            ),
        )
        if isinstance(answer, Refusal) or any(answer.values()):
            raise _TaskFailed

    async def _commit_alone(self) -> None:
        """A client that does not know that it is a lane."""
        producer_id, epoch = ProducerId(self.producer_id), ProducerEpoch(self.epoch)
        answer = await self.ask(
            "commits alone",
            lambda node, connection: node.coordinator.end(
                self.attempt.transactional_id, producer_id, epoch, True, connection
            ),
        )
        if answer is None:
            self.world.violate(1, f"{self.name} has committed, and it is a lane")


class Driver(Client):
    """The runs of a query, one after the other."""

    def __init__(self, world: World, network: Network, history: History, name: str, checkpoint: Checkpoint) -> None:
        super().__init__(world, network, history, name)
        self.checkpoint = checkpoint
        self.at = network.where.of_id(lane_id(checkpoint.sink, 0))
        self._run = ""
        self._tries = 0

    async def run(self) -> None:
        while not self.done:
            self.checkpoint.runs += 1
            self._run = f"{self.name}.{self.checkpoint.runs}"
            batch = self.checkpoint.next_batch
            if batch and self.rng.random() < 0.3:
                batch -= 1  # the last run died before it could note that the batch was committed
            goes_on: bool | None = True
            while not self.done and goes_on is not False:
                goes_on = await self._batch(batch)
                if goes_on:
                    batch += 1
                    self.checkpoint.next_batch = max(batch, self.checkpoint.next_batch)
                await self.pause()
            await trio.sleep(0.02 * self.rng.random())

    async def _batch(self, batch: int) -> bool | None:
        """Whether the batch is committed; False: this run has come to its end; None: it writes the batch again."""
        self._tries += 1
        written = await self._write(batch)
        if written.is_committed:
            await self._is_committed(batch)
            return True
        partitions = {it.lane.partition for it in (*written.done, *written.others)}
        winners = {it.lane.partition: it for it in written.done}
        if winners.keys() != partitions or self.rng.random() < 0.05:
            return await self._give_up(batch)
        if self.rng.random() < 0.04:
            await self._lie(batch, list(winners.values()))
            return False
        return await self._commit(batch, list(winners.values()), [*written.done, *written.others])

    # --- the tasks ---

    async def _write(self, batch: int) -> _Written:
        found = _Written()
        async with trio.open_nursery() as nursery:
            for partition in range(self.rng.randint(1, 3)):
                nursery.start_soon(self._write_partition, batch, partition, found)
        return found

    async def _write_partition(self, batch: int, partition: int, found: _Written) -> None:
        """Attempts until one is done; sometimes one more, which has been thought too slow."""
        rng = self.world.stream(f"{self.name} {self._tries} {partition}")
        speculates = rng.random() < 0.2
        for number in range(3):
            lane = Lane(self.checkpoint.sink, self.checkpoint.query, self._run, batch, partition, number)
            name = f"{self.checkpoint.sink}#{batch}.{self.name}.{self._tries}.{partition}.{number}"
            attempt = _Attempt(lane, Transaction(name, self.checkpoint.sink, (-1, -1)))
            task = Task(self, name, attempt)
            try:
                await task.write()
            except _BatchIsCommitted:
                found.is_committed = True
                return
            except (_TaskFailed, Unanswered):
                found.others.append(attempt)
                continue
            found.done.append(attempt)
            if rng.random() < 0.15:
                self.network.nursery.start_soon(self._go_on_too_late, task, rng.random())
            if not speculates:
                return
            speculates = False

    async def _go_on_too_late(self, task: Task, random: float) -> None:
        await trio.sleep(0.1 * random)
        batch = task.attempt.lane.batch
        if self.checkpoint.next_batch > batch and not self.done:
            try:
                await task.write_too_late()
            except (_TaskFailed, Unanswered):
                return

    # --- the end of a batch ---

    async def _commit(self, batch: int, winners: list[_Attempt], lanes: list[_Attempt]) -> bool:
        self.rng.shuffle(winners)
        whole = Transaction(
            f"{self.checkpoint.sink}#{batch}.{self._tries}", self.checkpoint.sink, (-1, -1), batch=batch
        )
        for it in winners:
            for log, batches in it.written.batches.items():
                whole.batches.setdefault(log, []).extend(batches)
                for each in batches:
                    each.transaction = whole
        self.history.transactions.append(whole)
        self.history.batches.setdefault((self.checkpoint.sink, batch), []).append(whole)
        message = self._message(batch, winners)
        unanswered = False
        for _ in range(REPEATS):
            self.history.asks_commit(whole)
            if self.rng.random() < 0.1:
                await self._ask_as_a_stranger(lanes)
            try:
                answer = await self.ask(
                    f"{whole.name} commits", lambda node, _: self._committed_by(node, message, lanes)
                )
            except Unanswered:
                unanswered = True
                continue
            if isinstance(answer, BatchCommitted):
                self._note_committed(batch, answer, None if unanswered or answer.already else whole)
                self.world.count("batches committed")
                self.network.answered("batch")
                return True
            if answer.why is SinkRefusal.EFFECT_UNKNOWN:
                unanswered = True
            elif not unanswered:
                whole.without_effect = True
            self.world.count("batches refused")
            return False
        return False

    async def _committed_by(
        self, node: Node, message: CommitBatch, lanes: Sequence[_Attempt]
    ) -> BatchCommitted | SinkRefused:
        """What the node answers; when it does, no lane of the batch may be open."""
        answer = await node.coordinator.commit_batch(message)
        refuses = node.shard.failure is not None or node.coordinator.statistics().failed_journals > 0
        is_healthy = not node.world.crashed and not refuses
        if isinstance(answer, BatchCommitted) and not answer.already and is_healthy:
            for it in lanes:
                found = node.coordinator.describe(it.transactional_id)
                if (
                    found is not None
                    and found.state == IdState.OPEN.name
                    and (found.producer_id, found.epoch) == it.granted
                ):
                    self.world.violate(9, f"{it.written.name} is open, and its batch is committed")
        return answer

    async def _granted_by(self, node: Node, connection: int, it: _Attempt) -> Granted | Refusal:
        """What a stranger is answered; the lane has been granted, so as long as it is open nobody else gets it."""
        before = node.coordinator._sinks._lane_of(it.transactional_id)
        is_its_own = before is not None and before.granted == it.granted
        answer = await init(it.transactional_id, 1000, -1, -1)(node, connection)
        after = node.coordinator._sinks._lane_of(it.transactional_id)
        if is_its_own and after is before and isinstance(answer, Granted):
            self.world.violate(9, f"{it.written.name} was granted to another connection, too")
        return answer

    async def _is_committed(self, batch: int) -> None:
        """Some task was told so; what the driver is told when it asks."""
        try:
            answer = await self.ask_again(
                f"commits {batch} again", lambda node, _: node.coordinator.commit_batch(self._message(batch, []))
            )
        except Unanswered:
            return
        if isinstance(answer, BatchCommitted):
            if not answer.already:
                self.world.violate(5, f"a task was told that batch {batch} is committed, and it was not")
            self._note_committed(batch, answer, None)

    def _note_committed(self, batch: int, answer: BatchCommitted, whole: Transaction | None) -> None:
        self.checkpoint.committed = True
        if whole is not None:
            whole.committed = True
        self.history.batch_is_committed(self.checkpoint.sink, batch, answer.placements)

    async def _give_up(self, batch: int) -> bool | None:
        """Tasks of the batch have failed: it is aborted, and this run or a new one writes it again."""
        try:
            answer = await self.ask(
                f"aborts batch {batch}",
                lambda node, _: node.coordinator.abort_batch(
                    self.checkpoint.sink, self.checkpoint.query, self._run, batch
                ),
            )
        except Unanswered:
            return False
        if isinstance(answer, SinkRefused) and answer.why is SinkRefusal.COMMITTED:
            self.history.batch_is_committed(self.checkpoint.sink, batch, (), is_visible=False)
        return None if answer is None and self.rng.random() < 0.5 else False

    async def _lie(self, batch: int, winners: list[_Attempt]) -> None:
        """A count that is not true: the batch must not be seen, whatever is answered."""
        message = self._message(batch, winners, lie=self.rng.choice((-1, 1, 7)))
        try:
            answer = await self.ask(f"lies about {batch}", lambda node, _: node.coordinator.commit_batch(message))
        except Unanswered:
            return
        if isinstance(answer, BatchCommitted) and not answer.already:
            self.world.violate(5, f"batch {batch} is committed with a count that is not true")

    def _message(self, batch: int, winners: Sequence[_Attempt], *, lie: int = 0) -> CommitBatch:
        named = [Winner(it.lane.partition, it.lane.attempt, it.records) for it in winners]
        if named and lie:
            partition, attempt, records = winners[0].lane.partition, winners[0].lane.attempt, winners[0].records
            # Not 0: with that a lane may be named that was aborted, and what is said is true then.
            named[0] = Winner(partition, attempt, records - 1 if lie < 0 and records > 1 else records + abs(lie))
        return CommitBatch(self.checkpoint.sink, self.checkpoint.query, self._run, batch, tuple(named))

    # --- who has no business here ---

    async def _ask_as_a_stranger(self, lanes: Sequence[_Attempt]) -> None:
        """A second grant for a lane, on another connection; or another query's join."""
        stranger = Client(self.world, self.network, self.history, f"{self.name} stranger {self._tries}")
        stranger.at = self.at
        try:
            if self.rng.random() < 0.5 and lanes:
                it = self.rng.choice(list(lanes))
                await stranger.ask(
                    f"init {it.transactional_id}", lambda node, connection: self._granted_by(node, connection, it)
                )
                return
            if self.checkpoint.committed:
                lane = Lane(self.checkpoint.sink, "another", "another", self.checkpoint.next_batch + 1, 0, 0)
                joined = await stranger.ask("joins", lambda node, _: node.coordinator.join_batch(lane))
                if not isinstance(joined, SinkRefused):
                    self.world.violate(5, f"another query has joined sink {self.checkpoint.sink}")
        except Unanswered:
            return


def drivers(world: World, plan: Plan, network: Network, history: History) -> list[Client]:
    """Of all sinks of a plan."""
    found: list[Client] = []
    for number in range(plan.sinks):
        checkpoint = Checkpoint(f"s{number}", "query")
        found.append(Driver(world, network, history, f"d{number}", checkpoint))
        if number < plan.second_drivers:
            found.append(Driver(world, network, history, f"d{number}x", checkpoint))
    return found
