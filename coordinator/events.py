"""What goes into `machine.step` and what comes out of it: events and effects, frozen values.

`machine.kind_of` gives an event's row in `states.TABLE`. The executor runs the effects of a step in order. An effect
that asks something is the last of its step: its answer is the next event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coordinator.answers import Answer
from coordinator.group_records import GroupRecord
from coordinator.messages import ApplyCommit, Begin, DiscardTransaction, Expected, Prepare, Resume
from coordinator.settings import CoordinatorSettings
from fairlog_types import LeaderEpoch, LogId, Placement, ProducerEpoch, ProducerId, TxId

# ---------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Init:
    """InitProducerId. `fresh_id` answers `AskProducerId`."""

    timeout_ms: int
    producer_id: ProducerId
    epoch: ProducerEpoch
    connection: int
    settings: CoordinatorSettings
    """Clamps the time-out."""
    now_ms: int
    fresh_id: ProducerId | None = None
    two_phase: bool = False
    """Its transactions have no time-out: another system decides when they end (KIP-939)."""
    keeps: bool = False
    """What is open stays so, and this producer is to end it (KIP-939)."""


@dataclass(frozen=True, slots=True)
class Add:
    """The client wants to write to `logs`."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    logs: tuple[LogId, ...]
    connection: int | None
    """None if the epoch alone says which transaction is meant: in transaction version 2 (KIP-890)."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class LogsBegun:
    """The leaders' answer to `AskBegin`; `requested` are all logs of the request, begun before or now."""

    requested: tuple[LogId, ...]
    leader_epochs: Mapping[LogId, LeaderEpoch]
    now_ms: int
    failed: Collection[LogId] = ()
    """Those that could not begin because their shard's disk has failed."""


@dataclass(frozen=True, slots=True)
class End:
    """EndTxn. `fresh_id` answers `AskProducerId`."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    commit: bool
    connection: int | None
    """None: the end grants the next epoch, and so the epoch alone tells which transaction is meant (KIP-890)."""
    now_ms: int
    fresh_id: ProducerId | None = None

    @property
    def grants(self) -> bool:
        """Does the end of the transaction grant the next epoch?"""
        return self.connection is None


@dataclass(frozen=True, slots=True)
class Sealed:
    """The participants have closed the transaction and counted its records. Logs that no longer exist are left out."""

    expected: Mapping[LogId, Expected]
    now_ms: int
    commit_number: int
    """For its PREPARE_COMMIT (`producer.Decided`)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All participants have prepared, and PREPARE_COMMIT is durable."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A participant cannot prepare."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Copied:
    """A committed transaction is visible."""

    txid: TxId
    placements: tuple[Placement, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The open transaction has lived too long. `fence` says whether the epoch is to be bumped."""

    fence: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Forced:
    """An operator aborts the open transaction, or none other than `txid`. `fence` as in `TimedOut`."""

    fence: bool
    now_ms: int
    txid: TxId | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """The id has been idle for the expiration time."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The journal was replayed. `tail_kept`: nothing that was appended before the stop is missing.

    `goes_on`: what is open may go on. Not in a lane, since its sink has forgotten who writes to it.
    """

    tail_kept: bool
    goes_on: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The leaders' answer to `AskResume`; logs that no longer exist are in neither."""

    leader_epochs: Mapping[LogId, LeaderEpoch]
    lost: Mapping[LogId, str]
    """Logs that do not know of the transaction, with the reason in words."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A transaction in `Producer.decided` could not be prepared again after a restart."""

    txid: TxId
    now_ms: int


@dataclass(frozen=True, slots=True)
class SinkDecided:
    """The open transaction is part of a sink commit that is decided: the sink's records stand for it."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The lane's open transaction is not to be committed."""

    now_ms: int

    @property
    def fence(self) -> bool:
        """As in `TimedOut`: always."""
        return True


Event = (
    Init
    | Add
    | LogsBegun
    | End
    | Sealed
    | Prepared
    | Refused
    | Copied
    | TimedOut
    | Forced
    | Idle
    | Restarted
    | Resumed
    | Withdrawn
    | SinkDecided
    | Dropped
)

# --------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Append:
    """Append the record to the id's group journal, without waiting for the disk."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until everything appended for this id is on disk, whatever `journal.fsync` says.

    If a power failure undid the grant of an epoch, it would be granted a second time. The data logs, which still have
    the records written in it, would take the new records for duplicates.
    """


@dataclass(frozen=True, slots=True)
class AskProducerId:
    """Get a producer id that no one has had, and step the same `Init` or `End` again with it."""


@dataclass(frozen=True, slots=True)
class AskBegin:
    """Send *begin* to the participants. `LogsBegun` is the next event, with `requested`."""

    message: Begin
    requested: tuple[LogId, ...]


@dataclass(frozen=True, slots=True)
class AskResume:
    """After a restart: tell the participants that the transaction is still open. `Resumed` is the next event."""

    message: Resume


@dataclass(frozen=True, slots=True)
class Close:
    """Have the participants prepare, and wait for them. The transaction stays open, but takes no more batches."""

    message: Prepare


@dataclass(frozen=True, slots=True)
class AskPrepare:
    """Send *prepare* to the participants. `Sealed` is the next event, without a wait in between."""

    message: Prepare


@dataclass(frozen=True, slots=True)
class AskPrepared:
    """Flush the group journal, and wait for the flushes that `AskPrepare` started: the one flush delay of a commit.

    `Prepared` or `Refused` is the next event.
    """


@dataclass(frozen=True, slots=True)
class EnterOrder:
    """Append the transaction to its group's commit order."""

    txid: TxId


@dataclass(frozen=True, slots=True)
class Apply:
    """The transaction is committed. *apply* is sent after this step, once all before it in its group are applied or
    aborted."""

    message: ApplyCommit


@dataclass(frozen=True, slots=True)
class LeaveOrder:
    """The transaction is aborted: remove it from its group's commit order."""

    txid: TxId


@dataclass(frozen=True, slots=True)
class Discard:
    """Send *discard* to the participants, then append `record` (ABORTED)."""

    message: DiscardTransaction
    record: GroupRecord


@dataclass(frozen=True, slots=True)
class AwaitCopied:
    """Wait until everything that this id has committed is visible. If that takes too long, answer CONCURRENT."""


@dataclass(frozen=True, slots=True)
class AnswerWith:
    """Answer the request."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class WaitForDecision:
    """Step the same event again when the transaction is decided. If that takes too long, answer CONCURRENT."""


@dataclass(frozen=True, slots=True)
class WaitForCopy:
    """Step the same event again when one more of the id's transactions is visible."""


Effect = (
    Append
    | Flush
    | AskProducerId
    | AskBegin
    | AskResume
    | Close
    | AskPrepare
    | AskPrepared
    | EnterOrder
    | Apply
    | LeaveOrder
    | Discard
    | AwaitCopied
    | AnswerWith
    | WaitForDecision
    | WaitForCopy
)
