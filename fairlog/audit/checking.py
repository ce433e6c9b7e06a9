"""What executors check: the rules of `fairlog.verify`, fed with the rows of one log, or of one group journal.

Rows come from Spark, grouped and in order; what is found goes back as rows of FOUND. A log's rows are streamed, after
what is known of its transactions' places. Of a group journal's producers all windows are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from datalog.batch import unpack_header
from fairlog.audit.directory import AuditedLog
from fairlog.audit.reading import Row
from fairlog.verify.batches import DensityCheck, LogCheck, kept_batch
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.group_journals import group_journal_name, read_group_journal
from fairlog.verify.journals import AppliedPart
from fairlog.verify.markers import MarkersCheck
from fairlog.verify.placements import KnownPlace, PlacementsCheck
from fairlog.verify.producers import FirstBatchesCheck, ProducersCheck
from fairlog.verify.rules import LogRules
from fairlog.verify.sink_commits import LogView
from fairlog.verify.transactions import Fate, GroupHistory, check_transactions
from fairlog_types import (
    ApplyNumber,
    CorruptStorage,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    StorageFailure,
    TxId,
)
from shard.directory import ShardDirectory

FOUND = {"kind": "string", "invariant": "int", "log": "int", "offset": "bigint", "what": "string", "counted": "bigint"}
"""A finding, or, with no kind, how many there are of `what`."""

DATA_LOGS, BATCHES, RECORDS, BYTES = "data logs", "batches", "records", "bytes"
PLACES_BEFORE = "places before a log's start, or where compaction was"
IN_ORDER = "transactions in their group's order"
UNTRUSTED = "group journals that may have lost something (not written with fsync=commit)"
"""Names of counts, beside those of `fairlog.verify`."""

LOG, PLACE, BATCH = range(3)
"""What a row is, in the order in which a log's are read: the log itself, a place of a transaction, a batch."""


class LogRow(NamedTuple):
    """Something that belongs to a log. What a row does not have is null."""

    log: int
    row: int
    at: int
    """In the log: a batch's place in its order, or a transaction's first offset."""
    key: int | None
    data: bytes | None
    damage: str | None
    """As in `reading.BATCHES`."""
    producer: int
    epoch: int
    number: int
    records: int
    certain: bool
    told_by: str
    """Of a place, as in `reading.TOLD`; who says so."""


class JournalRow(NamedTuple):
    """What a log's window knows of a transaction whose producer belongs to a group journal."""

    journal: int
    """Negative if none knows the producer."""
    log: int | None
    """None: the row says only that there is the journal."""
    producer: int
    epoch: int
    number: int
    apply_number: int
    base: int
    records: int
    forgets: bool


Check = Callable[[int, Iterable[Row], Summary], Iterator[Violation]]
"""Checks the rows that have one number in their first column."""


def check_logs(logs: Mapping[int, AuditedLog], rows: Iterable[Row]) -> Iterator[Row]:
    """What is found in whole logs; `rows` are as in LogRow, by log and in their order."""

    def check(log: int, rows: Iterable[Row], summary: Summary) -> Iterator[Violation]:
        return check_log(logs[log], map(LogRow._make, rows), summary)

    return _found(rows, check, logs)


def check_journals(
    shards: Sequence[ShardDirectory], logs: Mapping[int, AuditedLog], rows: Iterable[Row]
) -> Iterator[Row]:
    """What is found in whole group journals; `rows` are as in JournalRow, by journal, and `shards` who has each."""

    def check(journal: int, rows: Iterable[Row], summary: Summary) -> Iterator[Violation]:
        return check_journal(shards, journal, map(JournalRow._make, rows), logs, summary)

    return _found(rows, check, logs)


def _found(rows: Iterable[Row], check: Check, logs: Mapping[int, AuditedLog]) -> Iterator[Row]:
    numbers = {log.name: number for number, log in logs.items()}
    summary = Summary()
    for number, group in groupby(rows, key=itemgetter(0)):
        for each in check(number, group, summary):
            if each.kind is not None:
                log = None if each.log is None else numbers[str(each.log)]
                yield str(each.kind), each.invariant, log, each.offset, each.what, None
    for name, count in summary.counts.items():
        yield None, None, None, None, name, count


# --- one log ------------------------------------------------------------------------------------------


def check_log(log: AuditedLog, rows: Iterable[LogRow], summary: Summary) -> Iterator[Violation]:
    """What is wrong in a topic's log, by its rows: its own, then its transactions' places, then its batches."""
    log_id = LogId.parse(log.name)
    for each in _check_rows(log, rows, summary):
        yield replace(each, log=log_id)


def _check_rows(log: AuditedLog, rows: Iterable[LogRow], summary: Summary) -> Iterator[Violation]:
    places: list[KnownPlace] = []
    checks: _LogChecks | None = None
    for row in rows:
        if row.row == PLACE:
            places.append(_known_place(row))
        elif row.row == BATCH:
            checks = checks or _LogChecks(log, places, summary)
            yield from checks.feed(row)
    yield from (checks or _LogChecks(log, places, summary)).finish()


def _known_place(row: LogRow) -> KnownPlace:
    txid = TxId(ProducerId(row.producer), ProducerEpoch(row.epoch), row.number)
    return KnownPlace(row.at, row.records, txid, row.told_by, row.certain)


class _LogChecks:
    """The rules for one log's batches."""

    def __init__(self, log: AuditedLog, places: Sequence[KnownPlace], summary: Summary) -> None:
        rules = LogRules(log.holes_before, markers=log.markers)
        start, end = log.log_start, log.next_offset
        transactions = MarkersCheck if log.markers else PlacementsCheck
        self._log = log
        self._summary = summary
        self._density = DensityCheck(log.shown, log_start=start, next_offset=end, rules=rules)
        self._checks: Sequence[LogCheck] = (
            self._density,
            ProducersCheck(log.shown, {}, log_start=start, copied_through=0, rules=rules),
            FirstBatchesCheck(),
            transactions(log.shown, places, log_start=start, next_offset=end, rules=rules, summary=summary),
        )
        summary.counts[DATA_LOGS] += 1
        whole_from = max(start, log.holes_before)
        summary.counts[PLACES_BEFORE] += len({place.txid for place in places if place.end <= whole_from})

    def feed(self, row: LogRow) -> Iterator[Violation]:
        """The next batch."""
        if row.data is None:
            yield Violation(self._log.shown, row.damage or "", kind=Kind.DAMAGED_BATCH, offset=row.at)
            if row.key is None:
                self._density.lose_track()
            else:
                self._density.skip(row.key)
            return
        header = unpack_header(row.data)
        batch = kept_batch(self._log.shown, row.at, header, row.data)
        self._summary.counts[BATCHES] += 1
        self._summary.counts[RECORDS] += 0 if header.control else header.record_count
        self._summary.counts[BYTES] += header.size_bytes
        for check in self._checks:
            yield from check.feed(batch)

    def finish(self) -> Iterator[Violation]:
        """There are no more."""
        for check in self._checks:
            yield from check.finish()


# --- one group journal --------------------------------------------------------------------------------


def check_journal(
    shards: Sequence[ShardDirectory],
    journal: int,
    rows: Iterable[JournalRow],
    logs: Mapping[int, AuditedLog],
    summary: Summary,
) -> Iterator[Violation]:
    """What is wrong with the transactions of a group journal; with those that none knows, if its number is negative."""
    histories: list[GroupHistory] = []
    if journal >= 0:
        try:
            histories.append(read_group_journal(shards[journal], journal).history)
        except (CorruptStorage, StorageFailure, OSError) as error:
            name = group_journal_name(shards[journal], journal)
            yield Violation(name, f"{name}: {error}", kind=Kind.DAMAGED_TRANSACTIONS)
    views = _views(rows, logs)
    for each in check_transactions(histories, views, Summary()):
        yield replace(each, what=f"{each.where}: {each.what}")
    for history in histories:
        summary.counts[UNTRUSTED] += not history.loses_nothing
        summary.counts[IN_ORDER] += _count_in_order(history, views)


def _views(rows: Iterable[JournalRow], logs: Mapping[int, AuditedLog]) -> Mapping[LogId, LogView]:
    applied: dict[int, dict[TxId, AppliedPart]] = {number: {} for number in logs}
    forgetful: dict[int, set[ProducerId]] = {number: set() for number in logs}
    for row in rows:
        if row.log is None:
            continue
        txid = TxId(ProducerId(row.producer), ProducerEpoch(row.epoch), row.number)
        applied[row.log][txid] = AppliedPart(Offset(row.base), row.records, ApplyNumber(row.apply_number))
        if row.forgets:
            forgetful[row.log].add(txid.producer_id)
    return {
        LogId.parse(log.name): LogView(
            log.shown,
            log.next_offset,
            applied[number],
            {},
            markers=log.markers,
            forgetful=forgetful[number],
            shard=ShardNumber(log.shard),
        )
        for number, log in logs.items()
    }


def _count_in_order(history: GroupHistory, views: Mapping[LogId, LogView]) -> int:
    """Transactions that have records somewhere, which were compared with those of their group."""
    if not history.loses_nothing:
        return 0
    applied = {txid for view in views.values() for txid in view.applied}
    committed = (history.told[txid] for txid in history.commits)
    return sum(
        told.fate is not Fate.ABORTED and (told.txid in applied or any(place.log in views for place in told.placements))
        for told in committed
    )
