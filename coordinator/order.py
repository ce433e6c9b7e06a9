"""The commit order of groups: who may be placed now.

A group's transactions appear in every partition in the order of their PREPARE_COMMITs (invariant 6). They
prepare in parallel, though, and one may be decided before another that stands ahead of it. So each stands
in its group's queue from PREPARE_COMMIT until it is placed or aborted, and only the head is placed:

    enter a, enter b, decide b  → none         (a is undecided)
    decide a                    → a, then b    (or, if a is aborted: b)

A queue exists only while something stands in it. A decided transaction was answered, though it may not be placed yet:
requests for the end of its logs wait for it (`not_placed`). No I/O.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinator.messages import ApplyCommit
from fairlog_types import LogId, TxId


class CommitOrder:
    """The queues of all groups."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[TxId, ApplyCommit | None]] = {}
        """For each group its transactions in commit order, with the message once they are decided."""
        self._not_placed: dict[LogId, set[TxId]] = {}
        """By log what is decided, and waits for its place."""

    def enter(self, group: str, txid: TxId) -> None:
        """PREPARE_COMMIT of `txid` stands in the group journal."""
        queue = self._queues.setdefault(group, {})
        assert txid not in queue, f"{txid} prepares twice"
        queue[txid] = None

    def has(self, group: str, txid: TxId) -> bool:
        """Whether it is still to be placed, or aborted."""
        return txid in self._queues.get(group, ())

    def decide(self, message: ApplyCommit) -> list[ApplyCommit]:
        """The transaction is committed; answers all that are to be placed now, in order."""
        queue = self._queues[message.group]
        assert queue[message.txid] is None, f"{message.txid} is decided twice"
        queue[message.txid] = message
        heads = self._heads(message.group)
        if not heads:
            for log in message.logs:
                self._not_placed.setdefault(log, set()).add(message.txid)
        return heads

    def not_placed(self, log: LogId) -> Collection[TxId]:
        """What is decided in the log, and waits for its place."""
        return self._not_placed.get(log, ())

    def leave(self, group: str, txid: TxId) -> list[ApplyCommit]:
        """The transaction is aborted; answers all that are to be placed now, in order."""
        del self._queues[group][txid]
        return self._heads(group)

    def _heads(self, group: str) -> list[ApplyCommit]:
        queue = self._queues[group]
        heads: list[ApplyCommit] = []
        for message in queue.values():
            if message is None:
                break
            heads.append(message)
        for message in heads:
            del queue[message.txid]
            for log in message.logs:
                waiting = self._not_placed.get(log)
                if waiting is not None:
                    waiting.discard(message.txid)
                    if not waiting:
                        del self._not_placed[log]
        if not queue:
            del self._queues[group]
        return heads
