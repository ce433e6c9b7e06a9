"""Reads the data logs inside one LMDB read transaction.

The functions here take a transaction that their caller has begun, and will end soon: an old one keeps LMDB from using
pages again. LMDB returns views into its map. What leaves these functions has been copied out of it, except for large
batches of `read_requests`: these are views, and last as long as the transaction.

A log's record is read in the same transaction as its batches. That makes every answer consistent with itself, and
shows whether a handle that was found before the transaction began is still that log's (`drop`). The record says where
the log ends; its database may contain more, which is *staged* and not part of the log (`DataLogWriter.stage`). So a
walk through batches stops at the record's end, and not at the database's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from datalog import layout
from datalog.batch import base_offset_of, is_transactional, leader_epoch_of, max_timestamp_of, parse_stored_header
from datalog.cuts import Cut, EndsAtCut, KnownCuts, LogCuts
from datalog.handles import Cursor, Database, Tables, Transaction
from datalog.interface import (
    AbortedTransaction,
    Batch,
    Cleaned,
    Cleaning,
    EpochEnd,
    LogMissing,
    OffsetOutOfRange,
    OpenInLog,
    ReadAnswer,
    ReadRequest,
    ReadResult,
    TimestampOffset,
    Unit,
)
from datalog.layout import LogRecord
from datalog.loans import SMALL_BATCH_BYTES
from datalog.records import first_at_or_after
from fairlog_types import LeaderEpoch, LogId, Offset

_LAST_CUT = (1 << 63) - 1
"""No cut has a larger number."""


def find_record(txn: Transaction, tables: Tables, log: LogId) -> LogRecord | None:
    data = txn.get(str(log).encode(), db=tables.logs)
    return None if data is None else layout.decode_log_record(data)


def read_requests(
    txn: Transaction,
    tables: Tables,
    requests: Sequence[tuple[ReadRequest, Database | None]],
    bytes_max: int,
) -> list[ReadAnswer]:
    """Implements `DataLogs.read`; each request comes with the handle of its log's batches, None if it has none.

    Large batches are views.
    """
    answers: list[ReadAnswer] = []
    left = bytes_max
    any_found = False
    for request, database in requests:
        record = find_record(txn, tables, request.log)
        if record is None or database is None:
            answers.append(LogMissing(request.log))
            continue
        if not record.log_start <= request.offset <= record.next_offset:
            answers.append(OffsetOutOfRange(request.log, record.next_offset, record.log_start))
            continue
        batches: list[Batch] = []
        last_stable_offset = record.last_stable_offset
        end = last_stable_offset if request.committed_only else record.next_offset
        if request.offset < end:
            limit = min(left, request.bytes_max)
            batches, size = _read_batches(txn, database, request.offset, end, limit, at_least_one=not any_found)
            left -= size
            any_found = any_found or bool(batches)
        aborted: tuple[AbortedTransaction, ...] = ()
        if batches and request.committed_only and request.offset < record.aborted_before:
            behind = Offset(parse_stored_header(batches[-1]).last_offset + 1)
            aborted = tuple(find_aborted(txn, tables, record, request.offset, behind))
        answers.append(
            ReadResult(request.log, batches, record.next_offset, record.log_start, last_stable_offset, aborted)
        )
    return answers


def _read_batches(
    txn: Transaction, database: Database, offset: Offset, end: Offset, bytes_max: int, *, at_least_one: bool
) -> tuple[list[Batch], int]:
    """The batches from the one that contains `offset` up to `end`."""
    batches: list[Batch] = []
    size = 0
    stop = layout.batch_key(end)
    with txn.cursor(db=database) as cursor:
        found = cursor.set_range(layout.batch_key(offset))
        while found and bytes(cursor.key()) < stop:
            batch = cursor.value()
            if size + len(batch) > bytes_max and (batches or not at_least_one):
                break
            batches.append(batch if len(batch) >= SMALL_BATCH_BYTES else bytes(batch))
            size += len(batch)
            found = size < bytes_max and cursor.next()
    return batches, size


def find_cuts(rows: Cursor, record: LogRecord, start: Offset) -> LogCuts:
    """What a search for a cut needs to know about a log read from `start`; `rows` is a cursor of the cut index."""
    start, end = max(start, record.log_start), record.last_stable_offset
    if start >= end:
        return LogCuts(start, end, None, None)  # nothing to read at any cut
    oldest = _cut_at(rows, record.number) if rows.set_range(layout.cut_key(record.number, 0)) else None
    return LogCuts(start, end, oldest, newest_row(rows, record.number))


def find_known_cuts(txn: Transaction, tables: Tables, starts: Mapping[LogId, Offset], newest_cut: int) -> KnownCuts:
    """Implements `DataLogs.known_cuts`. `newest_cut` is the number of the newest cut of all."""
    with txn.cursor(db=tables.cuts) as rows, txn.cursor(db=tables.common_cuts) as common:
        records = {log: record for log in starts if (record := find_record(txn, tables, log)) is not None}
        by_log = {log: find_cuts(rows, record, starts[log]) for log, record in records.items()}
        if not common.first():
            return KnownCuts(0, newest_cut, newest_cut, by_log, {})
        oldest, newest_own = layout.decode_cut_number(common.key()), layout.decode_cut_number(common.value())
        found = {log: newest_row(rows, record.number, at=oldest) for log, record in records.items()}
        at_oldest = {log: row.end for log, row in found.items() if row is not None}
        return KnownCuts(oldest, newest_common_cut(common), newest_own, by_log, at_oldest)


def find_ends_at(txn: Transaction, tables: Tables, number: int, logs: Iterable[LogId], *, common: bool) -> EndsAtCut:
    """Implements `DataLogs.ends_at`."""
    with txn.cursor(db=tables.cuts) as rows:
        if common:
            with txn.cursor(db=tables.common_cuts) as cuts:
                number = newest_common_cut(cuts, at=number)
        ends: dict[LogId, Offset] = {}
        for log in logs:
            record = find_record(txn, tables, log)
            row = None if record is None else newest_row(rows, record.number, at=number)
            if row is not None:
                ends[log] = row.end
        return EndsAtCut(number, ends)


def newest_common_cut(common: Cursor, *, at: int = _LAST_CUT) -> int:
    """The number of the newest common cut that is not newer than the cut `at`; 0 if there is none."""
    behind = common.set_range(layout.encode_cut_number(at + 1))
    return layout.decode_cut_number(common.key()) if (common.prev() if behind else common.last()) else 0


def newest_row(rows: Cursor, number: int, *, at: int = _LAST_CUT) -> Cut | None:
    """The newest row of the log with that number that is not newer than the cut `at`; None if there is none."""
    behind = rows.set_range(layout.cut_key(number, at + 1))
    return _cut_at(rows, number) if (rows.prev() if behind else rows.last()) else None


def _cut_at(rows: Cursor, number: int) -> Cut | None:
    """The row at the cursor, if it belongs to this log."""
    key, value = rows.item()
    return layout.decode_cut(key, value) if layout.decode_number(key[:4]) == number else None


def find_open_transactions(txn: Transaction, tables: Tables, record: LogRecord) -> list[OpenInLog]:
    """Implements `DataLogs.open_transactions`."""
    if record.first_open == layout.NONE_OPEN:
        return []
    prefix = layout.encode_number(record.number)
    return [layout.decode_open(key, value) for key, value in items_with_prefix(txn, tables.unfinished, prefix)]


def find_aborted(
    txn: Transaction, tables: Tables, record: LogRecord, offset: Offset, before: Offset
) -> Iterator[AbortedTransaction]:
    """The aborted transactions that have, or may have, records from `offset` up to, and without, `before`, by ascending
    `last_offset`.

    It goes through the entries from `offset` on, and ends at the first one at whose time everything before `before` was
    decided: later entries began later. So it reads many entries only if a transaction hangs for long.
    """
    prefix = layout.encode_number(record.number)
    with txn.cursor(db=tables.aborted) as cursor:
        found = offset < record.aborted_before and cursor.set_range(layout.end_key(record.number, offset))
        while found:
            key = bytes(cursor.key())
            if not key.startswith(prefix):
                return
            aborted = layout.decode_aborted(key, cursor.value())
            if aborted.first_offset < before:
                yield aborted
            if aborted.last_stable_offset >= before:
                return
            found = cursor.next()


def find_timestamp(
    txn: Transaction, tables: Tables, database: Database, record: LogRecord, timestamp_ms: int
) -> TimestampOffset | None:
    """The first record at or after the log's start with `timestamp_ms` or later."""
    if timestamp_ms > record.max_timestamp_ms:
        return None
    start, end = _scan_start(txn, tables, record, timestamp_ms), layout.batch_key(record.next_offset)
    with txn.cursor(db=database) as cursor:
        found = cursor.set_range(layout.batch_key(start))
        while found and bytes(cursor.key()) < end:
            batch = cursor.value()
            if max_timestamp_of(batch) >= timestamp_ms:
                answer = first_at_or_after(bytes(batch), timestamp_ms, record.log_start)
                if answer is not None:
                    return answer
            found = cursor.next()
    return None


def find_max_timestamp(txn: Transaction, database: Database, record: LogRecord) -> TimestampOffset | None:
    """The first record with the largest timestamp of the log; the log's start, if it was cut off inside its batch."""
    if record.log_start == record.next_offset:
        return None
    if record.index_behind:
        return _scan_for_max(txn, database, record)
    with txn.cursor(db=database) as cursor:
        if not cursor.set_range(layout.batch_key(record.max_timestamp_at)):
            return None
        batch = bytes(cursor.value())
    answer = first_at_or_after(batch, record.max_timestamp_ms, record.log_start)
    return answer or TimestampOffset(record.log_start, record.max_timestamp_ms)


def find_end_of_epoch(txn: Transaction, database: Database, record: LogRecord, leader_epoch: LeaderEpoch) -> EpochEnd:
    """Binary search: no batch before `low` has a later epoch, and the first that does begins at or before `end`."""
    low, high = record.log_start, record.next_offset
    largest, end = None, record.next_offset
    with txn.cursor(db=database) as cursor:
        while low < high:
            middle = Offset((low + high) // 2)
            if not cursor.set_range(layout.batch_key(middle)):
                high = middle
                continue
            found = leader_epoch_of(cursor.value())
            if found > leader_epoch:
                high, end = middle, max(base_offset_of(cursor.value()), record.log_start)
            else:
                low, largest = Offset(layout.decode_batch_key(cursor.key()) + 1), found
    return EpochEnd(largest, end)


def _scan_for_max(txn: Transaction, database: Database, record: LogRecord) -> TimestampOffset | None:
    """`find_max_timestamp` without the record: it reads all headers."""
    largest: tuple[int, Offset] | None = None
    end = layout.batch_key(record.next_offset)
    with txn.cursor(db=database) as cursor:
        found = cursor.set_range(layout.batch_key(record.log_start))
        while found and bytes(cursor.key()) < end:
            timestamp_ms = max_timestamp_of(cursor.value())
            if largest is None or timestamp_ms > largest[0]:
                largest = timestamp_ms, layout.decode_batch_key(cursor.key())
            found = cursor.next()
        if largest is None:
            return None
        cursor.set_range(layout.batch_key(largest[1]))
        batch = bytes(cursor.value())
    answer = first_at_or_after(batch, largest[0], record.log_start)
    return answer or TimestampOffset(record.log_start, largest[0])


def _scan_start(txn: Transaction, tables: Tables, record: LogRecord, timestamp_ms: int) -> Offset:
    """From the time index: no batch before this offset has a timestamp of `timestamp_ms` or later."""
    prefix = layout.encode_number(record.number)
    with txn.cursor(db=tables.time_index) as cursor:
        behind = cursor.set_range(layout.time_key(record.number, timestamp_ms))
        if (cursor.prev() if behind else cursor.last()) and bytes(cursor.key()).startswith(prefix):
            return max(record.log_start, layout.decode_batch_key(cursor.value()))
    return record.log_start


def headers(
    txn: Transaction, database: Database, record: LogRecord, offset: Offset, batches_max: int
) -> list[tuple[Offset, int, int]]:
    """Key, max timestamp in ms and size of the log's batches from the one that contains `offset` on."""
    found_headers: list[tuple[Offset, int, int]] = []
    end = layout.batch_key(record.next_offset)
    with txn.cursor(db=database) as cursor:
        found = cursor.set_range(layout.batch_key(offset))
        while found and bytes(cursor.key()) < end and len(found_headers) < batches_max:
            batch = cursor.value()
            found_headers.append((layout.decode_batch_key(cursor.key()), max_timestamp_of(batch), len(batch)))
            found = cursor.next()
    return found_headers


def units(
    txn: Transaction, tables: Tables, database: Database, record: LogRecord, offset: Offset, batches_max: int
) -> list[Unit]:
    """Implements `DataLogs.units`."""
    answer: list[Unit] = []
    seen = 0
    with txn.cursor(db=database) as cursor, txn.cursor(db=tables.transactions) as ends:
        offset = _start_of_transaction(ends, record.number, offset)
        found = cursor.set_range(layout.batch_key(max(offset, record.log_start)))
        while found and seen < batches_max and layout.decode_batch_key(cursor.key()) < record.next_offset:
            batch = cursor.value()
            base_offset, last_offset = base_offset_of(batch), layout.decode_batch_key(cursor.key())
            batches, size_bytes, max_timestamp_ms = 1, len(batch), max_timestamp_of(batch)
            end = _end_of_transaction(ends, record.number, last_offset) if is_transactional(batch) else last_offset
            found = cursor.next()
            while found and layout.decode_batch_key(cursor.key()) <= end:
                batch = cursor.value()
                batches += 1
                size_bytes += len(batch)
                max_timestamp_ms = max(max_timestamp_ms, max_timestamp_of(batch))
                found = cursor.next()
            answer.append(Unit(base_offset, end, batches, size_bytes, max_timestamp_ms))
            seen += batches
    return answer


def _start_of_transaction(ends: Cursor, number: int, offset: Offset) -> Offset:
    """The base offset of the transaction of several batches that contains `offset`; `offset` if there is none."""
    if ends.set_range(layout.end_key(number, offset)) and bytes(ends.key()).startswith(layout.encode_number(number)):
        return min(offset, layout.decode_batch_key(ends.value()))
    return offset


def _end_of_transaction(ends: Cursor, number: int, last_offset: Offset) -> Offset:
    """The last offset of the transaction that contains the batch with this key; the key itself if there is no other
    batch.
    """
    if not ends.set_range(layout.end_key(number, last_offset)):
        return last_offset
    key = bytes(ends.key())
    if not key.startswith(layout.encode_number(number)) or layout.decode_batch_key(ends.value()) > last_offset:
        return last_offset
    return layout.decode_end_key(key)


def find_cleaned(txn: Transaction, tables: Tables, record: LogRecord) -> Cleaned:
    """Implements `DataLogs.cleaned`."""
    history = tuple(
        Cleaning(layout.decode_end_key(key), *layout.decode_cleaning(value))
        for key, value in items_with_prefix(txn, tables.cleanings, layout.encode_number(record.number))
    )
    doubt_from = None if record.doubt_from == layout.NO_DOUBT else record.doubt_from
    return Cleaned(record.cleaned_through, record.clean_bytes, doubt_from, history)


def items_with_prefix(txn: Transaction, table: Database, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All keys that begin with `prefix`, in order, with their values."""
    with txn.cursor(db=table) as cursor:
        found = cursor.set_range(prefix)
        while found:
            key = bytes(cursor.key())
            if not key.startswith(prefix):
                return
            yield key, bytes(cursor.value())
            found = cursor.next()
