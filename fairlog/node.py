"""The composition root: one node, put together from the rooms, brought up, served and taken down in order.

    up:    admin listener ─▶ (a backup taken over) ─▶ cluster store, groups ─▶ data logs ─▶ journals replayed
           ─▶ (with other shards: hear them) ─▶ coordinator says again what it had decided ─▶ what is placed is copied
           ─▶ listen ─▶ ready
    down:  accept no more ─▶ answer what is in flight ─▶ copy what is placed ─▶ close journals, data logs, store
           ─▶ admin listener

Nothing is served before the copy has caught up, so the first read after a crash finds all that was answered
(invariant 5) and of every transaction all or nothing (invariant 7).

What lies in the data directory, `fairlog.data_directory` says; in a shard's directory, `shard.directory`. All this is
for one shard. If there are several, a supervisor has started the processes (`fairlog.supervisor`), and each does it for
every shard that it is told to serve. Shards speak with each other over connections of their own
(`fairlog.interbroker`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import structlog
import trio

from coordinator.settings import CoordinatorSettings
from fairlog import __version__
from fairlog.broker import Broker
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.interface import BrokerAddress
from fairlog.config import ConfigError, Ready, Settings, advertised_address
from fairlog.config_values import Address
from fairlog.data_directory import CLUSTER
from fairlog.groups.committed import CommittedOffsets, OffsetsSettings, OffsetsStorage
from fairlog.groups.consumer.cluster_topics import ClusterTopics
from fairlog.groups.consumer.service import ConsumerGroups
from fairlog.groups.group_persister import GroupPersister
from fairlog.groups.node_groups import NodeGroups
from fairlog.groups.offset_index import OffsetIndex
from fairlog.groups.offset_producers import OffsetProducers
from fairlog.groups.offsets_for_others import write_for_other
from fairlog.groups.persisted_group import PersistedGroup
from fairlog.groups.persisted_group_store import PersistedGroupStore
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog.interbroker import secret as broker_secret
from fairlog.kafka.server import Server
from fairlog.last_run import LastRun
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_settings import LiveSettings
from fairlog.native.protocol import NativeProtocol
from fairlog.neighbourhood import INTERNAL_HOST, Coordinators, Neighbourhood
from fairlog.node_view import NodeView, Parts
from fairlog.open_files import raise_open_files_limit
from fairlog.preparation import require_cluster_store, take_over_backup
from fairlog.retention.task import Retention
from fairlog.topics import LocalTopics
from fairlog_types import LeaderEpoch, ShardNumber
from journal.journal import Fsync
from shard.directory import ShardDirectory, shard_directory
from shard.offsets import OffsetsLogs
from shard.shard import Shard, ShardSettings, close_in_thread, open_shard, open_storage

log = structlog.get_logger()


class AdminPortTaken(ConfigError):
    """The admin listener's address cannot be listened on. The message is one sentence."""


_CLOSING_SHARE = 0.25
"""Of `stop_grace_ms`: what requests in flight and the copying leave for the closing of files."""


async def serve(settings: Settings, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
    """Run a node until cancelled; `task_status.started` gets the addresses once clients are served.

    Cancelled: stops in good order, all within `stop_grace_ms`; what is not done by then is done at the next start. (A
    thread that waits for the disk cannot be called back, and is waited for: only the process's end is beyond that.)
    The caller holds the data directory (`fairlog.directory`). Raises, before it serves: StoreMismatch,
    CorruptStorage, StorageFailure, ConfigError, AdminPortTaken, OSError if it cannot listen.
    """
    raise_open_files_limit()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_when_cancelled, stop)
        task_status.started(await nursery.start(_run, settings, stop))


async def _set_when_cancelled(stop: trio.Event) -> None:
    """A task of its own, so that `stop` is set also if the cancellation falls into the very moment of `started`."""
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


async def _run(settings: Settings, stop: trio.Event, *, task_status: trio.TaskStatus[Ready]) -> None:
    """The node's life. Cancelling ends it as long as it does not serve; from then on it is shielded and ends by
    `stop` alone, because it bounds its own end: `life` has one deadline for all that follows."""
    with trio.CancelScope() as life:
        async with AsyncExitStack() as stack:
            listeners = await trio.open_tcp_listeners(settings.listen.port, host=settings.listen.host)
            for listener in listeners:
                stack.push_async_callback(listener.aclose)
            advertised = advertised_address(settings, _bound_to(listeners))
            started = trio.current_time()
            view = NodeView(_now_ms, None if settings.shards == 1 else settings.shard)
            admin = await _open_admin(stack, settings, view)
            if settings.shards == 1:
                await trio.to_thread.run_sync(take_over_backup, settings)
            directory = shard_directory(settings.data_dir, ShardNumber(settings.shard))
            own_note = None if settings.shards == 1 else directory
            last_run = await trio.to_thread.run_sync(LastRun.read, settings.data_dir, own_note)
            cluster = await _open_cluster(stack, settings)
            live = LiveSettings(replace(settings, node_id=cluster.node_id), cluster)
            neighbourhood = await _open_neighbourhood(stack, settings, cluster)
            await _announce(cluster, advertised, neighbourhood)
            persister, persisted_groups = await _open_persister(stack, directory, cluster)
            offset_index = OffsetIndex(_now_ms)
            shard = await _open_shard(stack, directory, settings, cluster, last_run, offset_index, neighbourhood)
            group_configs = LiveGroupConfigs(settings.groups, cluster)
            groups = _make_groups(settings, cluster, group_configs, offset_index)
            other_coordinators = (
                None if neighbourhood is None else Coordinators(cluster, shard, settings.transactions.group_separator)
            )
            offsets = _make_offsets(settings, cluster, shard, offset_index, groups, other_coordinators)
            topics = LocalTopics(cluster, shard, _now_ms, on_deleted=offsets.topic_deleted)
            await topics.recover()
            await shard.lead(offsets.logs())

            async with trio.open_nursery() as background:
                if neighbourhood is not None:
                    background.start_soon(cluster.run)
                    background.start_soon(live.follow)
                    await neighbourhood.open(background, shard)
                await shard.recover()
                background.start_soon(shard.partitions.run)
                await shard.drain()
                await trio.to_thread.run_sync(last_run.begin, shard.leader_epoch)
                await offsets.load()
                background.start_soon(shard.coordinator.run)  # from now on what is open may time out
                background.start_soon(topics.run)
                background.start_soon(shard.keep_cuts)
                groups.resume(persister, persisted_groups)
                background.start_soon(persister.run)
                background.start_soon(groups.run)
                background.start_soon(offsets.run)
                retention = Retention(cluster, shard, live, _now_ms)
                background.start_soon(retention.run)
                shard.serve_offsets(partial(write_for_other, groups, offsets))
                broker = Broker(
                    cluster,
                    topics,
                    shard.partitions,
                    shard.data_logs,
                    shard.coordinator,
                    live,
                    advertised,
                    offsets,
                    groups,
                    group_configs,
                    shard.cutting,
                    shard.past_cuts,
                    shard.other_offsets,
                    other_coordinators,
                )
                log.info(
                    "ready",
                    version=__version__,
                    address=str(advertised),
                    start=cluster.starts,
                    topics=len(cluster.topics()),
                    tail_kept=last_run.tail_kept,
                    seconds=round(trio.current_time() - started, 3),
                )
                async with trio.open_nursery() as serving:
                    native = NativeProtocol(broker)
                    server = Server(broker, [native])
                    parts = Parts(
                        cluster,
                        shard,
                        server.statistics,
                        server.fetch_sessions,
                        native.statistics,
                        advertised,
                        groups,
                        retention,
                    )
                    view.serves(parts)
                    await serving.start(server.serve, listeners)
                    life.shield = True
                    task_status.started(Ready(advertised, admin))
                    await stop.wait()
                    view.stops()
                    log.info("stopping", grace_ms=settings.stop_grace_ms)
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
        await trio.to_thread.run_sync(_note_end, last_run, shard.failure is None)
        log.info("stopped")
    if life.cancelled_caught:
        log.warning("stopped without closing all files in good order", grace_ms=settings.stop_grace_ms)


async def _close_links_at(time_s: float, shard: Shard) -> None:
    """Requests that wait for another shard are shielded: one that does not answer must not keep this one up."""
    await trio.sleep_until(time_s)
    shard.close_links()


def _note_end(last_run: LastRun, good: bool) -> None:
    if not good:
        last_run.failed()
        return
    try:
        last_run.end()
    except OSError as error:
        log.warning("the good end is not noted; the next start takes this run for a killed one", reason=str(error))


async def _open_admin(stack: AsyncExitStack, settings: Settings, view: NodeView) -> Address | None:
    """Begin to serve health, metrics and the console; answers where. Up first and down last."""
    address = settings.admin.listen
    if address is None:
        return None
    # Starlette, hypercorn and prometheus-client take 0.2 s to load, which a node without the listener is spared.
    from fairlog.admin_http import admin_token, assets
    from fairlog.admin_http.app import make_app
    from fairlog.admin_http.server import open_admin_server
    from fairlog.admin_http.shards import Shards

    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise AdminPortTaken(
            f"cannot listen on {address} for the admin listener: {error.strerror or error}; "
            "choose another HOST:PORT, or off, with admin.listen (--admin)"
        ) from error
    for listener in listeners:
        stack.push_async_callback(listener.aclose)
    if settings.admin.token is None:
        token = await trio.to_thread.run_sync(admin_token.load_or_make, settings.data_dir)
    else:
        token = settings.admin.token.text
    files = await trio.to_thread.run_sync(assets.load)
    shards = Shards(settings.shard, settings.admin_listeners) if settings.admin_listeners else None
    app = make_app(view, token=token, host_names=settings.admin.hosts, assets=files, shards=shards)
    await stack.enter_async_context(open_admin_server(app, listeners))
    bound = _bound_to(listeners)
    log.info("admin listener", address=str(bound))
    return bound


async def _open_cluster(stack: AsyncExitStack, settings: Settings) -> EmbeddedStore:
    require_cluster_store(settings)
    cluster = await trio.to_thread.run_sync(
        partial(
            EmbeddedStore.open,
            settings.data_dir / CLUSTER,
            node_id=settings.node_id,
            group_journal_count=settings.journal.group_journals,
            shards=settings.shards,
            shard=ShardNumber(settings.shard),
        )
    )
    stack.push_async_callback(close_in_thread, cluster.close)
    return cluster


async def _announce(cluster: EmbeddedStore, advertised: Address, neighbourhood: Neighbourhood | None) -> None:
    internal = None if neighbourhood is None else neighbourhood.address
    await cluster.announce(BrokerAddress(cluster.node_id, advertised.host, advertised.port), internal)


async def _open_neighbourhood(
    stack: AsyncExitStack, settings: Settings, cluster: EmbeddedStore
) -> Neighbourhood | None:
    """The way to the other shards; None if there are none."""
    if settings.shards == 1:
        return None
    secret = await trio.to_thread.run_sync(broker_secret.load, settings.data_dir)
    neighbourhood = Neighbourhood(cluster, secret, await trio.open_tcp_listeners(0, host=INTERNAL_HOST))
    for listener in neighbourhood.listeners:
        stack.push_async_callback(listener.aclose)
    return neighbourhood


async def _open_persister(
    stack: AsyncExitStack, directory: ShardDirectory, cluster: EmbeddedStore
) -> tuple[GroupPersister, Mapping[str, PersistedGroup]]:
    """What keeps groups over restarts, and what it has kept. Right behind the cluster store: of a start that is counted
    there and not here, the next one would think that it was another program's."""
    store, groups = await trio.to_thread.run_sync(
        PersistedGroupStore.open, directory.persisted_groups, LeaderEpoch(cluster.starts)
    )
    stack.push_async_callback(close_in_thread, store.close)
    return GroupPersister(store), groups


async def _open_shard(
    stack: AsyncExitStack,
    directory: ShardDirectory,
    settings: Settings,
    cluster: EmbeddedStore,
    last_run: LastRun,
    offset_index: OffsetIndex,
    neighbourhood: Neighbourhood | None,
) -> Shard:
    """The shard of this node; it leads nothing yet."""
    transactions, leader_epoch = settings.transactions, LeaderEpoch(cluster.starts)
    storage = await stack.enter_async_context(
        open_storage(directory, map_bytes=settings.datalog.map_bytes, watcher=last_run)
    )
    return await stack.enter_async_context(
        open_shard(
            directory,
            storage,
            ShardSettings(
                fsync=Fsync(settings.journal.fsync),
                fsync_interval_ms=settings.journal.fsync_interval_ms,
                segment_bytes_max=settings.journal.segment_bytes_max,
                group_journals=cluster.group_journal_count,
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
            ),
            leader_epoch=leader_epoch,
            producer_ids=cluster,
            begun=cluster.group_journals_begun,
            note_begun=cluster.note_group_journals_begun,
            whole_since=partial(last_run.whole_since, leader_epoch),
            offsets_decided=offset_index.decided,
            now_ms=_now_ms,
            neighbours=None if neighbourhood is None else neighbourhood.neighbours,
        )
    )


def _make_groups(
    settings: Settings, cluster: EmbeddedStore, configs: LiveGroupConfigs, index: OffsetIndex
) -> NodeGroups:
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


def _make_offsets(
    settings: Settings,
    cluster: EmbeddedStore,
    shard: Shard,
    index: OffsetIndex,
    groups: NodeGroups,
    other_coordinators: Coordinators | None,
) -> CommittedOffsets:
    log_count = cluster.offsets_log_count
    return CommittedOffsets(
        OffsetsStorage(
            log_count,
            cluster.placement.offsets_logs(cluster.shard, log_count),
            OffsetsLogs(shard.partitions, shard.coordinator),
            shard.data_logs,
        ),
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


def _bound_to(listeners: list[trio.SocketListener]) -> Address:
    host, port = listeners[0].socket.getsockname()[:2]
    return Address(host, port)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
