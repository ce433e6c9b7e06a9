"""What executors read: a range's batches, a group journal, the producers' windows, as rows in Arrow.

Nothing is judged here but what only the bytes can tell: checksums, and whether something can be read at all. What
cannot be read is a row as well, with `damage` and no more than is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from datalog import layout
from datalog.batch import HEADER_BYTES
from datalog.lmdb_pages import DamagedPage, LmdbFile
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs
from fairlog.audit.directory import Range, survey_directory
from fairlog.verify.batches import read_batch
from fairlog.verify.findings import Violation
from fairlog.verify.group_journals import read_group_journal
from fairlog.verify.transactions import Fate, GroupHistory, committed_places
from fairlog_types import CorruptStorage, LogId, StorageFailure
from partition.producer_window import TRANSACTIONS_KEPT, ProducerWindow
from shard.directory import ShardDirectory

pa: Any = pyarrow  # it has no types

Row = tuple[object, ...]

BATCHES = {
    "log": "int",
    "at": "bigint",
    "key": "bigint",
    "data": "binary",
    "damage": "string",
}
"""`at` is where it is in the order of the log, `key` the batch's last offset by its key, `data` its header, and of a
control batch all. With `damage` but without a key nothing can be read from there to the log's next row."""

TOLD = {
    "journal": "int",
    "producer": "bigint",
    "epoch": "int",
    "number": "bigint",
    "log": "int",
    "base": "bigint",
    "count": "bigint",
    "certain": "boolean",
    "told_by": "string",
}
"""One row for each group journal, with no more than its number; one for each of its producers; and one for each place
that COMMITTED tells. `certain`: the producer's later places are known as well."""

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

_ARROW = {"int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary()}
_ROWS_PER_BATCH = 10_000
_CHANGED = "{} is not in the state in which the audit began: something writes it, or this is another machine's"


class DirectoryRows(DataSource):
    """The rows of one directory, as a data source: `format(DirectoryRows.name())` once it is registered.

    Options: `directory`; `transactions`, the states of the shards' data logs that the driver has seen; `rows`, one of
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
            transactions=[int(each) for each in options["transactions"].split(",")],
            rows=options["rows"],
            has_journals=options["journals"] == "true",
            task_bytes=int(options["taskBytes"]),
            shares=int(options["shares"]),
        )


@dataclass
class _Task(InputPartition):
    """What one task reads of one shard: ranges, a group journal, or the windows of some logs."""

    shard: ShardDirectory
    transaction: int | None = None
    """Of the data logs' file; None for a group journal."""
    ranges: Sequence[Range] = ()
    journal: int | None = None
    logs: Mapping[str, int] = field(default_factory=dict[str, int])
    """The numbers of all logs, for a group journal, which knows them by name."""
    windows: Mapping[int, int] = field(default_factory=dict[int, int])
    """The logs whose windows are read: by their numbers in the data logs, those in the audit."""


@dataclass
class _Reader(DataSourceReader):
    directory: Path
    transactions: Sequence[int]
    rows: str
    has_journals: bool
    task_bytes: int
    shares: int

    def partitions(self) -> list[InputPartition]:
        audited = survey_directory(self.directory, has_journals=self.has_journals, task_bytes=self.task_bytes)
        if [shard.transaction for shard in audited.shards] != self.transactions:
            raise StorageFailure(_CHANGED.format(self.directory))
        if self.rows == "told":
            names = {log.name: log.log for log in audited.logs}
            return [_Task(shard, journal=each, logs=names) for each, shard in enumerate(audited.group_journals)]
        tasks: list[InputPartition] = []
        for index, shard in enumerate(audited.shards):
            task = partial(_Task, shard.directory, shard.transaction)
            if self.rows == "batches":
                tasks += (task(ranges) for ranges in audited.tasks if ranges[0].shard == index)
            else:
                numbers = sorted((log.number, log.log) for log in audited.logs if log.shard == index)
                edges = [len(numbers) * share // self.shares for share in range(self.shares + 1)]
                tasks += (task(windows=dict(numbers[start:end])) for start, end in pairwise(edges))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task, as `pyarrow.RecordBatch`es."""
        if not isinstance(partition, _Task):
            return iter(())  # Spark's own, where there are none: a backup has no group journals
        if partition.journal is not None:
            rows = read_told(partition.shard, partition.journal, partition.logs)
        elif partition.ranges:
            rows = read_ranges(_file(partition), partition.ranges)
        else:
            rows = read_windows(_file(partition), partition.windows)
        return _in_arrow(rows, COLUMNS[self.rows])


def _file(task: _Task) -> LmdbFile:
    """The data logs' file in the state that the driver has seen."""
    path = task.shard.data_logs_file
    file = mapped_lmdb(path, transaction=task.transaction)
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
    end = range_.log_end if range_.end is None else min(range_.end, range_.log_end)
    reached = range_.start
    try:
        for stored in logs.batches(LogId.parse(range_.name), start=range_.start):
            if bytes(stored.key) >= layout.batch_key(end):
                return
            batch = read_batch(range_.name, stored)
            if isinstance(batch, Violation):
                reached = reached if batch.offset is None else batch.offset
                yield range_.log, reached, batch.offset, None, batch.what
            else:
                reached = batch.last_offset
                data = stored.data if batch.header.control else stored.data[:HEADER_BYTES]
                yield range_.log, reached, reached, bytes(data), None
            reached += 1
    except DamagedPage as error:
        yield range_.log, reached, None, None, f"{error}: batches of this log cannot be read from here on"


# --- group journals -----------------------------------------------------------------------------------


def read_told(shard: ShardDirectory, number: int, logs: Mapping[str, int]) -> Iterator[Row]:
    """Rows of TOLD of one group journal; `logs` has the numbers of the logs that there are, by name."""
    yield number, *[None] * (len(TOLD) - 1)
    try:
        history = read_group_journal(shard, number).history
    except (CorruptStorage, StorageFailure, OSError):
        return  # who checks the journal says so
    yield from _told_rows(number, history, logs)


def _told_rows(number: int, history: GroupHistory, logs: Mapping[str, int]) -> Iterator[Row]:
    for producer_id in {txid.producer_id for txid in history.told}:
        yield number, producer_id, *[None] * (len(TOLD) - 2)
    # What is prepared may be copied: its place COMMITTED does not tell yet, and the window may have forgotten.
    uncertain = {told.txid.producer_id for told in history.told.values() if told.fate is Fate.PREPARED}
    for log, places in committed_places([history]).items():
        if str(log) in logs:  # others' topics are deleted
            for place in places:
                certain = place.txid.producer_id not in uncertain
                yield number, *place.txid, logs[str(log)], place.base_offset, place.count, certain, place.told_by


# --- windows ----------------------------------------------------------------------------------------


def read_windows(file: LmdbFile, logs: Mapping[int, int]) -> Iterator[Row]:
    """Of the logs with these numbers in the file, which are sorted; the rows have those of the audit."""
    if not logs:
        return
    first, last = next(iter(logs)), next(reversed(logs))
    known: dict[str, object] = {"log": logs[first]}
    try:
        for item in StoredLogs(file).table(layout.PRODUCERS, start=layout.encode_number(first)):
            number = layout.decode_number(item.key[: layout.LOG_NUMBER_BYTES])
            if number > last:
                return
            if number not in logs:
                continue  # what a deleted log has left is for `fairlog verify`
            known = {"log": logs[number], "producer": layout.decode_producer_key(item.key)}
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
