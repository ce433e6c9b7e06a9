"""The logs of a broker in memory: partitions, how far they can be read, and the data logs of the same batches.

The fault model is in `tests.kafka.in_memory`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import trio

from datalog.batch import BatchHeader, parse_batch_header_untrusted, patch
from datalog.interface import (
    AbortedTransaction,
    Bounds,
    EpochEnd,
    Loan,
    LogMissing,
    OffsetOutOfRange,
    ReadAnswer,
    ReadRequest,
    ReadResult,
    TimestampOffset,
    UnknownLog,
)
from datalog.loans import views_in
from fairlog_types import (
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from partition.answers import (
    AbortRefusal,
    ActiveProducer,
    Appended,
    DuplicateOf,
    LogCut,
    PlacedEnd,
    RefusedAppend,
    Watcher,
)
from partition.newest import Newest

LEADER_EPOCH = LeaderEpoch(3)


class MemoryLeaders:
    def __init__(self) -> None:
        self.logs: dict[LogId, list[bytes]] = {}
        self.held = False
        """While set, nothing that is appended becomes visible."""
        self.full = False
        """While set, appending waits for room that does not come."""
        self.refusal: RefusedAppend | None = None
        self.failure: StorageFailure | None = None
        self.duplicate: DuplicateOf | None = None
        self.open: dict[ProducerId, TxId] = {}
        """What each producer has open."""
        self.before_append: Callable[[], Awaitable[object]] | None = None
        """What goes on while an append waits for room; None: it need not wait."""
        self.came_in: list[TxId | None] = []
        """What each batch was appended for."""
        self.lowest: Offset | None = None
        """What a batch of an open transaction gets at least, in whatever log; None: it has ended."""
        self.starts: dict[LogId, Offset] = {}
        self.producers: dict[LogId, list[ActiveProducer]] = {}
        self.replicated = False
        """Whether the journals are on a replicated log."""
        self.marker_logs: set[LogId] = set()
        """The logs of marker mode: what is appended in a transaction is there at once, and waited for on disk."""
        self.open_for: TxId | AbortRefusal | None = AbortRefusal.NO_MARKERS
        """What an abort marker finds, in whatever log."""
        self.aborts: list[tuple[LogId, int, int, int]] = []
        """Abort markers asked for: log, producer id and epoch, coordinator epoch."""
        self.on_disk = False
        """Whether what is held is on disk, and only its copy is."""
        self.outrun = False
        """Whether producers have to wait for the copy."""
        self.paced_bytes: list[int] = []
        """The sizes of the batches whose producers were to keep pace with the copy."""
        self.visible_before_hold: dict[LogId, Offset] = {}
        self.ahead_ends: dict[LogId, Offset] = {}
        """How far a log that is held can be read ahead of its data log."""
        self.undecided: dict[LogId, Offset] = {}
        """Where the oldest open transaction of a log begins, of logs that have one."""
        self.aborted: dict[LogId, list[AbortedTransaction]] = {}
        self._moved = trio.Event()
        self.watchers: dict[Watcher, set[LogId]] = {}
        """Who is told when any log moves, with the logs that it watches."""

    def open_transaction_of(self, producer_id: ProducerId) -> TxId | None:
        return self.open.get(producer_id)

    def get(self, log: LogId) -> MemoryPartition | None:
        return MemoryPartition(self, log) if log in self.logs else None

    async def append(
        self, log: LogId, data: bytes | bytearray | memoryview, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        if self.before_append is not None:
            await self.before_append()
        if self.full:
            await trio.sleep_forever()
        return self.append_at_once(log, data, header, came_in)

    def append_at_once(
        self, log: LogId, data: bytes | bytearray | memoryview, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        self.came_in.append(came_in)
        if self.failure is not None:
            raise self.failure
        if self.refusal is not None:
            return self.refusal
        if self.duplicate is not None:
            return self.duplicate
        if header.transactional and log not in self.marker_logs:
            return Appended(None, None)
        base = self.end(log)
        batch = bytearray(data)
        patch(batch, base, LEADER_EPOCH)
        if self.held:
            self.visible_before_hold.setdefault(log, base)
        self.logs[log].append(bytes(batch))
        self._wake()
        return Appended(base, durable_at=JournalPosition(base + header.record_count))

    def release(self) -> None:
        self.held = False
        self.visible_before_hold.clear()
        self.ahead_ends.clear()
        self._wake()

    def copy_through(self, log: LogId, offset: Offset) -> None:
        """The copy of a log that is held comes so far."""
        self.visible_before_hold[log] = offset
        self._wake()

    def read_ahead(self, log: LogId) -> None:
        """All of a log that is held can be read ahead of its data log."""
        self.ahead_ends[log] = self.end(log)
        self._wake()

    def decide(self, log: LogId) -> None:
        """The log's open transactions have ended."""
        del self.undecided[log]
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
        for watcher in [watcher for watcher in self.watchers if watcher.moved(stable=True)]:
            del self.watchers[watcher]

    def end(self, log: LogId) -> Offset:
        batches = self.logs[log]
        return Offset(parse_batch_header_untrusted(batches[-1]).last_offset + 1) if batches else Offset(0)

    async def decided(self, log: LogId, txids: Collection[TxId]) -> bool:
        """There is no other shard."""
        return True

    async def visible(self, log: LogId, offset: Offset) -> None:
        await trio.lowlevel.checkpoint()
        while (self.high_watermark(log) or 0) < offset:
            if self.failure is not None:
                raise self.failure
            await self._moved.wait()

    async def durable(self, log: LogId, through: JournalPosition) -> None:
        if not self.on_disk:
            await self.visible(log, Offset(through))

    def open_for_abort(
        self, log: LogId, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> TxId | AbortRefusal | None:
        self.aborts.append((log, producer_id, producer_epoch, coordinator_epoch))
        return self.open_for

    def high_watermark(self, log: LogId) -> Offset | None:
        if log not in self.logs:
            return None
        return self.visible_before_hold.get(log, self.end(log))

    def log_start(self, log: LogId) -> Offset:
        return self.starts.get(log, Offset(0))

    def lowest_offset(self, log: LogId, header: BatchHeader) -> Offset | None:
        return self.lowest

    def placed_end(self, log: LogId) -> PlacedEnd | None:
        if log not in self.logs:
            return None
        end = self.end(log)
        return PlacedEnd(end, min(self.undecided.get(log, end), end))

    def last_stable_offset(self, log: LogId) -> Offset | None:
        high_watermark = self.high_watermark(log)
        return None if high_watermark is None else min(self.undecided.get(log, high_watermark), high_watermark)

    def watch(self, log: LogId, watcher: Watcher, *, beyond: Offset, committed_only: bool) -> bool:
        end = self.last_stable_offset(log) if committed_only else self.high_watermark(log)
        if end is None or max(end, self.ahead_ends.get(log, end)) > beyond:
            return False
        self.watchers.setdefault(watcher, set()).add(log)
        return True

    def unwatch(self, log: LogId, watcher: Watcher) -> None:
        logs = self.watchers.get(watcher, set())
        logs.discard(log)
        if not logs:
            self.watchers.pop(watcher, None)

    def cut(self, logs: Iterable[LogId]) -> Mapping[LogId, LogCut]:
        ends = {log: self.last_stable_offset(log) for log in logs}
        return {log: LogCut(self.log_start(log), end, end) for log, end in ends.items() if end is not None}

    async def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Mapping[LogId, LogCut]:
        """No cut is kept here: the next one is what can be read now, however much that is."""
        await trio.lowlevel.checkpoint()
        return self.cut(starts)

    def journal_bytes(self, log: LogId) -> int | None:
        """A hundred for each batch."""
        return None if log not in self.logs else 100 * len(self.logs[log])

    def describe_producers(self, log: LogId) -> Sequence[ActiveProducer]:
        return self.producers.get(log, [])

    async def delete_before(self, log: LogId, offset: Offset) -> Offset | None:
        await trio.lowlevel.checkpoint()
        if self.full:
            await trio.sleep_forever()
        if self.failure is not None:
            raise self.failure
        if log not in self.logs:
            return None
        assert offset <= (self.high_watermark(log) or 0)
        self.starts[log] = max(offset, self.log_start(log))
        self._wake()
        return self.starts[log]


class MemoryPartition:
    """One log of `MemoryLeaders`, as `partition.partition.Partition`."""

    def __init__(self, leaders: MemoryLeaders, log: LogId) -> None:
        self._leaders, self._log = leaders, log
        self.visibility = MemoryVisibility(leaders, log)
        self.leader_epoch = LEADER_EPOCH
        self.may_lack_commits = False
        self.in_doubt: frozenset[TxId] = frozenset()

    @property
    def is_replicated(self) -> bool:
        return self._leaders.replicated

    @property
    def has_gone(self) -> bool:
        return self._log not in self._leaders.logs

    @property
    def placed_end(self) -> PlacedEnd:
        return self._leaders.placed_end(self._log)

    @property
    def journal_bytes(self) -> int:
        return self._leaders.journal_bytes(self._log)

    async def append(
        self, data: bytes | bytearray | memoryview, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        return await self._leaders.append(self._log, data, header, came_in)

    def has_place(self, _payload_bytes: int) -> bool:
        return not self._leaders.full and self._leaders.before_append is None

    def append_at_once(
        self, data: bytes | bytearray | memoryview, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        return self._leaders.append_at_once(self._log, data, header, came_in)

    async def durable(self, through: JournalPosition) -> None:
        await self._leaders.durable(self._log, through)

    async def keep_pace(self, end: Offset, batch_bytes: int) -> None:
        self._leaders.paced_bytes.append(batch_bytes)
        if self._leaders.outrun:
            await self._leaders.visible(self._log, end)

    def lowest_offset(self, header: BatchHeader) -> Offset | None:
        return self._leaders.lowest_offset(self._log, header)

    def describe_producers(self) -> Sequence[ActiveProducer]:
        return self._leaders.describe_producers(self._log)

    def open_for_abort(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> TxId | AbortRefusal | None:
        return self._leaders.open_for_abort(self._log, producer_id, producer_epoch, coordinator_epoch)

    async def delete_before(self, offset: Offset) -> Offset | None:
        return await self._leaders.delete_before(self._log, offset)


class MemoryVisibility:
    """How far one log of `MemoryLeaders` can be read, as `partition.visibility.Visibility`."""

    def __init__(self, leaders: MemoryLeaders, log: LogId) -> None:
        self._leaders, self._log = leaders, log

    @property
    def high_watermark(self) -> Offset:
        return self._leaders.high_watermark(self._log) or Offset(0)

    @property
    def last_stable_offset(self) -> Offset:
        return self._leaders.last_stable_offset(self._log) or Offset(0)

    @property
    def log_start(self) -> Offset:
        return self._leaders.log_start(self._log)

    @property
    def has_failed(self) -> bool:
        return self._leaders.failure is not None

    def is_ahead(self, offset: int) -> bool:
        return self.high_watermark <= offset < self._leaders.ahead_ends.get(self._log, 0)

    def newest(self, offset: int, *, bytes_max: int) -> ReadResult:
        newest = Newest()
        for batch in self._leaders.logs[self._log]:
            newest.add([(Offset(parse_batch_header_untrusted(batch).last_offset + 1), batch)])
        end = self._leaders.ahead_ends[self._log]
        return ReadResult(self._log, newest.read(offset, bytes_max=bytes_max), end, self.log_start, end)

    async def reach(self, offset: Offset) -> None:
        await self._leaders.visible(self._log, offset)

    def watch(self, watcher: Watcher, *, beyond: Offset, committed_only: bool) -> bool:
        return self._leaders.watch(self._log, watcher, beyond=beyond, committed_only=committed_only)

    def unwatch(self, watcher: Watcher) -> None:
        self._leaders.unwatch(self._log, watcher)


class MemoryDataLogs:
    """Reads what the leaders keep. Only what the handlers use of `datalog.interface.DataLogs`."""

    def __init__(self, leaders: MemoryLeaders) -> None:
        self._leaders = leaders
        self.reads = 0
        self.ahead = False
        """While set, the data logs already hold what the leaders have not announced."""
        self.damaged = False
        """While set, what is read of a batch is too short to be one."""
        self.lends = True
        """While set, all batches are lent, however small the answer is."""
        self.loans = self.loans_given = 0
        """Those that are not ended, and all."""

    def lend(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> Loan:
        self.reads += 1
        answers: list[ReadAnswer] = []
        left = bytes_max
        for request in requests:
            end, stable = self._leaders.high_watermark(request.log), self._leaders.last_stable_offset(request.log)
            if end is not None and self.ahead:
                end = stable = self._leaders.end(request.log)
            if end is None or stable is None:
                answers.append(LogMissing(request.log))
                continue
            start = self._leaders.log_start(request.log)
            if not start <= request.offset <= end:
                answers.append(OffsetOutOfRange(request.log, end, start))
                continue
            taken: list[bytes] = []
            for batch in self._leaders.logs[request.log]:
                header = parse_batch_header_untrusted(batch)
                if not request.offset <= header.last_offset < (stable if request.committed_only else end):
                    continue
                size = sum(map(len, taken)) + len(batch)
                if size > min(left, request.bytes_max) and not (left == bytes_max and not taken):
                    break
                taken.append(batch[:7] if self.damaged else batch)
            left -= sum(map(len, taken))
            aborted = tuple(self._leaders.aborted.get(request.log, ())) if request.committed_only and taken else ()
            batches = [memoryview(batch) for batch in taken] if self.lends else taken
            answers.append(ReadResult(request.log, batches, end, start, stable, aborted))
        if not self.lends:
            return Loan(answers)
        self.loans += 1
        self.loans_given += 1

        def ended() -> None:
            self.loans -= 1

        return Loan(answers, views_in(answers), ended)

    def bounds(self, log: LogId) -> Bounds:
        if log not in self._leaders.logs:
            raise UnknownLog(log)
        end = self._leaders.end(log)
        size_bytes = sum(map(len, self._leaders.logs[log]))
        return Bounds(self._leaders.log_start(log), end, size_bytes, end)

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None:
        headers = map(parse_batch_header_untrusted, self._leaders.logs[log])
        return next(
            (TimestampOffset(h.base_offset, h.max_timestamp) for h in headers if h.max_timestamp >= timestamp_ms), None
        )

    def max_timestamp(self, log: LogId) -> TimestampOffset | None:
        headers = list(map(parse_batch_header_untrusted, self._leaders.logs[log]))
        if not headers:
            return None
        largest = max(headers, key=lambda h: h.max_timestamp)
        return TimestampOffset(largest.base_offset, largest.max_timestamp)

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd:
        if log not in self._leaders.logs:
            raise UnknownLog(log)
        headers = list(map(parse_batch_header_untrusted, self._leaders.logs[log]))
        upto = [header for header in headers if header.partition_leader_epoch <= leader_epoch]
        later = [header.base_offset for header in headers if header.partition_leader_epoch > leader_epoch]
        return EpochEnd(upto[-1].partition_leader_epoch if upto else None, (later or [self._leaders.end(log)])[0])
