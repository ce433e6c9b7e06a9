"""A broker in memory, for the edge to be asked about.

It may be one of several: `Memory.spread`.

Fault model of the double: everything is visible at once unless `leaders.held` says otherwise; refusals are what a
test puts into `leaders.refusal`, `coordinator.refusal` and `topics.failure`. Nothing is lost, nothing is late.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import trio

from coordinator.answers import Description, Granted, GrantedToEnd, Refusal
from coordinator.messages import Stopped
from coordinator.steps import EPOCH_MAX
from datalog.offset_entries import CommittedOffset
from fairlog.broker import Broker
from fairlog.cluster.features import FEATURES, FeatureLevels, FeatureUpdate, updated_untrusted
from fairlog.cluster.interface import (
    BrokerAddress,
    ConfigsChange,
    Leader,
    PartitionCopies,
    Topic,
    TopicExists,
    UnknownTopic,
)
from fairlog.cluster.topic_rules import check_topic_untrusted, check_total_untrusted
from fairlog.config import Settings
from fairlog.config_values import Address
from fairlog.groups.consumer.cluster_topics import ClusterTopics
from fairlog.groups.consumer.service import ConsumerGroups
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.node_groups import NodeGroups
from fairlog.groups.offset_index import OffsetIndex, Partition
from fairlog.groups.offset_values import (
    CommitRefusal,
    CommitUnderWay,
    FetchedOffset,
    NewOffset,
    Sender,
    TransactionalProducer,
)
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog.live_access import live_access
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_quotas import LiveQuotas
from fairlog.live_settings import LiveSettings
from fairlog.security.access_kind import AccessKind
from fairlog.security.listeners import PLAIN
from fairlog.topic_configs import is_together
from fairlog_types import (
    LogId,
    LogKind,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    StorageFailure,
    TxId,
)
from partition.answers import LogCut
from shard.cut_messages import Cuts, NoCut
from shard.offset_messages import OffsetsRefused
from shard.placement import Placement
from tests.kafka.in_memory_logs import LEADER_EPOCH, MemoryDataLogs, MemoryLeaders

V = TypeVar("V")


class MemoryCluster:
    cluster_id = "fairlog-memory-cluster"
    node_id = 7
    starts = LEADER_EPOCH
    group_journal_count = 16
    offsets_log_count = 4

    def __init__(self) -> None:
        self.placement = Placement(1)
        self.shard = ShardNumber(0)
        self.addresses: dict[int, BrokerAddress] = {}
        self.other_listeners: dict[str, dict[int, BrokerAddress]] = {}
        """The brokers with a listener of another name than PLAINTEXT, by name."""
        self.generation = 0
        self.by_name: dict[str, Topic] = {}
        self.features = FeatureLevels(FEATURES, {}, 1 << 24)
        self.of_brokers: dict[str, Mapping[str, str]] = {}
        self.change = trio.Event()
        self.of_groups: dict[str, Mapping[str, str]] = {}
        self.tables: dict[str, Mapping[str, Any]] = {}
        """Who may do what, by kind."""
        self.failure: Exception | None = None
        self.racks: dict[int, str] = {}
        self.other_copies: list[int] = []
        """Of this shard, on other nodes: brokers that are in sync."""
        self.unnoticed: list[Topic] = []
        """Made by another broker; not known here before the next `catch_up`."""

    async def notice(self) -> None:
        await self.catch_up()

    async def catch_up(self) -> None:
        self.by_name |= {topic.name: topic for topic in self.unnoticed}

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        found = self.addresses if listener == PLAIN.name else self.other_listeners.get(listener, {})
        return [address for _, address in sorted(found.items())]

    @property
    def started(self) -> Collection[int]:
        return self.addresses.keys()

    @property
    def is_alone(self) -> bool:
        return self.placement.shards == 1

    @property
    def controller_id(self) -> int:
        return self.broker_of(ShardNumber(0))

    def broker_of(self, shard: ShardNumber) -> int:
        return self.node_id + shard - self.shard

    def shard_of(self, log: LogId) -> ShardNumber | None:
        if log.kind == LogKind.OFFSETS.value:
            return self.placement.shard_of(log, together=False)
        topic = self.topic_by_id(UUID(hex=log.topic))
        if topic is None or log.partition >= topic.partitions:
            return None
        return self.placement.shard_of(log, together=is_together(topic))

    def leaders(self, topic: Topic) -> Sequence[Leader]:
        together = is_together(topic)
        shards = [self.placement.shard_of(log, together=together) for log in topic.logs()]
        return [Leader(self.broker_of(shard), LEADER_EPOCH) for shard in shards]

    def copies(self, topic: Topic) -> Sequence[PartitionCopies]:
        return [PartitionCopies((leader.node_id,), (leader.node_id,)) for leader in self.leaders(topic)]

    def rack_of(self, node_id: int) -> str | None:
        return self.racks.get(node_id)

    def copies_of(self, shard: ShardNumber) -> PartitionCopies:
        broker = self.broker_of(shard)
        return PartitionCopies((broker, *self.other_copies), (broker, *self.other_copies))

    def topics(self) -> Sequence[Topic]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    def topic(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def access(self, kind: AccessKind[V]) -> Mapping[str, V]:
        return self.tables.get(kind.name, {})

    async def alter_access(
        self, kind: AccessKind[V], change: Callable[[Mapping[str, V]], Mapping[str, V | None]]
    ) -> bool:
        if self.failure is not None:
            raise self.failure
        before = self.access(kind)
        changed = {**before, **change(before)}
        self.tables[kind.name] = {name: value for name, value in changed.items() if value is not None}
        self.generation += 1
        self.change.set()
        self.change = trio.Event()
        return self.tables[kind.name] != before

    def changed(self) -> trio.Event:
        return self.change

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        return self.of_brokers.get(resource, {})

    async def alter_broker_configs(self, resource: str, change: ConfigsChange) -> bool:
        return await self._alter(self.of_brokers, resource, change)

    async def _alter(self, kept: dict[str, Mapping[str, str]], name: str, change: ConfigsChange) -> bool:
        await trio.lowlevel.checkpoint()
        own = kept.get(name, {})
        configs = change(own)
        if configs == own:
            return False
        if self.failure is not None:
            raise self.failure
        kept[name] = dict(configs)
        return True

    def group_configs(self, group: str) -> Mapping[str, str]:
        return self.of_groups.get(group, {})

    def configured_groups(self) -> Sequence[str]:
        return sorted(self.of_groups)

    async def alter_group_configs(self, group: str, change: ConfigsChange) -> bool:
        changed = await self._alter(self.of_groups, group, change)
        if not self.of_groups.get(group, True):
            del self.of_groups[group]
        return changed

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.by_name.values() if topic.topic_id == topic_id), None)

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        await trio.lowlevel.checkpoint()
        chosen = updated_untrusted(self.features, updates)
        if self.failure is not None:
            raise self.failure
        if not validate_only:
            self.features = replace(self.features, chosen=chosen, epoch=self.features.epoch + 1)


class MemoryTopics:
    def __init__(self, cluster: MemoryCluster, leaders: MemoryLeaders) -> None:
        self._cluster, self._leaders = cluster, leaders
        self._made = 0
        self.failure: Exception | None = None

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return self.create_now(name, partitions=partitions, configs=configs)

    def create_now(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Topic:
        check_topic_untrusted(name, partitions)
        if name in self._cluster.by_name:
            raise TopicExists(name)
        self._made += 1
        topic = Topic(name, UUID(int=self._made), partitions, dict(configs or {}), 1_000)
        self._cluster.by_name[name] = topic
        self._cluster.generation += 1
        self._lead(topic)
        return topic

    def _lead(self, topic: Topic) -> None:
        """Its part that this broker leads, as far as it is new."""
        for log in topic.logs():
            if self._cluster.shard_of(log) == self._cluster.shard:
                self._leaders.logs.setdefault(log, [])

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> Topic:
        await trio.lowlevel.checkpoint()
        topic = self._known(name)
        check_total_untrusted(topic, total)
        if validate_only:
            return topic
        if self.failure is not None:
            raise self.failure
        grown = self._replace(replace(topic, partitions=total))
        self._lead(grown)
        return grown

    async def alter_configs(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic:
        await trio.lowlevel.checkpoint()
        topic = self._known(name)
        configs = change(topic.configs)
        if self.failure is not None:
            raise self.failure
        return self._replace(replace(topic, configs=configs))

    def _known(self, name: str) -> Topic:
        if name not in self._cluster.by_name:
            raise UnknownTopic(f"there is no topic {name}")
        return self._cluster.by_name[name]

    def _replace(self, topic: Topic) -> Topic:
        self._cluster.by_name[topic.name] = topic
        self._cluster.generation += 1
        return topic

    async def delete(self, topic_id: UUID) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        topic = self._cluster.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopic(str(topic_id))
        del self._cluster.by_name[topic.name]
        self._cluster.generation += 1
        for log in topic.logs():
            self._leaders.logs.pop(log, None)


class MemoryOtherCoordinators:
    """Those of other shards."""

    def __init__(self) -> None:
        self.heard = trio.Event()
        """Set when they have said what goes on here, and answer."""
        self.heard.set()
        self.refusal: Refusal | None = None
        self.stops = False
        """This shard stops, and does not wait for them."""
        self.added: list[tuple[str, ProducerId, ProducerEpoch, LogId]] = []

    async def hear(self, transactional_id: str) -> None:
        await self.heard.wait()

    async def add_log(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId
    ) -> Refusal | None:
        await self.heard.wait()
        if self.stops:
            raise Stopped("this shard has stopped")
        self.added.append((transactional_id, producer_id, epoch, log))
        return self.refusal


class MemoryCoordinator:
    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.failure: StorageFailure | None = None
        self.calls: list[tuple[object, ...]] = []
        self.descriptions: dict[str, Description] = {}
        self.epochs: dict[ProducerId, ProducerEpoch] = {}
        self.unplaced: set[LogId] = set()
        self.placings_due = 0
        """How often `place_due` was called."""
        self.added: set[tuple[str, ProducerId, ProducerEpoch, LogId]] = set()
        """What `has_added` knows."""
        self.unknown_logs: set[LogId] = set()
        """Which cannot be added, because nobody leads them."""
        self.failed_logs: set[LogId] = set()
        """Which cannot be added, because their shard's disk has failed."""
        self._next_id = 40

    async def _called(self, *call: object) -> Refusal | None:
        await trio.lowlevel.checkpoint()
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure
        return self.refusal

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
    ) -> Granted | GrantedToEnd | Refusal:
        asked = ("init", transactional_id, timeout_ms, producer_id, epoch, connection)
        refusal = await self._called(*asked, *(word for word in ("two phases",) if two_phase))
        if refusal is not None:
            return refusal
        self._next_id += 1
        granted = Granted(ProducerId(self._next_id), ProducerEpoch(0))
        known = None if transactional_id is None else self.descriptions.get(transactional_id)
        if keeps and known is not None:
            return GrantedToEnd(granted, Granted(known.producer_id, known.epoch))
        return granted

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int,
    ) -> Mapping[LogId, Refusal | None] | Refusal:
        refusal = await self._called("add", transactional_id, producer_id, epoch, tuple(logs), connection)
        if refusal is not None:
            return refusal
        answers: dict[LogId, Refusal | None] = dict.fromkeys(logs)
        answers |= dict.fromkeys(self.unknown_logs & answers.keys(), Refusal.UNKNOWN_LOG)
        return answers | dict.fromkeys(self.failed_logs & answers.keys(), Refusal.STORAGE)

    async def end(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        return await self._called("end", transactional_id, producer_id, epoch, commit, connection)

    async def end_epoch(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool
    ) -> Granted | Refusal:
        refusal = await self._called("end epoch", transactional_id, producer_id, epoch, commit)
        if refusal is not None:
            return refusal
        return Granted(producer_id, ProducerEpoch(min(epoch + 1, EPOCH_MAX)))

    def producer_id_of(self, transactional_id: str) -> ProducerId | None:
        known = self.descriptions.get(transactional_id)
        return None if known is None else known.producer_id

    def has_added(self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId) -> bool:
        return (transactional_id, producer_id, epoch, log) in self.added

    async def abort_by_marker(self, txid: TxId) -> Refusal | None:
        return await self._called("abort by marker", txid)

    def describe(self, transactional_id: str) -> Description | None:
        return self.descriptions.get(transactional_id)

    def describe_all(self) -> Sequence[Description]:
        return list(self.descriptions.values())

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        return self.epochs.get(producer_id)

    def lacks_commits(self, log: LogId) -> bool:
        return log in self.unplaced

    def not_placed(self, log: LogId) -> Collection[TxId]:
        return ()

    def place_due(self) -> None:
        self.placings_due += 1


class MemoryOffsets:
    """What is committed is there at once; what `pending` names is in an open transaction."""

    def __init__(self) -> None:
        self.index = OffsetIndex(lambda: 1_000)
        """Which groups have offsets, as their members see it."""
        self.groups: dict[str, dict[Partition, CommittedOffset]] = {}
        self.pending: set[Partition] = set()
        self.refusal: CommitRefusal | None = None
        self.settles = True
        self.readable = True
        self.failure: Exception | None = None
        self.deletion: GroupRefusal | None = None
        self.subscribed: set[str] = set()
        self.calls: list[tuple[object, ...]] = []

    def log_of(self, group: str) -> LogId:
        return LogId.of_offsets(len(group) % 4)

    async def commit(self, group: str, sender: Sender, offsets: Sequence[NewOffset]) -> CommitUnderWay | CommitRefusal:
        await trio.lowlevel.checkpoint()
        self.calls.append(("commit", group, sender))
        if self.refusal is not None:
            return self.refusal
        for new in offsets:
            value = CommittedOffset(Offset(new.offset), new.leader_epoch, new.metadata, 1_000)
            self.groups.setdefault(group, {})[new.partition] = value
        return CommitUnderWay(self.log_of(group), Offset(1))

    async def settled(self, commit: CommitUnderWay) -> bool:
        await trio.lowlevel.checkpoint()
        return self.settles

    async def commit_in_transaction(
        self, group: str, sender: Sender, producer: TransactionalProducer, offsets: Sequence[NewOffset]
    ) -> CommitRefusal | None:
        await trio.lowlevel.checkpoint()
        self.calls.append(("commit in", group, sender, producer, tuple(offsets)))
        return self.refusal

    async def fetch(
        self, group: str, partitions: Sequence[Partition] | None, *, require_stable: bool
    ) -> Mapping[Partition, FetchedOffset] | None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if not self.readable:
            return None
        known = self.groups.get(group, {})
        return {
            asked: FetchedOffset(known.get(asked), require_stable and asked in self.pending)
            for asked in (known if partitions is None else partitions)
        }

    async def delete(self, group: str) -> GroupRefusal | None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.index.deleted(group, Offset(1), all_of_them=True)
        return None

    async def delete_partitions(
        self, group: str, topics: Mapping[Partition, str]
    ) -> Mapping[Partition, GroupRefusal | None] | GroupRefusal:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if self.deletion is not None:
            return self.deletion
        return {asked: GroupRefusal.SUBSCRIBED if name in self.subscribed else None for asked, name in topics.items()}


class MemoryCutting:
    """Cuts of all logs that this broker leads or another one is said to lead; or whatever a test wants answered."""

    def __init__(self, leaders: MemoryLeaders) -> None:
        self._leaders = leaders
        self.of_others: dict[LogId, LogCut] = {}
        self.answer: Cuts | NoCut | None = None
        self.asked: list[tuple[LogId, ...]] = []

    async def cut(self, logs: Sequence[LogId]) -> Cuts | NoCut:
        await trio.lowlevel.checkpoint()
        self.asked.append(tuple(logs))
        others = {log: self.of_others[log] for log in logs if log in self.of_others}
        return self.answer or Cuts({**self._leaders.cut(logs), **others})


class MemoryPastCuts:
    """Finds what a test wants found."""

    def __init__(self) -> None:
        self.answer: Cuts | NoCut | None = None
        self.asked: list[tuple[dict[LogId, Offset], int]] = []

    async def find(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Cuts | NoCut | None:
        await trio.lowlevel.checkpoint()
        self.asked.append((dict(starts), records_max))
        return self.answer


class MemoryOtherOffsets:
    """Other shards, which take all offsets; or refuse them, as a test wants."""

    def __init__(self) -> None:
        self.refusal: OffsetsRefused | None = None
        self.asked: list[tuple[object, ...]] = []

    async def write(
        self,
        shard: ShardNumber,
        group: str,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        offsets: Sequence[tuple[str, int, int]],
    ) -> OffsetsRefused | None:
        await trio.lowlevel.checkpoint()
        self.asked.append((shard, group, transactional_id, tuple(offsets)))
        return self.refusal


@dataclass
class Memory:
    """The double, with its parts at hand."""

    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    leaders: MemoryLeaders = field(default_factory=MemoryLeaders)
    coordinator: MemoryCoordinator = field(default_factory=MemoryCoordinator)
    offsets: MemoryOffsets = field(default_factory=MemoryOffsets)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.topics = MemoryTopics(self.cluster, self.leaders)
        self.quotas = LiveQuotas(self.cluster)  # type: ignore[arg-type]
        """The same at each request, for what it measures lasts."""
        # The real one: it is in memory, too. No rebalance waits for time.
        counter = itertools.count(1)
        classic = LocalGroups(
            GroupSettings(initial_rebalance_delay_ms=0, members_max=3),
            self.offsets.index,
            now_ms=lambda: 1_000,
            new_suffix=lambda: str(next(counter)),
        )
        self.settings = replace(self.settings, groups=replace(self.settings.groups, members_max=3))
        consumer = ConsumerGroups(
            self._consumer_settings,
            ClusterTopics(self.cluster),
            self.offsets.index,
            classic,
            now_ms=lambda: 1_000,
        )
        self.groups = NodeGroups(classic, consumer)
        self.data_logs = MemoryDataLogs(self.leaders)
        self.cutting = MemoryCutting(self.leaders)
        """Asked if this broker is one of several."""
        self.past_cuts = MemoryPastCuts()
        """The same."""
        self.other_offsets = MemoryOtherOffsets()
        """The same."""
        self.other_coordinators = MemoryOtherCoordinators()
        """The same."""

    def spread(self, shards: int, shard: int) -> None:
        """Be the broker of one of so many shards. All have started; before there are topics."""
        cluster = self.cluster
        cluster.placement, cluster.node_id, cluster.shard = Placement(shards), 7 + shard, ShardNumber(shard)
        cluster.features = FeatureLevels(FEATURES, {}, 1 << 24)
        cluster.addresses = {
            7 + number: BrokerAddress(7 + number, f"broker-{number}.example", 9092 + number) for number in range(shards)
        }

    @property
    def advertised(self) -> Mapping[str, Address]:
        it = self.cluster.addresses.get(self.cluster.node_id)
        return {"PLAINTEXT": Address("broker.example", 9092) if it is None else Address(it.host, it.port)}

    def configure(self, **topics: object) -> None:
        """Change keys of the settings' `topics` part."""
        self.settings = replace(self.settings, topics=replace(self.settings.topics, **topics))

    def configure_groups(self, **groups: object) -> None:
        """The same of its `groups` part."""
        self.settings = replace(self.settings, groups=replace(self.settings.groups, **groups))

    def _consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        return self.group_configs.consumer_settings(group_id)

    @property
    def group_configs(self) -> LiveGroupConfigs:
        return LiveGroupConfigs(self.settings.groups, self.cluster)  # type: ignore[arg-type]

    @property
    def broker(self) -> Broker:
        return Broker(
            self.cluster,  # type: ignore[arg-type]
            self.topics,
            self.leaders,
            self.data_logs,  # type: ignore[arg-type]
            self.coordinator,
            LiveSettings(self.settings, self.cluster),  # type: ignore[arg-type]
            self.advertised,
            self.offsets,
            self.groups,
            self.group_configs,
            self.quotas,
            None if self.cluster.placement.shards == 1 else self.cutting,
            None if self.cluster.placement.shards == 1 else self.past_cuts,
            None if self.cluster.placement.shards == 1 else self.other_offsets,
            None if self.cluster.placement.shards == 1 else self.other_coordinators,
            access=live_access(self.settings.authorizer, self.cluster),  # type: ignore[arg-type]
        )

    def log(self, topic: str, partition: int = 0) -> LogId:
        return self.cluster.by_name[topic].logs()[partition]
