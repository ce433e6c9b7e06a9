"""A log with markers read without a node: committed records unless all are asked for, markers never."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from datalog import layout
from datalog.environment import LmdbDataLogs
from datalog.interface import AbortedTransaction, Bounds
from datalog.plain_reader import Cut, DataLogReader
from fairlog_types import Offset
from tests.datalog.marked_log import LOG, MarkedLog

PAIRS = [(b"k", b"v")]


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Cut]:
    """0 plain, 1 and 3 aborted by 4, 2 committed by 5, 6 aborted by 7, 8 plain, 9 open, 10 plain."""
    log = MarkedLog(LmdbDataLogs.open(tmp_path, map_bytes=1 << 24, sync=False))
    log.create()
    log.write(PAIRS)
    for producer_id in (1, 2, 1):
        log.write(PAIRS, producer_id)
    log.finish(1, committed=False)
    log.finish(2, committed=True)
    log.write(PAIRS, producer_id=1)
    log.finish(1, committed=False)
    log.write(PAIRS)
    log.write(PAIRS, producer_id=2)
    log.write(PAIRS)
    log.logs.close()
    with DataLogReader.open(tmp_path) as reader, reader.cut() as cut:
        yield cut


def offsets(cut: Cut, from_offset: int = 0, *, before: int | None = None, committed_only: bool = True) -> list[int]:
    found = cut.records(LOG, from_offset, before=before, committed_only=committed_only)
    return [record.offset for record in found]


def test_committed_records_are_read_up_to_the_last_stable_offset(cut: Cut) -> None:
    """Nothing aborted, nothing open, nothing behind what is open; from any offset on."""
    bounds = cut.bounds(LOG)
    assert bounds == Bounds(Offset(0), Offset(11), bounds.size_bytes, Offset(9))
    expected = [0, 2, 8]
    for start in range(12):
        assert offsets(cut, start) == [offset for offset in expected if offset >= start]
    assert offsets(cut, before=3) == [0, 2]


def test_all_records_are_read_if_they_are_asked_for(cut: Cut) -> None:
    """What is open and what was aborted, to the log's end; markers are no records."""
    assert offsets(cut, committed_only=False) == [0, 1, 2, 3, 6, 8, 9, 10]


def test_batches_are_those_that_have_the_records(cut: Cut) -> None:
    """Neither markers nor aborted batches are among them."""
    assert len(list(cut.batches(LOG, 0))) == 3
    assert len(list(cut.batches(LOG, 0, committed_only=False))) == 8


def test_aborted_transactions_behind_a_hung_one_are_not_looked_at_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 of them in the time of one that hung took 5.6 s to read past; each batch is judged rightly all the same."""
    count, looked_at = 700, 0
    decode = layout.decode_aborted

    def counting(key: bytes | memoryview, data: bytes | memoryview) -> AbortedTransaction:
        nonlocal looked_at
        looked_at += 1
        return decode(key, data)

    log = MarkedLog(LmdbDataLogs.open(tmp_path, map_bytes=1 << 26, sync=False))
    log.create()
    log.write(PAIRS, producer_id=9)
    for number in range(count):
        log.write(PAIRS, producer_id=1)
        log.finish(1, committed=number % 100 == 0)
    log.finish(9, committed=True)
    log.logs.close()
    monkeypatch.setattr(layout, "decode_aborted", counting)
    with DataLogReader.open(tmp_path) as reader, reader.cut() as cut:
        assert offsets(cut) == [0, *range(1, 2 * count, 200)]
    assert looked_at < 3 * count
