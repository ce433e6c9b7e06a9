"""The node as its admin listener sees it: `fairlog.admin_http.view.Node`, out of the real parts.

    leaders, coordinator, cluster store, data logs, Kafka's edge ──▶ NodeView ──▶ admin_http, metrics

It exists from the node's first moment, knows which phase the run is in, and gets the parts when they have recovered. It
changes nothing, with one exception: an operator's abort, which goes through the coordinator like any other.

What is looked at on the event loop is in memory and bounded: live transactions by LIVE_SHOWN and PARTS_SHOWN. What
grows with the number of partitions lets others run every so often; what reads the data logs runs in a worker thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import trio

from coordinator.answers import Description, Refusal
from coordinator.producer import NO_TIMEOUT_MS
from coordinator.service import Coordinator
from coordinator.sinks.messages import SinkDescription
from coordinator.statistics import Ended, Step, UnderWay
from datalog.interface import DataLogs, UnknownLog
from fairlog import __version__
from fairlog.admin_http.cached import Cached
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.admin_http.view import (
    PARTS_SHOWN,
    SINKS_SHOWN,
    AbortOutcome,
    BrokerView,
    ClusterView,
    EndedTransaction,
    GroupView,
    LiveTransaction,
    NotServing,
    Part,
    PartitionView,
    Phase,
    Place,
    Sinks,
    SinkView,
    TopicPage,
    TopicView,
    Transactions,
)
from fairlog.cluster.interface import ClusterStore, Topic
from fairlog.config_values import Address, ListenerAddresses
from fairlog.edge.statistics import ApiStatistics, EdgeStatistics
from fairlog.group_view import GroupReader, Members
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.fetch_sessions import FetchSessionCache
from fairlog.live_access import LiveAccess
from fairlog.node_statistics import (
    OLDEST_SHOWN,
    UNSTABLE_SHOWN,
    ApiCounts,
    EdgeCounts,
    GroupLag,
    JournalStatistics,
    NodeStatistics,
    RunningStatistics,
    UnstableStatistics,
)
from fairlog.retention.task import Retention
from fairlog.topic_configs import transactions
from fairlog.user_accounts import StoreAccounts
from fairlog_types import LogId, LogKind, ShardNumber, TxId
from partition.partition import Partition
from shard.partitions import Partitions
from shard.shard import Shard

LIVE_SHOWN = 100
"""Open transactions that are shown, the oldest, and as many that are being copied."""

ENDED_SHOWN = 50

GROUPS_FRESH_S = 1.0
"""Reading all committed offsets is a scan."""

HUNG_AFTER_S = 10.0
"""An open transaction whose producer was not heard of for so long, or for a quarter of its time-out, looks hung."""

_LOGS_PER_STEP = 500
"""So many journals are looked at before others get a turn: about half a millisecond."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What there is to look at once the node has recovered."""

    cluster: ClusterStore
    shard: Shard
    edge: EdgeStatistics
    fetch_sessions: FetchSessionCache
    native: Sequence[ApiStatistics]
    """Of each native op."""
    advertised: Mapping[str, Address]
    """By listener."""
    members: Members
    retention: Retention
    access: LiveAccess | None
    """None if everyone may do everything."""


class NodeView:
    """Implements `fairlog.admin_http.view.Node`."""

    def __init__(self, now_ms: Callable[[], int], admin: AdminStatistics, shard: int | None = None) -> None:
        """`now_ms` is the wall clock that the node writes down; `admin` are the counters of the admin listener; `shard`
        is that of one of several processes.
        """
        self._admin = admin
        self._now_ms = now_ms
        self._shard = shard
        self._phase = Phase.RECOVERING
        self._parts: Parts | None = None
        self._read_groups: Cached[Sequence[GroupView]] | None = None
        self._started_s = trio.current_time()

    # --- what the node says of itself -----------------------------------------------------------

    def serves(self, parts: Parts) -> None:
        """The node has recovered, and takes clients from now on."""
        self._parts = parts
        reader = GroupReader(
            parts.shard.data_logs,
            parts.shard.partitions.by_log,
            self.place_of,
            parts.members,
            self._is_led_elsewhere,
            parts.shard.high_watermarks_elsewhere,
        )
        self._read_groups = Cached(reader, fresh_s=GROUPS_FRESH_S)
        self._phase = Phase.SERVING

    def stops(self) -> None:
        """The node takes no more clients. What there is to look at stays, as long as there is somebody who looks."""
        self._phase = Phase.STOPPING

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def refusing_because(self) -> str | None:
        failure = None if self._parts is None else self._parts.shard.failure
        return None if failure is None else str(failure)

    def _there(self) -> Parts:
        if self._parts is None:
            raise NotServing
        return self._parts

    def accounts(self) -> StoreAccounts:
        parts = self._there()
        return StoreAccounts(parts.cluster, parts.access)

    # --- the node, topics, groups -----------------------------------------------------------------

    async def cluster(self) -> ClusterView:
        parts = self._there()
        topics = parts.cluster.topics()
        copier = parts.shard.partitions.copier_statistics()
        space = await trio.to_thread.run_sync(parts.shard.data_logs.space)
        return ClusterView(
            cluster_id=parts.cluster.cluster_id,
            node_id=parts.cluster.node_id,
            version=__version__,
            start=parts.cluster.starts,
            address=str(ListenerAddresses.of(parts.advertised)),
            uptime_s=trio.current_time() - self._started_s,
            topics=len(topics),
            partitions=sum(topic.partitions for topic in topics),
            connections=parts.edge.connected,
            backlog_bytes=copier.backlog_bytes,
            lag_s=copier.lag_s,
            used_bytes=space.used_bytes,
            map_bytes=space.bytes_max,
            shard=parts.cluster.shard,
            shards=parts.cluster.placement.shards,
        )

    async def brokers(self) -> Sequence[BrokerView]:
        parts = self._there()
        cluster, main = parts.cluster, next(iter(parts.advertised))
        led: Counter[int] = Counter()
        for topic in cluster.topics():
            led.update(leader.node_id for leader in cluster.leaders(topic))
            await trio.lowlevel.checkpoint()
        addresses = {each.node_id: str(Address(each.host, each.port)) for each in cluster.brokers(main)}
        views: list[BrokerView] = []
        for shard in map(ShardNumber, range(cluster.placement.shards)):
            node_id = cluster.broker_of(shard)
            views.append(BrokerView(node_id, shard, addresses.get(node_id), led[node_id]))
        return views

    async def topics(self, *, after: str, contains: str, count_max: int, partitions_max: int) -> TopicPage:
        parts = self._there()
        fitting = [topic for topic in parts.cluster.topics() if contains in topic.name]
        page: list[Topic] = []
        partitions = 0
        for topic in fitting:
            if topic.name <= after:
                continue
            if page and (len(page) == count_max or partitions + topic.partitions > partitions_max):
                break
            page.append(topic)
            partitions += topic.partitions
        logs = [log for topic in page for log in topic.logs()]
        sizes = await trio.to_thread.run_sync(_sizes, parts.shard.data_logs, logs)
        views = tuple(_topic_view(topic, parts.cluster, parts.shard.partitions, sizes) for topic in page)
        more = bool(page) and page[-1] is not fitting[-1]
        return TopicPage(views, len(fitting), page[-1].name if more else None)

    async def groups(self) -> Sequence[GroupView]:
        if self._read_groups is None:
            raise NotServing
        return await self._read_groups.get()

    def _is_led_elsewhere(self, log: LogId) -> bool:
        cluster = self._there().cluster
        return cluster.shard_of(log) not in (None, cluster.shard)

    def place_of(self, log: LogId) -> Place:
        if log.kind != LogKind.TOPIC.value:
            return Place("(committed offsets)", log.partition)
        topic = self._there().cluster.topic_by_id(UUID(log.topic))
        return Place(log.topic, log.partition, deleted=True) if topic is None else Place(topic.name, log.partition)

    # --- transactions -----------------------------------------------------------------------------

    def transactions(self) -> Transactions:
        parts = self._there()
        statistics = parts.shard.coordinator.statistics()
        live = [self._live(parts.shard.partitions, it) for it in parts.shard.coordinator.under_way(LIVE_SHOWN)]
        return Transactions(
            open=statistics.open,
            preparing=statistics.preparing,
            copying=statistics.copying,
            begun_total=statistics.begun,
            committed_total=statistics.committed,
            aborted_total=sum(statistics.aborted.values()),
            transactional_ids=statistics.transactional_ids,
            live=tuple(sorted(live, key=lambda it: not it.hung)),
            ended=tuple(self._ended(it) for it in parts.shard.coordinator.ended()[:ENDED_SHOWN]),
        )

    def transactional_id(self, transactional_id: str) -> Description | None:
        return self._there().shard.coordinator.describe(transactional_id)

    def sinks(self) -> Sinks:
        described = self._there().shard.coordinator.sinks()
        last = sorted(described, key=lambda it: it.used_ms, reverse=True)[:SINKS_SHOWN]
        return Sinks(len(described), tuple(self._sink(it) for it in sorted(last, key=lambda it: it.sink)))

    def _sink(self, it: SinkDescription) -> SinkView:
        placements = [each for each in it.placements if each.log.kind == LogKind.TOPIC.value]
        return SinkView(
            sink=it.sink,
            query=it.query,
            run=it.run,
            batch=it.batch,
            records=sum(each.count for each in placements) if it.placements else None,
            placed=tuple((self.place_of(each.log), each) for each in placements[:PARTS_SHOWN]),
            parts_total=len(placements),
            open_lanes=len(it.open_lanes),
            writing_s=it.writing_s,
            used_ms=it.used_ms,
        )

    def _live(self, partitions: Partitions, it: UnderWay) -> LiveTransaction:
        parts: list[Part] = []
        records, pinned_bytes, last_use_ms = 0, 0, 0
        for log in it.logs:
            led = partitions.get(log)
            if led is None:
                continue
            held = led.state.open_transactions.get(it.txid)
            pinned = _pinned_bytes(led, it.txid)
            pinned_bytes += pinned
            if held is not None:
                records += held.records
                window = led.state.windows.get(it.txid.producer_id)
                last_use_ms = max(last_use_ms, 0 if window is None or not held.records else window.last_use_ms)
            if len(parts) < PARTS_SHOWN:
                parts.append(Part(self.place_of(log), 0 if held is None else held.records, pinned))
        silent_s = min(it.silent_s, it.steps[0][1])
        if last_use_ms:
            # By the wall clock, which may have jumped: it can only make the silence shorter.
            silent_s = min(silent_s, max(0.0, (self._now_ms() - last_use_ms) / 1000))
        is_open = it.steps[-1][0] is Step.BEGIN
        return LiveTransaction(
            transactional_id=it.transactional_id,
            txid=it.txid,
            steps=it.steps,
            began_ms=it.began_ms,
            timeout_ms=it.timeout_ms,
            silent_s=silent_s,
            hung=is_open and it.timeout_ms != NO_TIMEOUT_MS and silent_s >= min(HUNG_AFTER_S, it.timeout_ms / 4000),
            records=records if it.records is None else it.records,
            pinned_bytes=pinned_bytes,
            parts=tuple(parts),
            parts_total=len(it.logs),
        )

    def _ended(self, it: Ended) -> EndedTransaction:
        committed = it.cause is None
        return EndedTransaction(
            transactional_id=it.transactional_id,
            txid=it.txid,
            began_ms=it.began_ms,
            ended_ms=it.ended_ms,
            cause=it.cause,
            steps=tuple(it.steps),
            records=it.records,
            placed=tuple((self.place_of(each.log), each) for each in it.placements[:PARTS_SHOWN]),
            touched=() if committed else tuple(self.place_of(log) for log in it.logs[:PARTS_SHOWN]),
            parts_total=len(it.placements if committed else it.logs),
        )

    async def abort(self, transactional_id: str, txid: TxId) -> AbortOutcome:
        coordinator = self._there().shard.coordinator
        found = coordinator.describe(transactional_id)
        if found is None:
            return AbortOutcome.UNKNOWN
        if found.txid != txid:
            return AbortOutcome.COMMITTED if _is_committed(coordinator, found, txid) else AbortOutcome.NOT_OPEN
        refusal = await coordinator.abort_open(transactional_id, txid)
        if refusal in _ABORT_REFUSALS:
            return _ABORT_REFUSALS[refusal]
        found = coordinator.describe(transactional_id)
        if found is not None and _is_committed(coordinator, found, txid):
            return AbortOutcome.COMMITTED
        return AbortOutcome.ABORTED if refusal is None else AbortOutcome.NOT_OPEN

    # --- statistics ---------------------------------------------------------------------------------

    async def metrics(self, accept: str, shards_up: Mapping[int, bool]) -> tuple[bytes, str]:
        statistics = NodeStatistics(
            version=__version__,
            serving=self._phase is Phase.SERVING,
            refusing_writes=self.refusing_because is not None,
            running=None if self._parts is None else await self._running(self._parts),
            shard=self._shard,
            shards_up=shards_up,
        )
        return await trio.to_thread.run_sync(_exposition, statistics, accept)

    async def _running(self, parts: Parts) -> RunningStatistics:
        topics = parts.cluster.topics()
        coordinator = parts.shard.coordinator.statistics(OLDEST_SHOWN)
        appended = parts.shard.partitions.appended
        return RunningStatistics(
            cluster_id=parts.cluster.cluster_id,
            node_id=parts.cluster.node_id,
            topics=len(topics),
            topics_of_mode=Counter(map(transactions, topics)),
            partitions=self._partitions_led(parts, topics),
            appended_batches=appended.batches,
            appended_records=appended.records,
            appended_bytes=appended.size_bytes,
            coordinator=coordinator,
            sinks=parts.shard.coordinator.sink_statistics(),
            copier=parts.shard.partitions.copier_statistics(),
            retention=parts.retention.statistics,
            edge=_edge(parts.edge, parts.native, parts.fetch_sessions, self._admin),
            journals=await _journals(parts, coordinator.failed_journals),
            unstable=await self._unstable(parts),
            space=await trio.to_thread.run_sync(parts.shard.data_logs.space),
            group_lags=await _group_lags(await self.groups()),
        )

    def _partitions_led(self, parts: Parts, topics: Sequence[Topic]) -> int:
        if self._shard is None:
            return sum(topic.partitions for topic in topics)
        return sum(log.kind == LogKind.TOPIC.value for log in parts.shard.partitions.by_log)

    async def _unstable(self, parts: Parts) -> UnstableStatistics:
        partitions = records = 0
        longest: list[tuple[int, LogId]] = []
        for count, (log, led) in enumerate(list(parts.shard.partitions.by_log.items()), start=1):
            if count % _LOGS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            behind = led.visibility.high_watermark - led.visibility.last_stable
            if behind:
                partitions += 1
                records += behind
                longest.append((behind, log))
        longest.sort(key=lambda item: item[0], reverse=True)
        places = [(self.place_of(log), behind) for behind, log in longest[:UNSTABLE_SHOWN]]
        largest = [(place.topic, place.partition, behind) for place, behind in places if not place.deleted]
        return UnstableStatistics(partitions, records, largest)


def _exposition(statistics: NodeStatistics, accept: str) -> tuple[bytes, str]:
    # prometheus-client is loaded when somebody scrapes, in the worker thread.
    from fairlog.metrics import exposition

    return exposition(statistics, accept)


_ABORT_REFUSALS = {
    Refusal.UNKNOWN_PRODUCER_ID_MAPPING: AbortOutcome.UNKNOWN,
    Refusal.CONCURRENT: AbortOutcome.DECIDING,
    Refusal.STORAGE: AbortOutcome.REFUSED,
    Refusal.STOPPING: AbortOutcome.REFUSED,
}
"""The others leave open what became of it."""


def _is_committed(coordinator: Coordinator, found: Description, txid: TxId) -> bool:
    if txid in found.being_copied or any(each.txid == txid for each in found.committed):
        return True
    return any(ended.txid == txid and ended.cause is None for ended in coordinator.ended())


def _sizes(data_logs: DataLogs, logs: Sequence[LogId]) -> dict[LogId, int]:
    """Bytes of each log's batches; those that were dropped meanwhile are left out. In a worker thread."""
    sizes: dict[LogId, int] = {}
    for log in logs:
        with suppress(UnknownLog):
            sizes[log] = data_logs.bounds(log).size_bytes
    return sizes


def _topic_view(topic: Topic, cluster: ClusterStore, partitions: Partitions, sizes: Mapping[LogId, int]) -> TopicView:
    views: list[PartitionView] = []
    for log in topic.logs():
        led = partitions.get(log)
        if led is not None and log in sizes:
            view = PartitionView(
                log.partition,
                led.visibility.log_start,
                led.visibility.high_watermark,
                led.visibility.last_stable,
                sum(it.records > 0 for it in led.state.open_transactions.values()),
                sizes[log],
                led.journal_bytes,
            )
            views.append(view)
    leaders = enumerate(cluster.leaders(topic))
    elsewhere = tuple((number, leader.node_id) for number, leader in leaders if leader.node_id != cluster.node_id)
    return TopicView(topic.name, str(topic.topic_id), transactions(topic), tuple(views), elsewhere)


def _pinned_bytes(led: Partition, txid: TxId) -> int:
    held = led.state.open_transactions.get(txid)
    return 0 if held is None or held.first_position is None else led.journal.end - held.first_position


async def _journals(parts: Parts, failed_group: int) -> JournalStatistics:
    local_bytes = pinned_bytes = failed = 0
    by_transaction: defaultdict[TxId, int] = defaultdict(int)
    logs = list(parts.shard.partitions.by_log.values())
    for count, led in enumerate(logs, start=1):
        if count % _LOGS_PER_STEP == 0:
            await trio.lowlevel.checkpoint()
        journal = led.journal
        local_bytes += led.journal_bytes
        pinned_bytes += journal.end - led.state.pinned_from(journal.end)
        failed += journal.failed is not None
        for txid in led.state.open_transactions:
            by_transaction[txid] += _pinned_bytes(led, txid)
    most = sorted(by_transaction.items(), key=lambda item: item[1], reverse=True)[:OLDEST_SHOWN]
    names = {txid: parts.shard.coordinator.owner_of(txid.producer_id) for txid, _ in most}
    pinned_by = [(names[txid] or f"producer {txid.producer_id}", count) for txid, count in most if count]
    return JournalStatistics(len(logs), local_bytes, pinned_bytes, pinned_by, failed, failed_group)


def _edge(
    edge: EdgeStatistics, native: Sequence[ApiStatistics], sessions: FetchSessionCache, admin: AdminStatistics
) -> EdgeCounts:
    apis = [_api(api) for api in [*(api for _, api in sorted(edge.apis.items())), *native]]
    return EdgeCounts(
        apis,
        edge.connected,
        edge.accepted,
        dict(edge.refused),
        edge.handshakes_failed + admin.handshakes_failed,
        edge.not_served,
        sessions.statistics(),
        {**edge.sign_ins, **admin.sign_ins},
        {api: (count, edge.throttles.throttled_ms[api]) for api, count in edge.throttles.requests.items()},
    )


def _api(api: ApiStatistics) -> ApiCounts:
    errors = {ErrorCode(code).name: count for code, count in api.errors.items()} | api.refusals
    return ApiCounts(api.name, api.answered, api.failed, errors, api.bytes_in, api.bytes_out, api.latency.read())


async def _group_lags(groups: Sequence[GroupView]) -> list[GroupLag]:
    lags: defaultdict[tuple[str, str], int] = defaultdict(int)
    for group in groups:
        await trio.lowlevel.checkpoint()
        for partition in group.partitions:
            if not partition.place.deleted and partition.lag is not None:
                lags[group.group, partition.place.topic] += partition.lag
    return [GroupLag(group, topic, lag) for (group, topic), lag in lags.items()]
