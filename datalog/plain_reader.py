"""Reads data logs from another process, straight from LMDB, while the node runs or is stopped.

    with DataLogReader.open(directory) as reader:      # a shard's datalog/
        with reader.cut() as cut:                      # one moment of all logs
            for log in cut.logs():
                for record in cut.records(log, cut.bounds(log).log_start):
                    ...

A cut is one LMDB read transaction: all logs as of the same commit, and all records of a transaction or none (invariant
7). Later changes (appends, deleted topics, retention) are not in it; the next cut has them. A cut asks nothing of the
node and delays no one; it takes no lock of the node, and waits for none.

By default only committed records are read. In a log of marker mode (`datalog.interface`) this means: up to the last
stable offset, and without aborted records. Control batches are never returned.

A cut costs disk space. LMDB writes each change to free pages and may use a page again only when no reader can see it
any more, so while a cut is held the file grows with every commit of the node: by the appended data, as always, and by
the inner pages that are replaced. Retention frees nothing meanwhile. Hold a cut for seconds, not hours
(docs/reading-directly.md has figures). To read much, continue in a new cut where the last one ended; it has the same
records, because a log only grows. A process that is killed in the middle of a cut leaves its entry in LMDB's reader
table; the node removes such entries whenever it syncs the data logs.

Topics' names are not here but in the cluster store: `fairlog.local_reader` adds them.

Threads may share a reader; each cut is for one thread at a time. A process has one reader for a directory at most (LMDB
does not allow more), and none inherited over a fork.

How it finds the logs: each has a database of its own in LMDB, whose handle has to be opened in a transaction before the
one that uses it. The environment's count of all logs ever created shows whether there are new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import lmdb

from datalog import layout, reader
from datalog.aborted import AbortedRanges
from datalog.batch import BadBatch, check_crc, parse_stored_header
from datalog.decoding import Record, decode_records_untrusted
from datalog.decompress import UnreadableRecords
from datalog.environment import DATABASES_MAX, check_format
from datalog.failures import damaged, storage_errors
from datalog.foreign import ForeignEnvironment
from datalog.handles import Database, Tables, Transaction
from datalog.interface import Bounds, UnknownFormat, UnknownLog
from datalog.layout import DamagedValue, LogRecord
from fairlog_types import CorruptStorage, LogId, LogKind, Offset, StorageFailure

_ABORTED_SPAN = 1_000
"""Offsets for which aborted transactions are looked up at a time. If one was open for long, each lookup goes through
all that were aborted meanwhile.
"""


class OffsetOutsideLog(Exception):
    """The requested offset is before the log's start or after its end."""

    def __init__(self, log: LogId, offset: int, bounds: Bounds) -> None:
        super().__init__(
            f"data log {log} has the offsets from {bounds.log_start} to {bounds.next_offset}, not {offset}"
        )
        self.log = log
        self.bounds = bounds


class Cut:
    """All data logs as of one moment; from `DataLogReader.cut`, and valid until its block ends."""

    def __init__(
        self,
        environment: ForeignEnvironment,
        txn: Transaction,
        tables: Tables,
        batches: dict[LogId, Database],
    ) -> None:
        self._environment = environment
        self._txn = txn
        self._tables = tables
        self._batches = batches
        self._ended = False
        self.number = txn.id()
        """The number of the node's commit that this cut shows. Two cuts with the same number show the same."""

    def logs(self) -> list[LogId]:
        """The logs of all topics' partitions, sorted by their names."""
        with self._reading("listing the logs"):
            names = [bytes(key) for key, _ in reader.items_with_prefix(self._txn, self._tables.logs, b"")]
        logs = [LogId.parse(name.decode()) for name in names]
        return [log for log in logs if log.kind == LogKind.TOPIC.value]

    def bounds(self, log: LogId) -> Bounds:
        """The readable part: offsets from `log_start` up to, and without, `next_offset`. Raises UnknownLog."""
        with self._reading("reading bounds"):
            record = self._record(log)
        return Bounds(record.log_start, record.next_offset, record.size_bytes, record.last_stable_offset)

    def records(
        self, log: LogId, from_offset: int, *, before: int | None = None, committed_only: bool = True
    ) -> Iterator[Record]:
        """The committed records, or all, from `from_offset` on, in order; up to, and without, `before` if it is given.

        Returns nothing at the log's end, or between the last stable offset and the end.

        Raises UnknownLog, OffsetOutsideLog; CorruptStorage if a batch is not what was written; UnreadableRecords if a
        batch is compressed and its codec is not installed, or if its records are malformed; StorageFailure if there is
        no lock file to use and another process writes (`datalog.foreign`).
        """
        for batch in self.batches(log, from_offset, before=before, committed_only=committed_only):
            header = parse_stored_header(batch)
            try:
                records = decode_records_untrusted(header, batch)
            except UnreadableRecords as error:
                raise UnreadableRecords(f"data log {log}, the batch at offset {header.base_offset}: {error}") from error
            for record in records:
                if before is not None and record.offset >= before:
                    return
                if record.offset >= from_offset:
                    yield record

    def batches(
        self, log: LogId, from_offset: int, *, before: int | None = None, committed_only: bool = True
    ) -> Iterator[bytes]:
        """Like `records`, but whole batches as they are stored, each with its CRC checked.

        The first may begin before `from_offset`, and the last may end after `before`.
        """
        bounds = self.bounds(log)
        if not bounds.log_start <= from_offset <= bounds.next_offset:
            raise OffsetOutsideLog(log, from_offset, bounds)
        readable_end = bounds.last_stable_offset if committed_only else bounds.next_offset
        end = readable_end if before is None else min(before, readable_end)
        aborted, known_before = AbortedRanges(()), 0
        offset = from_offset
        while offset < end:
            batch, last_offset = self._batch(log, offset)
            header = parse_stored_header(batch)
            if committed_only and header.transactional and last_offset >= known_before:
                known_before = max(last_offset + 1, header.base_offset + _ABORTED_SPAN)
                aborted = self._aborted(log, header.base_offset, Offset(known_before))
            if not (header.control or aborted.contain(header)):
                yield batch
            offset = last_offset + 1

    def _aborted(self, log: LogId, offset: Offset, before: Offset) -> AbortedRanges:
        with self._reading("reading aborted transactions"):
            return AbortedRanges(reader.find_aborted(self._txn, self._tables, self._record(log), offset, before))

    def _batch(self, log: LogId, offset: int) -> tuple[bytes, Offset]:
        """The batch that contains `offset`, copied out of the map, and its last offset."""
        with self._reading("reading a batch"), self._txn.cursor(db=self._batches[log]) as cursor:
            if not cursor.set_range(layout.batch_key(offset)):
                raise DamagedValue(f"data log {log} holds no batch with offset {offset}")
            batch, last_offset = bytes(cursor.value()), layout.decode_batch_key(cursor.key())
            check_crc(parse_stored_header(batch), batch)
        return batch, last_offset

    def _record(self, log: LogId) -> LogRecord:
        record = reader.find_record(self._txn, self._tables, log)
        if record is None or log not in self._batches:
            raise UnknownLog(log)
        return record

    @contextmanager
    def _reading(self, doing: str) -> Generator[None]:
        if self._ended:
            raise AssertionError("this cut has ended: read inside its block")
        directory = self._environment.directory
        try:
            with storage_errors(directory, doing):
                yield
        except BadBatch as error:
            self._environment.still_peaceful(self._txn)
            raise damaged(error, directory, doing) from error
        except CorruptStorage:
            self._environment.still_peaceful(self._txn)  # what looks damaged may be a page that was overwritten
            raise
        self._environment.still_peaceful(self._txn)

    def _end(self) -> None:
        self._ended = True
        self._txn.abort()


class DataLogReader:
    """Reads a node's data logs from another process; create one with `open`, close it by `with` or `close`."""

    def __init__(self, environment: ForeignEnvironment, tables: Tables) -> None:
        self._environment = environment
        self._tables = tables
        self._lock = threading.Lock()
        self._batches: dict[LogId, Database] = {}  # replaced, never changed: cuts keep the one they began with
        self._logs_made: bytes | None = None
        self._cuts = 0

    @classmethod
    def open(cls, directory: Path) -> DataLogReader:
        """Open the data logs in `directory` (a shard's `datalog/`), read-only; nothing is created or changed there.

        This user must be able to read `data.mdb`, and, as long as a node runs, to write `lock.mdb` (`datalog.foreign`).

        Raises UnknownFormat if the file has a version that this code does not know, or is not Fairlog's; CorruptStorage
        if it is damaged or was cut; StorageFailure if there is no file, or it cannot be opened safely.
        """
        environment = ForeignEnvironment.open(directory, databases_max=DATABASES_MAX)
        try:
            with storage_errors(directory, "opening the tables"):
                tables = _open_tables(environment)
        except BaseException:
            environment.close()
            raise
        return cls(environment, tables)

    def __enter__(self) -> DataLogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close; open cuts end. May be called twice."""
        self._environment.close()

    @contextmanager
    def cut(self) -> Generator[Cut]:
        """All data logs as of now, for as long as the block lasts (the module head describes the cost).

        Raises StorageFailure if no cut is possible now; the message says why.
        """
        with self._lock, storage_errors(self._environment.directory, "beginning a cut"):
            txn = self._begin_with_all_handles()
            cut = Cut(self._environment, txn, self._tables, self._batches)
            self._cuts += 1
        try:
            yield cut
        finally:
            cut._end()  # pyright: ignore[reportPrivateUsage]: a cut is ended by its block alone
            with self._lock:
                self._cuts -= 1

    def _begin_with_all_handles(self) -> Transaction:
        """A transaction that can use the handle of every log that it sees. Called under the lock."""
        while True:
            txn = self._begin()
            try:
                made = bytes(txn.get(layout.NUMBERS_KEY, b"", db=self._tables.meta))
                if made == self._logs_made:
                    return txn
                names = [bytes(key) for key, _ in reader.items_with_prefix(txn, self._tables.logs, b"")]
            except BaseException:
                txn.abort()
                raise
            txn.abort()
            self._batches = self._open_handles([LogId.parse(name.decode()) for name in names])
            self._logs_made = made

    def _begin(self) -> Transaction:
        try:
            return self._environment.begin()
        except lmdb.MapResizedError:
            # The node was restarted with a larger map, and the file has grown into it.
            if self._cuts:
                raise StorageFailure(
                    f"{self._environment.directory} has outgrown this reader's map: end its other cuts, then ask again"
                ) from None
            self._environment.env.set_mapsize(0)
            return self._environment.begin()

    def _open_handles(self, logs: list[LogId]) -> dict[LogId, Database]:
        batches: dict[LogId, Database] = {}
        for log in logs:
            if log.kind != LogKind.TOPIC.value:
                continue
            try:
                batches[log] = self._batches.get(log) or self._environment.open_database(str(log).encode())
            except lmdb.NotFoundError:
                continue  # dropped since, and the node restarted: the next transaction does not list it
            except lmdb.DbsFullError as error:
                raise StorageFailure(
                    f"{self._environment.directory}: this reader has met {DATABASES_MAX} logs, deleted ones counted,"
                    " and can take no more. Open another one."
                ) from error
        return batches


def _open_tables(environment: ForeignEnvironment) -> Tables:
    """Check the format, and open the databases that every environment has. Raises UnknownFormat, CorruptStorage,
    lmdb.Error.
    """
    try:
        meta = environment.open_database(layout.META)
    except lmdb.NotFoundError:
        check_format(environment.directory, None)
        raise
    txn = environment.begin()
    try:
        version = check_format(environment.directory, txn.get(layout.FORMAT_KEY, db=meta))
    finally:
        txn.abort()
    if version != layout.VERSION:
        raise UnknownFormat(
            f"data logs in {environment.directory} have the older format version {version}, which only a node opens and"
            " brings up to date: start one there."
        )
    return Tables(*(environment.open_database(name) for name in layout.TABLES))
