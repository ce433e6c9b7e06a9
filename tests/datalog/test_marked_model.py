"""Any run of marked transactions: a reader of committed records, as clients are, finds those of committed ones alone.

The reader is KIP-98's: batches up to the last stable offset, and a list of aborted transactions, by which it leaves out
a producer's batches from where one begins to its abort marker.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog.batch import parse_stored_header
from datalog.environment import LmdbDataLogs
from fairlog_types import Offset
from tests.datalog.marked_log import LOG, MarkedLog


class MarkedLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.log = MarkedLog(LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False))
        self.log.create()
        self.start = 0

    def teardown(self) -> None:
        self.log.logs.close()
        shutil.rmtree(self.directory)

    @rule(producer_id=st.none() | st.integers(1, 3), count=st.integers(1, 3))
    def write(self, producer_id: int | None, count: int) -> None:
        self.log.write([(b"k", b"v")] * count, producer_id)

    @precondition(lambda self: self.log.open)
    @rule(data=st.data(), committed=st.booleans())
    def finish(self, data: st.DataObject, committed: bool) -> None:
        self.log.finish(data.draw(st.sampled_from(sorted(self.log.open))), committed=committed)

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        self.start += round(part * part * (self.log.end - self.start))
        with self.log.logs.write() as writer:
            writer.delete_before(LOG, Offset(self.start), batches_max=2)

    @rule()
    def open_again(self) -> None:
        self.log.logs.close()
        self.log.logs = LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False)

    @invariant()
    def last_stable_offset_is_where_the_oldest_open_one_begins(self) -> None:
        found, known = self.log.logs, self.log.open
        assert found.bounds(LOG).last_stable_offset == max(self.log.last_stable_offset, self.start)
        assert found.open_transactions(LOG) == [known[producer_id] for producer_id in sorted(known)]

    @invariant()
    def client_finds_what_was_committed(self) -> None:
        for bytes_max in (1, 200, 1 << 20):
            for start in {self.start, (self.start + self.log.end) // 2}:
                batches, at = self.log.committed_batches(start, bytes_max)
                offsets = [
                    offset
                    for header in map(parse_stored_header, batches)
                    for offset in range(header.base_offset, header.last_offset + 1)
                    if offset >= start
                ]
                assert offsets == [row[0] for row in self.log.committed_rows(start)]
                assert at == max(start, self.log.last_stable_offset, self.start), "stuck before the last stable offset"


MarkedLogMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMarkedLog = pytest.mark.slow(MarkedLogMachine.TestCase)
