"""One write transaction over the data logs: implements `DataLogWriter` with LMDB.

A log's record (bounds, mark, running max) is read once per block, changed in memory by every call, and written back
when the block ends, in the same LMDB transaction as the batches (invariant 4). Density (invariant 2) is checked at each
append, against the record and against the batch's own header.

`delete_before` moves the log's start in the record, which readers use; the batches before it can be deleted in as many
blocks as necessary. If the batch with the largest timestamp is removed, neither it nor `replace` searches for the
largest of the rest: `reindexing` does this, outside write blocks.

When the oldest open transaction of a log ends, the next oldest is looked up in `open_starts`, the result of one walk
through the table: a walk for each would make the cost of ending n open transactions n². The list outlives the block if
that is committed; whether what it names is still open is looked up in the table.

`stage` puts batches after a log's end and does not change the record, which readers use; `publish` changes the record
and no batch. In between nothing can be appended: an appended batch must have the largest key of all.

`finish` stores the ends of the logs for `DataLogs.cut_within`, for every log that has grown since the last time: in
this block, or in earlier ones, which `Unindexed` remembers (`datalog.cuts`). Those of a common cut are told: they are
of an earlier moment.

`drop` empties the log's database but leaves its name: LMDB frees a name's handle at once, even if readers still use it.
The empty names are removed when the environment is next opened, before there are readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import lmdb

from datalog import layout, reader, time_index
from datalog.batch import BadBatch, max_timestamp_of, parse_batch_header_untrusted, parse_stored_header
from datalog.cuts import Cut, Unindexed
from datalog.handles import Database, Tables, Transaction
from datalog.interface import AbortedTransaction, Cleaned, Mark, OpenInLog, UnknownLog
from datalog.layout import LogRecord
from datalog.offset_entries import Entry, GroupEntry, OffsetEntry, encode_offset_entry
from fairlog_types import LogId, LogKind, Offset, ProducerId


class LmdbWriter:
    """A `DataLogWriter` on one LMDB write transaction."""

    def __init__(
        self,
        env: lmdb.Environment,
        txn: Transaction,
        tables: Tables,
        batches: Mapping[LogId, Database],
        open_starts: dict[LogId, list[tuple[Offset, ProducerId]]],
        unindexed: Unindexed,
    ) -> None:
        """Only `committed` changes `unindexed`."""
        self._env = env
        self._txn = txn
        self._tables = tables
        self._batches = batches
        self.open_starts = open_starts
        """Of the logs whose open transactions were walked through: where each began, the oldest last. Ended ones may be
        among them; those that began since are not, and they began after all of these. Other blocks may use it under the
        same condition as `created`.
        """
        self._unindexed = unindexed
        self._grown: set[LogId] = set()
        """Topics' logs that this block has created, or appended to."""
        self._appended_records = 0
        self._cut_at_s: float | None = None
        """The time of the cut that this block leaves in the index."""
        self._common_cut: tuple[int, Mapping[LogId, Offset]] | None = None
        """Its number and ends, if the block stores one."""
        self._behind_common: set[LogId] = set()
        """The logs that have grown since that cut."""
        self._records: dict[LogId, LogRecord] = {}
        self._changed: set[LogId] = set()
        self.created: dict[LogId, Database] = {}
        """Handles of topics' logs created in this block; other blocks may use them once it is committed."""
        self.dropped: set[LogId] = set()

    def create(self, log: LogId) -> None:
        if self._find(log) is not None:
            return
        numbers = self._txn.get(layout.NUMBERS_KEY, db=self._tables.meta)
        number = 0 if numbers is None else layout.decode_number(numbers)
        self._txn.put(layout.NUMBERS_KEY, layout.encode_number(number + 1), db=self._tables.meta)
        if log.kind == LogKind.TOPIC.value:
            self.created[log] = self._env.open_db(str(log).encode(), txn=self._txn)
            self._put_cut_row(number, Cut(0, Offset(0)))
        self._records[log] = LogRecord(number)
        self._changed.add(log)
        self.dropped.discard(log)

    def drop(self, log: LogId) -> None:
        record = self._find(log)
        if record is None:
            return
        if log.kind == LogKind.TOPIC.value:
            self._txn.drop(self._database(log), delete=False)
        prefix = layout.encode_number(record.number)
        tables = self._tables
        for table in (
            tables.time_index,
            tables.producers,
            tables.offsets,
            tables.transactions,
            tables.cleanings,
            tables.unfinished,
            tables.aborted,
            tables.cuts,
            tables.groups,
        ):
            self._delete_prefix(table, prefix)
        self._txn.delete(str(log).encode(), db=self._tables.logs)
        del self._records[log]
        self._changed.discard(log)
        self._grown.discard(log)
        self.created.pop(log, None)
        self.open_starts.pop(log, None)
        self.dropped.add(log)

    def append(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        record = self._record(log)
        if base_offset != record.next_offset:
            raise AssertionError(f"data log {log} ends at {record.next_offset}, not at {base_offset} (invariant 2)")
        _assert_header_agrees(log, base_offset, record_count, max_timestamp_ms, data)
        last_offset = Offset(base_offset + record_count - 1)
        if not self._txn.put(layout.batch_key(last_offset), data, append=True, db=self._database(log)):
            raise AssertionError(f"data log {log} holds a batch after its end, {base_offset}: it is staged")
        before = time_index.note(record, last_offset, max_timestamp_ms, len(data))
        if before is not None:
            self._put_time_entry(record.number, before, last_offset)
        record.next_offset = Offset(last_offset + 1)
        record.size_bytes += len(data)
        self._changed.add(log)
        self._grown.add(log)
        self._appended_records += record_count

    def stage(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        end = self._staged_end(log)
        if base_offset != end:
            raise AssertionError(f"data log {log} is staged up to {end}, not up to {base_offset} (invariant 2)")
        _assert_header_agrees(log, base_offset, record_count, max_timestamp_ms, data)
        last_offset = Offset(base_offset + record_count - 1)
        self._txn.put(layout.batch_key(last_offset), data, append=True, db=self._database(log))

    def publish(self, log: LogId, staged: Iterable[tuple[Offset, int, int]]) -> None:
        record = self._record(log)
        for last_offset, max_timestamp_ms, size_bytes in staged:
            before = time_index.note(record, last_offset, max_timestamp_ms, size_bytes)
            if before is not None:
                self._put_time_entry(record.number, before, last_offset)
            record.size_bytes += size_bytes
            self._appended_records += last_offset + 1 - record.next_offset
            record.next_offset = Offset(last_offset + 1)
        end = self._staged_end(log)
        if record.next_offset != end:
            raise AssertionError(f"data log {log} is staged up to {end}, not up to {record.next_offset} (invariant 2)")
        self._changed.add(log)
        self._grown.add(log)

    def _staged_end(self, log: LogId) -> Offset:
        """The end of the staged batches; the log's end if there are none."""
        end = self._record(log).next_offset
        with self._txn.cursor(db=self._database(log)) as cursor:
            return max(end, Offset(layout.decode_batch_key(cursor.key()) + 1)) if cursor.last() else end

    def put_offsets(self, log: LogId, entries: Sequence[Entry]) -> None:
        number = self._record(log).number
        for entry in entries:
            if isinstance(entry, GroupEntry):
                self._put_group(number, entry)
            else:
                self._put_offset(number, entry)

    def _put_offset(self, number: int, entry: OffsetEntry) -> None:
        key = layout.offset_key(number, entry.key)
        if entry.value is None:
            self._txn.delete(key, db=self._tables.offsets)
        else:
            self._txn.put(key, encode_offset_entry(entry), db=self._tables.offsets)

    def _put_group(self, number: int, entry: GroupEntry) -> None:
        key = layout.group_key(number, entry.group)
        if entry.record is None:
            self._txn.delete(key, db=self._tables.groups)
        else:
            self._txn.put(key, entry.record, db=self._tables.groups)

    def forget_groups(self, log: LogId) -> None:
        self._delete_prefix(self._tables.groups, layout.encode_number(self._record(log).number))

    def put_producer(self, log: LogId, producer_id: ProducerId, state: bytes) -> None:
        self._txn.put(layout.producer_key(self._record(log).number, producer_id), state, db=self._tables.producers)

    def delete_producer(self, log: LogId, producer_id: ProducerId) -> None:
        self._txn.delete(layout.producer_key(self._record(log).number, producer_id), db=self._tables.producers)

    def put_open(self, log: LogId, transaction: OpenInLog) -> None:
        record = self._record(log)
        found = self._open_of(record, transaction.txid.producer_id)
        if found is not None and (found.txid, found.first_offset) != (transaction.txid, transaction.first_offset):
            raise AssertionError(f"data log {log}: {transaction} is put in place of {found}, which is not decided")
        starts = self.open_starts.get(log)
        if found is None and starts and transaction.first_offset < starts[0][0]:
            del self.open_starts[log]
        key = layout.producer_key(record.number, transaction.txid.producer_id)
        self._txn.put(key, layout.encode_open(transaction), db=self._tables.unfinished)
        if record.first_open == layout.NONE_OPEN or transaction.first_offset < record.first_open:
            record.first_open = transaction.first_offset
            self._changed.add(log)

    def _open_of(self, record: LogRecord, producer_id: ProducerId) -> OpenInLog | None:
        if record.first_open == layout.NONE_OPEN:
            return None
        key = layout.producer_key(record.number, producer_id)
        found = self._txn.get(key, db=self._tables.unfinished)
        return None if found is None else layout.decode_open(key, found)

    def delete_open(self, log: LogId, producer_id: ProducerId) -> OpenInLog | None:
        record = self._record(log)
        found = self._open_of(record, producer_id)
        if found is None:
            return None
        self._txn.delete(layout.producer_key(record.number, producer_id), db=self._tables.unfinished)
        if found.first_offset == record.first_open:
            record.first_open = self._first_still_open(log, record)
            self._changed.add(log)
        return found

    def _first_still_open(self, log: LogId, record: LogRecord) -> Offset:
        starts = self.open_starts.pop(log, [])
        while starts and not self._is_open_since(record, *starts[-1]):
            starts.pop()
        if not starts:
            still_open = reader.find_open_transactions(self._txn, self._tables, record)
            starts = sorted(((each.first_offset, each.txid.producer_id) for each in still_open), reverse=True)
        if not starts:
            return layout.NONE_OPEN
        self.open_starts[log] = starts
        return starts[-1][0]

    def _is_open_since(self, record: LogRecord, first_offset: Offset, producer_id: ProducerId) -> bool:
        found = self._open_of(record, producer_id)
        return found is not None and found.first_offset == first_offset

    def put_aborted(self, log: LogId, aborted: AbortedTransaction) -> None:
        record = self._record(log)
        if not aborted.first_offset < aborted.last_offset < record.next_offset:
            raise AssertionError(f"data log {log} ends at {record.next_offset}, which does not go with {aborted}")
        if aborted.last_offset < record.aborted_before or aborted.last_stable_offset != record.last_stable_offset:
            raise AssertionError(f"data log {log}: {aborted} after {record}")
        key = layout.end_key(record.number, aborted.last_offset)
        self._txn.put(key, layout.encode_aborted(aborted), db=self._tables.aborted)
        record.aborted_before = Offset(aborted.last_offset + 1)
        self._changed.add(log)

    def last_stable_offset(self, log: LogId) -> Offset:
        return self._record(log).last_stable_offset

    def mark(self, log: LogId) -> Mark:
        record = self._record(log)
        return Mark(record.copied_through, record.replay_from, record.next_offset)

    def put_mark(self, log: LogId, mark: Mark) -> None:
        record = self._record(log)
        forward = record.copied_through <= mark.copied_through and record.replay_from <= mark.replay_from
        if not forward or mark.replay_from > mark.copied_through:
            raise AssertionError(f"data log {log}: {mark} after {record}")
        is_table = log.kind == LogKind.OFFSETS.value
        if mark.next_offset < record.next_offset or (mark.next_offset > record.next_offset and not is_table):
            raise AssertionError(f"data log {log} ends at {record.next_offset}, {mark} says otherwise (invariant 2)")
        record.next_offset = mark.next_offset
        record.copied_through = mark.copied_through
        record.replay_from = mark.replay_from
        self._changed.add(log)

    def delete_before(self, log: LogId, offset: Offset, *, batches_max: int | None = None) -> int:
        record = self._record(log)
        if offset > record.next_offset:
            raise ValueError(f"data log {log} ends at {record.next_offset}, cannot start at {offset}")
        if log.kind != LogKind.TOPIC.value:
            raise ValueError(f"data log {log} is a table and has no batches to delete")
        if offset > record.log_start:
            record.log_start = offset
            self._changed.add(log)
            if offset == record.next_offset:
                record.forget_timestamps()
            elif record.max_timestamp_at < offset:
                record.index_behind = True
        deleted_bytes = self._delete_batches(log, record, batches_max)
        self._delete_entries_before(self._tables.time_index, record, batches_max)
        self._delete_entries_before(self._tables.transactions, record, batches_max)
        if record.aborted_before:
            self._delete_entries_before(self._tables.aborted, record, batches_max)
        self._delete_cuts_before(record, record.log_start, batches_max)
        return deleted_bytes

    def _delete_batches(self, log: LogId, record: LogRecord, batches_max: int | None) -> int:
        """Delete batches before the log's start; returns their bytes."""
        deleted = deleted_bytes = 0
        with self._txn.cursor(db=self._database(log)) as cursor:
            remains = cursor.first()
            while remains and deleted != batches_max:
                key = layout.decode_batch_key(cursor.key())
                if key >= record.log_start:
                    break
                size = len(cursor.value())
                if key < record.cleaned_through:
                    record.clean_bytes = max(0, record.clean_bytes - size)
                cursor.delete()
                deleted += 1
                deleted_bytes += size
                remains = bool(cursor.key())
        if deleted:
            record.size_bytes -= deleted_bytes
            self._changed.add(log)
        return deleted_bytes

    def _delete_entries_before(self, table: Database, record: LogRecord, entries_max: int | None) -> None:
        """Delete entries that the log's start has passed: in the time index by value, in the other tables by key.

        There is at most one entry per batch, so entries over the limit are deleted together with the batches over the
        limit.
        """
        prefix = layout.encode_number(record.number)
        by_value = table is self._tables.time_index
        deleted = 0
        with self._txn.cursor(db=table) as cursor:
            remains = cursor.set_range(prefix)
            while remains and deleted != entries_max and bytes(cursor.key()).startswith(prefix):
                at = layout.decode_batch_key(cursor.value()) if by_value else layout.decode_end_key(cursor.key())
                if at >= record.log_start:
                    break
                cursor.delete()
                deleted += 1
                remains = bool(cursor.key())

    def bind(self, log: LogId, base_offset: Offset, last_offset: Offset) -> None:
        key = layout.end_key(self._record(log).number, last_offset)
        self._txn.put(key, layout.batch_key(base_offset), db=self._tables.transactions)

    def unbind(self, log: LogId, last_offset: Offset) -> None:
        key = layout.end_key(self._record(log).number, last_offset)
        self._txn.delete(key, db=self._tables.transactions)

    def replace(self, log: LogId, last_offset: Offset, data: bytes | bytearray | None) -> bool:
        record = self._record(log)
        assert last_offset + 1 < record.next_offset, f"the last batch of {log}, {last_offset}, is never touched"
        key, database = layout.batch_key(last_offset), self._database(log)
        found = self._txn.get(key, db=database)
        if found is None:
            return False
        change_bytes = (0 if data is None else len(data)) - len(found)
        if record.max_timestamp_at == last_offset and (
            data is None or max_timestamp_of(data) < record.max_timestamp_ms
        ):
            record.index_behind = True
        if data is None:
            self._txn.delete(key, db=database)
        else:
            _assert_is_part_of(log, data, found)
            self._txn.put(key, data, db=database)
        record.size_bytes += change_bytes
        if last_offset < record.cleaned_through:
            record.clean_bytes = max(0, record.clean_bytes + change_bytes)
        record.holes_before = max(record.holes_before, Offset(last_offset + 1))
        self._changed.add(log)
        return True

    def put_cleaned(self, log: LogId, cleaned: Cleaned) -> None:
        record = self._record(log)
        record.cleaned_through, record.clean_bytes = cleaned.through, cleaned.clean_bytes
        record.doubt_from = layout.NO_DOUBT if cleaned.doubt_from is None else cleaned.doubt_from
        record.holes_before = max(record.holes_before, cleaned.through)
        self._changed.add(log)
        self._delete_prefix(self._tables.cleanings, layout.encode_number(record.number))
        for cleaning in cleaned.history:
            key = layout.end_key(record.number, cleaning.before)
            self._txn.put(
                key, layout.encode_cleaning(cleaning.ended_ms, cleaning.tombstones), db=self._tables.cleanings
            )

    def put_cut(self, now_s: float) -> None:
        if self._unindexed.is_due(self._appended_records, now_s):
            self._cut_at_s = now_s

    def put_common_cut(self, number: int, ends: Mapping[LogId, Offset]) -> None:
        if self._common_cut is not None or number < self._unindexed.next_number:
            raise AssertionError(f"cut {number} is put after cut {self._unindexed.next_number - 1}")
        self._common_cut = number, ends

    def forget_cleaned_cuts(self, log: LogId, *, rows_max: int) -> int:
        record = self._record(log)
        return self._delete_cuts_before(record, record.cleaned_through, rows_max)

    def _delete_cuts_before(self, record: LogRecord, offset: Offset, rows_max: int | None) -> int:
        """Delete the rows before the newest one that is at or before `offset`; returns how many.

        That one stays, and shows that all records after it are in no older cut.
        """
        before: list[bytes] = []
        kept: bytes | None = None
        prefix = layout.encode_number(record.number)
        for key, value in reader.items_with_prefix(self._txn, self._tables.cuts, prefix):
            if layout.decode_cut(key, value).end > offset or len(before) == rows_max:
                break
            if kept is not None:
                before.append(kept)
            kept = key
        for key in before:
            self._txn.delete(key, db=self._tables.cuts)
        return len(before)

    def _put_cut_row(self, number: int, cut: Cut) -> None:
        self._txn.put(layout.cut_key(number, cut.number), layout.encode_cut(cut.end), db=self._tables.cuts)

    def change_time_index(self, log: LogId, put: Iterable[tuple[int, Offset]], drop: Iterable[int]) -> None:
        """Put the entries (P, b), and delete those with a P in `drop`. `reindexing` decides which ones are right."""
        number = self._record(log).number
        for before_ms in drop:
            self._txn.delete(layout.time_key(number, before_ms), db=self._tables.time_index)
        for before_ms, last_offset in put:
            self._put_time_entry(number, before_ms, last_offset)

    def finish_time_index(self, log: LogId, through: Offset, scanned: LogRecord) -> None:
        """Continue the index from `scanned`, which has noted all batches up to the key `through`."""
        record = self._record(log)
        if record.log_start == record.next_offset:
            record.forget_timestamps()  # all that was scanned has gone meanwhile
            self._changed.add(log)
            return
        with self._txn.cursor(db=self._database(log)) as cursor:
            remains = cursor.set_range(layout.batch_key(through + 1))
            end = layout.batch_key(record.next_offset)
            while remains and bytes(cursor.key()) < end:
                key, batch = layout.decode_batch_key(cursor.key()), cursor.value()
                before = time_index.note(scanned, key, max_timestamp_of(batch), len(batch))
                if before is not None:
                    self._put_time_entry(record.number, before, key)
                remains = cursor.next()
        record.max_timestamp_ms, record.max_timestamp_at = scanned.max_timestamp_ms, scanned.max_timestamp_at
        record.unindexed_bytes = scanned.unindexed_bytes
        # The batch with the max may have gone since it was seen: then the index is as far behind as it was.
        largest = self._txn.get(layout.batch_key(record.max_timestamp_at), db=self._database(log))
        kept = largest is not None and max_timestamp_of(largest) == record.max_timestamp_ms
        record.index_behind = record.max_timestamp_at < record.log_start or not kept
        self._changed.add(log)

    def point_anew(self) -> None:
        """Make the block change something, so that its commit writes the page that points to the whole content."""
        self._txn.put(layout.FORMAT_KEY, layout.encode_format(), db=self._tables.meta)

    def finish(self) -> None:
        """Write back the records that changed. The last call before the commit."""
        for log in self._changed:
            value = layout.encode_log_record(self._records[log])
            self._txn.put(str(log).encode(), value, db=self._tables.logs)
        if self._cut_at_s is not None:
            for log in self._unindexed.grown | self._grown:
                record = self._find(log)
                if record is not None:  # else it was dropped
                    self._put_cut_row(record.number, Cut(self._unindexed.next_number, record.last_stable_offset))
        if self._common_cut is not None:
            self._finish_common_cut(*self._common_cut)

    def _finish_common_cut(self, number: int, ends: Mapping[LogId, Offset]) -> None:
        before = self._unindexed.next_number - 1
        self._txn.put(layout.encode_cut_number(number), layout.encode_cut_number(before), db=self._tables.common_cuts)
        with self._txn.cursor(db=self._tables.cuts) as rows:
            for log in self._unindexed.grown | self._grown:
                record = self._find(log)
                if record is None:
                    continue
                end = ends.get(log)
                if end != record.last_stable_offset:
                    self._behind_common.add(log)
                newest = reader.newest_row(rows, record.number)
                if end is not None and (newest is None or newest.end < end):
                    self._put_cut_row(record.number, Cut(number, end))

    def committed(self) -> None:
        """The block is committed: record what the index does not have yet."""
        if self._common_cut is not None:
            self._unindexed.kept_common(self._common_cut[0], self._behind_common)
        elif self._cut_at_s is None:
            self._unindexed.add(self._grown, self._appended_records)
        else:
            self._unindexed.begin_again(self._cut_at_s)

    def _find(self, log: LogId) -> LogRecord | None:
        record = self._records.get(log)
        if record is None:
            data = self._txn.get(str(log).encode(), db=self._tables.logs)
            if data is not None:
                record = self._records[log] = layout.decode_log_record(data)
        return record

    def _record(self, log: LogId) -> LogRecord:
        record = self._find(log)
        if record is None:
            raise UnknownLog(log)
        return record

    def _database(self, log: LogId) -> Database:
        database = self.created.get(log) or self._batches.get(log)
        if database is None:  # an offsets log, or the environment has lost the handle of a log that has a record
            raise AssertionError(f"data log {log} keeps no batches")
        return database

    def _put_time_entry(self, number: int, before_ms: int, last_offset: Offset) -> None:
        key = layout.time_key(number, before_ms)
        self._txn.put(key, layout.batch_key(last_offset), db=self._tables.time_index)

    def _delete_prefix(self, table: Database, prefix: bytes) -> None:
        with self._txn.cursor(db=table) as cursor:
            remains = cursor.set_range(prefix)
            while remains and bytes(cursor.key()).startswith(prefix):
                cursor.delete()
                remains = bool(cursor.key())


def _assert_header_agrees(
    log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
) -> None:
    """Stop at a bug of ours before it is stored."""
    try:
        header = parse_batch_header_untrusted(data)
    except BadBatch as error:
        raise AssertionError(f"data log {log}: not a batch, at offset {base_offset}: {error}") from error
    said = (header.base_offset, header.record_count, header.max_timestamp, header.size_bytes)
    if said != (base_offset, record_count, max_timestamp_ms, len(data)):
        raise AssertionError(
            f"data log {log}: asked to append {record_count} records at {base_offset}, max timestamp"
            f" {max_timestamp_ms} ms, {len(data)} bytes; the batch has {header}"
        )


def _assert_is_part_of(log: LogId, data: bytes | bytearray, found: memoryview) -> None:
    """Stop at a bug of ours before it is stored: `data` must be `found` with fewer records."""
    new, old = parse_stored_header(data), parse_stored_header(found)
    same = (new.base_offset, new.last_offset, new.producer_id, new.base_sequence, new.attributes)
    if new.size_bytes != len(data) or new.record_count > old.record_count:
        same = None
    if same != (old.base_offset, old.last_offset, old.producer_id, old.base_sequence, old.attributes):
        raise AssertionError(f"data log {log}: {new} cannot take the place of {old}")
