"""The composition root of a node of several machines: engine, metadata, copies, brought up and taken down in order.

    up:    listen ─▶ engine ─▶ metadata: known, or founded ─▶ announced ─▶ placed ─▶ door ─▶ copies
    down:  copies hand over what is owned here ─▶ door ─▶ metadata ─▶ engine

`fairlog.node` is the one of a single machine. Here nothing is in the data directory that could not be had again: each
copy is kept equal to its shard's stream, and so are the metadata.

While the engine is away, a node that starts waits for it; one that serves goes on to serve reads.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import structlog
import trio

from fairlog import __version__
from fairlog.admin_http.cluster_view import MoveAnswer
from fairlog.bystander import make_bystander
from fairlog.cluster import reports_log
from fairlog.cluster.cluster_records import NODES_MAX, NodeNumber, NodeRecord
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_log import Founding, MetadataLog
from fairlog.cluster.records import OFFSETS_LOGS
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster.reports_log import ReportsLog
from fairlog.cluster_node.copies import Copies, stream_of
from fairlog.cluster_node.engine import keep_checked, open_engine, open_stream
from fairlog.cluster_node.moving import move
from fairlog.cluster_node.placing import Placing
from fairlog.cluster_node.ports import NodeListeners, open_listeners
from fairlog.cluster_node.status import UP_AGE_S, ClusterStatus, look
from fairlog.config import ConfigError, Ready, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.data_directory import CLUSTER, MANIFEST, METADATA
from fairlog.exception_groups import leaves
from fairlog.kafka.server import Server
from fairlog.listening import bound_to
from fairlog.live_settings import LiveSettings
from fairlog.native.protocol import NativeProtocol
from fairlog.open_files import raise_open_files_limit
from fairlog.opening_listeners import ADMIN, open_tls, open_way, warn_if_open
from fairlog.security.tls import TlsListener
from fairlog.user_accounts import StoreAccounts
from fairlog_types import ShardNumber, StorageFailure
from shard.directory import shard_directories
from shard.joining import remove_leftovers
from shard.progress import CopyProgress
from shard.shard import close_in_thread
from stream.engine import EngineAway

log = structlog.get_logger("fairlog.node")

METADATA_STREAM = "metadata"
AGAIN_S = 1.0


class SecondNode(ConfigError):
    """Another process is this node of the cluster, too. The message is one sentence."""


async def serve(settings: Settings, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
    """Run a node until cancelled; `task_status.started` gets its first address once clients are served.

    Cancelled: hands over what it owns, and stops within `stop_grace_ms`. The caller holds the data directory
    (`fairlog.directory`). Raises ConfigError, StoreMismatch, CorruptStorage, StorageFailure, EntryGone, StreamCutOff,
    in groups; OSError if it cannot listen.
    """
    raise_open_files_limit()
    number = NodeNumber(settings.node_id)
    if number >= NODES_MAX:
        raise ConfigError(f"node_id ({number}) must be below {NODES_MAX} in a cluster of several machines")
    if (settings.data_dir / CLUSTER).exists():
        raise ConfigError(
            f"{settings.data_dir} has journals in files: a node of several machines begins with an empty data "
            "directory (data_dir); topics of the old one can be copied by a client"
        )
    if (settings.data_dir / MANIFEST).exists():
        raise ConfigError(
            f"{settings.data_dir} is a backup: a node of several machines begins with an empty data directory "
            "(data_dir), and gets its copies of other nodes"
        )
    stop, failures = trio.Event(), list[Exception]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_when_cancelled, stop)

        async def run(*, task_status: trio.TaskStatus[Ready]) -> None:
            await _run(settings, number, stop, failures, task_status=task_status)
            nursery.cancel_scope.cancel()

        task_status.started(await nursery.start(run))
    if failures:
        raise ExceptionGroup("the node cannot go on", failures)


async def _set_when_cancelled(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


async def _run(
    settings: Settings,
    number: NodeNumber,
    stop: trio.Event,
    failures: list[Exception],
    *,
    task_status: trio.TaskStatus[Ready],
) -> None:
    """Cancelling ends it as long as it does not serve; from then on it ends by `stop` alone, and within the grace time.

    What fails for good is added to `failures`, and sets `stop`: what the node owns is handed over before it is raised.
    """
    with trio.CancelScope() as life:
        async with AsyncExitStack() as stack:
            tls = await open_tls(stack, settings)
            listeners = await open_listeners(stack, settings, tls, await open_way(stack, settings))
            warn_if_open(settings, bound_to(listeners.doors))
            shown = ListenerAddresses.of(listeners.advertised)
            sight = _Sight()
            admin = await _open_admin(stack, settings, sight, tls.get(ADMIN))
            await trio.to_thread.run_sync(remove_leftovers, settings.data_dir)
            engine = await stack.enter_async_context(open_engine(settings))
            stream = await open_stream(engine, METADATA_STREAM)
            copy = await trio.to_thread.run_sync(LocalCopy.open, settings.data_dir / METADATA, stream.name)
            stack.push_async_callback(close_in_thread, copy.close)
            if copy.state is None and (here := shard_directories(settings.data_dir)):
                raise ConfigError(
                    f"{settings.data_dir} has copies of shards ({', '.join(str(each.number) for each in here)}) and no "
                    f"metadata: whether they are of the cluster {settings.cluster.name} is not known. Put {METADATA}/ "
                    "back, or begin with an empty data directory (data_dir)"
                )
            metadata = MetadataLog(stream, copy)
            async with trio.open_nursery() as background:

                def keep(run: Callable[[], Awaitable[None]]) -> None:
                    background.start_soon(_stop_after, stop, failures, run)

                keep(metadata.run)
                await metadata.found(_founding(settings))
                store = ReplicatedStore(metadata, number, ShardNumber(0))
                incarnation = os.urandom(16)
                await _announce(store, settings, listeners, incarnation, stop)
                if not stop.is_set():  # else it may not be announced, and the record be of its last run
                    keep(partial(_watch_for_a_second, store, metadata, number, incarnation))
                progress: dict[ShardNumber, CopyProgress] = {}
                cluster = metadata.memory.cluster
                said = ReportsLog(
                    await open_stream(engine, reports_log.STREAM), cluster.uuid, number, incarnation, progress
                )
                keep(said.run)
                keep(partial(keep_checked, engine, lambda: [METADATA_STREAM, *map(stream_of, progress)]))
                placing = Placing(metadata, number, settings.cluster.replicas, said)
                keep(partial(placing.run, store))
                live = LiveSettings(replace(settings, node_id=store.node_id), store)
                keep(live.follow)
                broker = make_bystander(store, live, listeners.advertised)
                sight.knows(
                    StoreAccounts(store, broker.access),
                    store,
                    lambda: look(
                        settings.cluster.name,
                        number,
                        metadata.memory,
                        said.reports,
                        engine.health(),
                        trio.current_time(),
                        handshakes_failed=sum(each.failed for each in tls.values()) + listeners.way.failed,
                    ),
                    lambda: said.reports.hears(number, UP_AGE_S),
                )
                door = Server(broker, [NativeProtocol(broker)])
                await background.start(door.serve, listeners.doors)
                log.info("ready", version=__version__, address=str(shown), node=number)
                life.shield = True
                task_status.started(Ready(shown, admin))
                background.start_soon(_bound_the_end, stop, life, settings.stop_grace_ms / 1000)
                await Copies(settings, number, metadata, store, engine, listeners, progress, said, failures).run(stop)
                background.cancel_scope.cancel()
        log.info("stopped")
    if life.cancelled_caught:
        log.warning("stopped before all was handed over", grace_ms=settings.stop_grace_ms)


class _Sight:
    """What the admin listener shows, and changes."""

    def __init__(self) -> None:
        self._known: tuple[ReplicatedStore, Callable[[], ClusterStatus], Callable[[], bool]] | None = None
        self._accounts: StoreAccounts | None = None

    def knows(
        self,
        accounts: StoreAccounts,
        store: ReplicatedStore,
        look: Callable[[], ClusterStatus],
        hears: Callable[[], bool],
    ) -> None:
        """From now on the cluster is known. `hears` says whether the others are heard, if they are up."""
        self._accounts = accounts
        self._known = store, look, hears

    def now(self) -> ClusterStatus | None:
        """The cluster; None until it is known."""
        return None if self._known is None else self._known[1]()

    def accounts(self) -> StoreAccounts | None:
        """The users; None until the cluster is known."""
        return self._accounts

    async def move(self, shard: int, node: int | None) -> MoveAnswer:
        """Ask that a node owns a shard."""
        assert self._known is not None
        store, look, hears = self._known
        return await move(store, look(), shard, node, hears=hears())


async def _open_admin(
    stack: AsyncExitStack, settings: Settings, sight: _Sight, tls: TlsListener | None
) -> Address | None:
    """Begin to serve health, metrics and the console; answers where. Up first and down last. Raises ConfigError."""
    address = settings.admin.listen
    if address is None:
        return None
    from fairlog.admin_http import assets
    from fairlog.admin_http.cluster_app import make_cluster_app
    from fairlog.admin_http.statistics import AdminStatistics
    from fairlog.admin_listener import open_admin
    from fairlog.cluster_node import metrics

    statistics = AdminStatistics()
    app = partial(
        make_cluster_app,
        sight.now,
        partial(metrics.exposition, statistics),
        sight.move,
        sight.accounts,
        host_names=settings.admin.hosts,
    )
    return await open_admin(stack, settings, address, app, tls, statistics, page=assets.CLUSTER_PAGE)


async def _stop_after(stop: trio.Event, failures: list[Exception], run: Callable[[], Awaitable[None]]) -> None:
    """Run, and stop the node in good order if that fails: what it owns is handed over before the failure is raised."""
    try:
        await run()
    except Exception as failure:  # noqa: BLE001 (it is raised at the end)
        log.error("the node cannot go on", reason="; ".join(map(str, leaves(failure))))  # noqa: TRY400
        failures.append(failure)
        stop.set()


def _founding(settings: Settings) -> Founding:
    shards = settings.cluster.shards
    return Founding(
        shards=shards,
        group_journal_count=settings.journal.group_journals,
        offsets_log_count=max(OFFSETS_LOGS, shards),
        group_separator=settings.transactions.group_separator,
    )


async def _announce(
    store: ReplicatedStore, settings: Settings, listeners: NodeListeners, incarnation: bytes, stop: trio.Event
) -> None:
    """Until it is done, or `stop`: what has failed for good is raised where the node ends."""
    record = NodeRecord(
        incarnation, listeners.host, listeners.inner_host, listeners.ports, settings.cluster.rack or None
    )
    while not stop.is_set():
        try:
            await store.announce(record, listeners.places, has_inner_tls=listeners.way.has_tls)
        except (StorageFailure, EngineAway) as failure:
            log.warning("the node is not announced yet", reason=str(failure))
            await trio.sleep(AGAIN_S)
        else:
            return


async def _watch_for_a_second(
    store: ReplicatedStore, metadata: MetadataLog, number: NodeNumber, incarnation: bytes
) -> None:
    """Raises SecondNode."""
    while True:
        changed = store.changed()
        record = metadata.memory.nodes.get(number)
        if record is not None and record.incarnation != incarnation:
            raise SecondNode(
                f"another process at {record.host} has announced itself as node {number}: give each node of the "
                "cluster its own node_id"
            )
        await changed.wait()


async def _bound_the_end(stop: trio.Event, life: trio.CancelScope, grace_s: float) -> None:
    await stop.wait()
    life.deadline = trio.current_time() + grace_s
    log.info("stopping", grace_ms=round(grace_s * 1000))
