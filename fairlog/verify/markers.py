"""A log with markers: has every transaction ended as its marker says, and do the lists tell readers the truth? Pure.

Batches of a producer's transaction stand among others, up to the marker that ends it. So this follows each producer
through the log, as a reader does, and holds what comes of it against

    fairlog.open        what has no marker yet, and where its first record is
    fairlog.aborted     what ended with an abort marker, and the last stable offset behind that
    known places        what windows, journals and group journals say was committed, and where it begins

A transaction of which deletion or compaction has taken something away is known only in part, and so is the last stable
offset while it was open: what begins before `whole_from` is held to less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from datalog.interface import AbortedTransaction, OpenInLog
from datalog.layout import NONE_OPEN, LogRecord
from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.placements import KnownPlace
from fairlog.verify.rules import LogRules
from fairlog_types import ProducerId


@dataclass(slots=True)
class _Running:
    """A transaction of which batches have been seen, and no marker yet."""

    epoch: int
    first_offset: int
    records: int


class MarkersCheck:
    """One log's transactions, and what its tables say of them."""

    def __init__(
        self,
        log_name: str,
        record: LogRecord,
        opened: Sequence[OpenInLog],
        aborted: Iterable[AbortedTransaction],
        places: Iterable[KnownPlace],
        *,
        rules: LogRules,
        summary: Summary,
    ) -> None:
        self._log_name = log_name
        self._record = record
        self._whole_from = max(record.log_start, rules.holes_before)
        self._opened = opened
        self._aborted: dict[int, AbortedTransaction] = {each.last_offset: each for each in aborted}
        self._aborted_before = max((at + 1 for at in self._aborted), default=0)
        self._places = {place.base_offset: place for place in places if place.count}
        self._known_from: dict[ProducerId, int] = {}
        for place in sorted(self._places.values()):
            self._known_from.setdefault(place.txid.producer_id, place.base_offset)
        self._summary = summary
        self._running: dict[ProducerId, _Running] = {}
        self._ended: set[ProducerId] = set()
        """Producers of which a marker was seen where the log is whole. What another one has first may be the rest of a
        transaction that began before."""

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        header = batch.header
        if not header.transactional or batch.last_offset < self._record.log_start:
            return
        if header.control and batch.control is None:
            return  # it is a violation by itself
        running = self._running.get(header.producer_id)
        whose = f"producer {header.producer_id}, epoch {header.producer_epoch}"
        if running is not None and running.epoch != header.producer_epoch:
            what = f"comes behind offset {running.first_offset}, from where epoch {running.epoch} has one open"
            yield Violation(batch.where, f"a transactional batch of {whose} {what}", 9)
        if batch.control is None:
            if running is None:
                running = _Running(header.producer_epoch, batch.base_offset, 0)
                self._running[header.producer_id] = running
            running.records += header.record_count
            return
        self._running.pop(header.producer_id, None)
        self._summary.counts["markers"] += 1
        told = self._aborted.pop(batch.base_offset, None)
        if batch.control.committed:
            if told is not None:
                yield Violation(batch.where, f"the marker commits a transaction of {whose}, listed as aborted", 1)
            yield from self._check_committed(batch, running)
        else:
            yield from self._check_aborted(batch, running, told)
        if batch.base_offset >= self._whole_from:
            self._ended.add(header.producer_id)

    def _check_committed(self, batch: KeptBatch, running: _Running | None) -> Iterator[Violation]:
        if running is None or running.first_offset < self._whole_from:
            return
        header = batch.header
        place = self._places.pop(running.first_offset, None)
        whose = f"producer {header.producer_id}, epoch {header.producer_epoch}"
        found = f"{running.records} records of {whose}, from offset {running.first_offset} on"
        if place is None:
            known_from = self._known_from.get(header.producer_id)
            is_whole = self._whole_from == 0 or header.producer_id in self._ended
            if is_whole and known_from is not None and running.first_offset >= known_from:
                yield Violation(batch.where, f"the marker commits {found}, and nobody knows of that transaction", 1)
            else:
                self._summary.counts["transactions older than what is known of their producers"] += 1
        elif (*place.txid[:2], place.count) != (header.producer_id, running.epoch, running.records):
            what = f"{place.told_by} has {place.count} of transaction {place.txid} from there on"
            yield Violation(batch.where, f"the marker commits {found}; {what}", 5)
        else:
            self._summary.counts["parts of transactions found whole"] += 1

    def _check_aborted(
        self, batch: KeptBatch, running: _Running | None, told: AbortedTransaction | None
    ) -> Iterator[Violation]:
        producer_id, marker = batch.header.producer_id, batch.base_offset
        if told is None:
            if running is not None:
                what = f"the marker aborts {running.records} records of producer {producer_id}, from offset"
                yield Violation(batch.where, f"{what} {running.first_offset} on, which are not listed as aborted", 1)
            return
        if told.producer_id != producer_id:
            what = f"the marker is of producer {producer_id}, the list of aborted transactions says {told.producer_id}"
            yield Violation(batch.where, what, 1)
        first = self._whole_from if running is None else running.first_offset
        is_known = running is not None and told.first_offset >= self._whole_from
        if (is_known and told.first_offset != first) or (running is None and told.first_offset >= self._whole_from):
            where = "nowhere" if running is None else f"at offset {first}"
            what = f"is listed as aborted from offset {told.first_offset} on, and its records begin {where}"
            yield Violation(batch.where, f"the transaction of producer {producer_id} {what}", 1)
        due = min((other.first_offset for other in self._running.values()), default=marker + 1)
        if told.last_stable_offset != due and told.last_stable_offset > self._whole_from:
            what = f"the last stable offset is listed as {told.last_stable_offset} behind the marker, it was {due}"
            yield Violation(batch.where, what, 1)

    def finish(self) -> Iterator[Violation]:
        log_start = self._record.log_start
        for at, told in sorted(self._aborted.items()):
            if at >= log_start:
                what = f"a transaction of producer {told.producer_id} is listed as aborted here, and no marker says so"
                yield Violation(f"{self._log_name}, offset {at}", what, 1)
        for place in sorted(self._places.values()):
            if place.base_offset >= self._whole_from:
                what = f"{place.told_by} has {place.count} records of transaction {place.txid} from here on"
                yield Violation(f"{self._log_name}, offset {place.base_offset}", f"{what}, which are not there", 5)
        yield from self._check_open()
        first_open = min((each.first_offset for each in self._opened), default=NONE_OPEN)
        if self._record.first_open != first_open:
            what = f"its record has the oldest open transaction at {self._record.first_open}, the table at {first_open}"
            yield Violation(self._log_name, what, 1)
        if self._record.aborted_before != self._aborted_before and self._record.aborted_before > log_start:
            what = f"its record has the newest abort before {self._record.aborted_before}, the list before"
            yield Violation(self._log_name, f"{what} {self._aborted_before}", 1)

    def _check_open(self) -> Iterator[Violation]:
        for each in self._opened:
            running = self._running.pop(each.txid.producer_id, None)
            where = f"{self._log_name}, transaction {each.txid}"
            listed = f"is listed as open from offset {each.first_offset} on, with {each.records} records"
            if each.first_offset < self._record.log_start:
                continue  # what came before the log's start is not there to be counted
            if running is None:
                yield Violation(where, f"{listed}, and has none", 1)
            elif (running.epoch, running.first_offset, running.records) != (
                each.txid.epoch,
                each.first_offset,
                each.records,
            ):
                found = f"{running.records} of epoch {running.epoch} from offset {running.first_offset} on"
                yield Violation(where, f"{listed}; there are {found}", 1)
            else:
                self._summary.counts["open transactions found where they are listed"] += 1
        for producer_id, running in sorted(self._running.items()):
            what = f"{running.records} records of producer {producer_id} from here on have no marker, and are not"
            yield Violation(f"{self._log_name}, offset {running.first_offset}", f"{what} listed as open", 1)
