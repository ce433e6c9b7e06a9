"""Transactions that are surely open, and epochs that are surely fenced: over restarts, too (invariants 5 and 9).

A transaction is *surely open* from the answer that it has begun until a request arrives that may end it: EndTxn, or
InitProducerId of its transactional id. What the node says of its ids (`describe`) is held against that:

    before its deadline     it is open, whatever restarts lie in between that have lost nothing
    after its deadline      it is not, once the node has served for a check interval, and some time for its disk

The deadline counts from the beginning, by the one clock of the run, also while the node is down. After a loss of power
nothing is surely open. An epoch that was granted is granted for ever. One that was fenced by a time-out is fenced as
long as nothing is lost: the end of a transaction by force does not wait for the disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from coordinator.states import IdState
from fairlog_types import ProducerEpoch, ProducerId, TxId
from tests.simulation.machine import SETTINGS, Machine, Node
from tests.simulation.world import World

LOOK_S = 0.02
GRACE_S = SETTINGS.check_interval_ms / 1000 + 0.2
"""After the deadline: a check interval, and what writing may take on a slow disk."""


@dataclass(frozen=True, slots=True)
class SurelyOpen:
    """By the run's clock, in seconds."""

    txid: TxId
    after_s: float
    """It has not begun before."""
    answered_s: float
    timeout_s: float


@dataclass(slots=True)
class Ending:
    """A request that may end a transaction."""

    changed_nothing: bool = False


class Deadlines:
    """What is known for sure of each transactional id."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[str, SurelyOpen] = {}
        self._begun: set[TxId] = set()
        self._ending: Counter[str] = Counter()
        """How many requests are under way that may end what is open."""
        self.granted_epochs: dict[ProducerId, ProducerEpoch] = {}
        self._fenced: dict[ProducerId, ProducerEpoch] = {}

    # --- what requests tell, as they are carried out ---

    def has_begun(self, node: Node, transactional_id: str, after_s: float, timeout_ms: int) -> None:
        """AddPartitions was just answered with success."""
        description = node.coordinator.describe(transactional_id)
        if description is None or description.txid is None or description.txid in self._begun:
            return
        self._begun.add(description.txid)
        if description.state == IdState.OPEN.name and not self._ending[transactional_id]:
            now_s = self._world.clock.current_time()
            self._open[transactional_id] = SurelyOpen(description.txid, after_s, now_s, timeout_ms / 1000)

    @contextmanager
    def ending(self, transactional_id: str) -> Iterator[Ending]:
        """While a request is carried out that may end what is open. It says if it has changed nothing."""
        known, ending = self._open.pop(transactional_id, None), Ending()
        self._ending[transactional_id] += 1
        try:
            yield ending
        finally:
            self._ending[transactional_id] -= 1
        if ending.changed_nothing and known is not None and not self._ending[transactional_id]:
            self._open[transactional_id] = known

    def granted(self, producer_id: int, epoch: int) -> None:
        self.granted_epochs[ProducerId(producer_id)] = ProducerEpoch(
            max(epoch, self.granted_epochs.get(ProducerId(producer_id), epoch))
        )

    def is_fenced(self, producer_id: int, epoch: int) -> None:
        """Somebody was told that this epoch is fenced."""
        self._fenced[ProducerId(producer_id)] = ProducerEpoch(
            max(epoch, self._fenced.get(ProducerId(producer_id), epoch))
        )

    # --- what the node must say ---

    def after_start(self, node: Node) -> None:
        """Behind a recovery, before anything is served."""
        when = f"after start {node.number}"
        self.grants_after_start(node, when)
        if not node.tail_kept:
            self._open.clear()
            self._fenced.clear()
            return
        for producer_id, epoch in self._fenced.items():
            found = node.coordinator.epoch_of(producer_id)
            if found is not None and found <= epoch:
                self._world.violate(9, f"{when}: epoch {epoch} of producer {producer_id} was fenced, and is not now")
        self.look(node, when)

    def grants_after_start(self, node: Node, when: str) -> None:
        """What was granted stays granted."""
        for producer_id, epoch in self.granted_epochs.items():
            found = node.coordinator.epoch_of(producer_id)
            if found is not None and found < epoch:
                self._world.violate(9, f"{when}: producer {producer_id} is in epoch {found}, and was granted {epoch}")

    def look_at_early_ends(self, node_of: Callable[[str], Node | None], calm_since_s: float) -> None:
        """Of several processes: what has begun since something befell one of them goes on until its time-out.

        `node_of` tells where a transactional id is coordinated. No wall clock counts, and an end may come late.
        """
        for transactional_id, known in list(self._open.items()):
            node = node_of(transactional_id)
            is_due = trio.current_time() >= known.after_s + known.timeout_s - 0.002
            if known.after_s <= calm_since_s or node is None or is_due:
                del self._open[transactional_id]
                continue
            description = node.coordinator.describe(transactional_id)
            if description is None or description.txid != known.txid or description.state != IdState.OPEN.name:
                state = "unknown" if description is None else description.state
                name = f"transaction {known.txid} of {transactional_id}"
                self._world.violate(5, f"{name} is open, no process has ended since, and its id is {state}")

    def look(self, node: Node, when: str) -> None:
        now_s = self._world.clock.current_time()
        for transactional_id, known in list(self._open.items()):
            description = node.coordinator.describe(transactional_id)
            is_open = description is not None and description.txid == known.txid
            name = f"transaction {known.txid} of {transactional_id}"
            if now_s < known.after_s + known.timeout_s - 0.002:  # the node counts in milliseconds
                if not is_open:
                    state = "unknown" if description is None else description.state
                    self._world.violate(5, f"{when}: {name} is open, but its id is {state}")
            elif not is_open:
                del self._open[transactional_id]
                self._world.count("transactions that timed out")
            elif now_s > max(known.answered_s + known.timeout_s, node.serves_since_s) + GRACE_S:
                self._world.violate(5, f"{when}: {name} is open for {now_s - known.answered_s:.3f} s, too long")


async def watch(machine: Machine, deadlines: Deadlines) -> None:
    """Look again and again, as long as a node serves whose disk is well."""
    while True:
        node = machine.node
        if node is not None and node.shard.failure is None:
            deadlines.look(node, "while it serves")
        await trio.sleep(LOOK_S)
