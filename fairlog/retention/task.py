"""Retention in the background: at intervals, it checks each topic's logs and removes what they do not need to keep.

    every check_interval_ms   topics with cleanup.policy=delete     `deletion` says where a log should start
    every clean_interval_ms   topics with cleanup.policy=compact    `cleaner`, one log after the other

Only the logs that this node has are looked at: those that it leads, and of a copy that it keeps (`run_on_copy`) those
with cleanup.policy=compact. What an owner deletes comes to its copies with the journal; what it compacts does not, so
each copy is compacted by itself. Both work in steps in a worker thread, one at a time for the shard: the copier, which
needs the same write lock, goes between two of them. Which records stay is judged in a process of its own: the event
loop needs the interpreter. A round starts it at the first log that is due, and ends with it. Reads wait for neither.

Failures stay here. A full disk or a full map ends the round with a log line, and the next round tries again; nothing is
lost, and the node continues to take writes as long as the copy finds room. If the judging process fails, the round goes
on with the next log and another process; a log with which it has failed `JUDGE_FAILURES_MAX` times is compacted no
more. If the disk itself fails during a step, the node refuses all further writes, as after any such failure (invariant
12).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import structlog
import trio

from datalog.interface import Bounds, DataLogs, NoRoom, Unit, UnknownLog
from fairlog import topic_configs
from fairlog.cluster.interface import ClusterStore, Topic
from fairlog.config import Settings
from fairlog.live_settings import LiveSettings
from fairlog.retention.cleaner import LogCleaner, Report
from fairlog.retention.cleaning import KEY_MEMORY_BYTES, SALT_BYTES, Rules
from fairlog.retention.deletion import Limits, start_within
from fairlog.retention.judge_process import JudgeProcess
from fairlog.retention.judging import JudgeFailed
from fairlog.retention.statistics import RetentionStatistics
from fairlog.topic_configs import CleanupPolicy
from fairlog_types import CorruptStorage, LogId, Offset, StorageFailure
from journal.journal import NoRoom as NoRoomInJournal
from shard.partitions import Partitions

logger = structlog.get_logger("fairlog.retention")

BATCHES_PER_LOOK = 10_000
"""Headers that one look for old records takes in."""

JUDGE_FAILURES_MAX = 3
"""In a row, with one log: want of memory may pass, and a fault of the program does not."""


class Retention:
    """The background task. `run` is its life; `delete_expired` and `clean` are one round each."""

    def __init__(
        self, cluster: ClusterStore, partitions: Partitions, live: LiveSettings, now_ms: Callable[[], int]
    ) -> None:
        self.statistics = RetentionStatistics()
        self._cluster = cluster
        self._partitions = partitions
        self._data_logs: DataLogs = partitions.data_logs
        self._live = live
        self._now_ms = now_ms
        self._limiter = trio.CapacityLimiter(1)
        self._seen: dict[LogId, Offset] = {}
        """How far the last cleaning of each log has looked."""
        self._given_up: set[LogId] = set()
        """Logs that are left alone in this run of the node: damaged ones, and those with too large a transaction."""
        self._judge_failures: dict[LogId, int] = {}
        """How often the judging process has failed with a log, since it last did not."""
        self._said: set[LogId] = set()
        """Logs of which it was said that batches in them cannot be read."""

    async def run(self) -> None:
        """Make rounds until cancelled; a cancelled one leaves the rest to the next run."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._every, lambda: self._settings.retention.check_interval_ms, self.delete_expired)
            nursery.start_soon(self.run_on_copy)

    async def run_on_copy(self) -> None:
        """As `run`, for a copy that another node owns: clean compacted logs."""
        await self._every(lambda: self._settings.retention.clean_interval_ms, self.clean)

    @property
    def _settings(self) -> Settings:
        """As they are now; some may change between two rounds, or within one."""
        return self._live.current

    async def _every(self, interval_ms: Callable[[], int], make_round: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._sleep(interval_ms)
            if self._partitions.failure is None:
                try:
                    await make_round()
                except (NoRoom, NoRoomInJournal, OSError) as failure:
                    self.statistics.postponed_rounds += 1
                    logger.warning("retention postponed", reason=str(failure))
                except StorageFailure as failure:
                    self._partitions.refuse_writes(str(failure))

    async def _sleep(self, interval_ms: Callable[[], int]) -> None:
        """Sleep for the interval. One that changes meanwhile counts from where the sleep began."""
        began = trio.current_time()
        while (until := began + interval_ms() / 1000) > trio.current_time():
            with trio.move_on_at(until):
                await self._live.wait_changed()

    # --- by age and size ------------------------------------------------------------------------

    async def delete_expired(self) -> None:
        """Let each log start where its topic's limits say. Raises StorageFailure; the logs before it are done then."""
        for topic in self._cluster.topics():
            for log in topic.logs():
                await trio.lowlevel.checkpoint()
                if log not in self._given_up:
                    with self._corruption_reported(log):
                        await self._delete_expired_of(topic, log)

    def _limits(self, topic_id: UUID) -> Limits:
        """Of this moment: a round may take long, and who has just asked for more to be kept shall not lose it."""
        topic = self._cluster.topic_by_id(topic_id)
        if topic is None or CleanupPolicy.DELETE not in topic_configs.cleanup_policies(topic, self._settings):
            return Limits(None, None)
        age_ms = topic_configs.retention_ms(topic, self._settings)
        expired_before_ms = None if age_ms is None else self._now_ms() - age_ms
        return Limits(expired_before_ms, topic_configs.retention_bytes(topic, self._settings))

    async def _delete_expired_of(self, topic: Topic, log: LogId) -> None:
        partition = self._partitions.get(log)
        if partition is None:
            return
        if partition.has_remains:
            # A stop, a full disk or a client's time-out in the middle of a deletion has left them.
            await partition.sweep()
        while (limits := self._limits(topic.topic_id)).any:
            looked = await trio.to_thread.run_sync(self._look, log, limiter=self._limiter)
            if looked is None:
                return
            bounds, units = looked
            start = start_within(limits, units, bounds)
            if start <= bounds.log_start:
                break
            if await partition.delete_before(start) is None:
                return  # its topic was deleted meanwhile, and what it holds is about to go
            deleted_bytes = sum(unit.size_bytes for unit in units if unit.last_offset < start)
            self.statistics.deleted_bytes += deleted_bytes
            logger.info("records deleted", topic=topic.name, partition=log.partition, start=start, bytes=deleted_bytes)
        await self._go_through(self._reindexing(log))

    def _reindexing(self, log: LogId) -> Iterator[None]:
        """Searches by timestamp are long if the record with the largest one has gone, now or by DeleteRecords."""
        try:
            if self._data_logs.time_index_is_behind(log):
                yield from self._data_logs.reindexing(log)
        except UnknownLog:
            return

    def _look(self, log: LogId) -> tuple[Bounds, list[Unit]] | None:
        """The log's bounds, and its first units; None if there is no such log. In a worker thread."""
        try:
            bounds = self._data_logs.bounds(log)
            return bounds, self._data_logs.units(log, bounds.log_start, batches_max=BATCHES_PER_LOOK)
        except UnknownLog:
            return None

    # --- by key ---------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Clean each compacted log that is due. Raises StorageFailure; the logs before it are done then."""
        judge = JudgeProcess()
        try:
            for topic in self._cluster.topics():
                for log in topic.logs():
                    await trio.lowlevel.checkpoint()
                    current = self._cluster.topic_by_id(topic.topic_id)  # as with `_limits`
                    if current is None or not self._is_compacted(current):
                        break
                    given_up = log in self._given_up or self._judge_failures.get(log, 0) >= JUDGE_FAILURES_MAX
                    if not given_up and self._partitions.get(log) is not None:
                        with self._corruption_reported(log):
                            await self._clean_log(current, log, judge)
        finally:
            with trio.CancelScope(shield=True):
                await _close(judge)

    def _is_compacted(self, topic: Topic) -> bool:
        return CleanupPolicy.COMPACT in topic_configs.cleanup_policies(topic, self._settings)

    async def _clean_log(self, topic: Topic, log: LogId, judge: JudgeProcess) -> None:
        cleaner = LogCleaner(
            self._data_logs,
            log,
            Rules(
                delete_retention_ms=topic_configs.delete_retention_ms(topic, self._settings),
                lag_min_ms=topic_configs.compaction_lag_min_ms(topic, self._settings),
                lag_max_ms=topic_configs.compaction_lag_max_ms(topic, self._settings),
                dirty_ratio_min=topic_configs.dirty_ratio_min(topic, self._settings),
            ),
            seen=self._seen.get(log, Offset(0)),
            keys_max=self._settings.retention.dedupe_buffer_bytes // KEY_MEMORY_BYTES,
            salt=os.urandom(SALT_BYTES),
            now_ms=self._now_ms,
            judge=judge,
        )
        started = trio.current_time()
        try:
            await self._go_through(cleaner.steps(), judge.cut)
        except JudgeFailed as failure:
            await _close(judge)
            self._judge_has_failed(topic.name, log, failure)
            return
        self._judge_failures.pop(log, None)
        if cleaner.report.reason is not None:
            self._seen[log] = cleaner.report.end
            self._account(topic.name, log, cleaner.report, seconds=trio.current_time() - started)

    async def _go_through(self, steps: Iterator[None], hasten: Callable[[], None] = lambda: None) -> None:
        """Do them, one after the other. Cancelled: calls `hasten`, and raises when the step under way has ended."""
        step = partial(next, steps, _DONE)
        try:
            while await trio.to_thread.run_sync(step, limiter=self._limiter, abandon_on_cancel=True) is not _DONE:
                pass
        except trio.Cancelled:
            hasten()
            with trio.CancelScope(shield=True):
                async with self._limiter:  # the thread has it until it ends
                    raise

    def _judge_has_failed(self, topic: str, log: LogId, failure: JudgeFailed) -> None:
        """The log is left as it is, and tried again in the next rounds."""
        failures = self._judge_failures[log] = self._judge_failures.get(log, 0) + 1
        self.statistics.postponed_rounds += 1
        logger.warning("compaction postponed", topic=topic, partition=log.partition, reason=str(failure))
        if failures == JUDGE_FAILURES_MAX:
            logger.error(
                "log not compacted: the process that compacts has failed with it again and again; restart the node to "
                "have it tried again",
                topic=topic,
                partition=log.partition,
                failures=failures,
            )

    def _account(self, topic: str, log: LogId, report: Report, *, seconds: float) -> None:
        statistics = self.statistics
        statistics.cleanings += 1
        statistics.cleaned_read_bytes += report.read_bytes
        statistics.cleaned_removed_records += report.removed_records
        statistics.cleaned_removed_bytes += report.removed_bytes
        logger.info(
            "log compacted",
            topic=topic,
            partition=log.partition,
            due=report.reason,
            passes=report.passes,
            keys=report.keys,
            removed_records=report.removed_records,
            removed_bytes=report.removed_bytes,
            seconds=round(seconds, 3),
        )
        if report.unreadable is not None and log not in self._said:
            self._said.add(log)
            logger.warning(
                "batches kept whole, for they cannot be read; tombstones behind them are kept, too",
                topic=topic,
                partition=log.partition,
                first=report.unreadable,
            )
        if report.stuck_at is not None:
            self._given_up.add(log)
            logger.error(
                "log not compacted: a transaction has more keys than retention.dedupe_buffer_bytes has room for; "
                "restart with a larger one",
                topic=topic,
                partition=log.partition,
                offset=report.stuck_at,
            )

    @contextmanager
    def _corruption_reported(self, log: LogId) -> Generator[None]:
        """Leave a log alone that is damaged: its readers meet the same, and other logs may be whole."""
        try:
            yield
        except CorruptStorage as error:
            self._given_up.add(log)
            logger.warning("log left as it is", log=str(log), reason=str(error))


async def _close(judge: JudgeProcess) -> None:
    if judge.runs:
        await trio.to_thread.run_sync(judge.close)


_DONE = object()
