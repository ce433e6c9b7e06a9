"""The checker of logs with markers accuses nobody, whatever was written, committed, aborted, deleted and compacted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from datalog import layout
from datalog.environment import LmdbDataLogs
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs
from fairlog.retention.cleaner import LogCleaner
from fairlog.retention.judging import KeyJudge
from fairlog.verify.batches import KeptBatch, read_batch
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.markers import ListsCheck, MarkersCheck
from fairlog.verify.placements import KnownPlace
from fairlog.verify.rules import rules_of
from fairlog_types import Offset, ProducerEpoch, ProducerId, TxId
from tests.datalog.marked_log import LOG, MarkedLog
from tests.retention.cleaning_model import RULES, SALT


def violations(directory: Path, places: list[KnownPlace]) -> list[Violation]:
    """What the checker says of the log as it is on disk."""
    file = mapped_lmdb(directory / "data.mdb")
    assert file is not None
    logs = StoredLogs(file)
    (record,) = [layout.decode_log_record(item.value) for item in logs.table(layout.LOGS)]
    rules, summary = rules_of(record, markers=True), Summary()
    opened = [layout.decode_open(item.key, item.value) for item in logs.table(layout.OPEN)]
    aborted = [layout.decode_aborted(item.key, item.value) for item in logs.table(layout.ABORTED)]
    bounds = {"log_start": record.log_start, "next_offset": record.next_offset}
    checks = (
        MarkersCheck("log", places, **bounds, rules=rules, summary=summary),
        ListsCheck("log", record, opened, aborted, rules=rules, summary=summary),
    )
    found: list[Violation] = []
    for stored in logs.batches(LOG):
        batch = read_batch("log", stored)
        assert isinstance(batch, KeptBatch)
        for check in checks:
            found += check.feed(batch)
    for check in checks:
        found += check.finish()
    return found


class MarkersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.log = MarkedLog(LmdbDataLogs.open(self.directory, map_bytes=1 << 24, sync=False))
        self.log.create()
        self.places: list[KnownPlace] = []
        self.start = 0

    def teardown(self) -> None:
        self.log.logs.close()
        shutil.rmtree(self.directory)

    @rule(
        producer_id=st.none() | st.integers(1, 3), keys=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=3)
    )
    def write(self, producer_id: int | None, keys: list[bytes]) -> None:
        self.log.write([(key, b"v") for key in keys], producer_id)

    @precondition(lambda self: self.log.open)
    @rule(data=st.data(), committed=st.booleans())
    def finish(self, data: st.DataObject, committed: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.log.open)))
        opened = self.log.open[producer_id]
        self.log.finish(producer_id, committed=committed)
        if committed:
            txid = TxId(ProducerId(producer_id), ProducerEpoch(0), opened.txid.number)
            self.places.append(KnownPlace(opened.first_offset, opened.records, txid, "the test"))

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        self.start += round(part * part * (self.log.end - self.start))
        with self.log.logs.write() as writer:
            writer.delete_before(LOG, Offset(self.start), batches_max=1)

    @rule()
    def compact(self) -> None:
        cleaner = LogCleaner(
            self.log.logs,
            LOG,
            RULES,
            seen=Offset(0),
            keys_max=100,
            salt=SALT,
            now_ms=lambda: 0,
            judge=KeyJudge(),
        )
        for _ in cleaner.steps():
            pass

    @invariant()
    def nobody_is_accused(self) -> None:
        assert violations(self.directory, self.places) == []


MarkersMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestMarkers = pytest.mark.slow(MarkersMachine.TestCase)
