"""A shard that is put together, served: topics, offsets, groups, retention, and the edge, up and down in order.

    up:    logs led ─▶ (with other shards: hear them) ─▶ recover ─▶ copy what is placed ─▶ offsets, groups ─▶ listen
    down:  accept no more ─▶ answer what is in flight ─▶ copy what is placed

Nothing is served before the copy has caught up, so the first read after a crash finds all that was answered
(invariant 5) and of every transaction all or nothing (invariant 7).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from coordinator.settings import CoordinatorSettings
from fairlog.broker import Broker
from fairlog.cluster.interface import ClusterStore
from fairlog.config import Settings
from fairlog.config_values import Address
from fairlog.groups.committed import CommittedOffsets, OffsetsSettings, OffsetsStorage
from fairlog.groups.consumer.cluster_topics import ClusterTopics
from fairlog.groups.consumer.service import ConsumerGroups
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.groups_log import GroupsLog
from fairlog.groups.node_groups import NodeGroups
from fairlog.groups.offset_index import OffsetIndex
from fairlog.groups.offset_producers import OffsetProducers
from fairlog.groups.offsets_for_others import write_for_other
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.live_access import live_access
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_quotas import LiveQuotas
from fairlog.live_settings import LiveSettings
from fairlog.native.protocol import NativeProtocol
from fairlog.neighbourhood import Coordinators, Neighbourhood
from fairlog.node_view import Parts
from fairlog.retention.task import Retention
from fairlog.topics import LocalTopics
from journal.journal import Fsync
from shard.links import Confirm
from shard.offsets import OffsetsLogs
from shard.shard import Shard, ShardSettings

_CLOSING_SHARE = 0.25
"""Of `stop_grace_ms`: what requests in flight and the copying leave for the closing of files."""


@dataclass(frozen=True, slots=True)
class ShardParts:
    """What a shard's broker is made of."""

    settings: Settings
    cluster: ClusterStore
    live: LiveSettings
    shard: Shard
    """It leads nothing yet."""
    offset_index: OffsetIndex
    neighbourhood: Neighbourhood | None
    """The way to the other shards; None if there are none."""
    advertised: Mapping[str, Address]
    """By listener."""
    has_ended: Callable[[], bool] = field(default=lambda: False)
    """Whether the shard may have another owner by now (`Broker.has_ended`)."""
    confirm: Confirm | None = None
    """Makes sure that this process owns the shard (`Broker.confirm`)."""
    appends_wait: Callable[[], bool] = field(default=lambda: False)
    """Whether nothing new is begun for now (`Broker.appends_wait`)."""


class Stages(Protocol):
    """What else happens as a shard comes up and goes down."""

    async def recovered(self) -> None:
        """All that was placed is copied, and nothing is served yet."""
        ...

    def complete(self, parts: Parts) -> None:
        """All is there; clients are about to be served."""
        ...

    def serves(self) -> None:
        """Clients are served."""
        ...

    def stops(self) -> None:
        """It was told to stop."""
        ...


async def serve_shard(
    parts: ShardParts,
    doors: Sequence[Door],
    stages: Stages,
    life: trio.CancelScope,
    stop: trio.Event,
) -> None:
    """Serve until `stop`.

    Cancelling `life` ends it before it serves; from then on it is shielded and bounds its own end: it gets one deadline
    for all that follows. Raises CorruptStorage, StorageFailure.
    """
    settings, cluster, shard, neighbourhood = parts.settings, parts.cluster, parts.shard, parts.neighbourhood
    group_configs = LiveGroupConfigs(settings.groups, cluster)
    groups = make_groups(settings, cluster, group_configs, parts.offset_index)
    other_coordinators = (
        None if neighbourhood is None else Coordinators(cluster, shard, settings.transactions.group_separator)
    )
    storage = _offsets_storage(cluster, shard)
    offsets = _make_offsets(settings, cluster, shard, storage, parts.offset_index, groups, other_coordinators)
    groups_log = GroupsLog(storage, record_bytes_max=settings.journal.segment_bytes_max // 2)
    persister = GroupPersister(groups_log)
    topics = LocalTopics(cluster, shard, _now_ms, on_deleted=offsets.topic_deleted)
    await topics.recover()
    await shard.lead(offsets.logs())

    async with trio.open_nursery() as background:
        if not cluster.is_alone:
            background.start_soon(cluster.run)
            background.start_soon(parts.live.follow)
        if neighbourhood is not None:
            await neighbourhood.open(background, shard)
        await shard.recover()
        background.start_soon(shard.partitions.run)
        await shard.drain()
        await stages.recovered()
        await offsets.load()
        background.start_soon(shard.coordinator.run)  # from now on what is open may time out
        background.start_soon(topics.run)
        background.start_soon(shard.keep_cuts)
        groups.resume(persister, await groups_log.load())
        background.start_soon(persister.run)
        background.start_soon(groups.run)
        background.start_soon(offsets.run)
        retention = Retention(cluster, shard.partitions, parts.live, _now_ms)
        background.start_soon(retention.run)
        shard.serve_offsets(partial(write_for_other, groups, offsets))
        broker = Broker(
            cluster,
            topics,
            shard.partitions,
            shard.data_logs,
            shard.coordinator,
            parts.live,
            parts.advertised,
            offsets,
            groups,
            group_configs,
            LiveQuotas(cluster),
            shard.cutting,
            shard.past_cuts,
            shard.other_offsets,
            other_coordinators,
            access=live_access(settings.authorizer, cluster),
            has_ended=parts.has_ended,
            confirm=parts.confirm,
            appends_wait=parts.appends_wait,
        )
        async with trio.open_nursery() as serving:
            native = NativeProtocol(broker)
            server = Server(broker, [native])
            shown = Parts(
                cluster,
                shard,
                server.statistics,
                server.fetch_sessions,
                native.statistics,
                parts.advertised,
                groups,
                retention,
                broker.access,
            )
            stages.complete(shown)
            await serving.start(server.serve, doors)
            life.shield = True
            stages.serves()
            await stop.wait()
            stages.stops()
            grace_s = settings.stop_grace_ms / 1000
            life.deadline = trio.current_time() + grace_s
            closing_at = life.deadline - grace_s * _CLOSING_SHARE
            serving.cancel_scope.deadline = closing_at
            groups.stop()
            server.stop()
            shard.stop()
            background.start_soon(_close_links_at, closing_at, shard)
        if shard.failure is None:
            with trio.move_on_at(closing_at):
                await shard.drain()
        background.cancel_scope.cancel()


async def _close_links_at(time_s: float, shard: Shard) -> None:
    """Requests that wait for another shard are shielded: one that does not answer must not keep this one up."""
    await trio.sleep_until(time_s)
    shard.close_links()


def shard_settings(settings: Settings, group_journals: int) -> ShardSettings:
    """What the node's settings say of a shard; `group_journals` are those of the cluster."""
    transactions = settings.transactions
    return ShardSettings(
        fsync=Fsync(settings.journal.fsync),
        fsync_interval_ms=settings.journal.fsync_interval_ms,
        segment_bytes_max=settings.journal.segment_bytes_max,
        group_journals=group_journals,
        producer_expiration_ms=transactions.producer_id_expiration_ms,
        coordinator=CoordinatorSettings(
            check_interval_ms=transactions.check_interval_ms,
            fence_on_timeout=transactions.fence_on_timeout,
            min_timeout_ms=transactions.min_timeout_ms,
            max_timeout_ms=transactions.max_timeout_ms,
            two_phase_commit=transactions.two_phase_commit_enable,
            transactional_id_expiration_ms=transactions.transactional_id_expiration_ms,
            group_separator=transactions.group_separator,
        ),
    )


def make_groups(settings: Settings, cluster: ClusterStore, configs: LiveGroupConfigs, index: OffsetIndex) -> NodeGroups:
    """The groups of a broker, none of which has members yet."""
    groups = settings.groups
    classic = LocalGroups(
        GroupSettings(
            initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
            session_timeout_min_ms=groups.min_session_timeout_ms,
            session_timeout_max_ms=groups.max_session_timeout_ms,
            members_max=groups.members_max,
        ),
        index,
        now_ms=_now_ms,
        new_suffix=lambda: str(uuid.uuid4()),
    )
    consumer = ConsumerGroups(configs.consumer_settings, ClusterTopics(cluster), index, classic, now_ms=_now_ms)
    return NodeGroups(classic, consumer)


def _offsets_storage(cluster: ClusterStore, shard: Shard) -> OffsetsStorage:
    log_count = cluster.offsets_log_count
    own_logs = cluster.placement.offsets_logs(cluster.shard, log_count)
    return OffsetsStorage(log_count, own_logs, OffsetsLogs(shard.partitions, shard.coordinator), shard.data_logs)


def _make_offsets(
    settings: Settings,
    cluster: ClusterStore,
    shard: Shard,
    storage: OffsetsStorage,
    index: OffsetIndex,
    groups: NodeGroups,
    other_coordinators: Coordinators | None,
) -> CommittedOffsets:
    return CommittedOffsets(
        storage,
        index,
        groups,
        OffsetProducers(shard.coordinator, other_coordinators, now_ms=_now_ms),
        cluster,
        OffsetsSettings(
            commit_bytes_max=settings.requests.message_bytes_max,
            retention_ms=settings.offsets.retention_minutes * 60_000,
            check_interval_ms=settings.offsets.retention_check_interval_ms,
        ),
        now_ms=_now_ms,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
