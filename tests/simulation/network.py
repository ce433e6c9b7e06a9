"""The network between clients and the node: it delays, and loses requests and answers; a connection keeps its order.

Fault model: a request may be lost before it comes to the node, its answer afterwards; either may come late, much
later than the client's patience. Then the client gives its connection up and repeats the request on another one, and
the first, if it was only late, comes to the node in between or behind it, on the older connection. The node may notice
that a client has hung up, or not. A death of the node takes all connections with it, and every answer on its way.

What TCP excludes does not happen: nothing is doubled or reordered within one connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

from fairlog_types import LogId
from tests.simulation.machine import PATIENCE_S, EffectUnknown, Machine, Node
from tests.simulation.plan import Plan
from tests.simulation.world import CURRENT, World

T = TypeVar("T")

CLIENT_TIMEOUT_S = 0.1


class Unanswered(Exception):
    """The client has no answer: it may have been carried out, may be yet, or never came."""


class _Box(Generic[T]):
    def __init__(self) -> None:
        self.answer: list[T] = []
        self.came = trio.Event()


class Where(Protocol):
    """Which machine serves what, by its number."""

    def of_log(self, log: LogId) -> int: ...

    def of_id(self, transactional_id: str) -> int: ...


class _AtTheOne:
    def of_log(self, _log: LogId) -> int:
        return 0

    def of_id(self, _transactional_id: str) -> int:
        return 0


AT_THE_ONE = _AtTheOne()


class Connection:
    """One client's connection to one run of the node."""

    def __init__(self, network: Network, node: Node) -> None:
        self.node = node
        self.ordinal = next(node.connections)
        self._network = network

    async def ask(self, what: str, request: Callable[[Node, int], Awaitable[T]]) -> T:
        """Send a request and wait for the answer. Raises Unanswered; the connection is not to be used again then."""
        box = _Box[T]()
        scope = trio.CancelScope()
        self._network.nursery.start_soon(self._network.carry, self, what, request, box, scope)
        with trio.move_on_after(CLIENT_TIMEOUT_S):
            await box.came.wait()
        if not box.answer:
            if self._network.notices_hang_up():
                scope.cancel()
            raise Unanswered
        return box.answer[0]


class Network:
    """All connections of one run. `nursery` holds what is on its way."""

    def __init__(
        self, world: World, plan: Plan, machines: Sequence[Machine], nursery: trio.Nursery, where: Where = AT_THE_ONE
    ) -> None:
        """`where` says which of several machines serves what."""
        self.nursery = nursery
        self.machines = machines
        self.where = where
        self._world = world
        self._plan = plan
        self._rng = world.stream("network")

    async def connect(self, at: int = 0) -> Connection:
        """A connection to the node on that machine, as soon as there is one."""
        machine = self.machines[at]
        while True:
            await trio.sleep(0.0005 * self._rng.random())
            node = machine.node
            if node is not None:
                return Connection(self, node)
            await machine.came_up.wait()

    def answered(self, what: str) -> None:
        """A client has an answer."""
        for machine in self.machines:
            machine.answered(what)

    def notices_hang_up(self) -> bool:
        return self._rng.random() < 0.5

    def _delay(self) -> float:
        if self._rng.random() < self._plan.late_requests:
            return self._rng.choice((0.05, 0.2, 0.5)) * self._rng.random()
        return 0.0003 * self._rng.random()

    def _loses(self) -> bool:
        return self._rng.random() < self._plan.lost_requests / 2

    async def carry(
        self,
        connection: Connection,
        what: str,
        request: Callable[[Node, int], Awaitable[T]],
        box: _Box[T],
        scope: trio.CancelScope,
    ) -> None:
        node = connection.node
        await trio.sleep(self._delay())
        if self._loses() or not node.alive:
            return
        node.serving.start_soon(self._serve, connection, what, request, box, scope)

    async def _serve(
        self,
        connection: Connection,
        what: str,
        request: Callable[[Node, int], Awaitable[T]],
        box: _Box[T],
        scope: trio.CancelScope,
    ) -> None:
        node = connection.node
        CURRENT.set(node.world)
        self._world.count("requests")
        began_s = trio.current_time()
        with scope:
            try:
                with trio.move_on_after(PATIENCE_S) as patience:
                    answer = await request(node, connection.ordinal)
                if patience.cancelled_caught:
                    may_wait = began_s < self._world.stands_still_until_s  # for what another process has to do
                    if node.alive and node.shard.failure is None and not may_wait:
                        self._world.violate(8, f"{what} has waited for {PATIENCE_S} s on a healthy node")
                    return
            except EffectUnknown:
                return  # as if the answer were lost: the connection is closed
            if not node.alive:
                return
            self.nursery.start_soon(self._answer, connection, box, answer)

    async def _answer(self, connection: Connection, box: _Box[T], answer: T) -> None:
        await trio.sleep(self._delay())
        if connection.node.alive and not self._loses():
            box.answer.append(answer)
            box.came.set()
