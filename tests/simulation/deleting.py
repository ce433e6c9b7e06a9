"""Clients that delete records: DeleteRecords, as its handler does it.

They ask only for what somebody has read, so that the history knows what has gone. What they are answered, `history`
judges: where a log begins then, it begins after each recovery, and at each new owner.
"""

from __future__ import annotations

from functools import partial

import trio

from fairlog_types import LogId, Offset, StorageFailure
from tests.simulation.clients import Client
from tests.simulation.history import log_name
from tests.simulation.machine import Node
from tests.simulation.network import Unanswered

DELETE_S = 1.0
"""The request's time-out: it may be waiting for what a deposed owner will never see."""


class Deleter(Client):
    """Deletes from the front of one log or another."""

    async def run(self) -> None:
        while not self.done:
            log = self.rng.choice(self.history.logs)
            end = self.history.seen_end(log)
            if end:
                await self._delete(log, Offset(self.rng.choice((end, self.rng.randint(1, end)))))
            await trio.sleep(self.rng.choice((0.005, 0.05, 0.2)) * self.rng.random() * self.world.pace)

    async def _delete(self, log: LogId, before: Offset) -> None:
        self.history.asks_to_delete(log, before)
        what = f"delete before {before} of {log_name(log)}"
        try:
            start = await self.ask(what, partial(_delete, log, before), at=self.network.where.of_log(log))
        except Unanswered:
            return
        if start is not None:
            self.history.is_deleted(log, before, start)
            self.network.answered("deleted")
            self.world.count("deletions")


async def _delete(log: LogId, before: Offset, node: Node, _connection: int) -> Offset | None:
    """Where the log begins now; None if that is not known."""
    partition = node.partition(log)
    with trio.move_on_after(DELETE_S):
        try:
            await partition.visibility.reach(before)
            start = await partition.delete_before(before)
        except StorageFailure:
            return None
        if start is not None and not node.world.crashed:
            node.log_begins(log, start)
        return start
    return None
