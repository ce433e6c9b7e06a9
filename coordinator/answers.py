"""What the coordinator answers: grants, descriptions, and refusals in words.

The handlers at Kafka's edge turn a `Refusal` into an error code through one table; the coordinator knows
no codes. What every refusal does say is whether the request may have had an effect (invariant 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fairlog_types import LogId, Placement, ProducerEpoch, ProducerId, TxId


class Effect(Enum):
    """What a refused request has changed."""

    NONE = "no effect"
    """Nothing, and it never will: no record of the transaction becomes visible by it."""
    UNKNOWN = "effect unknown"
    """The transaction may be committed, or may turn out to be after a restart."""


class Refusal(Enum):
    """Why a request was not carried out. The value is a sentence for logs and error messages."""

    UNKNOWN_PRODUCER_ID_MAPPING = "the transactional id is unknown, or belongs to another producer id"
    FENCED = "a newer instance with the same transactional id has taken over, or the transaction timed out"
    WRONG_STATE = "the transaction is not in a state that allows this"
    CONCURRENT = "the id's last transaction is still being decided; ask again"
    BAD_TIMEOUT = "the transaction time-out must be positive"
    BAD_REQUEST = "the request contradicts itself, or its transactional id is empty or longer than 1,024 bytes"
    MUST_ABORT = "the transaction was aborted by the coordinator; abort it, then begin another"
    NO_TWO_PHASE_COMMIT = "transactions without a time-out are switched off: transactions.two_phase_commit_enable"
    LATE = "a newer connection has taken over this producer; the request came late"
    UNKNOWN_LOG = "the partition does not exist or cannot take part"
    STORAGE = "the disk refused; nothing was changed; the node must be restarted"
    STORAGE_EFFECT_UNKNOWN = "the disk refused while the commit was written; a restart decides it"
    STOPPING = "the broker is being stopped, and has not seen the end of it; ask its next start"
    NOT_JOINED = "transactional ids that begin with fairlog.lane. are for writers that have joined a sink's batch"
    LANE = "a lane is committed with its batch, by whoever commits that, and not by its producer"
    OUTCOME_LOST = "the machine lost its memory; whether the last transaction was committed cannot be told"

    @property
    def effect(self) -> Effect:
        unknown = self in (Refusal.STORAGE_EFFECT_UNKNOWN, Refusal.STOPPING, Refusal.OUTCOME_LOST)
        return Effect.UNKNOWN if unknown else Effect.NONE


@dataclass(frozen=True, slots=True)
class Granted:
    """The producer id and epoch that the producer is to use from now on."""

    producer_id: ProducerId
    epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class GrantedToEnd:
    """A grant that has kept the open transaction: no other one can be begun with it before that has ended (KIP-939)."""

    granted: Granted
    kept: Granted
    """The producer id and epoch under which the transaction was written."""


Answer = Granted | GrantedToEnd | Mapping[LogId, Refusal | None] | Refusal | None
"""Of any request: to init, to add, or to end (None: done)."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction that is committed and visible, and where its records are."""

    txid: TxId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """One transactional id as it stands. Times in milliseconds since 1970."""

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch
    """Of the open transaction, which may be of an epoch before the current one (KIP-939); else the current ones."""
    timeout_ms: int
    state: str
    """The name of a `states.IdState`: "EMPTY", "OPEN", "PREPARING", "MUST_ABORT"."""
    txid: TxId | None
    """The open transaction, or the one being decided."""
    started_ms: int | None
    """When that one began."""
    logs: tuple[LogId, ...]
    """Its logs."""
    being_copied: tuple[TxId, ...]
    """Committed, not yet visible or not yet recorded as such; oldest first."""
    committed: tuple[CommittedTransaction, ...]
    """The last few committed and visible transactions, oldest first."""
