"""The clients of a run: transactional producers, their rivals, plain producers, and readers.

They do what real clients do, and what makes trouble: repeat what had no answer on another connection, change their mind
and abort, fall silent until the transaction times out, start again in the middle, run twice with the same id. What
they send, and what they hear of it, goes into the `History`; that alone judges.

A producer never commits a transaction of which it does not know that every batch was taken, and asks for a new epoch
when it does not know how something ended: as the clients of Kafka do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import trio

from coordinator.answers import Effect, Granted, Refusal
from coordinator.sinks.messages import BatchCommitted, LaneGranted, SinkRefused
from fairlog_types import LogId, Offset, ProducerEpoch, ProducerId, ShardNumber, StorageFailure
from partition.answers import Appended, DuplicateOf, RefusedAppend
from shard.adding import AddLog
from tests.datalog.batches import keyed_batch
from tests.simulation.found import Found
from tests.simulation.history import Batch, History, Transaction, log_name
from tests.simulation.machine import EffectUnknown, Node
from tests.simulation.network import Connection, Network, Unanswered
from tests.simulation.world import World

T = TypeVar("T")

Adding = Callable[[Node, int], Awaitable[Mapping[LogId, Refusal | None] | Refusal]]
"""Asks a node, on a connection, to add logs to a transaction: what came of each."""

REPEATS = 6

WITHOUT_A_TRACE = (
    Refusal.UNKNOWN_PRODUCER_ID_MAPPING,
    Refusal.FENCED,
    Refusal.LATE,
    Refusal.WRONG_STATE,
    Refusal.CONCURRENT,
)
"""A request that is refused so has ended nothing."""


class StartOver(Exception):
    """The producer does not know where it stands: it asks for a new epoch."""


class Client:
    """What all clients are: somebody with a name, a stream of random numbers, and a connection."""

    def __init__(self, world: World, network: Network, history: History, name: str) -> None:
        self.world = world
        self.network = network
        self.history = history
        self.name = name
        self.rng = world.stream(f"client {name}")
        self.at = 0
        """Of several machines: which one it asks, if not another one is named."""
        self._connections: dict[int, Connection] = {}

    async def ask(self, what: str, request: Callable[[Node, int], Awaitable[T]], *, at: int | None = None) -> T:
        """Raises Unanswered."""
        try:
            answer = await self._ask(what, request, self.at if at is None else at)
        except Unanswered:
            self.world.note(self.name, f"{what}: no answer")
            raise
        self.world.note(self.name, f"{what}: {said(answer)}")
        return answer

    async def _ask(self, what: str, request: Callable[[Node, int], Awaitable[T]], at: int) -> T:
        if at not in self._connections:
            self._connections[at] = await self.network.connect(at)
        try:
            return await self._connections[at].ask(f"{self.name}: {what}", request)
        except Unanswered:
            del self._connections[at]
            raise

    async def ask_again(self, what: str, request: Callable[[Node, int], Awaitable[T]]) -> T:
        """Ask until it is answered. Raises Unanswered if it is not, for long."""
        for _ in range(REPEATS - 1):
            try:
                return await self.ask(what, request)
            except Unanswered:
                continue
        return await self.ask(what, request)

    async def pause(self) -> None:
        await trio.sleep(self.rng.choice((0.0, 0.0005, 0.003, 0.02)) * self.rng.random() * self.world.pace)

    @property
    def done(self) -> bool:
        return self.world.stopping.is_set()


class Producer(Client):
    """Batches with a producer id, an epoch, and a sequence for each log."""

    def __init__(self, world: World, network: Network, history: History, name: str) -> None:
        super().__init__(world, network, history, name)
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[LogId, int] = {}
        self._numbers = 0

    def new_batch(self, log: LogId, transaction: Transaction | None) -> tuple[Batch, bytearray]:
        self._numbers += 1
        name = f"{self.name}.{self._numbers}"
        records = self.rng.randint(1, 3)
        filler = self.rng.choice((0, 20, 20, 200, 3000))
        sequence = self.sequences.get(log, 0) if self.producer_id >= 0 else -1
        data = keyed_batch(
            0,
            [(None, f"{name}/{index}".encode() + b"." * filler) for index in range(records)],
            timestamp_ms=1_700_000_000_000,
            attributes=0 if transaction is None else 0x10,
            producer=(self.producer_id, self.epoch, sequence),
        )
        batch = Batch(name, log, bytes(data[17:]), records, transaction)
        if transaction is not None:
            transaction.batches.setdefault(log, []).append(batch)
        self.history.sends(batch)
        return batch, data

    async def send(self, batch: Batch, data: bytearray, *, repeats: int) -> Appended | DuplicateOf | RefusedAppend:
        """Send until it is answered. Raises Unanswered."""
        transactional_id = None if batch.transaction is None else batch.transaction.transactional_id
        where = self.network.where

        async def produce(node: Node, _connection: int) -> Appended | DuplicateOf | RefusedAppend:
            if transactional_id is not None and self.at != where.of_log(batch.log):
                await node.shard.hear(ShardNumber(self.at))
            return await node.produce(transactional_id, batch.log, bytearray(data))  # a copy, as from a socket

        for attempt in range(repeats + 1):
            try:
                answer = await self.ask(
                    f"produce {batch.name} to {log_name(batch.log)}",
                    produce,
                    at=where.of_log(batch.log),
                )
            except Unanswered:
                if attempt == repeats:
                    raise
                continue
            if isinstance(answer, RefusedAppend):
                batch.refused = attempt == 0 and answer is not RefusedAppend.DUPLICATE_FORGOTTEN
            else:
                batch.acknowledged = True
                self.network.answered("produced")
                batch.offset = answer.base_offset
                if self.producer_id >= 0:
                    self.sequences[batch.log] = self.sequences.get(batch.log, 0) + batch.records
            return answer
        raise AssertionError("the last attempt returns or raises")


class PlainProducer(Producer):
    """Plain batches with acks=all, with idempotence or without."""

    async def run(self) -> None:
        idempotent = self.rng.random() < 0.7
        while not self.done:
            if idempotent and self.producer_id < 0:
                try:
                    granted = await self.ask("init", init(None, 1000, -1, -1))
                except Unanswered:
                    continue
                if isinstance(granted, Refusal):
                    await trio.sleep(0.2)
                    continue
                self.producer_id, self.epoch, self.sequences = granted.producer_id, granted.epoch, {}
            batch, data = self.new_batch(self.rng.choice(self.history.logs), None)
            try:
                answer = await self.send(batch, data, repeats=REPEATS if idempotent else 0)
            except Unanswered:
                self.producer_id = self.epoch = -1
                continue
            if isinstance(answer, RefusedAppend):
                self.producer_id = self.epoch = -1
                await trio.sleep(0.05)
            await self.pause()


class TransactionalProducer(Producer):
    """Transactions, one after the other."""

    def __init__(self, world: World, network: Network, history: History, name: str, transactional_id: str) -> None:
        super().__init__(world, network, history, name)
        self.transactional_id = transactional_id
        self.at = network.where.of_id(transactional_id)
        self.timeout_ms = self.rng.choice((80, 150, 1000))
        self._count = 0

    async def run(self) -> None:
        while not self.done:
            try:
                await self._init()
                while not self.done:
                    with suppress(NextTransaction):
                        await self._transaction()
                    await self.pause()
            except (StartOver, Unanswered):
                await trio.sleep(0.01 * self.rng.random())

    async def _init(self) -> None:
        if self.rng.random() < 0.4:
            self.producer_id, self.epoch = -1, -1  # as a new instance
        while not self.done:
            try:
                answer = await self.ask("init", self._ask_init)
            except Unanswered:
                continue
            if isinstance(answer, Granted):
                self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.epoch, {}
                self.history.granted(answer.producer_id, answer.epoch)
                self.network.answered("granted")
                return
            if answer is not Refusal.CONCURRENT:
                self.producer_id, self.epoch = -1, -1
            await trio.sleep(0.05)

    async def _ask_init(self, node: Node, connection: int) -> Granted | Refusal:
        request = init(self.transactional_id, self.timeout_ms, self.producer_id, self.epoch)
        with self.history.deadlines.ending(self.transactional_id) as ending:
            answer = await request(node, connection)
            ending.changed_nothing = answer in WITHOUT_A_TRACE
        if isinstance(answer, Granted) and not node.world.crashed:
            self.history.deadlines.granted(answer.producer_id, answer.epoch)
        return answer

    async def _transaction(self) -> None:
        self._count += 1
        name = f"{self.name}#{self._count}"
        transaction = Transaction(name, self.transactional_id, (self.producer_id, self.epoch))
        self.history.transactions.append(transaction)
        logs = self.rng.sample(self.history.logs, self.rng.randint(1, len(self.history.logs)))
        added: list[LogId] = []
        for log in self._order(logs):
            if log not in added:
                more = [log] if self.rng.random() < 0.5 else [it for it in logs if it not in added]
                await self._add(transaction, more)
                added += more
            await self._produce(transaction, log)
            await self.pause()
        if not added:
            return
        choice = self.rng.random()
        if choice < 0.04:
            await trio.sleep(self.timeout_ms / 1000 * 1.2 + 0.1)  # it hangs, and times out
        elif choice < 0.08:
            raise StartOver  # the client dies
        await self._end(transaction, commit=choice < 0.85)

    def _order(self, logs: list[LogId]) -> list[LogId]:
        """To which log each batch goes."""
        return [self.rng.choice(logs) for _ in range(self.rng.randint(0, 5))] + (
            logs if self.rng.random() < 0.5 else []
        )

    async def _add(self, transaction: Transaction, logs: list[LogId]) -> None:
        await self._ask_to_add(transaction, logs, self._adding(transaction, logs), at=self.at)

    def _named(self, connection: int) -> int | None:
        """The connection, if it says which transaction is meant."""
        return connection

    def _adding(self, transaction: Transaction, logs: list[LogId]) -> Adding:
        producer_id, epoch = ProducerId(self.producer_id), ProducerEpoch(self.epoch)

        async def add(node: Node, connection: int) -> Mapping[LogId, Refusal | None] | Refusal:
            if transaction.began_after_s is None:
                transaction.began_after_s = trio.current_time()
            answer = await node.coordinator.add_logs(
                self.transactional_id, producer_id, epoch, tuple(logs), self._named(connection)
            )
            if node.world.crashed:
                return answer
            if not isinstance(answer, Refusal):
                for log in logs:
                    # Another shard may have lost its power since it was asked.
                    if answer[log] is None and self.network.where.of_log(log) == self.at:
                        self.history.has_begun(log, producer_id, epoch)
                if any(why is None for why in answer.values()):
                    transaction.began_in = transaction.began_in or node.number
                    after_s, timeout_ms = transaction.began_after_s, self.timeout_ms
                    self.history.deadlines.has_begun(node, self.transactional_id, after_s, timeout_ms)
            elif answer is Refusal.FENCED:
                self.history.deadlines.is_fenced(producer_id, epoch)
            return answer

        return add

    async def _ask_to_add(self, transaction: Transaction, logs: list[LogId], add: Adding, *, at: int) -> None:
        names = "".join(sorted(map(log_name, logs)))
        for _ in range(REPEATS):
            try:
                answer = await self.ask(f"{transaction.name} adds {names}", add, at=at)
            except Unanswered:
                continue
            if not isinstance(answer, Refusal) and not any(answer.values()):
                return
            if answer is Refusal.CONCURRENT:
                await trio.sleep(0.01)
                continue
            await self._give_up(transaction, must_abort=answer is Refusal.MUST_ABORT)
        raise StartOver

    async def _produce(self, transaction: Transaction, log: LogId) -> None:
        batch, data = self.new_batch(log, transaction)
        answer = await self.send(batch, data, repeats=2)
        if isinstance(answer, RefusedAppend):
            # If an earlier attempt had no answer, nobody knows whether its sequence is used: only a new epoch helps.
            await self._give_up(transaction, must_abort=answer is RefusedAppend.MUST_ABORT and batch.refused)

    async def _give_up(self, transaction: Transaction, *, must_abort: bool) -> None:
        """The transaction cannot go on: abort it, and go on in the same epoch, or ask for a new one."""
        if must_abort and self.rng.random() < 0.6:
            await self._end(transaction, commit=False)
            raise NextTransaction
        raise StartOver

    async def _end(self, transaction: Transaction, *, commit: bool) -> None:
        producer_id, epoch = ProducerId(self.producer_id), ProducerEpoch(self.epoch)
        unanswered = False

        async def end(node: Node, connection: int) -> Refusal | None:
            transaction.asked_in = transaction.asked_in or node.number
            with self.history.deadlines.ending(self.transactional_id) as ending:
                answer = await self._ask_end(node, producer_id, epoch, commit, connection)
                ending.changed_nothing = answer in WITHOUT_A_TRACE
            if answer is Refusal.FENCED and not node.world.crashed:
                self.history.deadlines.is_fenced(producer_id, epoch)
            return answer

        for _ in range(REPEATS):
            if commit:
                self.history.asks_commit(transaction)
            try:
                answer = await self.ask(f"{transaction.name} {'commits' if commit else 'aborts'}", end)
            except Unanswered:
                unanswered = True
                continue
            if answer is None:
                transaction.committed = transaction.committed or commit
                self.world.count("commits" if commit else "aborts")
                if commit and self._went_on_over_a_kill(transaction):
                    self.world.count("transactions that went on over a kill and committed")
                self.network.answered("committed" if commit else "aborted")
                self._has_ended()
                return
            if answer is Refusal.CONCURRENT and not unanswered:
                await trio.sleep(0.01)
                continue
            if commit and not unanswered and answer.effect is Effect.NONE:
                transaction.without_effect = True
            if answer is Refusal.MUST_ABORT and commit:
                await self._give_up(transaction, must_abort=True)
            break
        raise StartOver

    async def _ask_end(
        self, node: Node, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        return await node.coordinator.end(self.transactional_id, producer_id, epoch, commit, connection)

    def _has_ended(self) -> None:
        """The next transaction may begin."""

    def _went_on_over_a_kill(self, transaction: Transaction) -> bool:
        """Between its first request that was answered, and the first one that asked for its commit."""
        began_in, asked_in = transaction.began_in, transaction.asked_in
        assert asked_in is not None
        ends = self.network.machines[self.at].ended_by
        return began_in is not None and "kill" in [ends.get(start) for start in range(began_in, asked_in)]


class EpochProducer(TransactionalProducer):
    """It speaks transaction version 2 over shards: leaders add their logs, and each end grants the next epoch."""

    _granted: Granted | None = None

    async def _add(self, transaction: Transaction, logs: list[LogId]) -> None:
        for log in logs:
            at = self.network.where.of_log(log)
            add = self._adding(transaction, [log]) if at == self.at else self._having_added(transaction, log)
            await self._ask_to_add(transaction, [log], add, at=at)

    def _named(self, connection: int) -> int | None:
        return None

    def _having_added(self, transaction: Transaction, log: LogId) -> Adding:
        message = AddLog(self.transactional_id, ProducerId(self.producer_id), ProducerEpoch(self.epoch), log)

        async def add(node: Node, _connection: int) -> Mapping[LogId, Refusal | None] | Refusal:
            if transaction.began_after_s is None:
                transaction.began_after_s = trio.current_time()
            answer = await node.shard.add_log(ShardNumber(self.at), message)
            if answer is None and not node.world.crashed:
                self.world.count("logs added by their leaders")
            return {log: None} if answer is None else answer

        return add

    async def _ask_end(
        self, node: Node, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        answer = await node.coordinator.end_epoch(self.transactional_id, producer_id, epoch, commit)
        if isinstance(answer, Refusal):
            return answer
        self._granted = answer
        if not node.world.crashed:
            self.history.deadlines.granted(answer.producer_id, answer.epoch)
        return None

    def _has_ended(self) -> None:
        assert self._granted is not None
        self.producer_id, self.epoch, self.sequences = self._granted.producer_id, self._granted.epoch, {}
        self.history.granted(self.producer_id, self.epoch)


class PatientProducer(TransactionalProducer):
    """What Flink's sink and franz-go do: it rests before it commits, and goes on after a refusal.

    What was refused fails the records that it was for; the others are committed, on the connection on which it was
    refused as on any other. So an abort by the broker must be refused to the end.
    """

    def __init__(self, world: World, network: Network, history: History, name: str, transactional_id: str) -> None:
        super().__init__(world, network, history, name, transactional_id)
        self.timeout_ms = self.rng.choice((300, 1000, 1000, 3000))

    async def _transaction(self) -> None:
        self._count += 1
        name = f"{self.name}#{self._count}"
        transaction = Transaction(name, self.transactional_id, (self.producer_id, self.epoch))
        self.history.transactions.append(transaction)
        for _ in range(self.rng.randint(1, 6)):
            log = self.rng.choice(self.history.logs)
            with suppress(RecordFailed):
                await self._add(transaction, [log])
                await self._produce(transaction, log)
            await trio.sleep(self.rng.choice((0.0, 0.01, 0.1)) * self.rng.random())
        if not transaction.batches:
            raise StartOver
        await trio.sleep(self.rng.choice((0.0, 0.05, 0.3, self.timeout_ms / 1000)) * self.rng.random())
        if self.rng.random() < 0.5:
            self._connections.pop(self.at, None)  # whoever commits is not who wrote
        await self._end(transaction, commit=self.rng.random() < 0.9)

    async def _produce(self, transaction: Transaction, log: LogId) -> None:
        batch, data = self.new_batch(log, transaction)
        answer = await self.send(batch, data, repeats=REPEATS)
        if isinstance(answer, RefusedAppend):
            if batch.refused:
                _forget(transaction, batch)
            await self._give_up(transaction, must_abort=answer is RefusedAppend.MUST_ABORT and batch.refused)

    async def _give_up(self, transaction: Transaction, *, must_abort: bool) -> None:
        if must_abort and not transaction.asked:
            self.world.count("refusals after which a client goes on")
            raise RecordFailed
        await super()._give_up(transaction, must_abort=must_abort)


def _forget(transaction: Transaction, batch: Batch) -> None:
    """It is not part of the transaction."""
    transaction.batches[batch.log].remove(batch)
    if not transaction.batches[batch.log]:
        del transaction.batches[batch.log]


class RecordFailed(Exception):
    """The client's record is refused; its transaction is not given up for that."""


class NextTransaction(Exception):
    """The abort is done: the next transaction may begin in the same epoch."""


class Reader(Client):
    """Reads all logs, again and again, each time those of one machine in one cut, from where it is."""

    async def run(self) -> None:
        while not self.done:
            indexes = dict.fromkeys(self.history.logs, 0)
            offsets = dict.fromkeys(self.history.logs, Offset(0))
            try:
                while not self.done:
                    await self._read(indexes, offsets)
                    await trio.sleep(0.02 * self.rng.random() * self.world.pace)
            except Unanswered:
                continue

    async def _read(self, indexes: dict[LogId, int], offsets: dict[LogId, Offset]) -> None:
        log = self.rng.choice(self.history.logs) if len(self.network.machines) > 1 else self.history.logs[0]
        at = self.network.where.of_log(log)
        asked = {log: offset for log, offset in offsets.items() if self.network.where.of_log(log) == at}

        async def read(node: Node, _: int) -> dict[LogId, Found]:
            try:
                return await node.read(asked)
            except StorageFailure as failure:
                raise EffectUnknown(str(failure)) from failure

        found = await self._ask("read", read, at)
        indexes.update(self.history.view(self.name, indexes, found))
        self.network.answered("read")
        for log in asked:
            offsets[log] = self.history.end(log, indexes[log])


def init(
    transactional_id: str | None, timeout_ms: int, producer_id: int, epoch: int
) -> Callable[[Node, int], Awaitable[Granted | Refusal]]:
    return lambda node, connection: node.coordinator.init_producer_id(
        transactional_id, timeout_ms, ProducerId(producer_id), ProducerEpoch(epoch), connection
    )


def said(answer: object) -> str:
    """An answer in a word."""
    match answer:
        case Granted(producer_id, epoch):
            return f"producer {producer_id}, epoch {epoch}"
        case Refusal() | RefusedAppend():
            return f"refused, {answer.name}"
        case Appended(base_offset) | DuplicateOf(base_offset):
            again = "again " if isinstance(answer, DuplicateOf) else ""
            return f"{again}taken" if base_offset is None else f"{again}taken at {base_offset}"
        case dict():
            refused = sorted(f"{log_name(log)} {why.name}" for log, why in answer.items() if why is not None)
            return f"refused, {', '.join(refused)}" if refused else "done"
        case LaneGranted(transactional_id):
            return f"lane {transactional_id}"
        case BatchCommitted(batch):
            return f"batch {batch} is committed{' already' if answer.already else ''}"
        case SinkRefused(why):
            return f"refused, {why.name}"
        case None:
            return "done"
        case _:
            return str(answer)
