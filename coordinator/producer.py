"""All that the coordinator knows of one transactional id, as one frozen value.

There is one for each id, for as long as the id lives, so it is small: an id that is idle holds a dozen
words and its last few placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from coordinator.answers import CommittedTransaction, Granted
from coordinator.messages import ApplyCommit, Expected, Prepare
from coordinator.states import IdState
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    EndedEpoch,
    LeaderEpoch,
    LogId,
    ProducerEpoch,
    ProducerId,
    TxId,
)

NO_TIMEOUT_MS = 2**31 - 1
"""The time-out of transactions that have none, as in Kafka."""

NO_CONNECTION = -1
"""Smaller than any connection's ordinal."""


class Outcome(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class OpenTransaction(NamedTuple):
    """The transaction that is open or being decided. Its number is the producer's `number`."""

    started_ms: int
    logs: Mapping[LogId, LeaderEpoch]
    """With the leader epoch in which each began it."""
    expected: Mapping[LogId, Expected] | None = None
    """The logs that take part in its commit, also those that hold no records of it; set when it is sealed."""
    commit_number: int = 0
    """Of its PREPARE_COMMIT, see `Decided`; set when it is sealed."""
    kept: TxId | None = None
    """Its id, if it is of an epoch before the producer's: that was granted to end it (KIP-939)."""
    lasts: bool = False
    """It was kept, and has no time-out, as its epoch had none; whatever holds for the epoch that is to end it."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A committed transaction that is not known to be visible yet."""

    txid: TxId
    expected: Mapping[LogId, Expected]
    timestamp_ms: int
    commit_number: int
    """The place of its PREPARE_COMMIT among those of the group journal: 1, 2, 3, … without gaps."""

    def prepare(self) -> Prepare:
        """The message to the participants, said again after a restart."""
        return Prepare(self.txid, {log: it.leader_epoch for log, it in self.expected.items()}, self.expected)

    def apply(self, group: str) -> ApplyCommit:
        """The message to the participants, of a transaction of this group."""
        return ApplyCommit(self.txid, tuple(self.expected), self.timestamp_ms, group)


class Producer(NamedTuple):
    """One transactional id. Times in milliseconds since 1970.

    A named tuple, since each step makes a new one: `dataclasses.replace` takes five times as long as `_replace`.
    """

    transactional_id: str
    state: IdState = IdState.UNKNOWN
    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """What the client named when it was granted `epoch`; -1 if it named none. Naming it again is a retry."""
    timeout_ms: int = 0
    number: int = 0
    """Of the open transaction, or of the next one."""
    last: Outcome | None = None
    """How the transaction before `number` ended; None if there is none in this epoch."""
    transaction: OpenTransaction | None = None
    """Set in OPEN and PREPARING."""
    decided: tuple[Decided, ...] = ()
    """Committed and being copied, in commit order, also of earlier epochs."""
    committed: tuple[CommittedTransaction, ...] = ()
    """The last few that are visible, in commit order."""
    connection: int = NO_CONNECTION
    """The latest connection that added partitions or ended a transaction in this epoch (invariant 10)."""
    ended: EndedEpoch | None = None
    """The epoch whose end granted `epoch` (transaction version 2); None if it was granted otherwise."""
    next_grant: Granted | None = None
    """In PREPARING: what is granted if the transaction is committed; None unless its end grants an epoch."""
    granted_on: int = NO_CONNECTION
    """The connection that was granted `epoch`, as long as nothing has been done with it."""
    moved_on: bool = False
    """Partitions were asked for since the last commit, or in this epoch: the client is in its next transaction."""
    used_ms: int = 0
    """The last request."""
    member_of: str = ""
    """The group that it shares with others (transaction_groups.py); empty: it is a group of its own."""

    @property
    def group(self) -> str:
        """Whose transactions have one commit order (invariant 6)."""
        return self.member_of or self.transactional_id

    @property
    def is_kept(self) -> bool:
        """Whether what is open was kept by InitProducerId: it takes nothing more, and waits for its end."""
        return self.transaction is not None and self.transaction.kept is not None

    @property
    def open_timeout_ms(self) -> int:
        """The time-out of what is open."""
        lasts = self.transaction is not None and self.transaction.lasts
        return NO_TIMEOUT_MS if lasts else self.timeout_ms

    @property
    def txid(self) -> TxId:
        """Of the open transaction, or of the next one."""
        if self.transaction is not None and self.transaction.kept is not None:
            return self.transaction.kept
        return TxId(self.producer_id, self.epoch, self.number)
