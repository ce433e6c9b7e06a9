"""The conductor: reads a stopped node's directory, or a backup, and has each part checked.

    cluster store ─▶ each shard: data logs' tables ─▶ who belongs to whom ─▶ what the group journals tell
    each log:   its journal ─▶ its batches, past all checkers in one pass
    then:       what the group journals tell, against all shards' logs ─▶ LMDB's free lists

The directory of a node of several machines has copies of shards, each as far as the node has come with it. They are
checked one by one: what one of them tells of another may not have come there yet.

Violations come as they are found, so that whoever wants the first one only waits no longer. What is damaged is named
and left out; the rest is checked all the same.

What has to be held in memory: the frames' headers of one local journal at a time, the windows of one log at a time,
and of transactions what the windows and journals know.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.group_records import SinkRecord
from datalog import layout
from datalog.batch import HEADER_BYTES, Buffer, claimed_crc
from datalog.control_batch import encode_control_batch
from datalog.cuts import Cut
from datalog.interface import AbortedTransaction, Mark, OpenInLog
from datalog.layout import DamagedValue, LogRecord
from datalog.lmdb_file import check_length
from datalog.lmdb_pages import DamagedPage, Item, LmdbFile
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog import data_directory
from fairlog.cluster.interface import Topic
from fairlog.supervisor import allotment
from fairlog.topic_configs import mode_of
from fairlog.verify.batches import DensityCheck, LogCheck, read_batch
from fairlog.verify.committed_offsets import check_committed_offset
from fairlog.verify.copies import CopiedBatch, CopiesCheck
from fairlog.verify.counters import CountersCheck, TimeIndexCheck
from fairlog.verify.cuts import check_common_cut, check_cut
from fairlog.verify.described import Described, describe
from fairlog.verify.directories import Inventory, ShardInventory, check_inventory
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.group_journals import group_journal_name, read_group_journal, shard_of_group_journal
from fairlog.verify.journals import (
    AppliedPart,
    JournalView,
    PlacedFrames,
    ReadFrame,
    check_journal,
    check_mark,
    decode_frames,
)
from fairlog.verify.markers import ListsCheck, MarkersCheck
from fairlog.verify.persisted_groups import check_persisted_group
from fairlog.verify.placements import KnownPlace, PlacementsCheck
from fairlog.verify.producers import ProducersCheck
from fairlog.verify.rules import rules_of
from fairlog.verify.staged import StagedCheck
from fairlog.verify.stream_marks import check_stream_mark
from fairlog.verify.transactions import (
    GroupHistory,
    LogView,
    check_prepared,
    check_transactions,
    committed_places,
    read_history,
)
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, LogKind, ProducerId, ShardNumber, StorageFailure, TxId
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import Fsync, JournalKind
from partition.producer_window import ProducerWindow
from partition.records import Marker
from shard.directory import ShardDirectory, shard_directories, strangers_among_shards

_BATCHES_PER_STEP = 1000
"""So often the progress is told."""

_DAMAGE = (CorruptStorage, DamagedPage, DamagedValue, StorageFailure, OSError)


@dataclass(slots=True)
class _Shard:
    """One shard, with the tables of its data logs, by log number."""

    directory: ShardDirectory
    file: LmdbFile
    logs: StoredLogs
    records: dict[LogId, LogRecord] = field(default_factory=dict[LogId, LogRecord])
    windows: dict[int, dict[ProducerId, ProducerWindow]] = field(
        default_factory=dict[int, dict[ProducerId, ProducerWindow]]
    )
    time_entries: dict[int, list[tuple[int, int]]] = field(default_factory=dict[int, list[tuple[int, int]]])
    opened: dict[int, list[OpenInLog]] = field(default_factory=dict[int, list[OpenInLog]])
    newest_cuts: dict[int, Cut] = field(default_factory=dict[int, Cut])
    common_cuts: set[int] = field(default_factory=set[int])
    oldest_common: float = math.inf
    aborted: dict[int, list[AbortedTransaction]] = field(default_factory=dict[int, list[AbortedTransaction]])

    def inventory(self) -> ShardInventory:
        """Raises OSError."""
        return ShardInventory(
            number=self.directory.number,
            name=self.directory.name,
            records=self.records,
            databases={name: self.logs.trees[name].entries for name in self.logs.log_names()},
            local_journals=self._named(self.directory.local_journals),
            group_journals=self._named(self.directory.group_journals),
        )

    def _named(self, journals: Path) -> dict[str, str]:
        return {name: self.directory.name_of(journals / name) for name in data_directory.names_in(journals)}


class Verification:
    """One verification of one directory, which nobody may write meanwhile. Blocking."""

    def __init__(
        self,
        directory: Path,
        *,
        has_journals: bool,
        fences: Sequence[SinkRecord] = (),
        told: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`has_journals`: False for a backup, and then `fences` are those of its manifest. `told` gets the bytes that
        were read, in steps."""
        self.summary = Summary()
        self._directory = directory
        self._has_journals = has_journals
        self._fences = fences
        self._told = told
        self._topics: dict[str, Topic] = {}
        self._views: dict[LogId, LogView] = {}
        self._read_whole: set[ShardNumber] = set()
        """Shards of which all group journals were read."""

    def violations(self) -> Iterator[Violation]:
        """All that is wrong, in the order in which it is found. At the iterator's end `summary` is complete."""
        try:
            described = describe(self._directory)
            shards = [_open_shard(shard) for shard in shard_directories(self._directory)]
            if not shards and not described.has_copies:
                raise CorruptStorage("has no shard")
        except _DAMAGE as error:
            yield Violation(str(self._directory), str(error))
            return
        for topic in (*described.served, *described.deleting):
            self._topics[topic.topic_id.hex] = topic
        self.summary.counts["topics"] = len(described.served)
        self.summary.counts["shards"] = len(shards)
        for name in strangers_among_shards(self._directory):
            yield Violation(name, "is not the directory of a shard")
        try:
            allotment.load(self._directory, described.placement.shards)
        except _DAMAGE as error:
            yield Violation(str(self._directory), str(error))
        for shard in shards:
            yield from self._read_tables(shard)
        yield from check_inventory(self._inventory(described, shards))
        if described.metadata_stream is not None:
            yield from self._check_copies(described.metadata_stream, described, shards)
        histories = [read_history("the manifest", self._fences)] if self._fences else []
        if self._has_journals:
            yield from self._read_groups(described, shards, histories)
        committed = committed_places(histories)
        numbers = {shard.directory.number for shard in shards}
        for shard in shards:
            for log in sorted(shard.records):
                yield from self._check_log(log, shard, committed.get(log, ()))
        for together in [{each} for each in numbers] if described.has_copies else [numbers]:
            told = [history for history in histories if history.shard in together]
            views = {log: view for log, view in self._views.items() if view.shard in together}
            yield from check_transactions(told, views, self.summary)
            if self._has_journals:
                yield from check_prepared(told, views, self._read_whole & together)
        for shard in shards:
            try:
                self.summary.counts["free pages of the data logs' files"] += shard.file.check_free_list()
            except DamagedPage as error:
                yield Violation(str(shard.directory.data_logs_file), str(error))

    def _check_copies(
        self, metadata_stream: str, described: Described, shards: Sequence[_Shard]
    ) -> Iterator[Violation]:
        """What only copies of shards have, and what can be said of none of them."""
        for shard in shards:
            yield from check_stream_mark(shard.directory, metadata_stream, self.summary)
        self.summary.unchecked.append(
            "this is the directory of a node of several machines: whether its copies are what the shards' streams say "
            "was not looked at"
        )
        here = [shard.directory.number for shard in shards]
        if described.placement.shards > 1:
            self.summary.unchecked.append(
                f"transactions over several shards were checked within each: of {described.placement.shards} shards "
                f"there are copies of {', '.join(map(str, here)) or 'none'}, each as far as the node has come with it"
            )
        unknown = sum(log.topic not in self._topics for log in self._topic_logs(shards))
        if unknown:
            self.summary.unchecked.append(
                f"{unknown} data logs are of topics that the copy of the metadata does not have: they were deleted, "
                "or made just before the end"
            )

    def _topic_logs(self, shards: Sequence[_Shard]) -> Iterator[LogId]:
        return (log for shard in shards for log in shard.records if log.kind == LogKind.TOPIC.value)

    # --- the tables ---------------------------------------------------------------------------

    def _read_tables(self, shard: _Shard) -> Iterator[Violation]:
        numbers: dict[int, LogId] = {}
        path = str(shard.directory.data_logs_file)
        readers = {
            layout.LOGS: self._read_record,
            layout.PRODUCERS: self._read_window,
            layout.TIME_INDEX: self._read_time_entry,
            layout.OFFSETS: self._read_offset,
            layout.GROUPS: self._read_persisted_group,
            layout.OPEN: self._read_open,
            layout.ABORTED: self._read_aborted,
            layout.CUTS: self._read_cut,
        }
        yield from self._read_common_cuts(shard, f"{path}, {layout.COMMON_CUTS.decode()}")
        for name in layout.OF_LOGS:
            try:
                for item in shard.logs.table(name):
                    if name != layout.LOGS and int.from_bytes(item.key[:4], "big") not in numbers:
                        yield Violation(f"{path}, {name.decode()}", f"the key {item.key.hex()} belongs to no log")
                    elif name in readers:
                        yield from readers[name](item, shard, numbers)
            except DamagedPage as error:
                yield Violation(f"{path}, {name.decode()}", str(error))
        for log, record in shard.records.items():
            if record.number >= shard.logs.numbers:
                yield Violation(
                    self._name(log), f"has number {record.number}, the next to be given is {shard.logs.numbers}"
                )

    def _read_common_cuts(self, shard: _Shard, name: str) -> Iterator[Violation]:
        newest = 0
        try:
            for item in shard.logs.table(layout.COMMON_CUTS):
                try:
                    number, before = layout.decode_cut_number(item.key), layout.decode_cut_number(item.value)
                except DamagedValue as error:
                    yield Violation(name, f"key {item.key.hex()}: {error}")
                    continue
                yield from check_common_cut(name, number, before, newest)
                shard.common_cuts.add(number)
                shard.oldest_common = min(shard.oldest_common, number)
                newest = number
        except DamagedPage as error:
            yield Violation(name, str(error))
        self.summary.counts["cuts over all shards"] += len(shard.common_cuts)

    def _read_record(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        log = parse_log_untrusted(item.key)
        if log is None:
            yield Violation(
                f"the data logs of {shard.directory.name}", f"have a log {item.key!r}, which is no name of one"
            )
            return
        try:
            record = shard.records[log] = layout.decode_log_record(item.value)
        except DamagedValue as error:
            yield Violation(self._name(log), str(error))
            return
        numbers[record.number] = log
        if not 0 <= record.log_start <= record.next_offset:
            yield Violation(self._name(log), f"starts at {record.log_start} and ends at {record.next_offset}", 2)

    def _read_window(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        if len(item.key) != layout.PRODUCER_KEY_BYTES:
            yield Violation(self._name(numbers[number]), f"the key {item.key.hex()} is no producer's")
            return
        producer_id = layout.decode_producer_key(item.key)
        try:
            shard.windows.setdefault(number, {})[producer_id] = ProducerWindow.decode(bytes(item.value))
        except CorruptStorage as error:
            yield Violation(f"{self._name(numbers[number])}, producer {producer_id}", str(error))
        self.summary.counts["producer windows"] += 1

    def _read_time_entry(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        if len(item.key) != layout.TIME_KEY_BYTES or len(item.value) != layout.BATCH_KEY_BYTES:
            yield Violation(self._name(numbers[number]), f"the key {item.key.hex()} is none of the time index")
            return
        (biased,) = struct.unpack_from(">Q", item.key, 4)
        entry = (biased - (1 << 63), layout.decode_batch_key(item.value))
        shard.time_entries.setdefault(number, []).append(entry)
        self.summary.counts["entries of the time index"] += 1

    def _read_open(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        try:
            opened = layout.decode_open(item.key, item.value)
        except DamagedValue as error:
            yield Violation(self._name(numbers[number]), f"key {item.key.hex()}: {error}")
            return
        shard.opened.setdefault(number, []).append(opened)

    def _read_aborted(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        try:
            aborted = layout.decode_aborted(item.key, item.value)
        except DamagedValue as error:
            yield Violation(self._name(numbers[number]), f"key {item.key.hex()}: {error}")
            return
        shard.aborted.setdefault(number, []).append(aborted)
        self.summary.counts["aborted transactions listed"] += 1

    def _read_cut(self, item: Item, shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        name = self._name(numbers[number])
        try:
            cut = layout.decode_cut(item.key, item.value)
        except DamagedValue as error:
            yield Violation(name, f"key {item.key.hex()}: {error}")
            return
        record, before = shard.records[numbers[number]], shard.newest_cuts.get(number)
        yield from check_cut(name, record, cut, before, shard.common_cuts, shard.oldest_common)
        shard.newest_cuts[number] = cut
        self.summary.counts["rows of the cut index"] += 1

    def _read_offset(self, item: Item, _shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        number = int.from_bytes(item.key[:4], "big")
        if numbers[number].kind != LogKind.OFFSETS.value:
            yield Violation(self._name(numbers[number]), "has committed offsets, and is no offsets log")
            return
        yield from check_committed_offset(self._name(numbers[number]), number, item, self.summary)

    def _read_persisted_group(self, item: Item, _shard: _Shard, numbers: dict[int, LogId]) -> Iterator[Violation]:
        log = numbers[int.from_bytes(item.key[:4], "big")]
        if log.kind != LogKind.OFFSETS.value:
            yield Violation(self._name(log), "has members of groups, and is no offsets log")
            return
        yield from check_persisted_group(self._name(log), item, self.summary)

    def _inventory(self, described: Described, shards: Sequence[_Shard]) -> Inventory:
        return Inventory(
            served=described.served,
            deleting=described.deleting,
            shards=[shard.inventory() for shard in shards],
            placement=described.placement,
            started=described.started,
            group_journal_count=described.group_journal_count,
            group_journals_begun=described.group_journals_begun,
            ended_well=data_directory.last_run_ended(self._directory) == "closed",
            has_journals=self._has_journals,
            knows_all_topics=not described.has_copies,
        )

    # --- one log ------------------------------------------------------------------------------

    def _check_log(self, log: LogId, shard: _Shard, committed: Sequence[KnownPlace]) -> Iterator[Violation]:
        record = shard.records[log]
        name = self._name(log)
        windows = shard.windows.get(record.number, {})
        opened, aborted = shard.opened.get(record.number, []), shard.aborted.get(record.number, [])
        view = JournalView()
        copied: list[CopiedBatch] = []
        placed: list[CopiedBatch] = []
        if self._has_journals:
            yield from self._check_journal(shard, log, name, record, windows, opened, view, copied, placed)
        applied = _applied_by(windows)
        rules = rules_of(record, markers=self._has_markers(log))
        if (opened or aborted) and not rules.markers:
            yield Violation(name, "has transactions listed as open or aborted, in the mode journal", 1)
        self._views[log] = LogView(
            name,
            record.next_offset,
            {**view.applied, **applied},
            view.pending,
            markers=rules.markers,
            shard=shard.directory.number,
            prepared=view.prepared,
            open=view.open,
            never_cut=view.never_cut,
        )
        self.summary.counts["data logs"] += 1
        if log.kind != LogKind.TOPIC.value:
            return
        bounds = {"log_start": record.log_start, "next_offset": record.next_offset}
        places = [
            *(_place(txid, part, "the producer's window") for txid, part in applied.items()),
            *(_place(txid, part, "the journal") for txid, part in view.applied.items()),
            # What a power cut undid of the copy the journal still has; with markers that may lie before the log's end.
            *(place for place in committed if place.end <= record.next_offset and place.txid not in view.pending),
        ]
        density = DensityCheck(name, **bounds, rules=rules)
        checks: list[LogCheck] = [
            density,
            CountersCheck(name, record, rules=rules),
            TimeIndexCheck(name, shard.time_entries.get(record.number, ()), log_start=record.log_start, rules=rules),
            ProducersCheck(
                name, windows, log_start=record.log_start, copied_through=record.copied_through, rules=rules
            ),
        ]
        if rules.markers:
            checks.append(MarkersCheck(name, places, **bounds, rules=rules, summary=self.summary))
            checks.append(ListsCheck(name, record, opened, aborted, rules=rules, summary=self.summary))
        else:
            checks.append(PlacementsCheck(name, places, **bounds, rules=rules, summary=self.summary))
        if view.complete_from is not None:
            complete_from, log_start = view.complete_from, record.log_start
            checks.append(
                CopiesCheck(
                    name, copied, complete_from=complete_from, log_start=log_start, rules=rules, summary=self.summary
                )
            )
        due = None if view.placed is None else placed
        staged = StagedCheck(next_offset=record.next_offset, due=due, summary=self.summary)
        yield from self._check_batches(shard, log, name, record, density, checks, staged)

    def _check_batches(
        self,
        shard: _Shard,
        log: LogId,
        name: str,
        record: LogRecord,
        density: DensityCheck,
        checks: Sequence[LogCheck],
        staged: StagedCheck,
    ) -> Iterator[Violation]:
        read_bytes = 0
        try:
            for count, stored in enumerate(shard.logs.batches(log)):
                if count % _BATCHES_PER_STEP == 0:
                    self._told(read_bytes)
                    read_bytes = 0
                read_bytes += len(stored.data)
                batch = read_batch(name, stored)
                if isinstance(batch, Violation):
                    yield batch
                    if batch.offset is not None and batch.offset < record.next_offset:
                        density.skip(batch.offset)
                    continue
                if batch.last_offset >= record.next_offset:
                    yield from staged.feed(batch)
                    continue
                self.summary.counts["batches"] += 1
                self.summary.counts["records"] += batch.header.record_count
                for check in checks:
                    yield from check.feed(batch)
        except DamagedPage as error:
            yield Violation(f"{name}, {shard.directory.data_logs_file}", str(error))
            return
        self._told(read_bytes)
        for check in checks:
            yield from check.finish()

    def _check_journal(
        self,
        shard: _Shard,
        log: LogId,
        name: str,
        record: LogRecord,
        windows: Mapping[ProducerId, ProducerWindow],
        opened: Sequence[OpenInLog],
        view: JournalView,
        copied: list[CopiedBatch],
        placed: list[CopiedBatch],
    ) -> Iterator[Violation]:
        mark = Mark(record.copied_through, record.replay_from, record.next_offset)
        frames: list[ReadFrame] = []
        try:
            journal = open_read_only(shard.directory.local_journal(log), kind=JournalKind.LOCAL)
            broken = list(decode_frames(name, journal.frames(journal.start), frames))
        except _DAMAGE as error:
            yield Violation(f"the journal of {name}", str(error))
            return
        self._told(journal.size_bytes)
        self._count_journal(journal, len(frames))
        yield from broken
        if journal.end < mark.copied_through and journal.begun_with not in (None, Fsync.COMMIT):
            self.summary.unchecked.append(
                f"the journal of {name} was written with fsync={journal.begun_with.value} and ends before what was "
                "copied of it, as after a loss of power: it was not compared with the data log"
            )
            return
        misplaced = list(check_mark(name, mark, start=journal.start, end=journal.end))
        yield from misplaced
        if misplaced or broken:
            return
        yield from check_journal(
            log, name, frames, mark, windows, opened, view, start=journal.start, log_start=record.log_start
        )
        if journal.begun_with not in (None, Fsync.COMMIT):
            view.open = None  # a power cut may have taken what was prepared
        view.never_cut = view.open is not None and journal.start == 0
        if log.kind == LogKind.TOPIC.value:
            copied.extend(_batches_of(journal, view.copied))
            placed.extend(_batches_of(journal, view.placed or ()))
        if journal.start > 0 and not view.copied and mark.next_offset > 0:
            self.summary.counts["data logs whose journal was given back"] += 1

    def _count_journal(self, journal: ReadOnlyJournal, frames: int) -> None:
        counts = self.summary.counts
        counts["journals"] += 1
        counts["frames"] += frames
        if journal.torn is not None:
            self.summary.unchecked.append(
                f"{journal.torn.file}: {journal.torn.bytes_cut} bytes from position {journal.torn.position} on are a "
                "torn tail, which the next start cuts"
            )

    # --- the group journals -------------------------------------------------------------------

    def _read_groups(
        self, described: Described, shards: Sequence[_Shard], histories: list[GroupHistory]
    ) -> Iterator[Violation]:
        directories = [shard.directory for shard in shards]
        damaged: set[ShardNumber] = set()
        numbers: Iterable[int] = range(described.group_journal_count)
        if described.has_copies:
            of_copies = {each.number for each in directories}
            numbers = [each for each in numbers if described.placement.shard_of_group_journal(each) in of_copies]
        for number in numbers:
            shard = shard_of_group_journal(directories, number)
            try:
                read = read_group_journal(shard, number)
                frames = sum(1 for _ in read.journal.frames(read.journal.start))
            except _DAMAGE as error:
                yield Violation(group_journal_name(shard, number), str(error))
                damaged.add(shard.number)
                continue
            self._told(read.journal.size_bytes)
            self._count_journal(read.journal, frames)
            if read.has_snapshot:
                self.summary.counts["group journals that begin with a snapshot"] += 1
            histories.append(read.history)
        self._read_whole = {directory.number for directory in directories} - damaged

    def _has_markers(self, log: LogId) -> bool:
        topic = self._topics.get(log.topic)
        return topic is not None and mode_of(topic).has_markers

    def _name(self, log: LogId) -> str:
        """As a person knows it, and as it is on disk."""
        topic = self._topics.get(log.topic)
        return str(log) if topic is None else f"{topic.name}-{log.partition} ({log})"


def _open_shard(directory: ShardDirectory) -> _Shard:
    path = directory.data_logs_file
    check_length(path)  # pages after the last one that is read here may be gone: a node would not start
    file = mapped_lmdb(path)
    if file is None:
        raise CorruptStorage(f"{path} is empty")
    return _Shard(directory, file, StoredLogs(file))


def _applied_by(windows: Mapping[ProducerId, ProducerWindow]) -> dict[TxId, AppliedPart]:
    return {
        TxId(producer_id, entry.epoch, entry.number): AppliedPart(
            entry.base_offset, entry.record_count, entry.apply_number
        )
        for producer_id, window in windows.items()
        for entry in window.applied
    }


def _place(txid: TxId, part: AppliedPart, told_by: str) -> KnownPlace:
    return KnownPlace(part.base_offset, part.count, txid, told_by)


def _batches_of(journal: ReadOnlyJournal, frames: Iterable[PlacedFrames]) -> Iterator[CopiedBatch]:
    """What the journal has placed with these frames, batch by batch."""
    for placed in frames:
        base_offset = placed.base_offset
        for frame in placed.batches:
            head: Buffer
            if isinstance(frame.record, Marker):
                head, count = _control_batch_of(frame.record, placed.leader_epoch), 1
            else:
                head = data_directory.payload_head(journal, frame.payload_position, HEADER_BYTES)
                count: int = getattr(frame.record, "record_count", 0)
            yield CopiedBatch(base_offset, count, claimed_crc(head), placed.leader_epoch, frame.position)
            base_offset += count


def _control_batch_of(marker: Marker, leader_epoch: LeaderEpoch) -> bytes:
    """What the copier writes for it."""
    return encode_control_batch(
        marker.offset,
        leader_epoch,
        marker.txid.producer_id,
        marker.txid.epoch,
        committed=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=marker.timestamp_ms,
    )
