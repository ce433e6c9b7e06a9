"""What a coordinator says to the leaders of a transaction's partitions, and what they answer.

Frozen values handed to `Participants`: a direct call on one node, CBOR over TCP between nodes later.
One message goes to one *node* and names all logs of the transaction that this node leads, so that the
node can flush them together (one flush delay) and place them in one order (invariants 6 and 7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairlog_types import ApplyNumber, LeaderEpoch, LogId, Placement, TxId


@dataclass(frozen=True, slots=True)
class Begin:
    """The transaction will write to these logs: fence older epochs there, accept its batches."""

    txid: TxId
    logs: tuple[LogId, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """Leader epoch per log; `refused` names the logs that could not begin, with the reason."""

    leader_epochs: Mapping[LogId, LeaderEpoch]
    refused: Mapping[LogId, str]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to `Begin` said again after a restart. Logs that were deleted meanwhile are in neither."""

    leader_epochs: Mapping[LogId, LeaderEpoch]
    """Also of logs that hold records of the transaction and were not named: they were being added at the stop."""
    lost: Mapping[LogId, str]
    """Logs in which the transaction had begun and that do not know of it any more, with the reason."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a log must hold of the transaction in order to prepare."""

    leader_epoch: LeaderEpoch
    records: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Check that each log holds exactly what is expected, and make it durable.

    A log that was deleted in the meantime counts as prepared: nobody will read it, and the transaction's
    other logs must not suffer (docs/decisions/0003-deleted-topics.md). The same holds for all that follows.
    """

    txid: TxId
    expected: Mapping[LogId, Expected]


@dataclass(frozen=True, slots=True)
class Prepared:
    """`refused` is empty if all logs are durable and whole; else it says which are not, and why."""

    refused: Mapping[LogId, str]
    gone: Mapping[LogId, str] = field(default_factory=dict[LogId, str])
    """Of those refused the logs that have no journal any more or never had one: where it would lie."""


@dataclass(frozen=True, slots=True)
class ApplyCommit:
    """Place the transaction's records in these logs' data logs, and end it there. Idempotent.

    Those to which nothing was written are among them: they have nothing to place, but may have to tell their readers.
    """

    txid: TxId
    logs: tuple[LogId, ...]
    timestamp_ms: int
    sink: str | None = None
    """Of whose batch it is a part, if it is one of a sink's lanes: what is placed of one sink becomes visible in order,
    as what is placed of one producer does (invariant 6)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The places, once they are decided and durable in the journals *and visible* in the data logs.

    Logs that were deleted in the meantime are left out.
    """

    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class DiscardTransaction:
    """Forget the transaction's records in these logs. Idempotent."""

    txid: TxId
    logs: tuple[LogId, ...]


class Participants(Protocol):
    """The leaders of the partitions, as the coordinator sees them.

    Every method is idempotent: after a crash the coordinator says the same things again.
    """

    async def begin(self, message: Begin) -> Begun:
        """Fence and open. Raises StorageFailure if a fence cannot be written."""
        ...

    def resume(self, message: Begin) -> Resumed:
        """After a restart that lost nothing: the transaction has begun in these logs before, and is open still.

        Said before anything is served, of every transaction that goes on. What the logs hold of others is discarded.
        """
        ...

    def seal(self, txid: TxId, logs: tuple[LogId, ...]) -> Mapping[LogId, Expected]:
        """Close the transaction for further batches; say what each log holds of it.

        Called in the same step as `prepare`, so the counts are what `prepare` will find; and before that of a
        transaction that waits for its end. A log that no longer exists is left out.
        """
        ...

    async def prepare(self, message: Prepare) -> Prepared:
        """Check and flush all logs in parallel: one flush delay.

        Raises StorageFailure if a flush fails; the transaction is then aborted, as if it had been refused.
        """
        ...

    async def prepare_together(self, messages: Sequence[Prepare]) -> Prepared:
        """`prepare` several transactions as one: each log that they have in common is flushed once for all.

        Of a log that is refused to several of them the first reason is told. Raises StorageFailure like `prepare`.
        """
        ...

    def place(self, message: ApplyCommit) -> None:
        """Write the decision to every log in one step, without waiting: this fixes the order of transactions.

        Called in the group's commit order (invariant 6). Raises StorageFailure if a journal is closed;
        the transaction stays decided and is placed again after a restart.
        """
        ...

    def place_together(self, messages: Sequence[ApplyCommit]) -> None:
        """`place` several transactions as one: under one apply number, and visible at the same instant.

        They may have logs in common, and follow each other there in the order of `messages`, which must be the same
        whenever this is said again. Idempotent as `place` is: what survived of some keeps its places, and the rest
        comes under the same apply number. Raises StorageFailure like `place`.
        """
        ...

    def placed(self, message: ApplyCommit) -> tuple[Placement, ...]:
        """Where `place` has put the transaction's records, at once: they need not be durable or visible yet.

        Logs without records of it are left out, and those that were deleted in the meantime.
        """
        ...

    async def applied(self, message: ApplyCommit) -> Applied:
        """Wait until what `place` placed is durable, copied and visible; answer where. Raises StorageFailure."""
        ...

    async def applied_together(self, messages: Sequence[ApplyCommit]) -> Sequence[Applied]:
        """`applied` for what `place_together` placed, in the order of `messages`: each log is waited for once."""
        ...

    def surviving_apply_number(self, txid: TxId, logs: tuple[LogId, ...]) -> ApplyNumber | None:
        """After a restart: the apply number under which any of these logs has placed the transaction before.

        None if no APPLY of it survived. The coordinator places what was undecided in this order, so that
        the logs which lost an APPLY agree with those which kept it (invariants 6 and 7).
        """
        ...

    def discard(self, message: DiscardTransaction) -> None:
        """Write DISCARD to every log that holds something of the transaction, without waiting.

        Raises StorageFailure if a journal is closed; it is discarded again after a restart.
        """
        ...
