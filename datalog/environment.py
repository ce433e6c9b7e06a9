"""The data logs of a node in one LMDB environment.

    write() ──▶ LmdbWriter ──┐  one thread at a time        ┌──▶ read(), offset_for_timestamp(), …
                             ├──▶  data.mdb (copy on write) ─┤  any number of threads, each call one
             commit or abort ┘                              └  read transaction: a consistent cut (invariant 7);
                                                               `lend` keeps it open for a moment

LMDB is a B+tree whose pages are never changed in place: a commit writes new pages, waits for the disk, and then points
the meta page at them. Readers hold no lock and see the state of the last commit when they begin.

Each topic partition's log is a database of its own, so that appends fill pages completely (`append=True`) and a log can
be emptied at once. Handles are opened all together when the environment is, and one by one by `create`. Readers learn
of a handle only after the transaction that opened it is committed, and they look it up before they begin their own; so
no reader holds a handle that its transaction does not know. Whether the log still exists is in its record, which is
read inside the transaction.

Durability: `metasync=False`. A commit waits for its pages but not for the meta page: after a crash of the machine the
file is whole, and at worst the last commit is undone (the journals have it). `sync()` waits for everything, including
what the previous process has left. A crash of the process alone loses nothing.

Batches that were staged after a log's end (`LmdbWriter.stage`) and not published are deleted by the transaction that
opens the logs, before there are readers or writers.

What it does not do: decide what is copied, or when (copier); interpret the producers' states (partition); decide what
is removed (retention calls `delete_before` and `replace`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import cast

import lmdb

from datalog import layout, reader
from datalog.batch import BadBatch
from datalog.cuts import EndsAtCut, KnownCuts, Unindexed, find_cut
from datalog.failures import damaged, explain, storage_errors
from datalog.handles import Database, Tables, Transaction
from datalog.interface import (
    Bounds,
    Cleaned,
    DataLogWriter,
    EpochEnd,
    Loan,
    Mark,
    OpenInLog,
    ReadAnswer,
    ReadRequest,
    Space,
    TimestampOffset,
    Unit,
    UnknownFormat,
    UnknownLog,
)
from datalog.layout import LogRecord
from datalog.lmdb_file import check_length
from datalog.loans import COPIED_BYTES, LOANS_MAX, touch, views_in, with_copies
from datalog.new_file import make_file
from datalog.offset_entries import CommittedOffset, OffsetKey, decode_offset_entry
from datalog.own_pages import give_transactions_own_pages
from datalog.preallocation import make_room
from datalog.reindexing import Headers, reindexing
from datalog.stored import parse_log_untrusted
from datalog.writer import LmdbWriter
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, LogKind, Offset, ProducerId, StorageFailure

DATABASES_MAX = 1 << 16
"""Measured: a transaction takes 3 ns for each open database, and 5 µs because so many are allowed."""

_READERS_MAX = 1024
"""Threads of this process and readers of others together; a slot is 64 bytes of the lock file."""

_LMDB_0_9 = 0
"""The engine is part of the file's format, so it does not depend on the binding's default."""


class LmdbDataLogs:
    """`DataLogs` in an LMDB environment. Open with `LmdbDataLogs.open`."""

    def __init__(
        self,
        directory: Path,
        env: lmdb.Environment,
        tables: Tables,
        batches: dict[LogId, Database],
        unindexed: Unindexed,
        found_at: int,
    ) -> None:
        self._directory = directory
        self._env = env
        self._tables = tables
        self._batches = batches
        self._unindexed = unindexed
        """Updated after a write block is committed."""
        self._found_at = found_at
        """LMDB's number of the last commit of the previous process."""
        self._open_starts: dict[LogId, list[tuple[Offset, ProducerId]]] = {}
        self._write_lock = threading.Lock()  # beyond LMDB's own: it also covers `_failed` and the handles made known
        self._writing_thread: int | None = None
        self._failed: StorageFailure | CorruptStorage | None = None
        self._readers_lock = threading.Lock()
        self._readers_ended = threading.Condition(self._readers_lock)
        self._readers = 0
        """Calls that are inside LMDB now, and loans; none begins after `_closed` is set."""
        self._loans = 0
        self._closed = False

    @classmethod
    def open(cls, directory: Path, *, map_bytes: int, sync: bool = True) -> LmdbDataLogs:
        """Open the environment in `directory`, or create it.

        map_bytes: upper bound of the file's size; address space and not memory, and never less than the file. sync:
        False leaves it to the operating system when commits reach the disk; then a crash of the machine may leave a
        file that cannot be opened.

        Raises UnknownFormat if the file has a version that this code does not know, or is not Fairlog's; CorruptStorage
        if it is damaged or was cut; StorageFailure if it cannot be opened.
        """

        def open_in(place: Path) -> lmdb.Environment:
            return lmdb.open(
                str(place),
                map_size=map_bytes,
                max_dbs=DATABASES_MAX,
                max_readers=_READERS_MAX,
                max_spare_txns=1,  # read transactions that are kept for reuse: the binding keeps one at most
                sync=sync,
                metasync=False,
                meminit=False,  # the unused ends of pages may keep old bytes of this process; zeroing all costs a pass
                readahead=True,  # batches are contiguous pages: 650 MB/s against 42 from a cold disk
                lib_version=_LMDB_0_9,
            )

        give_transactions_own_pages()
        with storage_errors(directory, "opening the environment"):
            try:
                make_file(directory, open_in)
            except OSError as error:
                raise StorageFailure(f"data logs in {directory} cannot be made: {error}") from error
            check_length(directory / "data.mdb")
            env = open_in(directory)
        try:
            return cls.over(directory, env)
        except BaseException:
            env.close()
            raise

    @classmethod
    def over(cls, directory: Path, env: lmdb.Environment) -> LmdbDataLogs:
        """The data logs in an environment that is already open, or in a substitute for one. Raises as `open` does."""
        with storage_errors(directory, "opening the logs"):
            found_at = _last_commit(env)
            with env.begin(write=True, buffers=True) as txn:
                tables, batches = _open_databases(directory, env, txn)
                _delete_staged(txn, tables, batches)
                unindexed = _find_unindexed(txn, tables, batches)
        return cls(directory, env, tables, batches, unindexed, found_at)

    def write(self, *, room_bytes: int = 0) -> AbstractContextManager[DataLogWriter]:
        return self._write(room_bytes)

    @contextmanager
    def _write(self, room_bytes: int = 0) -> Generator[LmdbWriter]:
        if self._writing_thread == threading.get_ident():
            raise AssertionError("a write block inside a write block would wait for itself")
        with self._write_lock:
            self._raise_if_failed()
            if room_bytes:
                make_room(self._directory, self._env, room_bytes)
            self._writing_thread = threading.get_ident()
            try:
                with storage_errors(self._directory, "writing"):
                    txn = self._env.begin(write=True, buffers=True)
                    try:
                        # Handed over, and given back by the commit alone: what an aborted block has changed is gone.
                        open_starts, self._open_starts = self._open_starts, {}
                        writer = LmdbWriter(self._env, txn, self._tables, self._batches, open_starts, self._unindexed)
                        yield writer
                        writer.finish()
                    except BaseException:
                        txn.abort()
                        raise
                self._commit(txn)
                for log in writer.dropped:
                    self._batches.pop(log, None)
                self._batches.update(writer.created)
                self._open_starts = writer.open_starts
                writer.committed()
            finally:
                self._writing_thread = None

    def read(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> list[ReadAnswer]:
        with_handles = [(request, self._batches.get(request.log)) for request in requests]
        with self._reading("reading") as txn:
            return with_copies(reader.read_requests(txn, self._tables, with_handles, bytes_max))

    def lend(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> Loan:
        with_handles = [(request, self._batches.get(request.log)) for request in requests]
        with ExitStack() as lent:
            txn = lent.enter_context(self._reading("reading"))
            answers = reader.read_requests(txn, self._tables, with_handles, bytes_max)
            views = views_in(answers)
            if sum(map(len, views)) <= COPIED_BYTES or not self._may_lend(lent):
                return Loan(with_copies(answers))
            touch(views)
            return Loan(answers, views, lent.pop_all().close)

    def mark(self, log: LogId) -> Mark | None:
        with self._reading("reading a mark") as txn:
            record = reader.find_record(txn, self._tables, log)
        return None if record is None else Mark(record.copied_through, record.replay_from, record.next_offset)

    def bounds(self, log: LogId) -> Bounds:
        with self._reading("reading bounds") as txn:
            record = self._record(txn, log)
        return Bounds(record.log_start, record.next_offset, record.size_bytes, record.last_stable_offset)

    def logs(self) -> list[LogId]:
        with self._reading("listing the logs") as txn:
            return [_log_named(key) for key, _ in reader.items_with_prefix(txn, self._tables.logs, b"")]

    def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> dict[LogId, Offset]:
        for log in starts:
            if log.kind != LogKind.TOPIC.value:
                raise ValueError(f"data log {log} is a table, of which no cuts are kept")
        with self._reading("looking for a cut") as txn, txn.cursor(db=self._tables.cuts) as rows:
            records = [self._record(txn, log) for log in starts]
            logs = [
                reader.find_cuts(rows, record, start) for record, start in zip(records, starts.values(), strict=True)
            ]

            def end_at(index: int, cut: int) -> Offset:
                row = reader.newest_row(rows, records[index].number, at=cut)
                assert row is not None, "the search does not go before a log's oldest row"
                return row.end

            return dict(zip(starts, find_cut(logs, records_max=records_max, end_at=end_at), strict=True))

    @property
    def newest_cut(self) -> int:
        return self._unindexed.next_number - 1

    def known_cuts(self, starts: Mapping[LogId, Offset]) -> KnownCuts:
        newest = self.newest_cut
        with self._reading("looking for cuts") as txn:
            return reader.find_known_cuts(txn, self._tables, starts, newest)

    def ends_at(self, number: int, logs: Collection[LogId], *, common: bool) -> EndsAtCut:
        with self._reading("looking for a cut") as txn:
            return reader.find_ends_at(txn, self._tables, number, logs, common=common)

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None:
        database = self._batches.get(log)
        with self._reading("looking for a timestamp") as txn:
            record = self._record(txn, log)
            if database is None:
                return None
            return reader.find_timestamp(txn, self._tables, database, record, timestamp_ms)

    def max_timestamp(self, log: LogId) -> TimestampOffset | None:
        database = self._batches.get(log)
        with self._reading("looking for the largest timestamp") as txn:
            record = self._record(txn, log)
            return None if database is None else reader.find_max_timestamp(txn, database, record)

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd:
        database = self._batches.get(log)
        with self._reading("looking for the end of a leader epoch") as txn:
            record = self._record(txn, log)
            if database is None:
                return EpochEnd(None, record.next_offset)
            return reader.find_end_of_epoch(txn, database, record, leader_epoch)

    def open_transactions(self, log: LogId) -> list[OpenInLog]:
        with self._reading("reading open transactions") as txn:
            return reader.find_open_transactions(txn, self._tables, self._record(txn, log))

    def producers(self, log: LogId) -> list[tuple[ProducerId, bytes]]:
        with self._reading("reading producers") as txn:
            prefix = layout.encode_number(self._record(txn, log).number)
            items = reader.items_with_prefix(txn, self._tables.producers, prefix)
            return [(layout.decode_producer_key(key), state) for key, state in items]

    def offsets(self, log: LogId, group: str | None = None) -> list[tuple[OffsetKey, CommittedOffset]]:
        with self._reading("reading committed offsets") as txn:
            number = self._record(txn, log).number
            prefix = layout.encode_number(number) if group is None else layout.offset_group_prefix(number, group)
            items = reader.items_with_prefix(txn, self._tables.offsets, prefix)
            entries = [decode_offset_entry(value) for _, value in items]
        return [(entry.key, entry.value) for entry in entries if entry.value is not None]

    def committed_offsets(self, log: LogId, keys: Sequence[OffsetKey]) -> list[CommittedOffset | None]:
        with self._reading("reading committed offsets") as txn:
            number = self._record(txn, log).number
            found = [txn.get(layout.offset_key(number, key), db=self._tables.offsets) for key in keys]
            return [None if value is None else decode_offset_entry(value).value for value in found]

    def offset_groups(self, log: LogId) -> dict[str, int]:
        groups: dict[str, int] = {}
        with self._reading("reading committed offsets") as txn:
            prefix = layout.encode_number(self._record(txn, log).number)
            for _, value in reader.items_with_prefix(txn, self._tables.offsets, prefix):
                entry = decode_offset_entry(value)
                if entry.value is not None:
                    committed_ms = entry.value.commit_timestamp_ms
                    groups[entry.key.group] = max(committed_ms, groups.get(entry.key.group, committed_ms))
        return groups

    def groups(self, log: LogId) -> list[tuple[bytes, bytes]]:
        with self._reading("reading groups") as txn:
            prefix = layout.encode_number(self._record(txn, log).number)
            items = reader.items_with_prefix(txn, self._tables.groups, prefix)
            return [(layout.decode_group_key(key), record) for key, record in items]

    def space(self) -> Space:
        with self._in_use(), storage_errors(self._directory, "asking for the space used"):
            info, page_bytes = self._env.info(), self._env.stat()["psize"]
        return Space((info["last_pgno"] + 1) * page_bytes, info["map_size"])

    def units(self, log: LogId, offset: Offset, *, batches_max: int) -> list[Unit]:
        with self._reading("reading headers") as txn:
            record = self._record(txn, log)
            database = self._batches.get(log)
            return [] if database is None else reader.units(txn, self._tables, database, record, offset, batches_max)

    def cleaned(self, log: LogId) -> Cleaned:
        with self._reading("reading how far a log is compacted") as txn:
            return reader.find_cleaned(txn, self._tables, self._record(txn, log))

    def time_index_is_behind(self, log: LogId) -> bool:
        with self._reading("reading bounds") as txn:
            return self._record(txn, log).index_behind

    def reindexing(self, log: LogId) -> Iterator[None]:
        def headers(offset: Offset, batches_max: int) -> Headers:
            with self._reading("reading headers") as txn:
                record = self._record(txn, log)
                database = self._batches.get(log)
                start = max(offset, record.log_start)
                return [] if database is None else reader.headers(txn, database, record, start, batches_max)

        def entries() -> dict[int, Offset]:
            with self._reading("reading the time index") as txn:
                prefix = layout.encode_number(self._record(txn, log).number)
                items = reader.items_with_prefix(txn, self._tables.time_index, prefix)
                return {layout.decode_time_key(key): layout.decode_batch_key(value) for key, value in items}

        return reindexing(log, headers=headers, entries=entries, write=self._write)

    def copy_into(self, descriptor: int) -> None:
        with self._in_use(), storage_errors(self._directory, "copying the file"):
            self._env.copyfd(descriptor, compact=True)

    def sync(self) -> None:
        if _last_commit(self._env) == self._found_at:
            # A failed sync of the previous process may have lost the page that points to its last commit: we read it
            # from the system's memory, and no sync writes it again. A commit of ours writes a new one.
            with self._write() as writer:
                writer.point_anew()
        # The system tells of a failed write once. Beside a commit, each could take the other's failure for a success.
        with self._write_lock:
            self._raise_if_failed()
            self._sync()

    def _sync(self) -> None:
        try:
            self._env.sync(True)
            # Another process that was killed while it read still stands in the reader table, and keeps every page that
            # it could see from being reused. A lookup in a file of some kilobytes.
            self._env.reader_check()
        except lmdb.Error as error:
            raise self._fail(error, "syncing") from error

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._failed is None:
                self._sync()
        finally:
            with self._readers_lock:
                self._closed = True
                # LMDB unmaps the file even if a thread still reads it, which would end the process.
                self._readers_ended.wait_for(lambda: not self._readers)
            self._env.close()

    def _may_lend(self, lent: ExitStack) -> bool:
        """Whether one more loan may be given; if so, it counts until `lent` is closed."""
        with self._readers_lock:
            if self._loans == LOANS_MAX:
                return False
            self._loans += 1
        lent.callback(self._given_back)
        return True

    def _given_back(self) -> None:
        with self._readers_lock:
            self._loans -= 1

    @contextmanager
    def _in_use(self) -> Generator[None]:
        with self._readers_lock:
            if self._closed:
                raise StorageFailure(f"the data logs in {self._directory} are closed")
            self._readers += 1
        try:
            yield
        finally:
            with self._readers_lock:
                self._readers -= 1
                if self._closed:
                    self._readers_ended.notify_all()

    @contextmanager
    def _reading(self, doing: str) -> Generator[Transaction]:
        try:
            with self._in_use(), storage_errors(self._directory, doing), self._env.begin(buffers=True) as txn:
                yield txn
        except BadBatch as error:
            raise damaged(error, self._directory, doing) from error

    def _record(self, txn: Transaction, log: LogId) -> LogRecord:
        record = reader.find_record(txn, self._tables, log)
        if record is None:
            raise UnknownLog(log)
        return record

    def _commit(self, txn: Transaction) -> None:
        try:
            txn.commit()
        except lmdb.MapFullError as error:
            # It had no page left for the list of free pages, which is made before the first byte is written.
            raise explain(error, self._directory, "committing") from error
        except lmdb.Error as error:
            raise self._fail(error, "committing") from error

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise StorageFailure(f"writes are refused since an earlier failure: {self._failed}") from self._failed

    def _fail(self, error: lmdb.Error, doing: str) -> StorageFailure | CorruptStorage:
        """After a failed write or fsync the kernel may have dropped pages: nothing more is written to this file."""
        self._failed = explain(error, self._directory, doing)
        return self._failed


def _last_commit(env: lmdb.Environment) -> int:
    """LMDB's number of the transaction. A transaction that has changed nothing has none."""
    return cast("dict[str, int]", env.info())["last_txnid"]


def _open_databases(directory: Path, env: lmdb.Environment, txn: Transaction) -> tuple[Tables, dict[LogId, Database]]:
    """Check the format, open every handle, and remove the names that dropped logs have left."""
    with txn.cursor() as cursor:
        names = {bytes(key) for key, _ in cursor}
    if not names:
        tables = Tables.open(env, txn)
        txn.put(layout.FORMAT_KEY, layout.encode_format(), db=tables.meta)
        return tables, {}
    found = None
    if layout.META in names:
        found = txn.get(layout.FORMAT_KEY, db=env.open_db(layout.META, txn=txn, create=False))
    version = check_format(directory, found)
    tables = Tables.open(env, txn)
    if version != layout.VERSION:
        txn.put(layout.FORMAT_KEY, layout.encode_format(), db=tables.meta)
    with txn.cursor(db=tables.logs) as cursor:
        logs = [_log_named(bytes(key)) for key, _ in cursor]
    batches: dict[LogId, Database] = {}
    for log in logs:
        if log.kind == LogKind.TOPIC.value:
            name = str(log).encode()
            if name not in names:
                raise CorruptStorage(f"data logs in {directory}: the batches of {log} are missing. Restore the file.")
            batches[log] = env.open_db(name, txn=txn, create=False)
    for name in names - set(layout.TABLES) - {str(log).encode() for log in batches}:
        txn.drop(env.open_db(name, txn=txn, create=False), delete=True)
    return tables, batches


def _log_named(name: bytes) -> LogId:
    """The log with this key in the table of logs. Raises DamagedValue if the key is not a log's name."""
    log = parse_log_untrusted(name)
    if log is None:
        raise layout.DamagedValue(f"{name!r} is the name of no log")
    return log


def _delete_staged(txn: Transaction, tables: Tables, batches: Mapping[LogId, Database]) -> None:
    """Delete batches that were staged after a log's end and never published: the journals have them, and they will be
    copied again.
    """
    for log, database in batches.items():
        record = reader.find_record(txn, tables, log)
        assert record is not None, "each log that has batches has a record"
        with txn.cursor(db=database) as cursor:
            remains = cursor.set_range(layout.batch_key(record.next_offset))
            while remains:
                cursor.delete()
                remains = bool(cursor.key())


def _find_unindexed(txn: Transaction, tables: Tables, logs: Iterable[LogId]) -> Unindexed:
    """What the cut index lacks: everything committed after its last cut, or before there was an index."""
    unindexed = Unindexed(next_number=1)
    with txn.cursor(db=tables.cuts) as rows:
        for log in logs:
            record = reader.find_record(txn, tables, log)
            assert record is not None, "each log that has batches has a record"
            newest = reader.newest_row(rows, record.number)
            if newest is None or newest.end != record.last_stable_offset:
                unindexed.grown.add(log)
            if newest is not None:
                unindexed.next_number = max(unindexed.next_number, newest.number + 1)
    with txn.cursor(db=tables.common_cuts) as common:
        unindexed.next_number = max(unindexed.next_number, reader.newest_common_cut(common) + 1)
    return unindexed


def check_format(directory: Path, data: bytes | memoryview | None) -> int:
    """The version of the environment in `directory`, by its format record, None if it has none.

    Raises UnknownFormat, CorruptStorage.
    """
    if data is None:
        raise UnknownFormat(f"{directory} holds an LMDB environment that is not Fairlog's data logs. Choose another.")
    try:
        version = layout.decode_format(data)
    except ValueError as error:
        raise CorruptStorage(f"data logs in {directory}: the format record is damaged: {error}") from error
    if version not in layout.READ_VERSIONS:
        raise UnknownFormat(
            f"data logs in {directory} have the format version {version}; this Fairlog knows {layout.VERSION}."
            " Open them with the Fairlog that wrote them, or a newer one."
        )
    return version
