"""The node's own reader of the data logs, on tables in which anything may stand.

LMDB keeps no checksum of its pages: where damage leaves them readable, keys and values come to the data logs as they
are. Here keys and values of a golden environment are changed, taken out and put in, LMDB's double in memory
(`tests.simulation.memory_lmdb`) holds them, and the data logs are opened over it, read in every way, and written to.
What it costs to be damaged is one of the errors that say so; never one that looks like a bug of the node.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, UnknownFormat
from datalog.lmdb_pages import LmdbFile
from datalog.stored import StoredLogs
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, LogKind, Offset, StorageFailure
from tests.datalog.golden_data_log import ENVIRONMENT, ENVIRONMENT_3
from tests.fuzz.data_log_targets import _unpacked
from tests.fuzz.target import Target
from tests.simulation.memory_lmdb import MemoryEnvironment, State, Table, open_memory_logs

_FILES = (ENVIRONMENT, ENVIRONMENT_3)
_EDIT = struct.Struct(">BBBBB")
"""Table, entry, what is done to it, where, and with how many of the bytes that follow."""
_STEPS_MAX = 20
"""Of what goes on in steps."""


@cache
def _tables(path: Path) -> dict[bytes, tuple[tuple[bytes, bytes], ...]]:
    """All keys and values of a golden environment, by the name of their database."""
    content = memoryview(_unpacked(path))
    file = LmdbFile(content)  # another one than that of the names: each page is read once
    return {
        name: tuple((item.key, bytes(item.value)) for item in file.items(tree))
        for name, tree in sorted(StoredLogs(LmdbFile(content)).trees.items())
    }


def edited(data: bytes) -> State:
    """A golden environment's tables with the edits that `data` says."""
    tables = {name: dict(rows) for name, rows in _tables(_FILES[data[0] % len(_FILES) if data else 0]).items()}
    names = list(tables)
    at = 1
    while at + _EDIT.size <= len(data):
        table, entry, what, start, size = _EDIT.unpack_from(data, at)
        put = data[at + _EDIT.size : at + _EDIT.size + size % 16]
        at += _EDIT.size + size % 16
        rows = tables[names[table % len(names)]]
        if not rows:
            rows[put or b"\0"] = b""
            continue
        key = sorted(rows)[entry % len(rows)]
        value = rows[key]
        match what % 6:
            case 0:
                rows[key] = _with(value, start, put)
            case 1:
                rows[_with(key, start, put) or b"\0"] = rows.pop(key)
            case 2:
                rows[key] = value[:start]
            case 3:
                rows[key[:start] or b"\0"] = rows.pop(key)
            case 4:
                del rows[key]
            case _:
                rows[put or b"\0"] = value
    return {name: Table(sorted(rows), rows) for name, rows in tables.items()}


def _with(data: bytes, start: int, put: bytes) -> bytes:
    start %= len(data) + 1
    return data[:start] + put + data[start + len(put) :]


def read_damaged_logs(data: bytes) -> None:
    """Opened, read in every way, and written to."""
    try:
        logs = open_memory_logs(Path("/nowhere"), MemoryEnvironment(edited(data)))
        found = logs.logs()
    except (CorruptStorage, StorageFailure, UnknownFormat):
        return
    for log in found:
        for use in _uses(logs, log):
            with suppress(CorruptStorage, StorageFailure):
                use()
    with suppress(CorruptStorage, StorageFailure):
        topics = [log for log in found if log.kind == LogKind.TOPIC.value]
        logs.cut_within(dict.fromkeys(topics, Offset(0)), records_max=1)


def _uses(logs: LmdbDataLogs, log: LogId) -> Iterator[Callable[[], object]]:
    for offset in (0, 3):
        for committed_only in (False, True):
            request = ReadRequest(log, Offset(offset), 1 << 20, committed_only=committed_only)
            yield partial(logs.read, [request], bytes_max=1 << 20)
        yield partial(logs.units, log, Offset(offset), batches_max=_STEPS_MAX)
    for timestamp_ms in (0, 1_700_000_000_000, 1_700_000_000_010):
        yield partial(logs.offset_for_timestamp, log, timestamp_ms)
    yield partial(logs.max_timestamp, log)
    yield partial(logs.end_of_epoch, log, LeaderEpoch(1))
    yield partial(logs.mark, log)
    yield partial(logs.bounds, log)
    yield partial(logs.open_transactions, log)
    yield partial(logs.producers, log)
    yield partial(logs.offsets, log)
    yield partial(logs.offset_groups, log)
    yield partial(logs.cleaned, log)
    yield partial(logs.time_index_is_behind, log)
    if log.kind == LogKind.TOPIC.value:
        yield lambda: list(itertools.islice(logs.reindexing(log), _STEPS_MAX))
        yield partial(_retain, logs, log)


def _retain(logs: LmdbDataLogs, log: LogId) -> None:
    """As retention does."""
    with logs.write() as writer:
        writer.delete_before(log, logs.bounds(log).next_offset, batches_max=_STEPS_MAX)


def _seeds() -> Iterator[bytes]:
    """Each table's first and last entry, changed and cut in key and value."""
    yield b""
    for which, path in enumerate(_FILES):
        for table, rows in enumerate(_tables(path).values()):
            for entry in {0, max(0, len(rows) - 1)}:
                for what, start in ((0, 0), (0, 2), (1, 1), (2, 3), (3, 5), (4, 0), (5, 0)):
                    yield bytes([which]) + _EDIT.pack(table, entry, what, start, 2) + b"\x7f\xff"


TARGETS = (
    Target(
        "damaged-logs",
        "the data logs' tables with keys and values that nobody has written, as a node reads them",
        read_damaged_logs,
        _seeds,
    ),
)
