"""What is done beside an open transaction, at the end of a run: nobody waits for it (invariant 8).

A transaction is begun, writes to every log, and is left open. Beside it another one is committed, and a plain batch
goes to each log. All of that has to be answered, and to be read, within `BESIDE_S` by the run's clock; the first
transaction times out later, so whoever waits for its end is found. By then the node has died and recovered as often as
the plan says, its disk is whole, and these clients call it without a network between: so nothing else takes so long.
In the end the first one is committed, and is read as well.

`goes_on` asks the same of one process, of several, beside what has befallen another one (`process_faults`).

In marker mode readers of committed records stop at the open transaction; beside it, others have to be committed there.
When it is committed, all is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar, cast

import trio

from fairlog_types import LogId, Offset
from partition.answers import RefusedAppend
from tests.simulation.clients import NextTransaction, PlainProducer, StartOver, TransactionalProducer
from tests.simulation.history import Batch, History, Transaction
from tests.simulation.machine import EffectUnknown, Machine, Node
from tests.simulation.network import Network, Where
from tests.simulation.world import World

T = TypeVar("T")

BESIDE_S = 10.0
OPEN_MS = 20_000
"""Until a transaction times out: the longest that a run's node allows."""
READ_EVERY_S = 0.005


async def nobody_waits(
    world: World,
    nodes: Sequence[Node],
    machines: Sequence[Machine],
    where: Where,
    history: History,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """For a transaction that is left open; else that is a violation. The nodes serve nobody else meanwhile.

    There is one on each machine. `meanwhile` is called when the transaction is open.
    """
    direct = cast("Network", _Direct(dict(enumerate(nodes)), machines, where))
    hung = _Writer(world, direct, history, "hung", "hung")
    other = _Writer(world, direct, history, "beside", "beside")
    plain = PlainProducer(world, direct, history, "plain-beside")
    hung.timeout_ms = other.timeout_ms = OPEN_MS
    left_open = await hung.write()
    meanwhile()
    batches: list[Batch] = []
    beside = f"beside {left_open.name}, which is open"
    try:
        with trio.move_on_after(BESIDE_S):
            committed = await other.write()
            batches += chain.from_iterable(committed.batches.values())
            await other.commit(committed)
            for log in history.logs:
                batch, data = plain.new_batch(log, None)
                batches.append(batch)
                await plain.send(batch, data, repeats=0)
            await _read(nodes, where, history, batches, until=history.is_committed)
            await hung.commit(left_open)
            batches += chain.from_iterable(left_open.batches.values())
            await _read(nodes, where, history, batches, until=history.has)
            world.count("open transactions that nobody waited for")
            return
    except (StartOver, NextTransaction):
        world.violate(8, f"a request was refused {beside}")
    else:
        missing = ", ".join(batch.name for batch in batches if not history.is_committed(batch))
        what = f"{missing}: not there" if missing else "not all is answered"
        world.violate(8, f"{what} after {BESIDE_S:.0f} s {beside}")


async def goes_on(
    node: Node, at: int, machines: Sequence[Machine], where: Where, history: History, transactional_id: str
) -> str | None:
    """Commit a transaction, and send a plain batch, in all logs of the node on that machine: None, or what is refused.

    The node coordinates that transactional id.
    """
    direct = cast("Network", _Direct({at: node}, machines, where))
    logs = [log for log in history.logs if where.of_log(log) == at]
    writer = _Writer(node.world, direct, history, transactional_id, transactional_id, logs)
    plain = PlainProducer(node.world, direct, history, f"plain-{transactional_id}")
    writer.timeout_ms = OPEN_MS
    try:
        with trio.move_on_after(BESIDE_S):
            await writer.commit(await writer.write())
            for log in logs:
                batch, data = plain.new_batch(log, None)
                answer = await plain.send(batch, data, repeats=0)
                if isinstance(answer, RefusedAppend):
                    return f"{batch.name} is refused, {answer.name}"
            return None
    except (StartOver, NextTransaction, EffectUnknown):
        return "a request was refused"
    return f"not all is answered after {BESIDE_S:.0f} s"


async def _read(
    nodes: Sequence[Node],
    where: Where,
    history: History,
    batches: Sequence[Batch],
    *,
    until: Callable[[Batch], bool],
) -> None:
    """Read everything until that is true of each of these."""
    while not all(map(until, batches)):
        for at, node in enumerate(nodes):
            logs = [log for log in history.logs if where.of_log(log) == at]
            found = await node.read(dict.fromkeys(logs, Offset(0)))
            history.view("a reader beside it", dict.fromkeys(logs, 0), found)
        await trio.sleep(READ_EVERY_S)


class _Writer(TransactionalProducer):
    """Transactions with a batch in each log, step by step, also when all others have come to an end."""

    def __init__(
        self,
        world: World,
        network: Network,
        history: History,
        name: str,
        transactional_id: str,
        logs: Sequence[LogId] | None = None,
    ) -> None:
        super().__init__(world, network, history, name, transactional_id)
        self._logs = history.logs if logs is None else logs

    @property
    def done(self) -> bool:
        return False

    async def write(self) -> Transaction:
        """A transaction that is open."""
        await self._init()
        transaction = Transaction(f"{self.name}#1", self.transactional_id, (self.producer_id, self.epoch))
        self.history.transactions.append(transaction)
        await self._add(transaction, list(self._logs))
        for log in self._logs:
            await self._produce(transaction, log)
        return transaction

    async def commit(self, transaction: Transaction) -> None:
        await self._end(transaction, commit=True)


class _Direct:
    """In place of the network: the nodes are called, and answer."""

    def __init__(self, nodes: Mapping[int, Node], machines: Sequence[Machine], where: Where) -> None:
        """`nodes` by the number of their machine."""
        self.machines = machines
        self.where = where
        self._nodes = nodes

    async def connect(self, at: int = 0) -> _Called:
        await trio.lowlevel.checkpoint()
        return _Called(self._nodes[at])

    def answered(self, what: str) -> None:
        for machine in self.machines:
            machine.answered(what)


class _Called:
    """In place of a connection."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ordinal = next(node.connections)

    async def ask(self, _what: str, request: Callable[[Node, int], Awaitable[T]]) -> T:
        """Nothing is lost, and nothing is late."""
        return await request(self._node, self._ordinal)
