"""The way of the data, end to end, on real files: journals, folds, copier and data logs through crashes.

A small leader and a small coordinator drive a random workload over three topics' logs and one offsets log. One of the
topics is of marker mode: its readers ask for committed records, and what holds for its order is less. Then the
node crashes; what a crash leaves is made from the files: of each journal everything that is durable and an arbitrary
part of the rest, of the data logs the present state or an earlier one (a power cut may undo commits that were not
synced). The node starts again from that, several times over, and what the data logs hold is compared with what the
model knows was decided and answered.

The disk is not waited for (`sync` does nothing): durable is what a flush has covered. A failure names its seed, which
gives the same workload again, though not the same timing of the threads.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from copier import staging
from copier.copier import Copier
from copier.reclaim import Reclaimer
from datalog import cuts
from datalog.batch import HEADER_BYTES, parse_batch_header_untrusted
from datalog.environment import LmdbDataLogs
from datalog.interface import Mark, ReadRequest, ReadResult
from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey, encode_offset_entries
from fairlog_types import (
    NO_APPLY_NUMBER,
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
from journal.flush import open_flusher
from journal.journal import Journal, JournalKind, JournalSettings
from journal.segment import SegmentHeader, decode_segment_header_untrusted, file_offset
from partition.placed import OpenPart, Placed
from partition.producer_window import ProducerWindow
from partition.record_codec import encode_local, replay_local
from partition.records import Apply, Discard, Fence, LocalRecord, Marker, OpenBatch, PlainBatch, TransactionalBatch
from partition.state import PartitionState

TOPIC_LOGS = tuple(LogId("t", "ab" * 16, partition) for partition in range(3))
MARKED = TOPIC_LOGS[2]
"""Of marker mode."""
OFFSETS = LogId.of_offsets(0)
LOGS = (*TOPIC_LOGS, OFFSETS)
PRODUCERS = tuple(ProducerId(number) for number in range(1, 5))
GROUPS = 2
"""Coordinators' groups: a producer's transactions are ordered within its own only."""
NOW_MS = 1_000
RECORDS_PER_CUT = 8
SETTINGS = JournalSettings(segment_bytes_max=4096)
COPIER_POINTS = [name for name in failpoints.FAILPOINTS if name.startswith("copier.")]
"""Those of stages are not reached if nothing is large."""


def batch_of(number: int, records: int, size: int, producer: int = -1) -> bytes:
    """A record batch that says who it is: `number` stands where its records would; transactional with a `producer`."""
    attributes, epoch = (0, -1) if producer < 0 else (0x10, 0)
    body = struct.pack(">q", number) + bytes(7 * records + size)  # so many could be in there
    header = struct.pack(
        ">qiibIhiqqqhii", -1, 49 + len(body), -1, 2, 0, attributes, records - 1, 5, 5, producer, epoch, epoch, records
    )
    assert len(header) == HEADER_BYTES
    return header + body


@dataclass
class Transaction:
    """One transaction, as its coordinator knows it."""

    txid: TxId
    leader_epoch: LeaderEpoch
    batches: dict[LogId, list[int]] = field(default_factory=dict)
    """Per log the numbers of its batches, in produce order."""
    records: dict[LogId, int] = field(default_factory=dict)


@dataclass
class Model:
    """What outlives crashes: what was decided (the group journals), and what was answered."""

    committed: list[Transaction] = field(default_factory=list)
    """Decided, in the groups' order: each of these must be in all its logs."""
    plain: dict[LogId, set[int]] = field(default_factory=lambda: {log: set() for log in LOGS})
    """Ever appended; may be there."""
    answered: dict[LogId, set[int]] = field(default_factory=lambda: {log: set() for log in LOGS})
    """Told to a producer as written; must be there."""
    seen: dict[LogId, list[int]] = field(default_factory=lambda: {log: [] for log in LOGS})
    """What a reader has read; must stay a prefix."""
    cuts: set[tuple[Offset, ...]] = field(default_factory=set)
    """At which a reader with a limit has stopped."""
    batch_number: int = 0
    transaction_number: int = 0
    apply_number: int = 0

    def next_batch(self) -> int:
        self.batch_number += 1
        return self.batch_number


class Node:
    """One life of the node, from its start to its crash."""

    def __init__(self, directory: Path, model: Model, epoch: int, choose: random.Random) -> None:
        self.directory = directory
        self.model = model
        self.epoch = LeaderEpoch(epoch)
        self.choose = choose
        self.open: dict[ProducerId, Transaction] = {}
        self.sequences: dict[tuple[ProducerId, LogId], int] = {}
        self.unanswered: dict[LogId, list[tuple[Offset, int]]] = {log: [] for log in LOGS}
        self.high_watermarks: dict[LogId, Offset] = {}
        self.moved = trio.Event()
        """Set, and replaced, when something is copied, and when copying stops."""
        self.earlier_data_logs: Path | None = None
        """A copy of the data logs as they were some chunks ago, not older than the last sync."""
        self.failures: list[StorageFailure] = []
        self.recovered: dict[LogId, list[Placed]] = {}
        """What the journals hold beyond the marks, and what is placed again, as long as the node recovers."""
        self.is_recovering = False
        self.crash_chance = 0.02
        """Of dying in the middle of an APPLY to several logs."""
        self.disk_works = threading.Event()
        self.disk_works.set()

    async def start(self, stack: AsyncExitStack) -> None:
        self.data_logs = LmdbDataLogs.open(self.directory / "data", map_bytes=2**28, sync=False)
        stack.callback(self.data_logs.close)
        with self.data_logs.write() as writer:
            for log in LOGS:
                writer.create(log)
        flusher = await stack.enter_async_context(open_flusher(sync=self._sync))
        self.journals: dict[LogId, Journal] = {}
        self.states: dict[LogId, PartitionState] = {}
        for log in LOGS:
            self.journals[log] = await Journal.open(
                self.directory / str(log),
                kind=JournalKind.LOCAL,
                settings=SETTINGS,
                flusher=flusher,
                leader_epoch=self.epoch,
            )
            stack.push_async_callback(self.journals[log].close)
        self.copier = Copier(self.data_logs, self.journals.__getitem__, self._on_copied, on_failure=self._on_failure)
        stack.callback(self.disk_works.set)
        self.reclaimer = Reclaimer(self.copier, self.data_logs, self.journals.__getitem__)

    async def recover(self) -> None:
        """Fold each journal from its mark on, place again what is missing, and hand all of it to the copier."""
        self.is_recovering = True
        marks: dict[LogId, Mark] = {}
        for log in LOGS:
            mark = self.data_logs.mark(log)
            assert mark is not None
            state = self.states[log] = PartitionState(log, self.epoch)
            windows = {producer: ProducerWindow.decode(data) for producer, data in self.data_logs.producers(log)}
            state.restore(
                copied_through=mark.copied_through,
                replay_from=mark.replay_from,
                next_offset=mark.next_offset,
                log_start=self.data_logs.bounds(log).log_start,
                windows=windows,
                open_parts=[OpenPart(*dataclasses.astuple(it)) for it in self.data_logs.open_transactions(log)],
            )
            self.recovered[log] = list(replay_local(self.journals[log].frames(mark.replay_from), state))
            marks[log] = mark
        await self.decide_again()
        self.is_recovering = False
        self.copier.recover(self.recovered, marks)

    async def decide_again(self) -> None:
        """The coordinators' part: place what was decided, discard the rest; groups in any order, each in its own."""
        groups = [[t for t in self.model.committed if t.txid.producer_id % GROUPS == group] for group in range(GROUPS)]
        while any(groups):
            transaction = self.choose.choice([group for group in groups if group]).pop(0)
            missing = {
                log
                for log in transaction.records
                if transaction.txid in self.states[log].open_transactions
                and self.states[log].applied(transaction.txid) is None
            }
            for log in missing:
                records = transaction.records[log]
                assert self.states[log].holds(transaction.txid, transaction.leader_epoch, records) is None
            await self.place(transaction, missing)
        for log in LOGS:
            for txid in list(self.states[log].open_transactions):
                await self.discard(log, txid)

    async def discard(self, log: LogId, txid: TxId) -> None:
        if log == MARKED:
            marker = Marker(txid, NO_APPLY_NUMBER, self.states[log].next_offset, False, self.epoch, NOW_MS)
            await self.write(log, marker)
        else:
            await self.write(log, Discard(txid))

    async def write(
        self, log: LogId, record: LocalRecord, payload: bytes = b"", *, submit: bool = True
    ) -> Placed | None:
        journal = self.journals[log]
        if not journal.has_room(len(payload)):
            await journal.make_room(len(payload))
        return self._append(log, record, payload, submit=submit)

    def _append(self, log: LogId, record: LocalRecord, payload: bytes, *, submit: bool) -> Placed | None:
        journal = self.journals[log]
        kind, header = encode_local(record)
        position = journal.append(kind, header, [payload] if payload else [], timestamp_ms=NOW_MS)
        placed = self.states[log].fold(record, position, journal.end, leader_epoch=self.epoch, timestamp_ms=NOW_MS)
        if placed is not None and self.is_recovering:
            self.recovered[log].append(placed)
        elif placed is not None and submit:
            self.copier.submit((placed,))
        return placed

    # The workload

    async def step(self) -> None:
        """One thing that clients do to a broker."""
        producer = self.choose.choice(PRODUCERS)
        what = self.choose.random()
        if what < 0.25:
            await self.produce_plain(self.choose.choice(TOPIC_LOGS))
        elif what < 0.6:
            await self.produce(producer, self.choose.choice(LOGS))
        elif what < 0.75:
            await self.commit(producer)
        elif what < 0.8:
            await self.abort(producer)
        elif what < 0.85:
            self.earlier_data_logs = None
            await self.reclaimer.reclaim()
        elif what < 0.9:
            await self.copier.drain()
        else:
            await trio.lowlevel.checkpoint()
            self.read_all()

    async def produce_plain(self, log: LogId) -> None:
        number, records = self.model.next_batch(), self.choose.randint(1, 3)
        payload = batch_of(number, records, self.choose.choice((0, 100, 1500)))
        record = PlainBatch(self.states[log].next_offset, records, 5, ProducerId(-1), ProducerEpoch(-1), -1)
        journal = self.journals[log]
        if not journal.has_room(len(payload)):
            await journal.make_room(len(payload))
            record = PlainBatch(self.states[log].next_offset, records, 5, ProducerId(-1), ProducerEpoch(-1), -1)
        self.model.plain[log].add(number)
        self._append(log, record, payload, submit=True)
        self.unanswered[log].append((self.states[log].next_offset, number))

    async def produce(self, producer: ProducerId, log: LogId) -> None:
        transaction = self.open.get(producer)
        if transaction is None:
            self.model.transaction_number += 1
            txid = TxId(producer, ProducerEpoch(self.epoch), self.model.transaction_number)
            transaction = self.open[producer] = Transaction(txid, self.epoch)
        state = self.states[log]
        if state.needs_fence(producer, transaction.txid.epoch):
            await self.write(log, Fence(producer, transaction.txid.epoch))
        state.begin(transaction.txid)
        number = self.model.next_batch()
        if log == OFFSETS:
            entry = OffsetEntry(OffsetKey("group", "topic", number), CommittedOffset(Offset(number), -1, "", 0))
            records, first_sequence, payload = 1, -1, encode_offset_entries([entry])
        else:
            records = self.choose.randint(1, 3)
            first_sequence = self.sequences.get((producer, log), 0)
            self.sequences[producer, log] = first_sequence + records
            payload = batch_of(number, records, self.choose.choice((0, 100, 1500)), producer)
        txid = transaction.txid
        if log == MARKED:
            await self.write(log, OpenBatch(txid, state.next_offset, records, 5, first_sequence), payload)
        else:
            await self.write(log, TransactionalBatch(txid, records, 5, first_sequence), payload)
        transaction.batches.setdefault(log, []).append(number)
        transaction.records[log] = transaction.records.get(log, 0) + records

    async def commit(self, producer: ProducerId) -> None:
        transaction = self.open.pop(producer, None)
        if transaction is None:
            return
        for log in transaction.records:
            await self.journals[log].flush(self.journals[log].end)
        self.model.committed.append(transaction)
        await self.place(transaction, set(transaction.records))

    async def place(self, transaction: Transaction, logs: set[LogId]) -> None:
        """APPLY in all logs in one step; now and then the crash comes in the middle of it."""
        survive = self.choose.random() >= self.crash_chance
        placed_in = sorted(logs)[: len(logs) if survive else self.choose.randint(0, len(logs))]
        number = self.apply_number_of(transaction)
        group: list[Placed] = []
        for log in placed_in:
            records = transaction.records[log]
            offset = self.states[log].next_offset
            record: LocalRecord = Apply(transaction.txid, number, offset, records, NOW_MS)
            if log == MARKED:
                record = Marker(transaction.txid, number, offset, True, self.epoch, NOW_MS)
            placed = self._append(log, record, b"", submit=False)
            assert placed is not None
            group.append(placed)
        if not survive:
            raise Crash
        if group and not self.is_recovering:
            self.copier.submit(tuple(group), order=f"group {transaction.txid.producer_id % GROUPS}")

    def apply_number_of(self, transaction: Transaction) -> ApplyNumber:
        """The one under which a part of it has survived, else a new one."""
        for log in transaction.records:
            applied = self.states[log].applied(transaction.txid)
            if applied is not None:
                return applied.apply_number
        self.model.apply_number += 1
        return ApplyNumber(self.model.apply_number)

    async def abort(self, producer: ProducerId) -> None:
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            for log in transaction.records:
                await self.discard(log, transaction.txid)

    async def stall(self) -> None:
        """From now on no flush returns; what is produced behind the durable head must not be copied."""
        await self.copier.drain()
        log = self.choose.choice(TOPIC_LOGS)
        await self.produce_plain(log)
        offset = self.states[log].next_offset
        await self.journals[log].flush(self.journals[log].end)
        self.disk_works.clear()
        for _ in range(self.choose.randint(1, 5)):
            other = self.choose.choice(TOPIC_LOGS)
            if self.journals[other].has_room(2000):
                await self.produce_plain(other)
        while self.high_watermarks.get(log, 0) < offset:
            await self.moved.wait()
            if self.failures:
                raise self.failures[0]

    def _sync(self, fd: int) -> None:
        """In place of fdatasync, in a flusher's thread."""
        self.disk_works.wait()

    # What is seen

    def _on_copied(self, high_watermarks: Mapping[LogId, Offset], *_: Mapping[LogId, Offset]) -> None:
        """Answer producers; now and then remember the data logs, which nobody writes at this moment."""
        self.high_watermarks.update(high_watermarks)
        self._tell_moved()
        for log, high_watermark in high_watermarks.items():
            answered = [number for offset, number in self.unanswered[log] if offset <= high_watermark]
            self.model.answered[log].update(answered)
            del self.unanswered[log][: len(answered)]
        if self.choose.random() < 0.05:
            self.earlier_data_logs = self.directory.with_name(self.directory.name + "-earlier")
            shutil.rmtree(self.earlier_data_logs, ignore_errors=True)
            shutil.copytree(self.directory / "data", self.earlier_data_logs)

    def _on_failure(self, failure: StorageFailure) -> None:
        self.failures.append(failure)
        self._tell_moved()

    def _tell_moved(self) -> None:
        self.moved.set()
        self.moved = trio.Event()

    def contents(self) -> dict[LogId, list[int]]:
        """The numbers of all committed batches in the data logs, in one consistent cut; offsets are dense."""
        requests = [ReadRequest(log, Offset(0), 2**30, committed_only=log == MARKED) for log in TOPIC_LOGS]
        numbers: dict[LogId, list[int]] = {}
        for answer in self.data_logs.read(requests, bytes_max=2**30):
            assert isinstance(answer, ReadResult)
            next_offset = 0
            found = numbers[answer.log] = []
            for batch in answer.batches:
                header = parse_batch_header_untrusted(batch)
                assert header.base_offset == next_offset
                next_offset += header.record_count
                if header.control or any(
                    aborted.producer_id == header.producer_id
                    and aborted.first_offset <= header.base_offset < aborted.last_offset
                    for aborted in answer.aborted
                ):
                    continue
                found.append(struct.unpack_from(">q", batch, HEADER_BYTES)[0])
            assert next_offset == answer.last_stable_offset
        return numbers

    def read_all(self) -> None:
        """What a reader sees: committed only, whole transactions, in the groups' order, nothing taken back."""
        contents = self.contents()
        for log, numbers in contents.items():
            before = self.model.seen[log]
            assert numbers[: len(before)] == before
            self.model.seen[log] = numbers
            self._check_log(log, numbers)
        unseen: dict[int, TxId] = {}
        for transaction in self.model.committed:
            there = {
                log: set(batches) <= set(contents[log])
                for log, batches in transaction.batches.items()
                if log in contents and log != MARKED  # another one that is open there may hold it back
            }
            assert len(set(there.values())) <= 1, f"{transaction.txid} is seen in parts: {there}"
            group = transaction.txid.producer_id % GROUPS
            if False in there.values():
                unseen.setdefault(group, transaction.txid)
            assert True not in there.values() or group not in unseen, (
                f"{transaction.txid} is seen before {unseen[group]}"
            )

    def read_by_steps(self) -> None:
        """A reader with a limit goes from cut to cut: each holds of every transaction all or nothing."""
        logs = [log for log in TOPIC_LOGS if log != MARKED]
        offsets: dict[LogId, dict[int, Offset]] = {log: {} for log in logs}
        for answer in self.data_logs.read([ReadRequest(log, Offset(0), 2**30) for log in logs], bytes_max=2**30):
            assert isinstance(answer, ReadResult)
            for batch in answer.batches:
                number = struct.unpack_from(">q", batch, HEADER_BYTES)[0]
                offsets[answer.log][number] = parse_batch_header_untrusted(batch).base_offset
        at = dict.fromkeys(logs, Offset(0))
        while any(at[log] < self.data_logs.bounds(log).next_offset for log in logs):
            ends = self.data_logs.cut_within(at, records_max=self.choose.randint(1, 4 * RECORDS_PER_CUT))
            assert ends != at, "there is more to read"
            at = ends
            self.model.cuts.add(tuple(at.values()))
            for transaction in self.model.committed:
                there = {
                    (log, number): number in offsets[log] and offsets[log][number] < at[log]
                    for log in logs
                    for number in transaction.batches.get(log, [])
                }
                assert len(set(there.values())) <= 1, f"{transaction.txid} is split by the cut {at}: {there}"

    def _check_log(self, log: LogId, numbers: list[int]) -> None:
        """Invariants 1, 3 and 6 for one log; also that nothing is there twice (invariant 4)."""
        assert len(set(numbers)) == len(numbers)
        blocks = [transaction.batches[log] for transaction in self.model.committed if log in transaction.batches]
        known = self.model.plain[log].union(*blocks)
        assert set(numbers) <= known, "neither plain nor of a committed transaction"
        place = {number: index for index, number in enumerate(numbers)}
        last_of_group = dict.fromkeys(range(GROUPS), -1)
        for transaction in self.model.committed:
            block = transaction.batches.get(log)
            if block is None or block[0] not in place:
                continue
            at = place[block[0]]
            if log == MARKED:
                found = [number for number in numbers if number in block]
                assert found == block[: len(found)]  # one that is open in between may hold back the rest
                continue
            assert numbers[at : at + len(block)] == block
            group = transaction.txid.producer_id % GROUPS
            assert at > last_of_group[group]
            last_of_group[group] = at

    def check_complete(self) -> None:
        """After `drain`: all that was decided or answered is there, and the windows on disk are the leader's."""
        self.read_all()
        self.read_by_steps()
        offsets = {key.partition for key, _ in self.data_logs.offsets(OFFSETS)}
        contents = self.contents()
        for transaction in self.model.committed:
            for log, batches in transaction.batches.items():
                if log == MARKED and self.states[MARKED].open_transactions:
                    continue
                assert set(batches) <= (offsets if log == OFFSETS else set(contents[log])), transaction.txid
        committed_offsets = [t.batches[OFFSETS] for t in self.model.committed if OFFSETS in t.batches]
        assert offsets == set().union(*committed_offsets)
        for log in TOPIC_LOGS:
            if log != MARKED or not self.states[MARKED].open_transactions:
                assert self.model.answered[log] <= set(contents[log])
        opened = {it.txid: it.records for it in self.data_logs.open_transactions(MARKED)}
        assert opened == {txid: it.records for txid, it in self.states[MARKED].open_transactions.items()}
        marked = self.states[MARKED]
        firsts = [it.first_offset for it in marked.open_transactions.values() if it.first_offset is not None]
        assert self.data_logs.bounds(MARKED).last_stable_offset == min(firsts, default=marked.next_offset)
        for log in LOGS:
            windows = {producer: ProducerWindow.decode(data) for producer, data in self.data_logs.producers(log)}
            assert windows == self.states[log].windows
            assert self.copier.marks[log] == self.data_logs.mark(log)

    def leave_what_a_crash_leaves(self) -> Path:
        """Copy the files as a crash might leave them; answer where they are."""
        left = self.directory.with_name(f"{self.directory.name}-then")
        earlier = self.earlier_data_logs if self.choose.random() < 0.5 else None
        shutil.copytree(earlier or self.directory / "data", left / "data")
        for log, journal in self.journals.items():
            cut = self.choose.randrange(journal.durable, journal.end + 8, 8)
            _copy_journal(self.directory / str(log), left / str(log))
            if (left / str(log)).exists():
                _zero_from(left / str(log), JournalPosition(cut))
        return left


class Crash(Exception):
    """The node dies here."""


def _copy_journal(source: Path, target: Path) -> None:
    """Copy a journal's directory as of one moment, though the flusher's threads may be renaming segments in it."""
    while source.exists():
        try:
            shutil.copytree(source, target)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target)
        else:
            return


def _zero_from(directory: Path, cut: JournalPosition) -> None:
    """Undo what was written at and behind `cut`: the pages never reached the disk.

    A segment gets its name when all before it is on disk, so only what is in the last named one, and in one without a
    name, can be lost.
    """
    last_named = max(directory.glob("*.journal"), default=None)
    for path in directory.iterdir():
        data = bytearray(path.read_bytes())
        header = decode_segment_header_untrusted(data)
        if isinstance(header, SegmentHeader) and (path == last_named or path.suffix != ".journal"):
            start = file_offset(max(cut, header.base), header.base)
            data[start:] = bytes(max(0, len(data) - start))
            path.write_bytes(data)


async def live(directory: Path, model: Model, epoch: int, choose: random.Random, steps: int) -> Path:
    """One life: start, recover, serve, crash. Answers where the crash left its files."""
    node = Node(directory, model, epoch, choose)
    async with AsyncExitStack() as stack:
        await node.start(stack)
        if choose.random() < 0.3:
            point = choose.choice(COPIER_POINTS)
            failpoints.arm({"FAIRLOG_FAILPOINT": f"{point}:fail:{choose.randint(1, 5)}"})
        try:
            async with trio.open_nursery() as nursery:
                await node.recover()
                nursery.start_soon(node.copier.run)
                if choose.random() < 0.8:
                    await node.copier.drain()
                    node.check_complete()
                    for _ in range(steps):
                        await node.step()
                    if choose.random() < 0.5:
                        await node.stall()
                nursery.cancel_scope.cancel()
        except* (Crash, StorageFailure):
            pass
        failpoints.arm({})
        return node.leave_what_a_crash_leaves()
    raise AssertionError("a life ends with its crash")


async def run_lives(directory: Path, seed: int, *, lives: int, steps: int) -> Model:
    """Several lives that end in a crash, and a last one that ends well."""
    choose = random.Random(seed)
    model = Model()
    here = directory / "life"
    here.mkdir()
    for epoch in range(1, lives + 1):
        left = await live(here, model, epoch, choose, choose.randint(1, steps))
        shutil.rmtree(here)
        left.rename(here)
    node = Node(here, model, lives + 1, choose)
    node.crash_chance = 0
    async with AsyncExitStack() as stack:
        await node.start(stack)
        async with trio.open_nursery() as nursery:
            await node.recover()
            nursery.start_soon(node.copier.run)
            await node.copier.drain()
            node.check_complete()
            for _ in range(steps):
                await node.step()
            for producer in PRODUCERS:
                await node.abort(producer)
            await node.copier.drain()
            node.check_complete()
            nursery.cancel_scope.cancel()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("staged", [False, True], ids=["at once", "in stages"])
@pytest.mark.parametrize("seed", range(20))
async def test_crashes_anywhere_lose_nothing_decided_and_copy_nothing_twice(
    tmp_path: Path, seed: int, staged: bool, arm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through any crashes: committed transactions whole and once in every log, aborted ones nowhere, answers kept.

    Also if most transactions are large: copied in stages of some batches.
    """
    monkeypatch.setattr(cuts, "RECORDS_PER_CUT", RECORDS_PER_CUT)
    if staged:
        monkeypatch.setattr(staging, "STAGED_FROM_BYTES", 800)
        monkeypatch.setattr(staging, "STAGE_BYTES", 200)
    model = await run_lives(tmp_path, seed, lives=4, steps=80)
    assert model.committed
    assert model.cuts
