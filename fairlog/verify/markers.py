"""A log with markers: has every transaction ended as its marker says, and do the lists tell readers the truth? Pure.

Batches of a producer's transaction stand among others, up to the marker that ends it. So each producer is followed
through the log, as a reader does it (`_Runs`), and what comes of it is held against

    MarkersCheck    known places    what windows, journals and group journals say was committed, and where it begins
    ListsCheck      fairlog.open        what has no marker yet, and where its first record is
                    fairlog.aborted     what ended with an abort marker, and the last stable offset behind that

A transaction of which deletion or compaction has taken something away is known only in part, and so is the last stable
offset while it was open: what begins before `whole_from` is held to less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from datalog.interface import AbortedTransaction, OpenInLog
from datalog.layout import NONE_OPEN, LogRecord
from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.placements import KnownPlace, KnownPlaces
from fairlog.verify.rules import LogRules
from fairlog_types import ProducerId


@dataclass(slots=True)
class _Run:
    """One transaction's batches, as far as they have been seen."""

    epoch: int
    first_offset: int
    records: int
    epochs_differ: bool = False


class _Runs:
    """The transactions of each producer, fed with all batches of one log."""

    def __init__(self, *, log_start: int) -> None:
        self.running: dict[ProducerId, _Run] = {}
        """No marker has been seen yet."""
        self._log_start = log_start

    def is_part(self, batch: KeptBatch) -> bool:
        """Whether it belongs to a transaction, and can be read. A control batch that is no marker is left out."""
        header = batch.header
        is_readable = header.transactional and batch.last_offset >= self._log_start
        return is_readable and (not header.control or batch.control is not None)

    def take(self, batch: KeptBatch) -> _Run | None:
        """The run that a marker ends, or that a batch continues; None if there is none, or it has just begun."""
        header = batch.header
        if batch.control is not None:
            return self.running.pop(header.producer_id, None)
        run = self.running.get(header.producer_id)
        if run is None:
            self.running[header.producer_id] = _Run(header.producer_epoch, batch.base_offset, header.record_count)
        else:
            run.records += header.record_count
        return run


class MarkersCheck:
    """One log's transactions: all that was committed has ended with its marker, and nothing else has."""

    def __init__(
        self,
        log_name: str,
        places: Iterable[KnownPlace],
        *,
        log_start: int,
        next_offset: int,
        rules: LogRules,
        summary: Summary,
    ) -> None:
        self._log_name = log_name
        self._next_offset = next_offset
        self._whole_from = max(log_start, rules.holes_before)
        self._known = KnownPlaces(log_name, places, next_offset=next_offset)
        self._places = {(place.txid.producer_id, place.base_offset): place for place in self._known.places}
        self._summary = summary
        self._runs = _Runs(log_start=log_start)
        self._ended: set[ProducerId] = set()
        """Producers of which a marker was seen where the log is whole. What another one has first may be the rest of a
        transaction that began before."""

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        if not self._runs.is_part(batch):
            return
        header = batch.header
        run = self._runs.take(batch)
        if run is not None and run.epoch != header.producer_epoch and not run.epochs_differ:
            run.epochs_differ = True
            what = (
                f"a transactional batch of producer {header.producer_id}, epoch {header.producer_epoch} comes behind "
                f"offset {run.first_offset}, from where epoch {run.epoch} has one open"
            )
            yield Violation(batch.where, what, 9, kind=Kind.OLDER_EPOCH, offset=run.first_offset)
        if batch.control is None:
            return
        self._summary.counts["markers"] += 1
        if batch.control.committed and run is not None and run.first_offset >= self._whole_from:
            yield from self._check_committed(batch, run)
        if batch.base_offset >= self._whole_from:
            self._ended.add(header.producer_id)

    def _check_committed(self, batch: KeptBatch, run: _Run) -> Iterator[Violation]:
        producer_id = batch.header.producer_id
        place = self._places.pop((producer_id, run.first_offset), None)
        found = (
            f"{run.records} records of producer {producer_id}, epoch {batch.header.producer_epoch}, from offset "
            f"{run.first_offset} on"
        )
        if place is None:
            known_from = self._known.known_from.get(producer_id)
            is_whole = self._whole_from == 0 or producer_id in self._ended
            if is_whole and known_from is not None and run.first_offset >= known_from:
                what = f"the marker commits {found}, and nobody knows of that transaction"
                yield Violation(batch.where, what, 1, kind=Kind.UNKNOWN_TRANSACTION, offset=run.first_offset)
            else:
                self._summary.counts["transactions older than what is known of their producers"] += 1
        elif (place.txid.epoch, place.count) != (run.epoch, run.records):
            what = f"{place.told_by} has {place.count} of transaction {place.txid} from there on"
            what = f"the marker commits {found}; {what}"
            yield Violation(batch.where, what, 5, kind=Kind.TORN_TRANSACTION, offset=run.first_offset)
        else:
            self._summary.counts["parts of transactions found whole"] += 1

    def finish(self) -> Iterator[Violation]:
        yield from self._known.check()
        for place in sorted(self._places.values()):
            if self._whole_from <= place.base_offset and place.end <= self._next_offset:
                where = f"{self._log_name}, offset {place.base_offset}"
                what = (
                    f"{place.told_by} has {place.count} records of transaction {place.txid} from here on, which are "
                    "not there"
                )
                yield Violation(where, what, 5, kind=Kind.WITHOUT_MARKER, offset=place.base_offset)


class ListsCheck:
    """What one log's tables say of its transactions: which are open, and which were aborted."""

    def __init__(
        self,
        log_name: str,
        record: LogRecord,
        opened: Sequence[OpenInLog],
        aborted: Iterable[AbortedTransaction],
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
        self._summary = summary
        self._runs = _Runs(log_start=record.log_start)

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        if not self._runs.is_part(batch):
            return
        run = self._runs.take(batch)
        if batch.control is None:
            return
        told = self._aborted.pop(batch.base_offset, None)
        if not batch.control.committed:
            yield from self._check_aborted(batch, run, told)
        elif told is not None:
            whose = f"producer {batch.header.producer_id}, epoch {batch.header.producer_epoch}"
            yield Violation(batch.where, f"the marker commits a transaction of {whose}, listed as aborted", 1)

    def _check_aborted(
        self, batch: KeptBatch, run: _Run | None, told: AbortedTransaction | None
    ) -> Iterator[Violation]:
        producer_id, marker = batch.header.producer_id, batch.base_offset
        if told is None:
            if run is not None:
                what = f"the marker aborts {run.records} records of producer {producer_id}, from offset"
                yield Violation(batch.where, f"{what} {run.first_offset} on, which are not listed as aborted", 1)
            return
        if told.producer_id != producer_id:
            what = f"the marker is of producer {producer_id}, the list of aborted transactions says {told.producer_id}"
            yield Violation(batch.where, what, 1)
        first = self._whole_from if run is None else run.first_offset
        is_known = run is not None and told.first_offset >= self._whole_from
        if (is_known and told.first_offset != first) or (run is None and told.first_offset >= self._whole_from):
            where = "nowhere" if run is None else f"at offset {first}"
            what = f"is listed as aborted from offset {told.first_offset} on, and its records begin {where}"
            yield Violation(batch.where, f"the transaction of producer {producer_id} {what}", 1)
        due = min((other.first_offset for other in self._runs.running.values()), default=marker + 1)
        if told.last_stable_offset != due and told.last_stable_offset > self._whole_from:
            what = f"the last stable offset is listed as {told.last_stable_offset} behind the marker, it was {due}"
            yield Violation(batch.where, what, 1)

    def finish(self) -> Iterator[Violation]:
        log_start = self._record.log_start
        for at, told in sorted(self._aborted.items()):
            if at >= log_start:
                what = f"a transaction of producer {told.producer_id} is listed as aborted here, and no marker says so"
                yield Violation(f"{self._log_name}, offset {at}", what, 1)
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
            run = self._runs.running.pop(each.txid.producer_id, None)
            where = f"{self._log_name}, transaction {each.txid}"
            listed = f"is listed as open from offset {each.first_offset} on, with {each.records} records"
            if each.first_offset < self._record.log_start:
                continue  # what came before the log's start is not there to be counted
            if run is None:
                yield Violation(where, f"{listed}, and has none", 1)
            elif (run.epoch, run.first_offset, run.records) != (
                each.txid.epoch,
                each.first_offset,
                each.records,
            ):
                found = f"{run.records} of epoch {run.epoch} from offset {run.first_offset} on"
                yield Violation(where, f"{listed}; there are {found}", 1)
            else:
                self._summary.counts["open transactions found where they are listed"] += 1
        for producer_id, run in sorted(self._runs.running.items()):
            what = f"{run.records} records of producer {producer_id} from here on have no marker, and are not"
            yield Violation(f"{self._log_name}, offset {run.first_offset}", f"{what} listed as open", 1)
