"""What the admin listener sees of the node: one protocol and its types. `fairlog.node_view` implements it.

The rooms below cannot be seen from here, except the types of the coordinator (`coordinator.answers`, `.watching`).
Nothing here knows HTTP, JSON or the shape of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from coordinator.answers import Description
from coordinator.statistics import Step
from fairlog.admin_http.accounts import Accounts
from fairlog_types import LogId, Placement, TxId


class Phase(Enum):
    """Where the node is in its run."""

    RECOVERING = "recovering"
    """Journals are being replayed; no client is served yet."""
    SERVING = "serving"
    STOPPING = "stopping"
    """What is in flight is finished; no client is taken any more."""


class NotServing(Exception):
    """The node is recovering: what was asked for is not there yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition by its topic's name. A topic that is gone has only its id, as 32 hex digits."""

    topic: str
    partition: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition of a topic."""

    partition: int
    log_start: int
    high_watermark: int
    last_stable_offset: int
    """Where readers of committed records stand still: before the high watermark while something is open there."""
    open_transactions: int
    """That have written to it."""
    size_bytes: int
    """Of the batches in the data log."""
    journal_bytes: int
    """Of the segments of its journal that are not given back yet."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic."""

    name: str
    topic_id: str
    transactions: str
    """How they reach the topic: `journal` or `markers`."""
    partitions: tuple[PartitionView, ...]
    """Those that this process leads."""
    elsewhere: tuple[tuple[int, int], ...] = ()
    """The others: their numbers, and the node ids of their leaders."""


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Some topics by name. `next_after` continues the list; None at its end."""

    topics: tuple[TopicView, ...]
    total: int
    """All topics that fit the search."""
    next_after: str | None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group has read one partition."""

    place: Place
    committed: int
    high_watermark: int | None
    """None if the partition is gone, or its process has not answered."""
    elsewhere: bool = False
    """Another process leads it."""

    @property
    def lag(self) -> int | None:
        """From what is committed to the end, as in Kafka; 0 is reached. None if its process has not answered.

        So many records, unless retention or compaction has taken some of them.
        """
        if self.high_watermark is None:
            return None if self.elsewhere else 0
        return max(0, self.high_watermark - self.committed)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group."""

    group: str
    state: str
    """As Kafka calls it: Empty, Stable, PreparingRebalance, …"""
    members: int
    partitions: tuple[GroupPartition, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What one partition holds of a transaction that is under way."""

    place: Place
    records: int
    pinned_bytes: int
    """From the transaction's first frame to the journal's end: what cannot be given back because of it."""


@dataclass(frozen=True, slots=True)
class LiveTransaction:
    """A transaction that has begun and not ended."""

    transactional_id: str
    txid: TxId
    steps: tuple[tuple[Step, float], ...]
    """What has happened, and how many seconds ago, in order; the last is the state that it is in."""
    began_ms: int | None
    timeout_ms: int
    silent_s: float
    """Since the node last heard of its producer, in this transaction."""
    hung: bool
    records: int
    pinned_bytes: int
    parts: tuple[Part, ...]
    """At most PARTS_SHOWN of them."""
    parts_total: int


PARTS_SHOWN = 50
"""Partitions of a transaction that are listed; there may be thousands."""


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """A transaction that has ended in this run."""

    transactional_id: str
    txid: TxId
    began_ms: int | None
    ended_ms: int
    cause: str | None
    """Why it was aborted; None if it is committed."""
    steps: tuple[tuple[Step, float], ...]
    """What has happened, and how many seconds after the first of these."""
    records: int | None
    placed: tuple[tuple[Place, Placement], ...]
    """Where its records are; at most PARTS_SHOWN of them."""
    touched: tuple[Place, ...]
    """For an aborted one: the partitions that it wrote to."""
    parts_total: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """How transactions stand at one moment."""

    open: int
    preparing: int
    copying: int
    begun_total: int
    """Since the node's start; so the two below."""
    committed_total: int
    aborted_total: int
    transactional_ids: int
    live: tuple[LiveTransaction, ...]
    """The hung ones first, then the oldest first."""
    ended: tuple[EndedTransaction, ...]
    """The latest first."""


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink of Spark's, whose batches are written in lanes and committed as one."""

    sink: str
    query: str
    run: str | None
    """None if none has joined since the node's start."""
    batch: int | None
    """The last one that is committed."""
    records: int | None
    """Of that batch, as far as its places are known; None if it is not known where it is, or there is none."""
    placed: tuple[tuple[Place, Placement], ...]
    """Where they are; at most PARTS_SHOWN."""
    parts_total: int
    open_lanes: int
    writing_s: float | None
    """Since the oldest open lane has joined; None without one."""
    used_ms: int


SINKS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Sinks:
    """Sinks at one moment."""

    total: int
    shown: tuple[SinkView, ...]
    """The last ones used, at most SINKS_SHOWN, by name."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker of the node: the one process, or one of several."""

    node_id: int
    shard: int
    address: str | None
    """What clients are told to connect to; None if it has never started."""
    partitions: int
    """That it leads."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The node as a whole."""

    cluster_id: str
    node_id: int
    version: str
    start: int
    """How often the node was started, this run included."""
    address: str
    """What clients are told to connect to."""
    uptime_s: float
    topics: int
    partitions: int
    connections: int
    backlog_bytes: int
    """Decided, and not copied yet."""
    lag_s: float
    used_bytes: int
    map_bytes: int
    shard: int
    shards: int
    """1 if there is only one process."""


class AbortOutcome(Enum):
    """What came of an operator's abort. The value is the sentence for the operator."""

    ABORTED = "the transaction is aborted: nothing of it will ever be visible"
    UNKNOWN = "there is no such transactional id"
    NOT_OPEN = "this transaction is not open any more, and nothing was changed"
    COMMITTED = "the producer has committed this transaction meanwhile; nothing was changed"
    DECIDING = "the transaction is just being committed, which takes a moment; look again"
    REFUSED = "the node refuses writes; nothing was changed"


class Node(Protocol):
    """The node, to be looked at. What is not `async` answers from memory, in a time that is bounded."""

    def accounts(self) -> Accounts:
        """The users. Raises NotServing."""
        ...

    @property
    def phase(self) -> Phase: ...

    @property
    def refusing_because(self) -> str | None:
        """Why the node takes no writes until it is restarted; None as long as it does."""
        ...

    async def cluster(self) -> ClusterView:
        """Raises NotServing."""
        ...

    async def brokers(self) -> Sequence[BrokerView]:
        """All brokers, by shard. Raises NotServing."""
        ...

    async def topics(self, *, after: str, contains: str, count_max: int, partitions_max: int) -> TopicPage:
        """Topics with names behind `after` that have `contains` in them, as many as both limits allow, but one.

        Raises NotServing.
        """
        ...

    async def groups(self) -> Sequence[GroupView]:
        """All consumer groups, by name. Raises NotServing."""
        ...

    def transactions(self) -> Transactions:
        """Raises NotServing."""
        ...

    def transactional_id(self, transactional_id: str) -> Description | None:
        """One id as it stands, with its last placements; these outlive a restart. Raises NotServing."""
        ...

    def sinks(self) -> Sinks:
        """Raises NotServing."""
        ...

    def place_of(self, log: LogId) -> Place: ...

    async def abort(self, transactional_id: str, txid: TxId) -> AbortOutcome:
        """Abort this transaction, if it is still open. Raises NotServing."""
        ...

    async def metrics(self, accept: str, shards_up: Mapping[int, bool]) -> tuple[bytes, str]:
        """Everything that is counted, in a format of Prometheus that `accept` allows, and its content type.

        `shards_up` is empty, or says of all shards whether they have answered.
        """
        ...
