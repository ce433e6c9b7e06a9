"""Making the time index anew while others write: right at every step, and short again at the end."""

from __future__ import annotations

import pytest

from datalog import reindexing, time_index
from datalog.environment import LmdbDataLogs
from datalog.interface import TimestampOffset
from fairlog_types import Offset
from tests.datalog.behaviour import ORDERS, OpenLogs, append


@pytest.fixture
def logs(open_lmdb: OpenLogs, monkeypatch: pytest.MonkeyPatch) -> LmdbDataLogs:
    """Twenty one-record batches whose timestamps grow by ten, the first of them from the future; an entry for each."""
    monkeypatch.setattr(time_index, "ENTRY_SPACING_BYTES", 1)
    monkeypatch.setattr(reindexing, "HEADERS_PER_STEP", 4)
    monkeypatch.setattr(reindexing, "ENTRIES_PER_STEP", 2)
    logs = open_lmdb()
    assert isinstance(logs, LmdbDataLogs)
    with logs.write() as writer:
        writer.create(ORDERS)
        for offset in range(20):
            append(writer, ORDERS, offset, [10 * offset or 1_000])
        writer.delete_before(ORDERS, Offset(1))
    return logs


def assert_searches_are_right(logs: LmdbDataLogs, start: int, end: int) -> None:
    for offset in range(start, end):
        assert logs.offset_for_timestamp(ORDERS, 10 * offset - 1) == TimestampOffset(Offset(offset), 10 * offset)
    assert logs.offset_for_timestamp(ORDERS, 10 * end - 9) is None
    assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(end - 1), 10 * end - 10)


def test_reindexing_beside_a_writer_takes_up_what_comes(logs: LmdbDataLogs) -> None:
    """Batches that are appended between two steps, and entries of theirs, are in the index when it is done."""
    end = 20
    assert logs.time_index_is_behind(ORDERS)
    assert_searches_are_right(logs, 1, end)
    steps = 0
    for _ in logs.reindexing(ORDERS):
        steps += 1
        with logs.write() as writer:
            append(writer, ORDERS, end, [10 * end])
        end += 1
        assert_searches_are_right(logs, 1, end)
    assert steps > 5
    assert not logs.time_index_is_behind(ORDERS)
    assert_searches_are_right(logs, 1, end)


def test_reindexing_beside_a_deletion_stays_behind(logs: LmdbDataLogs) -> None:
    """If the new maximum goes while it is looked for, the index says so, and the next time gets it right."""
    with logs.write() as writer:
        append(writer, ORDERS, 20, [5_000])
        append(writer, ORDERS, 21, [210])
    steps = logs.reindexing(ORDERS)
    for _ in range(7):
        next(steps)
    with logs.write() as writer:
        writer.delete_before(ORDERS, Offset(21))
    for _ in steps:
        pass
    assert logs.time_index_is_behind(ORDERS)
    assert_searches_are_right(logs, 21, 22)
    for _ in logs.reindexing(ORDERS):
        pass
    assert not logs.time_index_is_behind(ORDERS)
    assert_searches_are_right(logs, 21, 22)


def test_reindexing_beside_a_compaction_stays_behind(logs: LmdbDataLogs) -> None:
    """If the batch with the new maximum is compacted away while it is looked for, the index says so."""
    with logs.write() as writer:
        append(writer, ORDERS, 20, [5_000])
        append(writer, ORDERS, 21, [210])
    steps = logs.reindexing(ORDERS)
    for _ in range(7):
        next(steps)
    with logs.write() as writer:
        assert writer.replace(ORDERS, Offset(20), None)
    for _ in steps:
        pass
    assert logs.time_index_is_behind(ORDERS)
    assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(21), 210)


def test_reindexing_beside_a_deletion_of_everything_leaves_nothing(logs: LmdbDataLogs) -> None:
    """The largest timestamp is then that of what comes later, and not of what was scanned."""
    steps = logs.reindexing(ORDERS)
    for _ in range(7):
        next(steps)
    with logs.write() as writer:
        writer.delete_before(ORDERS, Offset(20))
    for _ in steps:
        pass
    assert logs.max_timestamp(ORDERS) is None
    with logs.write() as writer:
        append(writer, ORDERS, 20, [50])
        append(writer, ORDERS, 21, [60])
    assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(21), 60)


def test_reindexing_of_an_emptied_log_leaves_it_empty(logs: LmdbDataLogs) -> None:
    """There is nothing to be found, and a batch that comes later is."""
    with logs.write() as writer:
        writer.delete_before(ORDERS, Offset(20))
    for _ in logs.reindexing(ORDERS):
        pass
    assert not logs.time_index_is_behind(ORDERS)
    assert logs.max_timestamp(ORDERS) is None
    with logs.write() as writer:
        append(writer, ORDERS, 20, [200])
    assert_searches_are_right(logs, 20, 21)
