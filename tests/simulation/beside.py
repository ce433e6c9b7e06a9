"""What is done beside an open transaction, at the end of a run: nobody waits for it (invariant 8).

A transaction is begun, writes to every log, and is left open. Beside it another one is committed, and a plain batch
goes to each log. All of that has to be answered, and to be read, within `BESIDE_S` by the run's clock; the first
transaction times out later, so whoever waits for its end is found. By then the node has died and recovered as often as
the plan says, its disk is whole, and these clients call it without a network between: so nothing else takes so long.
In the end the first one is committed, and is read as well.

In marker mode readers of committed records stop at the open transaction; beside it, others have to be committed there.
When it is committed, all is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TypeVar, cast

import trio

from fairlog_types import Offset
from tests.simulation.clients import NextTransaction, PlainProducer, StartOver, TransactionalProducer
from tests.simulation.history import Batch, History, Transaction
from tests.simulation.machine import Machine, Node
from tests.simulation.network import Network, Where
from tests.simulation.world import World

T = TypeVar("T")

BESIDE_S = 10.0
OPEN_MS = 20_000
"""Until a transaction times out: the longest that a run's node allows."""
READ_EVERY_S = 0.005


async def nobody_waits(
    world: World, nodes: Sequence[Node], machines: Sequence[Machine], where: Where, history: History
) -> None:
    """For a transaction that is left open; else that is a violation. The nodes serve nobody else meanwhile.

    There is one on each machine.
    """
    direct = cast("Network", _Direct(nodes, machines, where))
    hung = _Writer(world, direct, history, "hung", "hung")
    other = _Writer(world, direct, history, "beside", "beside")
    plain = PlainProducer(world, direct, history, "plain-beside")
    hung.timeout_ms = other.timeout_ms = OPEN_MS
    left_open = await hung.write()
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

    @property
    def done(self) -> bool:
        return False

    async def write(self) -> Transaction:
        """A transaction that is open."""
        await self._init()
        transaction = Transaction(f"{self.name}#1", self.transactional_id, (self.producer_id, self.epoch))
        self.history.transactions.append(transaction)
        await self._add(transaction, list(self.history.logs))
        for log in self.history.logs:
            await self._produce(transaction, log)
        return transaction

    async def commit(self, transaction: Transaction) -> None:
        await self._end(transaction, commit=True)


class _Direct:
    """In place of the network: the nodes are called, and answer."""

    def __init__(self, nodes: Sequence[Node], machines: Sequence[Machine], where: Where) -> None:
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
