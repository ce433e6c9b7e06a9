"""What the node asks of the cluster: its identity, the topics, the leaders, the free ids.

Everything that several nodes have to agree on is asked here and nowhere else. Embedded, one node agrees with itself
(`embedded`); on several machines, the answers come from a stream that all of them fold (`replicated`). Therefore:

* Reading is synchronous and comes from memory: handlers read on every request. An answer may be out of date by the time
  it is used, as it always is in a cluster; a leader epoch settles who is right.
* Changing is asynchronous, and durable when it returns. A change that was cancelled, or raised StorageFailure, may have
  been made, or may yet be; asking again is safe (`TopicExists` and `UnknownTopic` say so).
* `generation` grows with every change, so that a cache of encoded answers knows when it is stale.

A topic is deleted in two phases. `delete_topic` takes it out of `topics()`, durably, and lists it in `deleting()`; the
node then drops its journals and data logs and calls `forget_topic`. After a crash in between it is still in
`deleting()`, and the node continues at its next start. The name is free as soon as phase one is done: a topic that is
created again has another `topic_id`, so it shares no log with the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from fairlog.cluster.features import FeatureLevels, FeatureUpdate
from fairlog.security.access_kind import AccessKind
from fairlog_types import LeaderEpoch, LogId, ShardNumber
from shard.placement import Placement

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was when it was asked for; values never change under a holder's feet."""

    name: str
    topic_id: UUID
    """Another one for each creation, so that a topic made anew under an old name is not mistaken for it."""
    partitions: int
    """At least 1; they are numbered from 0, and never become fewer."""
    configs: Mapping[str, str]
    """The topic's own; what is not there has the node's default."""
    created_ms: int
    """Unix time in milliseconds."""
    spread_over: int | None = None
    """How many shards lead its partitions; None for those of the first start. It never changes."""

    def logs(self) -> tuple[LogId, ...]:
        """The logs of all partitions, in order."""
        return tuple(LogId.of_topic(self.topic_id, partition) for partition in range(self.partitions))


class InvalidTopic(ValueError):
    """The name, the partition count or a collision with another name forbids the topic; the message says which."""


class TopicExists(Exception):
    """There is a topic of this name already."""


class UnknownTopic(Exception):
    """There is no such topic (any more)."""


class InvalidPartitions(ValueError):
    """A topic cannot be given so many partitions; the message says why."""


class Leader(NamedTuple):
    """Who leads a log."""

    node_id: int
    leader_epoch: LeaderEpoch


class PartitionCopies(NamedTuple):
    """Which brokers have a copy of a log, by node id."""

    replicas: tuple[int, ...]
    """All that keep one, or are to: in order of preference for the next leader."""
    in_sync: tuple[int, ...]
    """Those that have all that was answered, as the leader sees them; the leader among them, if there is one."""


class BrokerAddress(NamedTuple):
    """Where clients reach a broker of the cluster."""

    node_id: int
    host: str
    port: int


class InnerAddress(NamedTuple):
    """Where a broker is reached by other brokers."""

    host: str
    port: int
    has_tls: bool = False
    """Whether TLS is spoken there, as its node says. Nowhere on one machine."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Notice(Protocol):
    """Something that happens once; `trio.Event` is one."""

    async def wait(self) -> object:
        """Return when it has happened."""
        ...


ConfigsChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Makes new configs of those that there are. Pure, for it may be asked again."""


class ClusterStore(Protocol):
    """See the module's head for what is common to all methods."""

    @property
    def cluster_id(self) -> str:
        """22 characters, made at the very first start, as Kafka's (a UUID in URL-safe base64)."""
        ...

    @property
    def node_id(self) -> int:
        """This node's id."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether this is the only broker: it leads every partition, and nobody else changes anything here."""
        ...

    @property
    def starts(self) -> int:
        """The leader epoch of all that this node leads: on one machine, the count of its starts, this one included."""
        ...

    @property
    def shard(self) -> ShardNumber:
        """The shard that this node serves."""
        ...

    @property
    def placement(self) -> Placement:
        """How logs and group journals are spread over the shards."""
        ...

    @property
    def group_journal_count(self) -> int:
        """How many group journals transactional ids are hashed over. Fixed at the very first start."""
        ...

    @property
    def offsets_log_count(self) -> int:
        """How many offsets logs consumer groups are hashed over. Fixed at the first start that knew of them."""
        ...

    @property
    def features(self) -> FeatureLevels:
        """The features of the protocol, and the levels that the cluster has agreed on."""
        ...

    @property
    def generation(self) -> int:
        """Grows with every change that a reader could see. Not kept over a restart."""
        ...

    def changed(self) -> Notice:
        """The next change of `generation`. Get it before you look at what may change."""
        ...

    async def run(self) -> None:
        """Notice what others change; until cancelled. Raises StorageFailure, CorruptStorage."""
        ...

    async def notice(self) -> None:
        """Know what others have changed, as far as no other machine has to be asked. Cheap: for each request."""
        ...

    async def catch_up(self) -> None:
        """Know all that others have changed before this call; else it is known soon after."""
        ...

    def topics(self) -> Sequence[Topic]:
        """All topics that are not being deleted, by name."""
        ...

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, unless there is none or it is being deleted."""
        ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of this id, unless there is none or it is being deleted."""
        ...

    def deleting(self) -> Sequence[Topic]:
        """Topics whose data has yet to be dropped, and then to be forgotten with `forget_topic`."""
        ...

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        """What clients have set for the broker of this id, or with an empty text for all; empty if nothing."""
        ...

    def group_configs(self, group: str) -> Mapping[str, str]:
        """What clients have set for the consumer group of this id; empty if nothing."""
        ...

    def configured_groups(self) -> Collection[str]:
        """The groups for which clients have set something, in no order."""
        ...

    def access(self, kind: AccessKind[V]) -> Mapping[str, V]:
        """A table of who may do what, by name (`fairlog.security.kinds`): as it is now, and changes with the store."""
        ...

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """All brokers that have started so far with a listener of this name, and where clients reach that, by node id.

        One that is down keeps its last address.
        """
        ...

    @property
    def started(self) -> Collection[int]:
        """The node ids of all brokers that have started so far."""
        ...

    @property
    def controller_id(self) -> int:
        """The node id of the broker that clients are to ask for topics and configs; -1 if there is none yet."""
        ...

    def broker_of(self, shard: ShardNumber) -> int:
        """The node id of the broker that leads what is in the shard; -1 if no broker does yet."""
        ...

    def rack_of(self, node_id: int) -> str | None:
        """The rack that the broker of this node id is in; None if it has not said."""
        ...

    def internal_address(self, shard: ShardNumber) -> InnerAddress | None:
        """Where the shard's broker listens for other brokers; None if that is not known yet."""
        ...

    def shard_of(self, log: LogId) -> ShardNumber | None:
        """Who leads the log; None if it is of no topic that is served."""
        ...

    def leaders(self, topic: Topic) -> Sequence[Leader]:
        """Who leads each partition of a topic that is served, in their order; by node id -1 if no broker does yet."""
        ...

    def copies(self, topic: Topic) -> Sequence[PartitionCopies]:
        """Who has a copy of each partition of a topic that is served, in their order."""
        ...

    def copies_of(self, shard: ShardNumber) -> PartitionCopies:
        """Who has a copy of what is in the shard."""
        ...

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str], now_ms: int) -> Topic:
        """Make a topic.

        `now_ms` is Unix time in milliseconds. Raises InvalidTopic, TopicExists, StorageFailure.
        """
        ...

    async def alter_topic_configs(self, name: str, change: ConfigsChange) -> Topic:
        """Let `change` make a topic's own configs of those that it has; answers the topic as it is then.

        `change` may be asked again, if another node has changed something meanwhile. Raises UnknownTopic,
        StorageFailure, and what `change` raises; then nothing is changed.
        """
        ...

    async def add_partitions(self, name: str, total: int) -> Topic:
        """Give a topic partitions beyond those that it has, `total` with them; answers the topic as it is then.

        Raises UnknownTopic, InvalidPartitions if `total` is not more than there are or above what a topic may have,
        StorageFailure.
        """
        ...

    async def alter_broker_configs(self, resource: str, change: ConfigsChange) -> bool:
        """Let `change` make what clients have set for a broker, or for all; whether that changed anything.

        Otherwise as `alter_topic_configs`.
        """
        ...

    async def alter_group_configs(self, group: str, change: ConfigsChange) -> bool:
        """Let `change` make what clients have set for a consumer group; see `alter_broker_configs`."""
        ...

    async def alter_access(
        self, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
    ) -> bool:
        """Let `change` say which names of a table get which value, or with None go; whether that changed anything.

        Otherwise as `alter_topic_configs`.
        """
        ...

    async def delete_topic(self, name: str) -> Topic:
        """Phase one of a topic's end (module head). Raises UnknownTopic, StorageFailure."""
        ...

    async def forget_topic(self, topic_id: UUID) -> None:
        """Phase two: nothing of the topic is on disk any more. Idempotent. Raises StorageFailure."""
        ...

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Set the levels of features: all, or none. With `validate_only` they are checked and nothing is changed.

        Raises InvalidFeatureUpdate (of `fairlog.cluster.features`), StorageFailure.
        """
        ...

    async def allot_producer_ids(self, count: int) -> range:
        """`count` producer ids that nobody was or will be given again. Raises StorageFailure.

        Ids of a block that was not used up before a crash are lost, which is harmless: there are 2^63.
        """
        ...
