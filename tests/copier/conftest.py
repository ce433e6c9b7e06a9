"""Doubles for what the copier stands between: a journal whose disk obeys the test, and data logs in memory."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import trio

from copier.copier import Copier
from copier.plan import Group
from datalog.interface import Bounds, Mark, UnknownLog
from datalog.offset_entries import Entry
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal import failpoints
from partition.placed import BatchRef, PlacedBatch, PlacedStart, PlacedState, PlacedTransaction
from partition.producer_window import ProducerWindow
from partition.visibility import Visibility

PRODUCER = ProducerId(7)
LEADER_EPOCH = LeaderEpoch(3)


class FakeJournal:
    """A local journal in memory. Fault model: a flush can be held back, and the journal can break down for good."""

    def __init__(self) -> None:
        self.end = JournalPosition(0)
        self.durable = JournalPosition(0)
        self.payloads: dict[JournalPosition, bytes] = {}
        self.flushes_started = 0
        self.reclaimed: list[JournalPosition] = []
        self.let_go_of: list[JournalPosition] = []
        self.on_read: Callable[[], None] = lambda: None
        """Called in the worker thread, before each payload is read."""
        self._failure: StorageFailure | None = None
        self._held: trio.Event | None = None

    def append(self, payload: bytes = b"") -> BatchRef:
        position = self.end
        self.payloads[position] = payload
        self.end = JournalPosition(position + 32 + len(payload))
        return BatchRef(position, self.end - position, 1, 0, -1)

    def hold(self) -> None:
        """Let no flush end until `release` or `break_down`."""
        self._held = trio.Event()

    def release(self) -> None:
        assert self._held is not None
        held, self._held = self._held, None
        held.set()

    def break_down(self, message: str) -> None:
        """Every flush fails from now on, those that are held, too; payloads do not read back either."""
        self._failure = StorageFailure(message)
        if self._held is not None:
            self.release()

    def start_flush(self) -> None:
        self.flushes_started += 1

    async def flush(self, through: JournalPosition) -> None:
        while self.durable < through:
            if self._held is not None:
                await self._held.wait()
            if self._failure is not None:
                raise self._failure
            self.durable = self.end
        await trio.lowlevel.checkpoint()

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        self.on_read()
        if self._failure is not None:
            raise self._failure
        payload = self.payloads[position]
        assert len(payload) + 32 == frame_bytes
        return bytearray(payload)

    def let_go(self, position: JournalPosition, frame_bytes: int) -> None:
        assert len(self.payloads[position]) + 32 == frame_bytes
        self.let_go_of.append(position)

    async def reclaim(self, before: JournalPosition) -> None:
        await trio.lowlevel.checkpoint()
        if self._failure is not None:
            raise self._failure
        self.reclaimed.append(before)


@dataclass
class LogContent:
    """One data log of the double."""

    mark: Mark = field(default_factory=lambda: Mark(JournalPosition(0), JournalPosition(0), Offset(0)))
    batches: list[tuple[Offset, bytes]] = field(default_factory=list)
    staged: list[tuple[Offset, bytes]] = field(default_factory=list)
    """What is behind the end."""
    log_start: Offset = field(default_factory=lambda: Offset(0))
    transactions: list[tuple[Offset, Offset]] = field(default_factory=list)
    """First and last offset of those that have several batches."""
    windows: dict[ProducerId, bytes] = field(default_factory=dict)
    offsets: list[Entry] = field(default_factory=list)


class MemoryDataLogs:
    """Data logs in memory: a write block changes a copy, which takes the place of the original when it ends."""

    def __init__(self, logs: Sequence[LogId]) -> None:
        self.content = {log: LogContent() for log in logs}
        self.versions: list[Mapping[LogId, LogContent]] = []
        """What every reader could have seen: the content after each write block."""
        self.calls: list[str] = []
        self.cuts: list[Mapping[LogId, LogContent]] = []
        """The versions that the copier has called a cut."""
        self.sync_failure: StorageFailure | None = None

    @contextmanager
    def write(self) -> Iterator[MemoryWriter]:
        changed = copy.deepcopy(self.content)
        writer = MemoryWriter(changed)
        yield writer
        self.content = changed
        if writer.leaves_a_cut:
            self.cuts.append(changed)
        self.versions.append(changed)
        self.calls.append("write")

    def mark(self, log: LogId) -> Mark | None:
        content = self.content.get(log)
        return content.mark if content is not None else None

    def drop(self, log: LogId) -> None:
        del self.content[log]

    def sync(self) -> None:
        if self.sync_failure is not None:
            raise self.sync_failure
        self.calls.append("sync")


class MemoryWriter:
    """The writer of `MemoryDataLogs`, with the assertions that the real one makes."""

    def __init__(self, content: dict[LogId, LogContent]) -> None:
        self._content = content
        self.leaves_a_cut = False

    def _log(self, log: LogId) -> LogContent:
        if log not in self._content:
            raise UnknownLog(log)
        return self._content[log]

    def append(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytearray
    ) -> None:
        content = self._log(log)
        assert struct.unpack_from(">q", data)[0] == base_offset
        assert not content.staged
        content.batches.append((base_offset, bytes(data)))

    def stage(self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytearray) -> None:
        assert struct.unpack_from(">q", data)[0] == base_offset
        self._log(log).staged.append((base_offset, bytes(data)))

    def publish(self, log: LogId, staged: Iterable[tuple[Offset, int, int]]) -> None:
        """Batches of the double have a record each."""
        content = self._log(log)
        found = [(offset, len(data)) for offset, data in content.staged]
        assert [(last_offset, size) for last_offset, _, size in staged] == found
        content.batches += content.staged
        content.staged = []

    def last_stable_offset(self, log: LogId) -> Offset:
        """No transaction is ever open in the double."""
        batches = self._log(log).batches
        return Offset(batches[-1][0] + 1) if batches else Offset(0)

    def bind(self, log: LogId, base_offset: Offset, last_offset: Offset) -> None:
        self._log(log).transactions.append((base_offset, last_offset))

    def put_offsets(self, log: LogId, entries: Sequence[Entry]) -> None:
        self._log(log).offsets += entries

    def put_cut(self, now_s: float) -> None:
        self.leaves_a_cut = True

    def put_producer(self, log: LogId, producer_id: ProducerId, state: bytes) -> None:
        self._log(log).windows[producer_id] = state

    def delete_producer(self, log: LogId, producer_id: ProducerId) -> None:
        self._log(log).windows.pop(producer_id, None)

    def delete_before(self, log: LogId, offset: Offset, *, batches_max: int | None = None) -> int:
        content = self._log(log)
        assert batches_max == 0, "what is deleted needs room, and is for others"
        assert offset <= max([content.mark.next_offset, *(base + 1 for base, _ in content.batches)])
        content.log_start = max(content.log_start, offset)
        return 0

    def mark(self, log: LogId) -> Mark:
        return self._log(log).mark

    def put_mark(self, log: LogId, mark: Mark) -> None:
        content = self._log(log)
        assert mark.copied_through >= content.mark.copied_through
        assert mark.next_offset >= content.mark.next_offset
        content.mark = mark


def batch_bytes(text: bytes) -> bytes:
    """As much of a record batch as the copier looks at: base offset and leader epoch, to be patched."""
    return struct.pack(">qii", -1, len(text) + 4, -1) + text


class Node:
    """A copier between the doubles, and the leader's part: appending to journals and counting offsets."""

    def __init__(self, logs: Sequence[LogId], **bounds: int) -> None:
        self.journals = {log: FakeJournal() for log in logs}
        self.data_logs = MemoryDataLogs(logs)
        self.next_offset = dict.fromkeys(logs, 0)
        self.told: list[Mapping[LogId, Offset]] = []
        self.starts: dict[LogId, Offset] = {}
        self.failures: list[StorageFailure] = []
        self.apply_number = 0
        self._bounds = bounds
        self.copier = self.new_copier()

    def new_copier(self) -> Copier:
        """As after a start: what can be read is what the data logs hold."""
        ends = {log: content.mark.next_offset for log, content in self.data_logs.content.items()}
        self.visible = {log: Visibility(log, Bounds(Offset(0), end, 0, end)) for log, end in ends.items()}
        self.copier = Copier(
            self.data_logs,  # type: ignore[arg-type]
            self.journals.__getitem__,
            self._on_copied,
            on_failure=self._on_failure,
            **self._bounds,
        )
        for content in self.data_logs.content.values():
            content.staged = []  # as when data logs are opened
        return self.copier

    def _on_copied(
        self,
        high_watermarks: Mapping[LogId, Offset],
        last_stable: Mapping[LogId, Offset],
        log_starts: Mapping[LogId, Offset],
    ) -> None:
        self.told.append(high_watermarks)
        self.starts |= log_starts
        for log, high_watermark in high_watermarks.items():
            self.visible[log].advance(high_watermark, last_stable[log])

    def _on_failure(self, failure: StorageFailure) -> None:
        self.failures.append(failure)
        for visibility in self.visible.values():
            visibility.fail(failure)

    async def copied(self, log: LogId, offset: int) -> None:
        """Wait as the shard does for a producer."""
        await self.visible[log].reach(Offset(offset))

    def plain(self, log: LogId, text: bytes, records: int = 1) -> PlacedBatch:
        """Append one plain batch; it is not submitted yet."""
        batch, end, window = self._append(log, batch_bytes(text), records)
        base_offset = self._take_offsets(log, records)
        return PlacedBatch(log, base_offset, PRODUCER, ProducerEpoch(0), LEADER_EPOCH, batch, window, end, end)

    def transaction(self, texts: Mapping[LogId, Sequence[bytes]], producer_id: ProducerId = PRODUCER) -> Group:
        """Append the batches and the APPLY of one transaction in every log; not submitted yet."""
        return self.together([texts], producer_id)

    def together(self, lanes: Sequence[Mapping[LogId, Sequence[bytes]]], producer_id: ProducerId = PRODUCER) -> Group:
        """Append the batches and the APPLYs of several transactions that are placed as one; not submitted yet.

        The first is of that producer, the others of those behind it.
        """
        self.apply_number += 1
        lanes_of = enumerate(lanes, producer_id)
        return tuple(part for producer, texts in lanes_of for part in self._parts(ProducerId(producer), texts))

    def _parts(self, producer_id: ProducerId, texts: Mapping[LogId, Sequence[bytes]]) -> list[PlacedTransaction]:
        txid = TxId(producer_id, ProducerEpoch(0), self.apply_number)
        parts: list[PlacedTransaction] = []
        for log, batch_texts in texts.items():
            batches = tuple(self._append(log, batch_bytes(text), 1)[0] for text in batch_texts)
            _, end, window = self._append(log, b"", 0)
            base_offset = self._take_offsets(log, len(batches))
            number = ApplyNumber(self.apply_number)
            parts.append(
                PlacedTransaction(
                    log, base_offset, txid, number, LEADER_EPOCH, len(batches), batches, window, end, end, 0
                )
            )
        return parts

    def committed_offsets(self, log: LogId, payload: bytes) -> PlacedBatch:
        """Append one plain record of an offsets log; not submitted yet."""
        batch, end, window = self._append(log, payload, 1)
        base_offset = self._take_offsets(log, 1)
        return PlacedBatch(log, base_offset, PRODUCER, ProducerEpoch(0), LEADER_EPOCH, batch, window, end, end)

    def state(self, log: LogId, producer_id: ProducerId = PRODUCER, *, forgotten: bool = False) -> PlacedState:
        """Append a fence, or that the producer is forgotten; not submitted yet."""
        _, end, window = self._append(log, b"", 0)
        return PlacedState(log, producer_id, None if forgotten else window, end, end)

    def start(self, log: LogId, offset: int) -> PlacedStart:
        """Append that the log begins there; not submitted yet."""
        _, end, _ = self._append(log, b"", 0)
        return PlacedStart(log, Offset(offset), end, end)

    def texts(self, log: LogId) -> list[bytes]:
        """What the data log holds."""
        return [data[16:] for _, data in self.data_logs.content[log].batches]

    def _append(self, log: LogId, payload: bytes, records: int) -> tuple[BatchRef, JournalPosition, ProducerWindow]:
        journal = self.journals[log]
        ref = journal.append(payload)
        window = ProducerWindow(ProducerEpoch(0), (), (), 0, journal.end)
        return BatchRef(ref.position, ref.frame_bytes, records, 0, -1), journal.end, window

    def _take_offsets(self, log: LogId, records: int) -> Offset:
        base_offset = Offset(self.next_offset[log])
        self.next_offset[log] += records
        return base_offset


@pytest.fixture
def make_node() -> type[Node]:
    return Node


@pytest.fixture
def arm() -> Iterator[Callable[[str], None]]:
    """Arm one failpoint by its specification, `<name>:fail:<nth>`; disarmed after the test."""
    yield lambda specification: failpoints.arm({"FAIRLOG_FAILPOINT": specification})
    failpoints.arm({})
