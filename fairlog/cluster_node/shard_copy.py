"""This node's copy of one shard: it follows, owns and follows again, and its port is served all the while.

    replica ─▶ owner ─▶ replica …        `shard.roles` says when; here is what a node does as each of them
       │         └─ the shard's broker (`fairlog.serving`), published to all nodes
       └─ a bystander at the shard's port, also while the owner is opening

The port's sockets are the node's (`ports`): a client that comes between two of those who accept waits a moment.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog
import trio

from fairlog.broker import Broker
from fairlog.bystander import make_bystander
from fairlog.cluster.cluster_memory import StaleOwner
from fairlog.cluster.cluster_records import NodeNumber, ShardRecord
from fairlog.cluster.interface import InnerAddress
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster.reports import FOLLOWING_AGE_S, IN_SYNC_AGE_S, PastEnds, Reports, in_sync, is_following
from fairlog.cluster.trimming import keep_trimmed
from fairlog.cluster_node.engine import AWAY_PAUSE_S, append_timeout_s
from fairlog.cluster_node.ports import NodeListeners
from fairlog.cluster_node.standing_by import stand_by
from fairlog.config import Settings
from fairlog.config_values import ListenerAddresses
from fairlog.exception_groups import leaves
from fairlog.groups.offset_index import OffsetIndex
from fairlog.interbroker.getting_copies import get_copy
from fairlog.interbroker.peers import Peers
from fairlog.kafka.server import Server
from fairlog.listening import Door, another_listener
from fairlog.live_settings import LiveSettings
from fairlog.native.protocol import NativeProtocol
from fairlog.neighbourhood import Neighbourhood
from fairlog.node_view import Parts
from fairlog.retention.task import Retention
from fairlog.serving import ShardParts, serve_shard, shard_settings
from fairlog.topic_configs import mode_of
from fairlog_types import LeaderEpoch, LogId, Offset, ShardNumber, StorageFailure, TxId
from partition.modes import JOURNAL, TransactionMode
from shard.directory import shard_directory
from shard.giving import Giver
from shard.joining import falls_short
from shard.owned import OwnedShard
from shard.partitions import Partitions
from shard.progress import CopyProgress
from shard.replica import Replica, StreamTimes
from shard.roles import Copy, play_roles
from shard.shard import open_storage
from stream.engine import EngineAway, EntryGone, Stream, StreamPosition
from stream.fold import NOTHING_READ
from stream.writer import StreamWriter

log = structlog.get_logger("fairlog.copy")

PUBLISH_EVERY_S = 1.0
"""So often it is looked which copies are in sync, or tried again."""
LAST_ANSWERS_S = 2.0
"""So long a bystander waits for clients to read its last answers; some never do."""
HEARTBEATS = 6
"""In the time that it takes until another node takes the shard."""


def times_of(settings: Settings) -> StreamTimes:
    """What the settings say of how an owner is heard."""
    failover_s = settings.cluster.failover_ms / 1000
    return StreamTimes(
        failover_s=failover_s, heartbeat_s=failover_s / HEARTBEATS, gives_up_s=append_timeout_s(settings)
    )


@dataclass(frozen=True, slots=True)
class CopyParts:
    """What a copy is made of."""

    settings: Settings
    node: NodeNumber
    shard: ShardNumber
    metadata: MetadataLog
    stream: Stream
    listeners: NodeListeners
    reports: Reports
    """What all nodes say of their copies."""
    progress: CopyProgress
    """What this one says of this copy."""
    engine_is_silent: Callable[[], bool]
    """Whether the last thing heard of the engine was that it does not answer."""


async def keep_copy(parts: CopyParts, stop: trio.Event) -> None:
    """Keep the copy until `stop`; then hand the shard over, if it is owned here.

    If the stream has been trimmed further than the copy has read, it is made anew of another node's. Raises
    CorruptStorage, StorageFailure, StreamCutOff, in groups.
    """
    with structlog.contextvars.bound_contextvars(shard=parts.shard):
        while not stop.is_set():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
                nursery.start_soon(_stand_by, parts)
                await _make_anew_if_it_falls_short(parts)
                nursery.cancel_scope.cancel()
            if stop.is_set():
                break
            try:
                await ShardCopy(parts).run(stop)
            except* EntryGone as gone:
                log.warning("the copy is behind what the stream still has", reason=str(next(leaves(gone))))


async def _stand_by(parts: CopyParts) -> None:
    """While there is no copy yet."""
    await stand_by(parts.settings, parts.node, parts.shard, parts.metadata, parts.listeners, parts.engine_is_silent)


async def _make_anew_if_it_falls_short(parts: CopyParts) -> None:
    directory = shard_directory(parts.settings.data_dir, parts.shard)
    while True:
        try:
            falls = await falls_short(directory, parts.stream)
        except EngineAway as away:
            log.warning("waits for the engine", stream=parts.stream.name, reason=str(away))
            await trio.sleep(AWAY_PAUSE_S)
        else:
            break
    if falls:
        cluster = parts.metadata.memory.cluster
        await get_copy(
            directory,
            parts.stream.name,
            lambda: _givers(parts),
            cluster_id=cluster.cluster_id,
            secret=cluster.secret,
            way=parts.listeners.way,
            progress=parts.progress,
        )


def _givers(parts: CopyParts) -> Sequence[InnerAddress]:
    """Where other nodes with a copy are reached: replicas first, for the owner has enough to do."""
    memory = parts.metadata.memory
    record = memory.shard(parts.shard)
    others = [node for node in record.copies if node not in (parts.node, record.owner)]
    if record.owner is not None and record.owner != parts.node:
        others.append(record.owner)
    addresses = (memory.internal_address(node, parts.shard) for node in others)
    return [address for address in addresses if address is not None]


class ShardCopy:
    """Implements `shard.roles.Roles`."""

    def __init__(self, parts: CopyParts) -> None:
        self._parts = parts
        self._metadata = parts.metadata
        self._store = ReplicatedStore(parts.metadata, parts.node, parts.shard)
        self._settings = replace(parts.settings, node_id=self._store.node_id)
        self._live = LiveSettings(self._settings, self._store)
        self._directory = shard_directory(self._settings.data_dir, parts.shard)
        self._advertised = parts.listeners.advertised_of(parts.shard)
        self._index = OffsetIndex(_now_ms)
        self._knows_all_that_it_has = False
        self._writer: StreamWriter | None = None
        """While this node owns the shard."""
        self._copied: Partitions | None = None
        """While this node follows as a replica."""
        self._moving_to: NodeNumber | None = None
        self._port = _Port(parts.listeners.of_shard[parts.shard].clients)
        self._giver = Giver()
        self._for_brokers = parts.listeners.of_shard[parts.shard].brokers
        self._secret = self._metadata.memory.cluster.secret
        self._neighbourhood = None
        if self._metadata.memory.shards > 1:
            self._neighbourhood = Neighbourhood(
                self._store,
                self._secret,
                self._for_brokers,
                giver=self._giver,
                appends_wait=self._appends_wait,
                way=parts.listeners.way,
            )

    async def run(self, stop: trio.Event) -> None:
        """See `keep_copy`."""
        try:
            await self._run(stop)
        finally:
            self._store.close()

    async def _run(self, stop: trio.Event) -> None:
        opening = open_storage(self._directory, map_bytes=self._settings.datalog.map_bytes, watcher=_StreamHasIt())
        async with opening as storage, trio.open_nursery() as nursery:
            bystander = make_bystander(
                self._store,
                self._live,
                self._advertised,
                data_logs=storage.data_logs,
                copied=lambda: self._copied,
                opens=lambda: self._port.opens,
                engine_is_silent=self._parts.engine_is_silent,
            )
            nursery.start_soon(self._port.serve_as_bystander, bystander)
            neighbourhood = self._neighbourhood
            copy = Copy(
                self._directory,
                storage,
                shard_settings(self._settings, self._store.group_journal_count),
                self._store.placement.group_journals(self._store.shard, self._store.group_journal_count),
                self._parts.stream,
                str(self._parts.node),
                self._rank(),
                times_of(self._settings),
                self._store,
                _now_ms,
                None if neighbourhood is None else neighbourhood.neighbours,
                self._parts.progress,
                self._giver,
            )
            await play_roles(copy, self, stop)
            nursery.cancel_scope.cancel()

    def _rank(self) -> int:
        copies = self._metadata.memory.shard(self._store.shard).copies
        return copies.index(self._parts.node) if self._parts.node in copies else len(copies)

    # --- as a replica -----------------------------------------------------------------------------

    async def lead(self, partitions: Partitions) -> None:
        """See `Roles.lead`. Drops what is here of topics that were deleted while nobody was there to hear of it.

        Only at the start of the process may a copy have logs of topics that are not known yet. So an owner that has
        given up, since the engine is away, does not wait for it: consumers read on here.
        """
        if not self._knows_all_that_it_has:
            await self._metadata.read_to_end()
            self._knows_all_that_it_has = True
        by_mode = self._own_logs()
        known = {each for logs in by_mode.values() for each in logs}
        here = await trio.to_thread.run_sync(partitions.data_logs.logs)
        gone = [each for each in here if each not in known]
        if gone:
            log.info("data logs of deleted topics are removed", logs=len(gone))
            await partitions.drop(gone)
        for mode, logs in by_mode.items():
            await partitions.lead(logs, mode)

    async def adopt(self, partitions: Partitions, log: LogId) -> bool:
        """See `Roles.adopt`."""
        await self._metadata.read_to_end()
        for mode, logs in self._own_logs().items():
            if log in logs:
                await partitions.lead([log], mode)
                return True
        return False

    def _own_logs(self) -> dict[TransactionMode, list[LogId]]:
        """All logs of the shard, of topics that are there."""
        store = self._store
        logs: dict[TransactionMode, list[LogId]] = {
            JOURNAL: list(store.placement.offsets_logs(store.shard, store.offsets_log_count))
        }
        for topic in store.topics():
            own = [each for each in topic.logs() if store.shard_of(each) == store.shard]
            logs.setdefault(mode_of(topic), []).extend(own)
        return logs

    @asynccontextmanager
    async def following(self, replica: Replica) -> AsyncGenerator[None]:
        """See `Roles.following`."""
        self._index = OffsetIndex(_now_ms)
        self._moving_to = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget_deleted, replica)
            nursery.start_soon(self._live.follow)
            nursery.start_soon(self._give_copies)
            nursery.start_soon(Retention(self._store, replica.partitions, self._live, _now_ms).run_on_copy)
            self._copied = replica.partitions
            try:
                yield
            finally:
                self._copied = None
            nursery.cancel_scope.cancel()

    async def _give_copies(self) -> None:
        """Give copies to nodes that join, where nothing else is said to other brokers; until cancelled."""
        peers = Peers(
            self._store.shard,
            self._store.cluster_id,
            self._secret,
            self._store.internal_address,
            lambda _shard, _message: None,
            way=self._parts.listeners.way,
            giver=self._giver,
        )
        await peers.run([another_listener(each) for each in self._for_brokers], ())

    async def _forget_deleted(self, replica: Replica) -> None:
        while True:
            changed, store = self._store.changed(), self._store
            replica.forget([each for each in replica.partitions.by_log if store.shard_of(each) != store.shard])
            await changed.wait()

    # --- as the owner -----------------------------------------------------------------------------

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        """See `Roles.own`."""
        ending, serves = trio.Event(), trio.Event()
        self._writer = owned.writer
        self._port.opens = True
        parts = ShardParts(
            settings=self._settings,
            cluster=self._store,
            live=self._live,
            shard=owned.shard,
            offset_index=self._index,
            neighbourhood=self._neighbourhood,
            advertised=self._advertised,
            has_ended=owned.over.is_set,
            confirm=owned.confirm,
            appends_wait=self._appends_wait,
        )
        doors = self._port.doors()
        try:
            async with trio.open_nursery() as watching:
                watching.start_soon(_set_when_cancelled, ending)
                with trio.CancelScope() as life:
                    async with trio.open_nursery() as nursery:
                        for event in (stop, owned.over, ending):
                            nursery.start_soon(_end_when, event, ending, serves, life)
                        nursery.start_soon(self._publish, owned)
                        nursery.start_soon(self._move_when_planned, owned, ending)
                        nursery.start_soon(self._keep_trimmed)
                        if self._neighbourhood is None:
                            nursery.start_soon(self._give_copies)
                        # What an earlier owner has prepared may be in topics of which this node has not heard yet: it
                        # would take their logs for deleted ones.
                        await self._metadata.read_to_end()
                        stages = _Stages(self._port, serves, owned.shard.leader_epoch)
                        await serve_shard(parts, doors, stages, life, ending)
                        nursery.cancel_scope.cancel()
                watching.cancel_scope.cancel()
        finally:
            self._writer = None
            self._port.take_back()
            with trio.CancelScope(shield=True):
                for door in doors:
                    await door.socket.aclose()

    def _appends_wait(self) -> bool:
        """Whether this node owns the shard, and its appends wait for so long that another one may own it by now."""
        return self._writer is not None and self._writer.waits_s > times_of(self._settings).failover_s

    async def _publish(self, owned: OwnedShard) -> None:
        """Tell all nodes that the shard is owned here, and which copies are in sync; until somebody else owns it."""
        epoch, past = owned.shard.leader_epoch, PastEnds(owned.writer.state.position, trio.current_time())
        published: Sequence[NodeNumber] | None = None
        while True:
            now_s = trio.current_time()
            past.note(owned.writer.state.position, now_s)
            copies = self._parts.reports.of(self._store.shard)
            found = in_sync(self._parts.node, self._members(), copies, past.at(now_s - IN_SYNC_AGE_S))
            if found != published:
                try:
                    await self._store.publish_owner(epoch, found)
                    published = found
                except StaleOwner as stale:
                    log.info("is not published as the owner", reason=str(stale))
                    return
                except StorageFailure as failure:
                    log.warning("is not published as the owner yet", reason=str(failure))
            await trio.sleep(PUBLISH_EVERY_S)

    def _members(self) -> Sequence[NodeNumber]:
        """The nodes that are to keep a copy."""
        return self._metadata.memory.shard(self._store.shard).replicas

    async def _keep_trimmed(self) -> None:
        """Let go of what enough copies have on disk, once the reports of all of them can have come; until cancelled."""
        await trio.sleep(IN_SYNC_AGE_S)
        await keep_trimmed(
            self._parts.stream,
            self._store.shard,
            self._parts.node,
            self._parts.reports,
            mark=self._mark,
            members=self._members,
            replicas=self._settings.cluster.replicas,
        )

    def _mark(self) -> StreamPosition:
        report = self._parts.progress.report
        return NOTHING_READ if report is None else report.synced

    async def _move_when_planned(self, owned: OwnedShard, ending: trio.Event) -> None:
        """Hand the shard over when the plan wants another node to own it, which has all that there is.

        That node has to report once more since the plan was seen. It may have died just before: a plan is made at once
        when a shard gets another owner, and counts who is gone as up for minutes.
        """
        wanted, wanted_s = self._parts.node, trio.current_time()
        while True:
            changed = self._store.changed()
            record = self._metadata.memory.shard(self._store.shard)
            planned = record.replicas[0] if record.replicas else self._parts.node
            if planned != wanted:
                wanted, wanted_s = planned, trio.current_time()
            is_published = record.owner == self._parts.node and record.epoch == owned.shard.leader_epoch
            since_s = trio.current_time() - wanted_s
            if is_published and planned != self._parts.node and self._can_own(record, planned, within_s=since_s):
                log.info("moves to another node", node=planned, epoch=owned.shard.leader_epoch)
                self._moving_to = planned
                ending.set()
                return
            with trio.move_on_after(PUBLISH_EVERY_S):  # a report changes no metadata
                await changed.wait()

    def _can_own(self, record: ShardRecord, node: NodeNumber, *, within_s: float = FOLLOWING_AGE_S) -> bool:
        copy = self._parts.reports.of(self._store.shard).get(node)
        return node in record.in_sync and is_following(copy, within_s)

    def offsets_decided(self, log: LogId, txid: TxId, offset: Offset | None) -> None:
        """See `Roles.offsets_decided`."""
        self._index.decided(log, txid, offset)

    def successor(self) -> str | None:
        """See `Roles.successor`."""
        record = self._metadata.memory.shard(self._store.shard)
        wanted = record.replicas if self._moving_to is None else (self._moving_to, *record.replicas)
        # Also of the one that the shard was to move to: it may have stopped while this node was ending.
        able = (node for node in wanted if node != self._parts.node and self._can_own(record, node))
        successor = next(able, None)
        return None if successor is None else str(successor)


class _Port:
    """The shard's sockets for clients: a bystander accepts from them, or the owner's server."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self.opens = False
        """Whether the owner is opening: the shard is owned here, and not served yet."""
        self._doors = doors
        self._bystander: Server | None = None
        self._bystander_life = trio.CancelScope()
        self._is_free = trio.Event()
        self._is_free.set()

    def doors(self) -> Sequence[Door]:
        """For one server, which closes them."""
        return [each.another() for each in self._doors]

    async def serve_as_bystander(self, broker: Broker) -> None:
        """Serve whenever no owner does; until cancelled."""
        while True:
            await self._is_free.wait()
            self._bystander = Server(broker, [NativeProtocol(broker)])
            with trio.CancelScope() as self._bystander_life:
                await self._bystander.serve(self.doors())

    def hand_over(self) -> None:
        """The owner's server accepts from now on. Clients of the bystander get the answers that they wait for."""
        self.opens = False
        self._is_free = trio.Event()
        if self._bystander is not None:
            self._bystander.stop()
            self._bystander_life.deadline = trio.current_time() + LAST_ANSWERS_S

    def take_back(self) -> None:
        """It does not any more."""
        self.opens = False
        self._is_free.set()


@dataclass(frozen=True, slots=True)
class _Stages:
    """Implements `fairlog.serving.Stages`."""

    port: _Port
    serving: trio.Event
    """Set when clients are served."""
    epoch: LeaderEpoch

    async def recovered(self) -> None:
        pass

    def complete(self, parts: Parts) -> None:
        log.info("owns the shard", epoch=self.epoch, address=str(ListenerAddresses.of(parts.advertised)))
        self.port.hand_over()

    def serves(self) -> None:
        self.serving.set()

    def stops(self) -> None:
        log.info("serves the shard no more", epoch=self.epoch)


class _StreamHasIt:
    """What the files of a copy lose, its stream still has. Implements `journal.flush.TailWatcher`."""

    def tail_cut(self, interrupted: bool) -> None:
        pass

    def failed(self) -> None:
        pass


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def _end_when(event: trio.Event, ending: trio.Event, serves: trio.Event, life: trio.CancelScope) -> None:
    await event.wait()
    ending.set()
    if not serves.is_set():
        life.cancel()  # from then on it bounds its own end


async def _set_when_cancelled(event: trio.Event) -> None:
    """What serves is shielded, and ends by the event alone."""
    try:
        await trio.sleep_forever()
    finally:
        event.set()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
