"""What the node is to the handlers of requests: a bundle of interfaces, and the words between them.

Handlers, Kafka's (`fairlog/kafka/handlers`) and native ones (`fairlog/native`), see a `Broker` and nothing else. The
composition root fills it with the real parts, tests with doubles.

    cluster      who we are, which topics and brokers there are       fairlog/cluster
    partitions   the partitions that this node leads                  partition, shard
    data_logs    what consumers read; blocking, for worker threads    datalog
    coordinator  transactions                                         coordinator
    topics       making and deleting topics with all that hangs on them
    offsets      what consumer groups have committed                  fairlog/groups/committed.py
    groups       who is in which consumer group                   fairlog/groups

The protocols name only what handlers use, in the words of the rooms: no API numbers, no error codes.

If the data is spread over several shards, each has a broker, and clients see a cluster of them. Each broker coordinates
the groups whose offsets log its shard leads, and the transactional ids whose group journal its shard has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

import trio

from coordinator.answers import Description, Granted, GrantedToEnd, Refusal
from coordinator.messages import Stopped
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefused,
)
from datalog.interface import Bounds, EpochEnd, Loan, ReadRequest, TimestampOffset
from fairlog.cluster.coordinators import shard_of_group, shard_of_transactional_id
from fairlog.cluster.interface import BrokerAddress, ClusterStore, Topic
from fairlog.config import Settings
from fairlog.config_values import Address
from fairlog.groups.consumer.values import Beat, Beaten, GroupSnapshot, Refused
from fairlog.groups.interface import (
    GroupDescription,
    GroupOffsets,
    GroupOverview,
    GroupRefusal,
    MemberClient,
    Membership,
)
from fairlog.groups.messages import Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.offset_index import Partition
from fairlog.groups.offset_values import (
    CommitRefusal,
    CommitUnderWay,
    FetchedOffset,
    NewOffset,
    Sender,
    TransactionalProducer,
)
from fairlog.live_access import LiveAccess
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_quotas import LiveQuotas
from fairlog.live_settings import LiveSettings
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, ShardNumber, StorageFailure, TxId
from partition.answers import (
    LogCut,
)
from partition.partition import Partition as LedPartition
from shard.cut_messages import Cuts, NoCut
from shard.directory import FIRST_SHARD
from shard.links import Confirm
from shard.offset_messages import OffsetsRefused

LOOKED_INTO_MAX = 2
"""Batches that are unpacked at a time: each takes up to what its records take, and Fetch has to find threads free."""


class Partitions(Protocol):
    """The partitions that this broker leads; `shard.partitions.Partitions` says what each method promises."""

    def get(self, log: LogId) -> LedPartition | None:
        """The leader of `log`; None if it is not here."""
        ...

    def open_transaction_of(self, producer_id: ProducerId) -> TxId | None: ...

    def cut(self, logs: Iterable[LogId]) -> Mapping[LogId, LogCut]: ...

    async def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Mapping[LogId, LogCut]: ...


class Topics(Protocol):
    """Topics, with the journals and data logs of their partitions."""

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Make a topic; when this returns its partitions take batches.

        Raises InvalidTopic, TopicExists (both of `fairlog.cluster.interface`) and StorageFailure.
        """
        ...

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> Topic:
        """Give a topic more partitions, `total` with those that it has; when this returns they take batches.

        With `validate_only` all is checked and nothing changed. Raises UnknownTopic, InvalidPartitions and
        StorageFailure; then nothing is changed.
        """
        ...

    async def alter_configs(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic:
        """Let `change` make a topic's own configs from those that it has; nobody else changes them meanwhile.

        Raises UnknownTopic, StorageFailure, and what `change` raises; then nothing is changed.
        """
        ...

    async def delete(self, topic_id: UUID) -> None:
        """Take a topic away; its data goes in the background. Raises UnknownTopic and StorageFailure."""
        ...


class ReadDataLogs(Protocol):
    """What consumers read; `datalog.interface.DataLogs` says what each method promises."""

    def lend(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> Loan: ...

    def bounds(self, log: LogId) -> Bounds: ...

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None: ...

    def max_timestamp(self, log: LogId) -> TimestampOffset | None: ...

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd: ...


class Coordinator(Protocol):
    """Transactions; `coordinator.service.Coordinator` says what each method promises."""

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        connection: int,
        *,
        two_phase: bool = False,
        keeps: bool = False,
    ) -> Granted | GrantedToEnd | Refusal: ...

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int | None,
    ) -> Mapping[LogId, Refusal | None] | Refusal: ...

    def has_added(self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId) -> bool: ...

    async def end(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None: ...

    async def end_epoch(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool
    ) -> Granted | Refusal: ...

    async def abort_by_marker(self, txid: TxId) -> Refusal | None: ...

    async def join_batch(self, lane: Lane) -> LaneGranted | BatchCommitted | SinkRefused: ...

    async def commit_batch(self, message: CommitBatch) -> BatchCommitted | SinkRefused: ...

    async def abort_batch(self, sink: str, query: str, run: str, batch: int) -> SinkRefused | None: ...

    def sinks(self) -> Sequence[SinkDescription]: ...

    async def forget_sink(self, sink: str) -> SinkRefused | None: ...

    def describe(self, transactional_id: str) -> Description | None: ...

    def describe_all(self) -> Sequence[Description]: ...

    def producer_id_of(self, transactional_id: str) -> ProducerId | None: ...

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None: ...

    def lacks_commits(self, log: LogId) -> bool: ...

    def not_placed(self, log: LogId) -> Collection[TxId]: ...

    def place_due(self) -> None: ...


class Cutting(Protocol):
    """Cuts over several shards; `shard.cutting.Cutting` says what the method promises."""

    async def cut(self, logs: Sequence[LogId]) -> Cuts | NoCut: ...


class PastCuts(Protocol):
    """Older cuts over several shards; `shard.past_cuts.PastCuts` says what the method promises."""

    async def find(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Cuts | NoCut | None: ...


class OtherOffsets(Protocol):
    """Offsets that other shards write; `shard.other_offsets.OtherOffsets` says what the method promises."""

    async def write(
        self,
        shard: ShardNumber,
        group: str,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        offsets: Sequence[tuple[str, int, int]],
    ) -> OffsetsRefused | None: ...


class Offsets(GroupOffsets, Protocol):
    """Committed offsets; `fairlog.groups.committed.CommittedOffsets` says what each method promises."""

    def log_of(self, group: str) -> LogId: ...

    async def commit(
        self, group: str, sender: Sender, offsets: Sequence[NewOffset]
    ) -> CommitUnderWay | CommitRefusal: ...

    async def settled(self, commit: CommitUnderWay) -> bool: ...

    async def commit_in_transaction(
        self, group: str, sender: Sender, producer: TransactionalProducer, offsets: Sequence[NewOffset]
    ) -> CommitRefusal | None: ...

    async def fetch(
        self, group: str, partitions: Sequence[Partition] | None, *, require_stable: bool
    ) -> Mapping[Partition, FetchedOffset] | None: ...

    async def delete_partitions(
        self, group: str, topics: Mapping[Partition, str]
    ) -> Mapping[Partition, GroupRefusal | None] | GroupRefusal: ...


class OtherCoordinators(Protocol):
    """The transaction coordinators of other brokers. Both wait for one of them, for as long as it takes."""

    async def hear(self, transactional_id: str) -> None:
        """Wait until the id's coordinator has said, since the start of this broker, which transactions are open here.

        It does so once the two are connected. This broker's own has nothing to say. Raises Stopped if this broker stops
        before that.
        """
        ...

    async def add_log(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId
    ) -> Refusal | None:
        """Have the id's coordinator add a log that is led here, unless it has it. Raises StorageFailure at the stop."""
        ...


A_co = TypeVar("A_co", covariant=True)


class Parked(Protocol[A_co]):
    """A request that waits for others; it may be answered already."""

    async def answer(self) -> A_co:
        """Wait for the answer. Cancelled: the request waits on."""
        ...

    def give_up(self) -> None:
        """Nobody waits for the answer any more, unless it has been given: the client is gone."""
        ...


class Groups(Membership, Protocol):
    """Consumer groups' members; `fairlog.groups.node_groups.NodeGroups` says what each method promises."""

    def heartbeat_interval_ms(self, group_id: str) -> int: ...

    async def beat(self, group_id: str, beat: Beat) -> Parked[Beaten | Refused]: ...

    def snapshot(self, group_id: str) -> tuple[GroupDescription, GroupSnapshot, str] | None: ...

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> GroupRefusal | None: ...

    def new_member_id(self, name: str) -> str: ...

    def join(self, group_id: str, request: Joining) -> Parked[Joined | JoinRefused]: ...

    def sync(self, group_id: str, request: Syncing) -> Parked[Synced | GroupRefusal]: ...

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupRefusal | None: ...

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> Sequence[GroupRefusal | None] | GroupRefusal: ...

    def client_of(self, group: str, member_id: str) -> MemberClient | None: ...

    def overviews(self) -> Sequence[GroupOverview]: ...

    async def delete(self, group: str, offsets: GroupOffsets) -> GroupRefusal | None: ...


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Broker:
    """The node, as handlers see it."""

    cluster: ClusterStore
    topics: Topics
    partitions: Partitions
    data_logs: ReadDataLogs
    coordinator: Coordinator
    live_settings: LiveSettings
    advertised: Mapping[str, Address]
    """What clients are told to connect to, by listener."""
    offsets: Offsets
    groups: Groups
    group_configs: LiveGroupConfigs
    quotas: LiveQuotas
    cutting: Cutting | None = None
    """What takes cuts over several shards; None if this broker is alone."""
    past_cuts: PastCuts | None = None
    """What finds older ones; None if this broker is alone."""
    other_offsets: OtherOffsets | None = None
    """What has other shards write offsets; None if this broker is alone."""
    other_coordinators: OtherCoordinators | None = None
    """None if this broker is alone."""
    access: LiveAccess | None = None
    """Who may do what; None if everyone may do everything."""
    owns: bool = True
    """Whether this node owns the broker's shard. If not, the broker leads no partition, and coordinates nothing."""
    copied: Callable[[], Partitions | None] = _nothing
    """What this node has copied of the shard, if another one owns it: consumers may read it (KIP-392)."""
    opens: Callable[[], bool] = _never
    """Whether this node has become the owner of the broker's shard, and does not serve it yet."""
    has_ended: Callable[[], bool] = _never
    """Whether the shard may have another owner by now. Then nothing is answered any more: clients connect again and ask
    the new owner. An error would say more than is known: the request may have had its effect."""
    confirm: Confirm | None = None
    """Makes sure that this process owned the shard when something was asked (decision 90). None: nobody else can."""
    appends_wait: Callable[[], bool] = _never
    """Whether appends to the replicated log have waited for so long that another node would take over. Then nothing new
    is begun: who asks for it is told to ask again, and does not wait here, in a number that nobody knows."""
    engine_is_silent: Callable[[], bool] = _never
    """Whether nothing of the replicated log answers, so that this node does not hear of other owners."""
    looking_into: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(LOOKED_INTO_MAX))
    """For threads that unpack what producers send."""

    @property
    def node_id(self) -> int:
        return self.cluster.node_id

    @property
    def is_alone(self) -> bool:
        """Whether this is the only broker: it leads every partition, and coordinates everything."""
        return self.cluster.is_alone

    @property
    def may_be_told_of_itself(self) -> bool:
        """Whether who asks this node for the shard's owner would be sent back here, though it is none any more."""
        return not self.owns and self.engine_is_silent() and self.cluster.broker_of(self.cluster.shard) == self.node_id

    @property
    def readable(self) -> Partitions:
        """The partitions whose records can be read here: those that are led, or copied."""
        return (None if self.owns else self.copied()) or self.partitions

    def preferred_replica(self, rack: str) -> int:
        """The node id of the broker from which a consumer in this rack should read what is led here; -1: from here."""
        rack_of = self.cluster.rack_of
        if not rack or rack_of(self.node_id) == rack:
            return -1
        others = (each for each in self.cluster.copies_of(self.cluster.shard).in_sync if each != self.node_id)
        return next((each for each in others if rack_of(each) == rack), -1)

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        """The brokers that clients of the listener of this name can be sent to, by node id, with their addresses there.

        Those that have no such listener are left out, as in Kafka.
        """
        if self.is_alone:
            own = self.advertised.get(listener)
            return () if own is None else (BrokerAddress(self.node_id, own.host, own.port),)
        return self.cluster.brokers(listener)

    @property
    def started(self) -> Collection[int]:
        """The node ids of all brokers that have started, whatever their listeners are."""
        return (self.node_id,) if self.is_alone else self.cluster.started

    def controller(self, listener: str) -> BrokerAddress | None:
        """The broker that clients are to ask for topics and configs; None if it has not started yet."""
        return self._address_of_broker(self.cluster.controller_id, listener)

    def coordinator_of_group(self, group: str, listener: str) -> BrokerAddress | None:
        """The broker that coordinates the group; None if it has not started yet."""
        return self._address_of(self.shard_of_group(group), listener)

    def coordinator_of(self, transactional_id: str, listener: str) -> BrokerAddress | None:
        """The broker that coordinates the transactional id; None if it has not started yet."""
        return self._address_of(self.shard_of(transactional_id), listener)

    def is_at(self, there: BrokerAddress) -> bool:
        """Whether clients reach this broker there. The first port of a node of a cluster is no shard's."""
        return Address(there.host, there.port) in self.advertised.values()

    def taker_of_cuts(self, listener: str) -> BrokerAddress | None:
        """The broker to ask for a cut, if this one owns no shard; None if there is none at the moment."""
        return self._address_of(FIRST_SHARD, listener)

    def coordinates_group(self, group: str) -> bool:
        """Whether this broker coordinates the group."""
        return self.owns and (self.is_alone or self.shard_of_group(group) == self.cluster.shard)

    def coordinates(self, transactional_id: str) -> bool:
        """Whether this broker coordinates the transactional id."""
        return self.owns and (self.is_alone or self.shard_of(transactional_id) == self.cluster.shard)

    async def add_to_transaction(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId, *, deadline_s: float
    ) -> Refusal | None:
        """Add a log that is led here to the transaction of this epoch, which begins with it if none is open.

        None: it has it. Raises TooSlowError if another broker coordinates the transactional id, and has not answered
        by `deadline_s`, of the event loop's clock: it may still add it.
        """
        who = transactional_id, producer_id, epoch
        try:
            if not self.coordinates(transactional_id):
                assert self.other_coordinators is not None
                if producer_id < 0 or epoch < 0:  # clients may send what brokers cannot say to each other
                    return Refusal.UNKNOWN_PRODUCER_ID_MAPPING
                with trio.fail_at(deadline_s):
                    return await self.other_coordinators.add_log(*who, log)
            if self.coordinator.has_added(*who, log):
                return None
            added = await self.coordinator.add_logs(*who, (log,), None)
        except Stopped:
            return Refusal.STOPPING
        except StorageFailure:
            return Refusal.STORAGE
        return added if isinstance(added, Refusal) else added[log]

    def shard_of_group(self, group: str) -> ShardNumber:
        """Which shard has the group."""
        return shard_of_group(self.cluster, self.offsets.log_of(group))

    def shard_of(self, transactional_id: str) -> ShardNumber:
        """Which shard coordinates the transactional id."""
        return shard_of_transactional_id(self.cluster, transactional_id, self.settings.transactions.group_separator)

    def _address_of(self, shard: ShardNumber, listener: str) -> BrokerAddress | None:
        return self._address_of_broker(self.cluster.broker_of(shard), listener)

    def _address_of_broker(self, node_id: int, listener: str) -> BrokerAddress | None:
        return next((broker for broker in self.brokers(listener) if broker.node_id == node_id), None)

    @property
    def settings(self) -> Settings:
        """As they are now: not to be kept, since clients change some of them."""
        return self.live_settings.current

    @property
    def log_dir(self) -> str:
        """Where everything is kept, as an absolute path."""
        return str(self.settings.data_dir.absolute())
