"""The commit order of groups: who may be placed now.

A group's transactions appear in every partition in the order of their PREPARE_COMMITs (invariant 6). They
prepare in parallel, though, and one may be decided before another that stands ahead of it. So each enters its group's
queue with PREPARE_COMMIT. If it is aborted, it leaves the queue. If it is committed, it is *due* as soon as it is the
first of the queue:

    enter a, enter b, decide b  → nothing is due    (a is undecided)
    decide a                    → a, then b         (or, if a is aborted: b)

The executor takes what is due, one by one, and places it. A queue exists only while something stands in it. A decided
transaction is answered before it is placed: requests for the end of its logs wait for it (`not_placed`). No I/O.
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
        self._due: dict[TxId, ApplyCommit] = {}
        """What is to be placed, of all groups together; those of each group are in commit order."""
        self._not_placed: dict[LogId, set[TxId]] = {}
        """By log what is decided, and waits for its place."""

    def enter(self, group: str, txid: TxId) -> None:
        """PREPARE_COMMIT of `txid` stands in the group journal."""
        queue = self._queues.setdefault(group, {})
        assert txid not in queue, f"{txid} prepares twice"
        queue[txid] = None

    def has(self, group: str, txid: TxId) -> bool:
        """Whether it stands in its group's queue: it is undecided, or waits for one before it."""
        return txid in self._queues.get(group, ())

    def decide(self, message: ApplyCommit) -> None:
        """The transaction is committed: it is due, with those that wait for it, when none before it is undecided."""
        queue = self._queues[message.group]
        assert queue[message.txid] is None, f"{message.txid} is decided twice"
        queue[message.txid] = message
        for log in message.logs:
            self._not_placed.setdefault(log, set()).add(message.txid)
        self._note_due(message.group)

    def leave(self, group: str, txid: TxId) -> None:
        """The transaction is aborted: those that waited for it may be due."""
        del self._queues[group][txid]
        self._note_due(group)

    def next_due(self) -> ApplyCommit | None:
        """What is to be placed now; the caller does so in this step. None: nothing is due."""
        if not self._due:
            return None
        txid = next(iter(self._due))
        message = self._due.pop(txid)
        for log in message.logs:
            waiting = self._not_placed[log]
            waiting.discard(txid)
            if not waiting:
                del self._not_placed[log]
        return message

    def not_placed(self, log: LogId) -> Collection[TxId]:
        """What is decided in the log, and waits for its place."""
        return self._not_placed.get(log, ())

    def _note_due(self, group: str) -> None:
        queue = self._queues[group]
        while queue:
            txid = next(iter(queue))
            message = queue[txid]
            if message is None:
                return
            del queue[txid]
            self._due[txid] = message
        del self._queues[group]
