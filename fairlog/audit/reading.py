"""What executors read: a range's batches, a group journal, the producers' windows, as rows in Arrow.

Nothing is judged here but what only the bytes can tell: checksums, and whether something can be read at all. What
cannot be read is a row as well, with `damage` and no more than is known.

**Batches.** A task reads of each of its ranges the batches behind one whose key (last offset) lies in the range; and of
a log's first range the first batch of all. So each batch is read by one task, which knows where the batch before it
ended, `due`: whether offsets are dense can be told from each row alone. The edges need not be keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from datalog import layout
from datalog.batch import BadBatch, BatchHeader, Buffer, check_crc, parse_stored_header
from datalog.control_batch import decode_control_batch
from datalog.lmdb_pages import DamagedPage, LmdbFile
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredBatch, StoredLogs
from fairlog import data_directory
from fairlog.audit.directory import Range, survey_directory
from fairlog_types import CorruptStorage, LogId, StorageFailure
from partition.producer_window import TRANSACTIONS_KEPT, ProducerWindow, last_sequence

pa: Any = pyarrow  # it has no types

Row = tuple[object, ...]

BATCHES = {
    "log": "int",
    "part": "int",
    "at": "bigint",
    "key": "bigint",
    "due": "bigint",
    "base": "bigint",
    "last": "bigint",
    "count": "bigint",
    "size": "bigint",
    "crc": "bigint",
    "producer": "bigint",
    "epoch": "int",
    "sequence": "int",
    "last_sequence": "int",
    "transactional": "boolean",
    "control": "boolean",
    "committed": "boolean",
    "damage": "string",
}
"""`at` is the byte of the file, `key` the batch's last offset by its key and `last` by its header, `due` where it
should begin (null for a log's first), `committed` what a marker says (null: it is none)."""

TOLD = {
    "journal": "int",
    "trusted": "boolean",
    "commit_order": "bigint",
    "grouped": "boolean",
    "unit": "string",
    "producer": "bigint",
    "epoch": "int",
    "number": "bigint",
    "transactional_id": "string",
    "commit_group": "string",
    "fate": "string",
    "log": "int",
    "base": "bigint",
    "count": "bigint",
    "expected": "bigint",
    "damage": "string",
}
"""A transaction and one of its logs (null if it has none): where COMMITTED has it, and what PREPARE_COMMIT expected.
`trusted`: the journal was written with fsync=commit, so nothing that was placed is missing. `unit`: what becomes
visible at once, a transaction or all of a sink's batch. `grouped`: `commit_order` holds among all ids of its commit
group, and not only among the transactions of its own."""

WINDOWS = {
    "log": "int",
    "producer": "bigint",
    "epoch": "int",
    "number": "bigint",
    "apply_number": "bigint",
    "base": "bigint",
    "count": "bigint",
    "forgets": "boolean",
    "damage": "string",
}
"""A transaction that a producer's window remembers, where its log has it. `forgets`: it may have had older ones."""

COLUMNS = {"batches": BATCHES, "told": TOLD, "windows": WINDOWS}

_ARROW = {"int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "string": pa.string()}
_ROWS_PER_BATCH = 10_000
_CHANGED = "{} is not in the state in which the audit began: something writes it, or this is another machine's"


class DirectoryRows(DataSource):
    """The rows of one directory, as a data source: `format(DirectoryRows.name())` once it is registered.

    Options: `directory`; `transaction`, the state of the data logs' file that the driver has seen; `rows`, one of
    batches, told and windows; `journals`, true or false; `taskBytes`; `shares`, how many tasks read the windows.
    """

    @classmethod
    def name(cls) -> str:
        return "fairlog-audit"

    def schema(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[self.options["rows"]].items())

    def reader(self, schema: object) -> _Reader:  # noqa: ARG002
        options = self.options
        return _Reader(
            directory=Path(options["directory"]),
            transaction=int(options["transaction"]),
            rows=options["rows"],
            has_journals=options["journals"] == "true",
            task_bytes=int(options["taskBytes"]),
            shares=int(options["shares"]),
        )


@dataclass
class _Task(InputPartition):
    """What one task reads: ranges, a group journal, or the windows of some logs."""

    ranges: Sequence[Range] = ()
    journal: int | None = None
    logs: Mapping[str, int] = field(default_factory=dict[str, int])
    """The numbers of all logs, for a group journal, which knows them by name; of some, for their windows."""


@dataclass
class _Reader(DataSourceReader):
    directory: Path
    transaction: int
    rows: str
    has_journals: bool
    task_bytes: int
    shares: int

    def partitions(self) -> list[InputPartition]:
        audited = survey_directory(self.directory, has_journals=self.has_journals, task_bytes=self.task_bytes)
        if audited.transaction != self.transaction:
            raise StorageFailure(_CHANGED.format(self.directory))
        numbers = {log.name: log.log for log in sorted(audited.logs, key=lambda it: it.log)}
        if self.rows == "batches":
            return [_Task(ranges) for ranges in audited.tasks]
        if self.rows == "told":
            return [_Task(journal=number, logs=numbers) for number in range(audited.group_journals)]
        edges = [len(numbers) * share // self.shares for share in range(self.shares + 1)]
        return [_Task(logs=dict(islice(numbers.items(), start, end))) for start, end in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, as `pyarrow.RecordBatch`es."""
        if not isinstance(partition, _Task):
            return iter(())  # Spark's own, where there are none: a backup has no group journals
        if partition.journal is not None:
            from fairlog.audit.telling import read_group_journal  # the coordinator's rules: for few tasks only

            rows = read_group_journal(self.directory, partition.journal, partition.logs)
        elif partition.ranges:
            rows = read_ranges(self._file(), partition.ranges)
        else:
            rows = _read_windows(self._file(), list(partition.logs.values()))
        return _in_arrow(rows, COLUMNS[self.rows])

    def _file(self) -> LmdbFile:
        """The data logs' file in the state that the driver has seen."""
        path = self.directory / data_directory.DATA_LOGS
        file = mapped_lmdb(path, transaction=self.transaction)
        if file is None:
            raise StorageFailure(_CHANGED.format(path))
        return file


# --- batches ------------------------------------------------------------------------------------------


def read_ranges(file: LmdbFile, ranges: Sequence[Range]) -> Iterator[Row]:
    """Rows of BATCHES, in the order of the ranges."""
    logs, seen = StoredLogs(file), set[str]()
    for each in ranges:
        if each.name in seen:  # the pages above a log's ranges are read once by each
            logs, seen = StoredLogs(file.unread()), set[str]()
        seen.add(each.name)
        yield from _read_range(logs, each)


def _read_range(logs: StoredLogs, range_: Range) -> Iterator[Row]:
    log = logs.batches(LogId.parse(range_.name), start=range_.start)
    before: int | None = None
    try:
        if range_.part:
            first = next(log, None)
            if first is None or (before := _key(first)) is None or before >= range_.log_end:
                return
        while range_.end is None or before is None or before < range_.end:
            batch = next(log, None)
            if batch is None or ((key := _key(batch)) is not None and key >= range_.log_end):
                return
            yield _batch_row(range_, batch, None if before is None else before + 1)
            before = before if key is None else key
    except DamagedPage as error:
        what = f"{error}: batches of this log cannot be read from here on"
        reached = range_.start if before is None else before + 1
        yield _damage_row(range_, error.byte, reached, what)


def _key(batch: StoredBatch) -> int | None:
    return layout.decode_batch_key(batch.key) if len(batch.key) == layout.BATCH_KEY_BYTES else None


def _batch_row(range_: Range, batch: StoredBatch, due: int | None) -> Row:
    key = _key(batch)
    if key is None:
        return _damage_row(range_, batch.at, due, f"the key {batch.key.hex()} is no offset")
    try:
        header = parse_stored_header(batch.data)
        if header.size_bytes != len(batch.data):
            what = f"the batch has {len(batch.data)} bytes, its header says {header.size_bytes}"
            return _damage_row(range_, batch.at, key, what)
        check_crc(header, batch.data)
    except BadBatch as error:
        return _damage_row(range_, batch.at, key, f"the batch at byte {batch.at} of the file is damaged: {error}")
    return (
        range_.log,
        range_.part,
        batch.at,
        key,
        due,
        header.base_offset,
        header.last_offset,
        header.record_count,
        len(batch.data),
        header.crc,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        last_sequence(header.base_sequence, header.last_offset_delta + 1),
        header.transactional,
        header.control,
        _marker(header, batch.data),
        None,
    )


def _marker(header: BatchHeader, data: Buffer) -> bool | None:
    if not header.control:
        return None
    try:
        return decode_control_batch(data).committed
    except BadBatch:
        return None


def _damage_row(range_: Range, at: int, key: int | None, what: str) -> Row:
    known = {"log": range_.log, "part": range_.part, "at": at, "key": key, "damage": what}
    return tuple(known.get(name) for name in BATCHES)


# --- windows ----------------------------------------------------------------------------------------


def _read_windows(file: LmdbFile, logs: Sequence[int]) -> Iterator[Row]:
    """Of the logs with these numbers, which are sorted."""
    if not logs:
        return
    known: dict[str, object] = {"log": logs[0]}
    try:
        for item in StoredLogs(file).table(layout.PRODUCERS, start=layout.encode_number(logs[0])):
            log = layout.decode_number(item.key[: layout.LOG_NUMBER_BYTES])
            if log > logs[-1]:
                return
            known = {"log": log, "producer": layout.decode_producer_key(item.key)}
            window = ProducerWindow.decode(bytes(item.value))
            forgets = len(window.applied) >= TRANSACTIONS_KEPT
            for one in window.applied:
                place = (one.epoch, one.number, one.apply_number, one.base_offset, one.record_count)
                yield (*known.values(), *place, forgets, None)
    except (CorruptStorage, DamagedPage, layout.DamagedValue) as error:
        known["damage"] = f"the producers' windows cannot be read from here on: {error}"
        yield tuple(known.get(name) for name in WINDOWS)


# --- rows ---------------------------------------------------------------------------------------------


def _in_arrow(rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Any]:
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])
    waiting = iter(rows)
    while some := list(islice(waiting, _ROWS_PER_BATCH)):
        arrays = [
            pa.array(values, type=field.type) for values, field in zip(zip(*some, strict=True), schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
