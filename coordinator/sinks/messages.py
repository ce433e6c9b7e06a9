"""What a sink's driver and its writers ask of the coordinator, and what they are answered.

A *sink* receives batches, numbered from 0 by its *query*, and each start of the query is a new *run*. A writer
joins a batch and gets a *lane*: a transactional id to write under. The driver then names the lanes that have won, and
the coordinator publishes their records as one, or refuses. docs/transactions.md lists the promises. Frozen values,
without a transport: today they come over a native connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from coordinator.answers import Effect
from fairlog_types import Placement


@dataclass(frozen=True, slots=True)
class Lane:
    """One writer of a batch: an attempt at one of its partitions.

    `sink` is named by the user. `query` stays the same over restarts, `run` is new at each start. `batch`, `partition`
    and `attempt` count from 0; partition -1 is that of the source's offsets, which the driver itself writes.
    """

    sink: str
    query: str
    run: str
    batch: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Winner:
    """A lane whose records are to be published, and how many records it has written."""

    partition: int
    attempt: int
    records: int


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Publish the records of these lanes of the batch as one, and no other records of it."""

    sink: str
    query: str
    run: str
    batch: int
    winners: tuple[Winner, ...]
    planned_ms: int | None = None
    """When the engine planned what the batch reads, in milliseconds since 1970. It identifies the plan, and is the same
    in each replay. None: not known."""


class SinkRefusal(Enum):
    """Why a request about a sink was not carried out. The value says what to do."""

    BAD_REQUEST = "the request contradicts itself; correct it"
    ANOTHER_QUERY = "the sink belongs to another query; use another name, or forget the sink"
    OLD_RUN = "a newer run of the query has taken over; this one has to stop"
    UNKNOWN_LANE = "a lane is not known, perhaps since the node was restarted; the batch must be written again"
    WRONG_COUNT = "a lane does not hold the reported number of records; the batch must be written again"
    LANE_ABORTED = "records of a lane are gone; the batch must be written again"
    COMMITTED = "the batch is committed already"
    SET_BACK = "the sink has another version of this batch, or later batches: the query's checkpoint is an older copy"
    TOO_MANY_LANES = "the sink has the maximum number of open lanes; write the batch from fewer partitions"
    UNKNOWN_SINK = "there is no such sink"
    IN_USE = "the sink is being written to or committed; ask again"
    STORAGE = "the disk has failed; nothing was changed; the node must be restarted"
    EFFECT_UNKNOWN = "the disk failed while the request was carried out; repeat it after a restart to learn its outcome"

    @property
    def effect(self) -> Effect:
        return Effect.UNKNOWN if self is SinkRefusal.EFFECT_UNKNOWN else Effect.NONE


@dataclass(frozen=True, slots=True)
class LaneGranted:
    """The transactional id to write under, for an ordinary transactional producer that never commits."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The batch's records are visible, and stay where they are: all records of its winners, and no others."""

    batch: int
    placements: tuple[Placement, ...]
    """Where its records are, sorted; those that lie in one log without a hole are one."""
    already: bool
    """It was committed by an earlier request."""


@dataclass(frozen=True, slots=True)
class SinkRefused:
    """Not carried out."""

    why: SinkRefusal
    sentence: str
    """What happened, where, and what to do."""


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """One sink as it stands."""

    sink: str
    query: str
    run: str | None
    """The current run; None if none has joined since the node started."""
    batch: int | None
    """The last one that is decided (the *fence*), visible or not yet; None if there is none."""
    placements: tuple[Placement, ...]
    """Of that batch; empty as long as it is not visible."""
    open_lanes: tuple[str, ...]
    """The transactional ids of lanes that have joined and not ended."""
    used_ms: int
    """Time of the last request or commit, in milliseconds since 1970."""
    writing_s: float | None = None
    """How many seconds ago the oldest open lane joined; None if none is open."""


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """All sinks together."""

    sinks: int
    open_lanes: int
    committed: int
    """Batches, since the node's start."""
