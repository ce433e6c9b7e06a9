"""The broker of a shard that this node does not own, or is about to: it tells clients where to go, and no more.

    Metadata, FindCoordinator, DescribeCluster, …   from the cluster store, as every broker answers them
    CreateTopics, AlterConfigs, …                   changed in the cluster store; who owns the logs hears of it
    InitProducerId without a transactional id       ids from the cluster store
    Fetch                                           from this node's copy, if it has one (KIP-392)
    Produce, JoinGroup, EndTxn, …                   NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR
    cuts and sinks (the native protocol)            where the one is that has them

Handlers are those of every broker, and so are their answers. They see a `Broker` with `owns` False, whose parts have
nothing: no partition is led here, no group and no transactional id is coordinated here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

import structlog

from coordinator.answers import Description, Granted, GrantedToEnd, Refusal
from coordinator.ids import ProducerIdBlocks
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefusal,
    SinkRefused,
)
from datalog.interface import Bounds, EpochEnd, Loan, LogMissing, ReadRequest, TimestampOffset, UnknownLog
from fairlog.broker import Broker, Partitions, ReadDataLogs
from fairlog.cluster.interface import ClusterStore, InvalidPartitions, InvalidTopic, Topic, UnknownTopic
from fairlog.cluster.topic_rules import check_total_untrusted
from fairlog.config_values import Address
from fairlog.groups.committed import offsets_log_of
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_index import OffsetIndex, Partition
from fairlog.groups.offset_values import (
    CommitRefusal,
    CommitUnderWay,
    FetchedOffset,
    NewOffset,
    Sender,
    TransactionalProducer,
)
from fairlog.live_access import live_access
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_quotas import LiveQuotas
from fairlog.live_settings import LiveSettings
from fairlog.serving import make_groups
from fairlog.topics import why_no_room_for
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from partition.answers import LogCut
from partition.partition import Partition as LedPartition

log = structlog.get_logger()

_ELSEWHERE = SinkRefused(SinkRefusal.IN_USE, "another node owns the shard of the sink; ask again")


def make_bystander(
    cluster: ClusterStore,
    live: LiveSettings,
    advertised: Mapping[str, Address],
    *,
    data_logs: ReadDataLogs | None = None,
    copied: Callable[[], Partitions | None] = lambda: None,
    opens: Callable[[], bool] = lambda: False,
    engine_is_silent: Callable[[], bool] = lambda: False,
) -> Broker:
    """The broker that `cluster` is the store of. With `data_logs`, consumers read there what is `copied`. `opens` says
    whether this node owns the shard already, and does not serve it yet; `engine_is_silent`, whether the engine
    does not answer, so that this node hears of no other owner.
    """
    configs = LiveGroupConfigs(live.of_start.groups, cluster)
    groups = make_groups(live.of_start, cluster, configs, OffsetIndex(_now_ms))
    groups.stop()
    return Broker(
        cluster,
        SharedTopics(cluster),
        _NoPartitions(),
        data_logs or _NoDataLogs(),
        _NoTransactions(ProducerIdBlocks(cluster)),
        live,
        advertised,
        _NoOffsets(cluster.offsets_log_count),
        groups,
        configs,
        LiveQuotas(cluster),
        access=live_access(live.of_start.authorizer, cluster),
        owns=False,
        copied=copied,
        opens=opens,
        engine_is_silent=engine_is_silent,
    )


class SharedTopics:
    """The topics of the cluster, changed by a broker that leads none of their partitions. Implements
    `fairlog.broker.Topics`: who leads them hears of the change a moment later.
    """

    def __init__(self, cluster: ClusterStore) -> None:
        self._cluster = cluster

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        if (problem := why_no_room_for(self._cluster, partitions)) is not None:
            raise InvalidTopic(problem)
        topic = await self._cluster.create_topic(name, partitions=partitions, configs=configs, now_ms=_now_ms())
        log.info("topic created", topic=name, topic_id=str(topic.topic_id), partitions=partitions)
        return topic

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> Topic:
        topic = self._cluster.topic(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        check_total_untrusted(topic, total)
        if (problem := why_no_room_for(self._cluster, total - topic.partitions)) is not None:
            raise InvalidPartitions(problem)
        if validate_only:
            return topic
        grown = await self._cluster.add_partitions(name, total)
        log.info("partitions added", topic=name, topic_id=str(grown.topic_id), partitions=total)
        return grown

    async def alter_configs(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic:
        changed = await self._cluster.alter_topic_configs(name, change)
        log.info("topic configs changed", topic=name, topic_id=str(changed.topic_id), configs=dict(changed.configs))
        return changed

    async def delete(self, topic_id: UUID) -> None:
        topic = self._cluster.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with the id {topic_id}")
        await self._cluster.delete_topic(topic.name)
        log.info("topic deleted", topic=topic.name, topic_id=str(topic_id))


class _NoPartitions:
    """Implements `fairlog.broker.Partitions`."""

    def get(self, log: LogId) -> LedPartition | None:
        return None

    def open_transaction_of(self, producer_id: ProducerId) -> TxId | None:
        return None

    def cut(self, logs: Iterable[LogId]) -> Mapping[LogId, LogCut]:
        return {}

    async def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Mapping[LogId, LogCut]:
        return {}


class _NoDataLogs:
    """Implements `fairlog.broker.ReadDataLogs`."""

    def lend(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> Loan:
        return Loan([LogMissing(request.log) for request in requests])

    def bounds(self, log: LogId) -> Bounds:
        raise UnknownLog(log)

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None:
        raise UnknownLog(log)

    def max_timestamp(self, log: LogId) -> TimestampOffset | None:
        raise UnknownLog(log)

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd:
        raise UnknownLog(log)


class _NoTransactions:
    """Implements `fairlog.broker.Coordinator`: nothing is known of any transactional id."""

    def __init__(self, ids: ProducerIdBlocks) -> None:
        self._ids = ids

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
        if transactional_id is not None:
            return Refusal.BAD_REQUEST
        return Granted(await self._ids.next_id(), ProducerEpoch(0))

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int | None,
    ) -> Mapping[LogId, Refusal | None] | Refusal:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING

    def has_added(self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId) -> bool:
        return False

    async def end(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING

    async def end_epoch(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool
    ) -> Granted | Refusal:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING

    async def abort_by_marker(self, txid: TxId) -> Refusal | None:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING

    async def join_batch(self, lane: Lane) -> LaneGranted | BatchCommitted | SinkRefused:
        return _ELSEWHERE

    async def commit_batch(self, message: CommitBatch) -> BatchCommitted | SinkRefused:
        return _ELSEWHERE

    async def abort_batch(self, sink: str, query: str, run: str, batch: int) -> SinkRefused | None:
        return _ELSEWHERE

    def sinks(self) -> Sequence[SinkDescription]:
        return ()

    async def forget_sink(self, sink: str) -> SinkRefused | None:
        return _ELSEWHERE

    def describe(self, transactional_id: str) -> Description | None:
        return None

    def describe_all(self) -> Sequence[Description]:
        return ()

    def producer_id_of(self, transactional_id: str) -> ProducerId | None:
        return None

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        return None

    def lacks_commits(self, log: LogId) -> bool:
        return False

    def not_placed(self, log: LogId) -> Collection[TxId]:
        return ()

    def place_due(self) -> None:
        pass


class _NoOffsets:
    """Implements `fairlog.broker.Offsets`. What is asked here is asked of a group that nobody can have."""

    def __init__(self, log_count: int) -> None:
        self._log_count = log_count

    def log_of(self, group: str) -> LogId:
        return offsets_log_of(group, self._log_count)

    async def commit(self, group: str, sender: Sender, offsets: Sequence[NewOffset]) -> CommitUnderWay | CommitRefusal:
        return GroupRefusal.INVALID_GROUP_ID

    async def settled(self, commit: CommitUnderWay) -> bool:
        return False

    async def commit_in_transaction(
        self, group: str, sender: Sender, producer: TransactionalProducer, offsets: Sequence[NewOffset]
    ) -> CommitRefusal | None:
        return GroupRefusal.INVALID_GROUP_ID

    async def fetch(
        self, group: str, partitions: Sequence[Partition] | None, *, require_stable: bool
    ) -> Mapping[Partition, FetchedOffset] | None:
        return dict.fromkeys(partitions or (), FetchedOffset(None, pending=False))

    async def delete(self, group: str) -> GroupRefusal | None:
        return GroupRefusal.INVALID_GROUP_ID

    async def delete_partitions(
        self, group: str, topics: Mapping[Partition, str]
    ) -> Mapping[Partition, GroupRefusal | None] | GroupRefusal:
        return GroupRefusal.INVALID_GROUP_ID


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
