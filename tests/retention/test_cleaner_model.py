"""Any run of writes, transactions, cleanings in steps, crashes and deletions: what readers of every kind make of it.

A reader that folds the log into a map sees, whenever it comes and wherever it begins, what it would have seen without
compaction. One that takes no longer than `delete.retention.ms` misses no deletion. No transaction is ever half cleaned.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog.decompress import UnreadableRecords
from datalog.environment import LmdbDataLogs
from datalog.interface import OffsetOutOfRange, ReadRequest, ReadResult
from datalog.keyed import OpenedBatch, open_batch
from fairlog.retention import cleaner, judging
from fairlog.retention.cleaning import Rules
from fairlog_types import Offset
from tests.retention.cleaning_model import LOG, ModelLog, map_of, values_of

RETENTION_MS = 100
RULES = Rules(delete_retention_ms=RETENTION_MS, lag_min_ms=0, lag_max_ms=1 << 62, dirty_ratio_min=0.0)
CODEC_MISSING = 666
"""A producer whose batches the cleaner cannot read, as long as a codec is missing."""

keys = st.sampled_from([b"a", b"b", b"c", b"d", None])
batches = st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=4)


@dataclass
class Reader:
    """Reads batch by batch, and keeps a map."""

    at: int
    started_ms: int
    found: dict[bytes, bytes] = field(default_factory=dict)


class CleaningMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.patches = ExitStack()
        for name, value in (
            ("READ_BYTES", 150),
            ("BATCHES_PER_LOOK", 3),
            ("STEP_BATCHES_MAX", 2),
            ("REWRITTEN_BYTES_MAX", 420),
        ):
            self.patches.enter_context(mock.patch.object(cleaner, name, value))
        self.patches.enter_context(mock.patch.object(judging, "open_batch", self.open_batch))
        self.codec_missing = False
        self.model = ModelLog(LmdbDataLogs.open(self.directory, map_bytes=1 << 26, sync=False))
        self.model.create()
        self.now_ms = 1_000
        self.cleaning: Iterator[None] | None = None
        self.readers: list[Reader] = []
        self.value = 0
        self.watched: dict[range, frozenset[int]] = {}
        """What was there of each transaction when the cleaning began. Those that it has changed are watched no more."""
        self.changed: dict[range, frozenset[int]] = {}
        """What it has left of them."""
        self.log_start = 0

    def teardown(self) -> None:
        self.model.logs.close()
        self.patches.close()
        shutil.rmtree(self.directory)

    def open_batch(self, batch: bytes) -> OpenedBatch:
        opened = open_batch(batch)
        if self.codec_missing and opened.header.producer_id == CODEC_MISSING:
            raise UnreadableRecords("its codec is missing")
        return opened

    def pairs(self, drawn: list[tuple[bytes | None, bool]]) -> list[tuple[bytes | None, bytes | None]]:
        found: list[tuple[bytes | None, bytes | None]] = []
        for key, tombstone in drawn:
            self.value += 1
            found.append((key, None if tombstone and key is not None else b"%d" % self.value))
        return found

    @rule(drawn=st.lists(batches, min_size=1, max_size=4), strange=st.booleans())
    def append(self, drawn: list[list[tuple[bytes | None, bool]]], strange: bool) -> None:
        for each in drawn:
            self.model.append(self.pairs(each), producer_id=CODEC_MISSING if strange else 1)

    @rule(drawn=st.lists(batches, min_size=2, max_size=6))
    def commit(self, drawn: list[list[tuple[bytes | None, bool]]]) -> None:
        self.model.append(*map(self.pairs, drawn), transactional=True)

    @rule(ms=st.sampled_from([1, 10, 60, 100]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def start_reading(self) -> None:
        self.readers.append(Reader(self.log_start, self.now_ms))

    @precondition(lambda self: self.readers)
    @rule(batch_count=st.integers(1, 4))
    def read(self, batch_count: int) -> None:
        for reader in list(self.readers):
            for _ in range(batch_count):
                (answer,) = self.model.logs.read([ReadRequest(LOG, Offset(reader.at), 1)], bytes_max=1)
                if isinstance(answer, OffsetOutOfRange):
                    self.readers.remove(reader)
                    break
                assert isinstance(answer, ReadResult)
                if not answer.batches:
                    assert reader.at == answer.next_offset, "a reader is stuck before the log's end"
                    self.readers.remove(reader)
                    if self.now_ms - reader.started_ms < RETENTION_MS:
                        assert reader.found == map_of([row for row in self.model.written if row[0] >= self.log_start])
                    break
                for offset, key, value in values_of(answer.batches[0]):
                    if offset >= reader.at:
                        reader.found |= {key: value} if key is not None and value is not None else {}
                        if key is not None and value is None:
                            reader.found.pop(key, None)
                reader.at = cleaner.parse_stored_header(answer.batches[0]).last_offset + 1

    @rule(steps=st.integers(1, 12), keys_max=st.sampled_from([4, 9, 100]))
    def clean_some(self, steps: int, keys_max: int) -> None:
        self.clean(steps, keys_max)

    def clean(self, steps: int, keys_max: int) -> None:
        if self.cleaning is None:
            self.cleaning = self.model.cleaner(RULES, now_ms=lambda: self.now_ms, keys_max=keys_max).steps()
            # A pass changes a transaction once; with fewer keys there may be several passes.
            self.changed = {}
            self.watched = {offsets: self.present(offsets) for offsets in self.model.transactions if keys_max > 9}
        for _ in range(steps):
            if next(self.cleaning, self) is self:
                self.cleaning = None
                return
            self.transactions_change_as_wholes()

    @rule(rounds=st.lists(st.tuples(batches, st.sampled_from([1, 10, 100])), min_size=1, max_size=5))
    def live_for_a_while(self, rounds: list[tuple[list[tuple[bytes | None, bool]], int]]) -> None:
        """Write, clean and wait, again and again."""
        for drawn, ms in rounds:
            self.append([drawn[:2], drawn[2:] or drawn], strange=False)
            self.clean_to_the_end(keys_max=100)
            self.now_ms += ms

    @rule(keys_max=st.sampled_from([4, 100]))
    def clean_to_the_end(self, keys_max: int) -> None:
        while True:
            self.clean(1, keys_max)
            if self.cleaning is None:
                return

    def present(self, offsets: range) -> frozenset[int]:
        return frozenset(offset for offset, _, _ in self.model.stored(self.log_start) if offset in offsets)

    def transactions_change_as_wholes(self) -> None:
        for offsets, left in self.changed.items():
            assert self.present(offsets) == left, "a transaction was cleaned in two steps"
        for offsets, before in list(self.watched.items()):
            now = self.present(offsets)
            if now != before:
                del self.watched[offsets]
                self.changed[offsets] = now

    @rule()
    def crash(self) -> None:
        self.cleaning = None
        self.model.logs.close()
        self.model.logs = LmdbDataLogs.open(self.directory, map_bytes=1 << 26, sync=False)

    @rule(missing=st.booleans())
    def restart_with_or_without_codec(self, missing: bool) -> None:
        self.crash()
        self.codec_missing = missing

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        """As by retention: never into a transaction."""
        end = len(self.model.written)
        start = self.log_start + round(part * part * part * (end - self.log_start))
        start = next((each.start for each in self.model.transactions if each.start < start < each.stop), start)
        if start <= self.log_start:
            return
        with self.model.logs.write() as writer:
            writer.delete_before(LOG, Offset(start), batches_max=2)
        self.log_start = start
        self.watched, self.changed = {}, {}

    @invariant()
    def maps_are_those_of_the_whole_log(self) -> None:
        stored = self.model.stored(self.log_start)
        written = [row for row in self.model.written if row[0] >= self.log_start]
        assert map_of(stored) == map_of(written)
        assert set(stored) <= set(written)
        assert [row for row in stored if row[1] is None] == [row for row in written if row[1] is None]
        for start in {row[0] for row in written[::5]}:
            after = [row for row in stored if row[0] >= start]
            assert map_of(after) == map_of([row for row in written if row[0] >= start])


CleaningMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestCleaning = pytest.mark.slow(CleaningMachine.TestCase)
