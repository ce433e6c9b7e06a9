"""Any run of writes, undone writes, deletions, compactions, drops, restarts reads like a list of batches in memory."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog import reindexing, time_index
from datalog.batch import parse_stored_header
from datalog.environment import LmdbDataLogs
from datalog.interface import Bounds, LogMissing, OffsetOutOfRange, ReadRequest, ReadResult, TimestampOffset
from datalog.keyed import open_batch, without
from fairlog_types import LogId, Offset
from tests.datalog.behaviour import append, interrupted_write, mark

LOGS = [LogId.of_topic(UUID(int=number), 0) for number in (1, 2)]
logs_drawn = st.sampled_from(LOGS)
batches_drawn = st.lists(st.lists(st.integers(-1, 30), min_size=1, max_size=4), min_size=1, max_size=9)
"""Per batch its records' timestamps, counted from the batch's offset: they grow along the log, but not one by one."""
SPACING_FOR_THE_TEST = 200


@dataclass
class ModelLog:
    """A log as two lists: the batches kept, and their records' timestamps."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """(last offset, bytes)"""
    timestamps: list[tuple[int, int]] = field(default_factory=list)
    """(offset, timestamp), those before the start left out"""
    start: int = 0
    end: int = 0
    position: int = 0


class DataLogsMachine(RuleBasedStateMachine):
    """Drives LmdbDataLogs and the model side by side; the time index is made dense, so that small logs use it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.patches = ExitStack()
        self.patches.enter_context(mock.patch.object(time_index, "ENTRY_SPACING_BYTES", SPACING_FOR_THE_TEST))
        self.patches.enter_context(mock.patch.object(reindexing, "HEADERS_PER_STEP", 3))
        self.patches.enter_context(mock.patch.object(reindexing, "ENTRIES_PER_STEP", 1))
        self.logs = self.open()
        self.model: dict[LogId, ModelLog] = {}
        self.create_all()

    def open(self) -> LmdbDataLogs:
        return LmdbDataLogs.open(self.directory, map_bytes=1 << 28, sync=False)

    def teardown(self) -> None:
        self.logs.close()
        self.patches.close()
        shutil.rmtree(self.directory)

    @rule()
    def create(self) -> None:
        self.create_all()

    def create_all(self) -> None:
        with self.logs.write() as writer:
            for log in LOGS:
                writer.create(log)
                self.model.setdefault(log, ModelLog())

    @rule(log=logs_drawn, again=st.sampled_from([False, True, True]))
    def drop(self, log: LogId, again: bool) -> None:
        with self.logs.write() as writer:
            writer.drop(log)
        self.model.pop(log, None)
        if again:
            self.create_all()

    @precondition(lambda self: self.model)
    @rule(batches=batches_drawn)
    def append_to_all(self, batches: list[list[int]]) -> None:
        with self.logs.write() as writer:
            for log, model in self.model.items():
                for delays in batches:
                    timestamps = [model.end + delay for delay in delays]
                    data = append(writer, log, model.end, timestamps)
                    model.timestamps += [(model.end + i, t) for i, t in enumerate(timestamps)]
                    model.end += len(timestamps)
                    model.batches.append((model.end - 1, data))
                model.position += 8
                writer.put_mark(log, mark(model.position, model.end))

    @precondition(lambda self: self.model)
    @rule(batches=batches_drawn)
    def write_and_undo(self, batches: list[list[int]]) -> None:
        with interrupted_write(self.logs) as writer:
            for log, model in self.model.items():
                end = model.end
                for timestamps in batches:
                    append(writer, log, end, timestamps)
                    end += len(timestamps)
                writer.delete_before(log, Offset(end - 1))
            writer.drop(next(iter(self.model)))

    @rule(log=logs_drawn, part=st.floats(0, 1))
    def delete_before(self, log: LogId, part: float) -> None:
        model = self.model.get(log)
        if model is None:
            return
        start = model.start + round(part * (model.end - model.start))
        deleted = True
        while deleted:
            with self.logs.write() as writer:
                deleted = bool(writer.delete_before(log, Offset(start), batches_max=3))
        model.start = start
        model.batches = [(last, data) for last, data in model.batches if last >= start]
        model.timestamps = [(offset, t) for offset, t in model.timestamps if offset >= start]

    @rule(seed=st.integers(0, 1 << 16), share=st.sampled_from([0.3, 0.7, 0.95]))
    def compact(self, seed: int, share: float) -> None:
        """Take records out of some batches, but for the last."""
        choice = Random(seed)
        for log, model in self.model.items():
            left: list[tuple[int, bytes]] = []
            removed: set[int] = set()
            with self.logs.write() as writer:
                for last, data in model.batches[:-1]:
                    opened = open_batch(data)
                    kept = [record for record in opened.records if choice.random() < share]
                    removed |= {record.offset for record in opened.records} - {record.offset for record in kept}
                    if len(kept) < len(opened.records):
                        data = bytes(without(opened, kept)) if kept else b""
                        assert writer.replace(log, Offset(last), data or None)
                    if data:
                        left.append((last, data))
            model.batches = left + model.batches[-1:]
            model.timestamps = [(offset, t) for offset, t in model.timestamps if offset not in removed]

    @rule(log=logs_drawn, steps=st.integers(0, 9))
    def reindex_some(self, log: LogId, steps: int) -> None:
        if log in self.model:
            for _ in islice(self.logs.reindexing(log), steps):
                pass

    @rule()
    def find_max_timestamp(self) -> None:
        for log, model in self.model.items():
            found = self.logs.max_timestamp(log)
            if not model.batches:
                assert found is None
            elif model.timestamps[0][0] == parse_stored_header(model.batches[0][1]).base_offset:
                largest = max(t for _, t in model.timestamps)
                assert found == next(TimestampOffset(Offset(at), t) for at, t in model.timestamps if t == largest)

    @rule()
    def reopen(self) -> None:
        self.logs.close()
        self.logs = self.open()

    @rule(log=logs_drawn, offset=st.integers(-1, 60), bytes_max=st.integers(0, 500))
    def read(self, log: LogId, offset: int, bytes_max: int) -> None:
        (answer,) = self.logs.read([ReadRequest(log, Offset(offset), bytes_max)], bytes_max=1 << 20)
        model = self.model.get(log)
        if model is None:
            assert answer == LogMissing(log)
        elif not model.start <= offset <= model.end:
            assert answer == OffsetOutOfRange(log, Offset(model.end), Offset(model.start))
        else:
            expected: list[bytes] = []
            for data in (data for last, data in model.batches if last >= offset):
                if expected and sum(map(len, expected)) + len(data) > bytes_max:
                    break
                expected.append(data)
            assert answer == ReadResult(log, expected, Offset(model.end), Offset(model.start), Offset(model.end))

    @rule(timestamp_ms=st.integers(-2, 60))
    def find_timestamp(self, timestamp_ms: int) -> None:
        for log, model in self.model.items():
            matches = ((offset, t) for offset, t in model.timestamps if t >= timestamp_ms)
            expected = next((TimestampOffset(Offset(offset), t) for offset, t in matches), None)
            assert self.logs.offset_for_timestamp(log, timestamp_ms) == expected

    @invariant()
    def bounds_marks_and_names_agree(self) -> None:
        assert self.logs.logs() == sorted(self.model, key=str)
        for log, model in self.model.items():
            size = sum(len(data) for _, data in model.batches)
            assert self.logs.bounds(log) == Bounds(Offset(model.start), Offset(model.end), size, Offset(model.end))
            assert self.logs.mark(log) == mark(model.position, model.end)


DataLogsMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestDataLogsAgainstModel = pytest.mark.slow(DataLogsMachine.TestCase)
