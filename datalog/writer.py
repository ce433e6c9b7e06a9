"""One write transaction over the data logs: what `DataLogWriter` promises, said to LMDB.

A log's record (bounds, mark, running max) is read once per block, changed in memory by every call, and written back
when the block ends, in the same LMDB transaction as the batches (invariant 4). Density (invariant 2) is checked
at each append, against the record and against the batch's own header.

`drop` empties the log's database but leaves its name: LMDB frees a name's handle at once, under the eyes of
readers that still use it. The empty names are removed when the environment is next opened, before there are readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import lmdb

from datalog import layout, time_index
from datalog.batch import BadBatch, max_timestamp_of, parse_batch_header_untrusted
from datalog.handles import Database, Tables, Transaction
from datalog.interface import Mark, UnknownLog
from datalog.layout import LogRecord
from datalog.offset_entries import OffsetEntry, encode_offset_entry
from fairlog_types import LogId, LogKind, Offset, ProducerId


class LmdbWriter:
    """A `DataLogWriter` on one LMDB write transaction."""

    def __init__(
        self,
        env: lmdb.Environment,
        txn: Transaction,
        tables: Tables,
        batches: Mapping[LogId, Database],
    ) -> None:
        self._env = env
        self._txn = txn
        self._tables = tables
        self._batches = batches
        self._records: dict[LogId, LogRecord] = {}
        self._changed: set[LogId] = set()
        self.created: dict[LogId, Database] = {}
        """Handles of topics' logs made in this block; they are good for others once it is committed."""
        self.dropped: set[LogId] = set()

    def create(self, log: LogId) -> None:
        if self._find(log) is not None:
            return
        numbers = self._txn.get(layout.NUMBERS_KEY, db=self._tables.meta)
        number = 0 if numbers is None else layout.decode_number(numbers)
        self._txn.put(layout.NUMBERS_KEY, layout.encode_number(number + 1), db=self._tables.meta)
        if log.kind == LogKind.TOPIC.value:
            self.created[log] = self._env.open_db(str(log).encode(), txn=self._txn)
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
        for table in (self._tables.time_index, self._tables.producers, self._tables.offsets):
            self._delete_prefix(table, prefix)
        self._txn.delete(str(log).encode(), db=self._tables.logs)
        del self._records[log]
        self._changed.discard(log)
        self.created.pop(log, None)
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
            raise AssertionError(f"data log {log} holds a batch behind its end, {base_offset}")
        before = time_index.note(record, last_offset, max_timestamp_ms, len(data))
        if before is not None:
            self._put_time_entry(record.number, before, last_offset)
        record.next_offset = Offset(last_offset + 1)
        record.size_bytes += len(data)
        self._changed.add(log)

    def put_offsets(self, log: LogId, entries: Sequence[OffsetEntry]) -> None:
        number = self._record(log).number
        for entry in entries:
            key = layout.offset_key(number, entry.key)
            if entry.value is None:
                self._txn.delete(key, db=self._tables.offsets)
            else:
                self._txn.put(key, encode_offset_entry(entry), db=self._tables.offsets)

    def put_producer(self, log: LogId, producer_id: ProducerId, state: bytes) -> None:
        self._txn.put(layout.producer_key(self._record(log).number, producer_id), state, db=self._tables.producers)

    def delete_producer(self, log: LogId, producer_id: ProducerId) -> None:
        self._txn.delete(layout.producer_key(self._record(log).number, producer_id), db=self._tables.producers)

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

    def delete_before(self, log: LogId, offset: Offset) -> int:
        record = self._record(log)
        if offset > record.next_offset:
            raise ValueError(f"data log {log} ends at {record.next_offset}, cannot start at {offset}")
        if offset <= record.log_start:
            return 0
        if log.kind != LogKind.TOPIC.value:
            raise ValueError(f"data log {log} is a table and has no batches to delete")
        deleted_bytes = 0
        with self._txn.cursor(db=self._database(log)) as cursor:
            remains = cursor.first()
            while remains and layout.decode_batch_key(cursor.key()) < offset:
                deleted_bytes += len(cursor.value())
                cursor.delete()
                remains = bool(cursor.key())
        record.log_start = offset
        record.size_bytes -= deleted_bytes
        self._changed.add(log)
        self._cut_time_index(log, record)
        return deleted_bytes

    def finish(self) -> None:
        """Write back the records that changed. The last call before the commit."""
        for log in self._changed:
            value = layout.encode_log_record(self._records[log])
            self._txn.put(str(log).encode(), value, db=self._tables.logs)

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

    def _cut_time_index(self, log: LogId, record: LogRecord) -> None:
        prefix = layout.encode_number(record.number)
        if record.max_timestamp_at < record.log_start:
            self._delete_prefix(self._tables.time_index, prefix)
            for before, last_offset in time_index.rebuild(record, self._kept(log)):
                self._put_time_entry(record.number, before, last_offset)
            return
        with self._txn.cursor(db=self._tables.time_index) as cursor:
            remains = cursor.set_range(prefix)
            while (
                remains
                and bytes(cursor.key()).startswith(prefix)
                and layout.decode_batch_key(cursor.value()) < record.log_start
            ):
                cursor.delete()
                remains = bool(cursor.key())

    def _kept(self, log: LogId) -> Iterator[tuple[Offset, int, int]]:
        with self._txn.cursor(db=self._database(log)) as cursor:
            for key, batch in cursor:
                yield layout.decode_batch_key(key), max_timestamp_of(batch), len(batch)

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
