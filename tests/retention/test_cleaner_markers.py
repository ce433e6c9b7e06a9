"""A log with markers compacted: what is aborted goes, what is not decided stays, readers find what was committed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog.batch import parse_stored_header
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog.retention import cleaner
from fairlog.retention.cleaner import LogCleaner
from fairlog.retention.judging import KeyJudge
from fairlog_types import Offset
from tests.datalog.marked_log import LOG, MarkedLog, Row
from tests.retention.cleaning_model import RULES, SALT, map_of, values_of


@pytest.fixture
def log(logs: LmdbDataLogs) -> MarkedLog:
    """An empty log."""
    log = MarkedLog(logs)
    log.create()
    return log


def cleaner_of(log: MarkedLog, *, now_ms: int = 0, keys_max: int = 1_000, seen: int = 0) -> LogCleaner:
    return LogCleaner(
        log.logs,
        LOG,
        RULES,
        seen=Offset(seen),
        keys_max=keys_max,
        salt=SALT,
        now_ms=lambda: now_ms,
        judge=KeyJudge(),
    )


def clean(log: MarkedLog, *, now_ms: int = 0) -> LogCleaner:
    """A whole cleaning."""
    found = cleaner_of(log, now_ms=now_ms)
    for _ in found.steps():
        pass
    return found


def committed(log: MarkedLog, start: int = 0) -> list[Row]:
    """What a reader of committed records finds."""
    batches, _ = log.committed_batches(start, 1 << 20)
    return [row for batch in batches for row in values_of(batch) if row[0] >= start]


def stored_offsets(log: MarkedLog) -> list[int]:
    """The first offsets of the batches that are there, markers among them."""
    (answer,) = log.logs.read([ReadRequest(LOG, Offset(0), 1 << 20)], bytes_max=1 << 20)
    assert isinstance(answer, ReadResult)
    return [parse_stored_header(batch).base_offset for batch in answer.batches]


def test_cleaning_removes_what_was_aborted_and_lets_it_supersede_nothing(log: MarkedLog) -> None:
    """The committed value of a key stays though an aborted one came after it; the marker stays, too."""
    log.write([(b"a", b"1")])
    log.write([(b"a", b"2"), (b"b", b"3")], producer_id=1)
    log.finish(1, committed=False)
    log.write([(b"end", b"e")])
    report = clean(log).report
    assert stored_offsets(log) == [0, 3, 4]
    assert (report.removed_records, report.keys) == (2, 2)
    assert map_of(committed(log)) == {b"a": b"1", b"end": b"e"}


def test_cleaning_supersedes_by_what_was_committed(log: MarkedLog) -> None:
    """A record of a committed transaction counts like a plain one; markers supersede no markers."""
    log.write([(b"a", b"1")])
    for value in (b"2", b"3"):
        log.write([(b"a", value)], producer_id=1)
        log.finish(1, committed=True)
    log.write([(b"end", b"e")])
    clean(log)
    assert stored_offsets(log) == [2, 3, 4, 5]
    assert map_of(committed(log)) == {b"a": b"3", b"end": b"e"}


def test_cleaning_stops_at_the_last_stable_offset(log: MarkedLog) -> None:
    """What is open supersedes nothing and is left alone, and so is what came behind its beginning."""
    log.write([(b"a", b"1")])
    log.write([(b"a", b"2")])
    log.write([(b"b", b"3")])
    log.write([(b"a", b"4")], producer_id=1)
    log.write([(b"a", b"5")])
    log.write([(b"end", b"e")])
    report = clean(log).report
    assert report.end == 3
    assert stored_offsets(log) == [1, 2, 3, 4, 5]
    assert list(cleaner_of(log, seen=report.end).steps()) == []
    log.finish(1, committed=True)
    log.write([(b"end", b"f")])
    clean(log)
    assert map_of(committed(log)) == {b"a": b"5", b"b": b"3", b"end": b"f"}
    assert stored_offsets(log) == [2, 4, 6, 7]


def test_cleaning_leaves_the_last_batch_before_an_open_transaction(log: MarkedLog) -> None:
    """A reader that waits there has come to where it waits, and need not ask again and again."""
    log.write([(b"a", b"1")])
    log.write([(b"a", None)])
    log.write([(b"b", b"2")], producer_id=1)
    clean(log)
    clean(log, now_ms=RULES.delete_retention_ms + 1)
    assert stored_offsets(log) == [1, 2]
    assert log.committed_batches(0, 1)[1] == 2


class MarkedCleaningMachine(RuleBasedStateMachine):
    """Any run of plain and transactional writes, commits, aborts and cleanings in steps."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.patches = ExitStack()
        for name, value in (("READ_BYTES", 150), ("BATCHES_PER_LOOK", 3), ("STEP_BATCHES_MAX", 2)):
            self.patches.enter_context(mock.patch.object(cleaner, name, value))
        self.log = MarkedLog(LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False))
        self.log.create()
        self.now_ms = 0
        self.value = 0
        self.cleaning: Iterator[None] | None = None

    def teardown(self) -> None:
        self.log.logs.close()
        self.patches.close()
        shutil.rmtree(self.directory)

    @rule(
        producer_id=st.none() | st.integers(1, 3),
        drawn=st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", None]), st.booleans()), min_size=1, max_size=3),
    )
    def write(self, producer_id: int | None, drawn: list[tuple[bytes | None, bool]]) -> None:
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for key, tombstone in drawn:
            self.value += 1
            pairs.append((key, None if tombstone and key is not None else b"%d" % self.value))
        self.log.write(pairs, producer_id)

    @precondition(lambda self: self.log.open)
    @rule(data=st.data(), committed=st.booleans())
    def finish(self, data: st.DataObject, committed: bool) -> None:
        self.log.finish(data.draw(st.sampled_from(sorted(self.log.open))), committed=committed)

    @rule(steps=st.integers(1, 8), keys_max=st.sampled_from([4, 100]))
    def clean_some(self, steps: int, keys_max: int) -> None:
        if self.cleaning is None:
            self.cleaning = cleaner_of(self.log, now_ms=self.now_ms, keys_max=keys_max).steps()
        for _ in range(steps):
            if next(self.cleaning, self) is self:
                self.cleaning = None
                return

    @rule()
    def wait_for_tombstones(self) -> None:
        self.now_ms += RULES.delete_retention_ms

    @rule()
    def crash(self) -> None:
        self.cleaning = None
        self.log.logs.close()
        self.log.logs = LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False)

    @invariant()
    def readers_find_what_was_committed(self) -> None:
        stable = self.log.last_stable_offset
        for start in {0, stable // 2}:
            batches, at = self.log.committed_batches(start, 1)
            assert at == max(start, stable), "a reader is stuck before the last stable offset"
            found = [row for batch in batches for row in values_of(batch) if row[0] >= start]
            written = self.log.committed_rows(start)
            assert map_of(found) == map_of(written)
            assert set(found) <= set(written)
            assert [row for row in found if row[1] is None] == [row for row in written if row[1] is None]

    @invariant()
    def what_is_not_decided_and_all_markers_are_there(self) -> None:
        stored = set(stored_offsets(self.log))
        assert stored >= set(self.log.markers)
        (answer,) = self.log.logs.read(
            [ReadRequest(LOG, Offset(self.log.last_stable_offset), 1 << 20)], bytes_max=1 << 20
        )
        assert isinstance(answer, ReadResult)
        headers = [parse_stored_header(batch) for batch in answer.batches]
        behind = [offset for header in headers for offset in range(header.base_offset, header.last_offset + 1)]
        assert behind == list(range(self.log.last_stable_offset, self.log.end))


MarkedCleaningMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMarkedCleaning = pytest.mark.slow(MarkedCleaningMachine.TestCase)
