"""The messages between a coordinator and the leaders of a transaction's partitions (the *participants*).

    begin ─▶ Begun                            the transaction may write to these logs
    prepare ─▶ Preparation ─▶ Prepared        closed and counted at once; later: whole and on disk, or refused
    apply ─▶ Application ─▶ Applied           decided at once; later: copied and visible
    discard                                   aborted

Messages and answers are frozen values: a direct call within a shard, a command between shards (`shard.routing`). Every
message is idempotent: after a crash the coordinator sends it again.

`prepare` and `apply` take effect in the step of their call, so the coordinator fixes what comes first; in another shard
*apply* and *discard* take effect in the order of the calls. A preparation tells at once what the leaders in the
coordinator's shard have counted. Everything else is told by an asynchronous method, which returns when the disk, or the
copier, has done its work.

One message goes to one shard and names all logs of the transaction that are led there. A call takes several messages,
so that the shard flushes the logs that they have in common once, and makes them visible at one instant (invariants 6
and 7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fairlog_types import LeaderEpoch, LogId, Placement, StorageFailure, TxId


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
    failed: Collection[LogId] = field(default=(), repr=False)
    """Those of `refused` whose shard's disk has failed. No shard sends it: one whose disk has failed refuses all."""


class Stopped(StorageFailure):
    """This shard stops before another one has answered. What comes of it, its next start finds out."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The coordinator has started again: the transaction has begun in these logs before, and is still open."""

    txid: TxId
    logs: Mapping[LogId, LeaderEpoch]
    """With the leader epoch in which each began it."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to `Resume`. Logs that were deleted meanwhile are in neither."""

    leader_epochs: Mapping[LogId, LeaderEpoch]
    """Also of logs that hold records of the transaction and were not named: they were being added at the stop."""
    lost: Mapping[LogId, str]
    """Logs in which the transaction had begun and that do not know of it any more, with the reason."""


class Undecided(NamedTuple):
    """A transaction that is open, being decided or being copied, as its coordinator sees it."""

    logs: Mapping[LogId, LeaderEpoch]
    """With the leader epoch in which each began it."""
    is_closed: bool
    """It takes no more batches."""


UNCOUNTED = -1
"""In place of a count: the log is led by another shard than the coordinator's, and counts by itself (PREPARED)."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a log must hold of the transaction in order to prepare."""

    leader_epoch: LeaderEpoch
    records: int
    """Or UNCOUNTED."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Close the transaction for further batches, count what each log holds of it, and make that durable.

    A log that was deleted in the meantime counts as prepared: no one will read it, and the transaction's
    other logs must not suffer (docs/decisions/0003-deleted-topics.md). The same holds for all that follows.
    """

    txid: TxId
    logs: Mapping[LogId, LeaderEpoch]
    """With the leader epoch in which each began it."""
    expected: Mapping[LogId, Expected] | None = None
    """After a restart: what PREPARE_COMMIT says. A log that does not hold exactly this refuses."""
    only_closes: bool = False
    """It is not being committed yet: another producer epoch is to decide it (KIP-939)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The outcome of `prepare`, for all of its messages together."""

    refused: Mapping[LogId, str]
    """Empty if all logs are durable and whole; else the logs that are not, and why. The first reason, if several."""
    gone: Mapping[LogId, str] = field(default_factory=dict[LogId, str])
    """Those of `refused` that have no journal any more or never had one: the path where it would be."""
    counts: Mapping[TxId, Mapping[LogId, Expected]] = field(default_factory=dict[TxId, Mapping[LogId, Expected]])
    """By transaction: what logs of other shards hold of it, which were UNCOUNTED; those that are gone are left out."""


@dataclass(frozen=True, slots=True)
class ApplyCommit:
    """Place the transaction's records in these logs' data logs, and end it there. Idempotent.

    Those to which nothing was written are among them: they have nothing to place, but may have to tell their readers.
    """

    txid: TxId
    logs: tuple[LogId, ...]
    timestamp_ms: int
    group: str
    """What is placed of one group becomes visible in the order of the calls (invariant 6)."""


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


class Preparation(Protocol):
    """A `prepare` that has begun."""

    @property
    def expected(self) -> Mapping[TxId, Mapping[LogId, Expected]]:
        """By transaction: what the logs hold of it, those of other shards UNCOUNTED. PREPARE_COMMIT says the same.

        Logs that no longer exist are left out.
        """
        ...

    async def outcome(self) -> Prepared:
        """Wait for the disk. Raises StorageFailure if writes are refused; that counts as refused by all logs.

        Cancelling it changes nothing: the flushes go on.
        """
        ...


class Application(Protocol):
    """An `apply` that has begun: its decisions are written, and may not be durable or visible yet."""

    async def visible(self) -> Sequence[Applied]:
        """Wait until all is durable, copied and visible; answer in the order of the messages.

        Raises StorageFailure if that will not happen in this run. Cancelling it changes nothing.
        """
        ...


class Participants(Protocol):
    """The leaders of the partitions, as the coordinator sees them."""

    async def begin(self, message: Begin) -> Begun:
        """Fence older epochs and open the transaction. Raises StorageFailure if a fence cannot be written."""
        ...

    async def resume(self, message: Resume) -> Resumed:
        """After a restart of the coordinator that lost nothing.

        Sent for every transaction that goes on, before requests are served. What the logs hold of others is discarded.
        """
        ...

    async def admit(self) -> None:
        """Wait while a cut over several shards is taken. A commit may be prepared in the step in which this returns.

        Not cancelled.
        """
        ...

    def prepare(self, messages: Sequence[Prepare]) -> Preparation:
        """Close the transactions for further batches and start all flushes, in the step of the call. Does not raise."""
        ...

    def are_awaited(self, logs: Iterable[LogId]) -> bool:
        """Whether others wait for what is placed in these logs: readers at an end, or another shard that has one."""
        ...

    def apply(self, messages: Sequence[ApplyCommit]) -> Application:
        """Write the decisions to every log in the step of the call: this fixes the order of transactions.

        Called in the group's commit order (invariant 6). The transactions of one call get one apply number, and become
        visible at the same instant. They may have logs in common, and follow each other there in the order of
        `messages`, which must be the same whenever the call is repeated. A repetition changes nothing: what survived
        of some keeps its places, and the rest comes under the same apply number.

        While the leaders recover, calls are kept until all that is to be said again has been said: what a crash has
        left of the decisions may ask for another order between groups.

        Raises StorageFailure if a journal of this process is closed; the transactions stay decided and are placed again
        after a restart.
        """
        ...

    def discard(self, message: DiscardTransaction) -> None:
        """Write the abort to every log that holds something of the transaction, without waiting.

        Raises StorageFailure if a journal is closed; it is discarded again after a restart.
        """
        ...
