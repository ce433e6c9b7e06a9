"""The composition root: one node, put together from the rooms, brought up, served and taken down in order.

    up:    admin listener ─▶ (a backup taken over) ─▶ cluster store ─▶ data logs ─▶ journals replayed
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

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
import trio

from fairlog import __version__
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.config import Ready, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.configured_listeners import advertised_endpoints, listen_addresses
from fairlog.data_directory import CLUSTER
from fairlog.groups.offset_index import OffsetIndex
from fairlog.interbroker import secret as broker_secret
from fairlog.last_run import LastRun
from fairlog.listening import bound_to, open_doors
from fairlog.live_settings import LiveSettings
from fairlog.neighbourhood import INTERNAL_HOST, Neighbourhood
from fairlog.node_view import NodeView, Parts
from fairlog.open_files import raise_open_files_limit
from fairlog.opening_listeners import ADMIN, open_tls, warn_if_open
from fairlog.preparation import require_cluster_store, take_over_backup
from fairlog.security.tls import TlsListener
from fairlog.serving import ShardParts, serve_shard, shard_settings
from fairlog_types import LeaderEpoch, ShardNumber
from shard.directory import ShardDirectory, shard_directory
from shard.shard import Shard, close_in_thread, open_shard, open_storage

log = structlog.get_logger()


async def serve(settings: Settings, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
    """Run a node until cancelled; `task_status.started` gets the addresses once clients are served.

    Cancelled: stops in good order, all within `stop_grace_ms`; what is not done by then is done at the next start. (A
    thread that waits for the disk cannot be called back, and is waited for: only the process's end is beyond that.)
    The caller holds the data directory (`fairlog.directory`). Raises, before it serves: StoreMismatch,
    CorruptStorage, StorageFailure, ConfigError, OSError if it cannot listen.
    """
    raise_open_files_limit()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_when_cancelled, stop)
        task_status.started(await nursery.start(_run, settings, stop))


@dataclass(frozen=True, slots=True)
class _Stages:
    """What the node does beside its shard. Implements `fairlog.serving.Stages`."""

    parts: ShardParts
    last_run: LastRun
    view: NodeView
    started_s: float
    told: Callable[[], None]
    """Says that clients are served."""

    async def recovered(self) -> None:
        await trio.to_thread.run_sync(self.last_run.begin, self.parts.shard.leader_epoch)

    def complete(self, parts: Parts) -> None:
        log.info(
            "ready",
            version=__version__,
            address=str(ListenerAddresses.of(self.parts.advertised)),
            start=self.parts.cluster.starts,
            topics=len(self.parts.cluster.topics()),
            tail_kept=self.last_run.tail_kept,
            seconds=round(trio.current_time() - self.started_s, 3),
        )
        self.view.serves(parts)

    def serves(self) -> None:
        self.told()

    def stops(self) -> None:
        self.view.stops()
        log.info("stopping", grace_ms=self.parts.settings.stop_grace_ms)


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
            tls = await open_tls(stack, settings)
            doors = await open_doors(stack, listen_addresses(settings), tls)
            bound = bound_to(doors)
            advertised = advertised_endpoints(settings, bound)
            if settings.shard == 0:
                warn_if_open(settings, bound)
            started = trio.current_time()
            admin_counts = AdminStatistics()
            view = NodeView(_now_ms, admin_counts, None if settings.shards == 1 else settings.shard)
            admin = await _open_admin(stack, settings, view, tls.get(ADMIN), admin_counts)
            if settings.shards == 1:
                await trio.to_thread.run_sync(take_over_backup, settings)
            directory = shard_directory(settings.data_dir, ShardNumber(settings.shard))
            own_note = None if settings.shards == 1 else directory
            last_run = await trio.to_thread.run_sync(LastRun.read, settings.data_dir, own_note)
            cluster = await _open_cluster(stack, settings)
            live = LiveSettings(replace(settings, node_id=cluster.node_id), cluster)
            neighbourhood = await _open_neighbourhood(stack, settings, cluster)
            await _announce(cluster, advertised, neighbourhood)
            offset_index = OffsetIndex(_now_ms)
            shard = await _open_shard(stack, directory, settings, cluster, last_run, offset_index, neighbourhood)
            await trio.to_thread.run_sync(_remove_earlier_groups, directory.earlier_groups)
            parts = ShardParts(
                settings,
                cluster,
                live,
                shard,
                offset_index,
                neighbourhood,
                advertised,
            )
            told = partial(task_status.started, Ready(ListenerAddresses.of(advertised), admin))
            await serve_shard(parts, doors, _Stages(parts, last_run, view, started, told), life, stop)
        await trio.to_thread.run_sync(_note_end, last_run, shard.failure is None)
        log.info("stopped")
    if life.cancelled_caught:
        log.warning("stopped without closing all files in good order", grace_ms=settings.stop_grace_ms)


def _remove_earlier_groups(store: Path) -> None:
    """An earlier version had groups' members there, and has them not in the offsets logs: they join again."""
    if not store.exists():
        return
    try:
        shutil.rmtree(store)
    except OSError as error:
        log.warning("a directory that is of no use is not removed", directory=str(store), reason=str(error))
    else:
        log.info("members of groups have to join again once: an earlier version kept them apart", removed=str(store))


def _note_end(last_run: LastRun, good: bool) -> None:
    if not good:
        last_run.failed()
        return
    try:
        last_run.end()
    except OSError as error:
        log.warning("the good end is not noted; the next start takes this run for a killed one", reason=str(error))


async def _open_admin(
    stack: AsyncExitStack, settings: Settings, view: NodeView, tls: TlsListener | None, statistics: AdminStatistics
) -> Address | None:
    """Begin to serve health, metrics and the console; answers where. Up first and down last."""
    address = settings.admin.listen
    if address is None:
        return None
    from fairlog.admin_http import assets
    from fairlog.admin_http.app import make_app
    from fairlog.admin_http.shards import Shards
    from fairlog.admin_listener import open_admin

    shards = None
    if settings.admin_listeners:
        certificate = None if tls is None else settings.tls.certificate
        shards = Shards(settings.shard, settings.admin_listeners, certificate)
    app = partial(make_app, view, host_names=settings.admin.hosts, shards=shards)
    return await open_admin(stack, settings, address, app, tls, statistics, page=assets.PAGE)


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


async def _announce(
    cluster: EmbeddedStore, advertised: Mapping[str, Address], neighbourhood: Neighbourhood | None
) -> None:
    internal = None if neighbourhood is None else neighbourhood.address
    await cluster.announce({name: (each.host, each.port) for name, each in advertised.items()}, internal)


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
    leader_epoch = LeaderEpoch(cluster.starts)
    storage = await stack.enter_async_context(
        open_storage(directory, map_bytes=settings.datalog.map_bytes, watcher=last_run)
    )
    return await stack.enter_async_context(
        open_shard(
            directory,
            storage,
            shard_settings(settings, cluster.group_journal_count),
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
