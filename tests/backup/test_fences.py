"""A sink's fence is in a backup if and only if the rows of its batch are, whenever cut and journals are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ending import DECIDED_MAX
from coordinator.group_records import (
    CommittedPart,
    Expectation,
    PreparedPart,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
    SinkRecords,
)
from coordinator.replay import replay, snapshot_records
from coordinator.sink_commits import joined_places
from fairlog.backup.fences import ToldOfSinks, fences_of
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId
from partition.producer_window import TRANSACTIONS_KEPT

A, B, MARKED = (LogId("t", f"{number:032x}", 0) for number in range(3))
NOW_MS = 1_763_632_800_000


@dataclass
class Logs:
    """The data logs as far as a backup asks: ends, what is open in marker mode, and the windows' last transactions."""

    ends: dict[LogId, int] = field(default_factory=lambda: {A: 0, B: 0, MARKED: 0})
    opened: dict[tuple[LogId, int], TxId] = field(default_factory=dict)
    windows: dict[tuple[LogId, int], tuple[tuple[TxId, Placement], ...]] = field(default_factory=dict)

    def copy(self) -> Logs:
        return Logs(dict(self.ends), dict(self.opened), dict(self.windows))

    def append(self, log: LogId, count: int) -> Placement:
        base = Offset(self.ends[log])
        self.ends[log] += count
        return Placement(log, base, count)

    def remember(self, txid: TxId, place: Placement) -> None:
        key = place.log, txid.producer_id
        self.windows[key] = (*self.windows.get(key, ()), (txid, place))[-TRANSACTIONS_KEPT:]

    def next_offset(self, log: LogId) -> Offset | None:
        return Offset(self.ends[log]) if log in self.ends else None

    def is_open(self, log: LogId, txid: TxId) -> bool:
        return self.opened.get((log, txid.producer_id)) == txid

    def placed(self, log: LogId, txid: TxId) -> Placement | None:
        return dict(self.windows.get((log, txid.producer_id), ())).get(txid)


@dataclass(eq=False)
class Batch:
    """One batch on its way."""

    query: str
    record: SinkPrepareCommitRecord
    written: dict[TxId, dict[LogId, Placement]]
    """Where it stands already, in the logs of marker mode."""
    places: dict[TxId, tuple[Placement, ...]] | None = None
    """Once it is copied."""

    @property
    def number(self) -> int:
        return self.record.batch


@dataclass
class Sink:
    name: str
    query: str
    next_batch: int = 0
    epoch: int = 0
    preparing: Batch | None = None
    under_way: deque[Batch] = field(default_factory=deque)


@dataclass
class Run:
    """A node with two sinks, step by step: its group journal, its data logs, and which batches are visible."""

    records: list[SinkRecords] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    sinks: list[Sink] = field(default_factory=lambda: [Sink("one", "query 0"), Sink("two", "query 0")])
    visible: list[Batch] = field(default_factory=list)
    recorded: list[Batch] = field(default_factory=list)
    """SINK_COMMITTED is written."""

    def prepare(self, sink: Sink, counts: Sequence[int]) -> None:
        """Lanes with so many records for each log. The marked log has its at once, unless a marker is due there."""
        if sink.preparing is not None or len(sink.under_way) >= DECIDED_MAX:
            return
        is_due = any(it.places is None and any(it.written.values()) for sink in self.sinks for it in sink.under_way)
        parts: list[PreparedPart] = []
        written: dict[TxId, dict[LogId, Placement]] = {}
        sink.epoch += 1
        for slot, lane in enumerate((counts[:3], counts[3:])):
            producer = ProducerId(10 * self.sinks.index(sink) + slot)
            txid = TxId(producer, ProducerEpoch(sink.epoch), 0)
            asked = zip((A, B, MARKED), lane, strict=True)
            present = {log: n for log, n in asked if log in self.logs.ends and not (log == MARKED and is_due)}
            parts.append(PreparedPart(slot, txid, {log: Expectation(LeaderEpoch(1), n) for log, n in present.items()}))
            written[txid] = {}
            if present.get(MARKED):
                written[txid][MARKED] = self.logs.append(MARKED, present[MARKED])
                self.logs.opened[MARKED, producer] = txid
        record = SinkPrepareCommitRecord(
            sink.name, sink.query, sink.next_batch, len(self.records) + 1, tuple(parts), NOW_MS
        )
        self.records.append(record)
        sink.preparing = Batch(sink.query, record, written)

    def abort(self, sink: Sink) -> None:
        batch = sink.preparing
        if batch is not None:
            self.records.append(SinkAbortedRecord(sink.name, batch.number, NOW_MS))
            for txid in batch.written:
                self.logs.opened.pop((MARKED, txid.producer_id), None)
            sink.preparing = None

    def decide(self, sink: Sink) -> None:
        if sink.preparing is not None:
            sink.under_way.append(sink.preparing)
            sink.preparing, sink.next_batch = None, sink.next_batch + 1

    def copy(self, sink: Sink) -> None:
        """The oldest that is decided and not visible, in all its logs at once."""
        batch = next((it for it in sink.under_way if it.places is None), None)
        if batch is None:
            return
        batch.places = {}
        for part in batch.record.parts:
            places: list[Placement] = []
            for log, expected in part.participants.items():
                if log not in self.logs.ends:
                    continue
                place = batch.written[part.txid].get(log)
                if place is None and expected.records:
                    place = self.logs.append(log, expected.records)
                if log == MARKED:
                    self.logs.append(MARKED, 1)
                    self.logs.opened.pop((MARKED, part.txid.producer_id), None)
                if place is not None:
                    self.logs.remember(part.txid, place)
                    places.append(place)
            batch.places[part.txid] = tuple(places)
        self.visible.append(batch)

    def record(self, sink: Sink) -> None:
        if sink.under_way and (places := sink.under_way[0].places) is not None:
            batch = sink.under_way.popleft()
            led = {txid: tuple(it for it in placed if it.log in self.logs.ends) for txid, placed in places.items()}
            parts = tuple(CommittedPart(it.slot, it.txid, led[it.txid]) for it in batch.record.parts)
            self.records.append(SinkCommittedRecord(sink.name, batch.number, parts, NOW_MS))
            self.recorded.append(batch)

    def forget(self, sink: Sink) -> None:
        if sink.preparing is None and not sink.under_way and sink.next_batch:
            self.records.append(SinkForgottenRecord(sink.name))
            sink.query, sink.next_batch = f"query {int(sink.query.split()[1]) + 1}", 0

    def delete(self, _: Sink) -> None:
        self.logs.ends.pop(B, None)

    def produce(self, _: Sink) -> None:
        self.logs.append(A, 1)

    def snapshot(self, _: Sink) -> None:
        told = [it for it in snapshot_records((), replay(self.records).sinks.values()) if isinstance(it, SinkRecords)]
        self.records = told


STEPS: tuple[Callable[[Run, Sink], None], ...] = (
    Run.decide,
    Run.copy,
    Run.copy,
    Run.record,
    Run.record,
    Run.abort,
    Run.forget,
    Run.delete,
    Run.produce,
    Run.snapshot,
)
PREPARE = st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), min_size=6, max_size=6))
STEP = st.tuples(st.integers(0, 1), st.sampled_from(STEPS))
LEAST = 10
"""Steps before the journals are read first, at most; so what comes later is under way at one of the readings."""


@given(
    before=st.lists(PREPARE | STEP, max_size=30),
    between=st.lists(PREPARE | STEP, max_size=LEAST),
    behind=st.lists(PREPARE | STEP, max_size=LEAST),
)
def test_fence_is_in_the_backup_if_and_only_if_the_rows_of_its_batch_are(
    before: Sequence[tuple[int, object]], between: Sequence[tuple[int, object]], behind: Sequence[tuple[int, object]]
) -> None:
    """Journals are read, some steps, the cut, some steps, journals are read: whatever the node does meanwhile."""
    run = Run()
    take(run, before)
    known = len(run.records)
    recorded = len(run.recorded)
    take(run, [step for step in between if step[1] is not Run.snapshot])
    cut, visible = run.logs.copy(), list(run.visible)
    take(run, [step for step in behind if step[1] is not Run.snapshot])
    fences = {fence.sink: fence for fence in fences_of([ToldOfSinks(run.records, known)], cut)}

    for sink in run.sinks:
        of_sink = [it for it in visible if (it.record.sink, it.query) == (sink.name, sink.query)]
        there = [it for it in of_sink if places_in(cut, it) or it in run.recorded[:recorded]]
        fence = fences.get(sink.name)
        assert (fence is None) == (not there), "there is a fence where there are rows"
        if fence is not None:
            assert fence.query == sink.query
            assert fence.batch == there[-1].number
            assert tuple(it for it in fence.placements if it.log in cut.ends) == places_in(cut, there[-1])


def take(run: Run, steps: Sequence[tuple[int, object]]) -> None:
    for number, step in steps:
        sink = run.sinks[number]
        if isinstance(step, list):
            run.prepare(sink, step)
        else:
            assert callable(step)
            step(run, sink)


def places_in(cut: Logs, batch: Batch) -> tuple[Placement, ...]:
    """Of a batch that is visible, in the logs that are left."""
    assert batch.places is not None
    return joined_places(place for placed in batch.places.values() for place in placed if place.log in cut.ends)


# --- case by case -----------------------------------------------------------------------------------------


def committed(batch: int, *places: Placement) -> list[SinkRecords]:
    """A batch of one lane, from its preparation on."""
    txid = TxId(ProducerId(7), ProducerEpoch(batch), 0)
    expected = {place.log: Expectation(LeaderEpoch(1), place.count) for place in places}
    prepared = SinkPrepareCommitRecord("totals", "q", batch, batch + 1, (PreparedPart(0, txid, expected),), NOW_MS)
    return [prepared, SinkCommittedRecord("totals", batch, (CommittedPart(0, txid, places),), NOW_MS)]


FIRST = committed(0, Placement(A, Offset(0), 2))
SECOND = committed(1, Placement(A, Offset(2), 3), Placement(B, Offset(0), 1))


def test_batch_that_was_committed_behind_the_cut_leaves_the_fence_of_the_one_before() -> None:
    """Its rows are not in the backup: it is to be written again."""
    (fence,) = fences_of([ToldOfSinks([*FIRST, *SECOND], 2)], Logs({A: 2, B: 0}))
    assert (fence.batch, fence.placements) == (0, (Placement(A, Offset(0), 2),))


def test_batch_that_is_visible_and_not_recorded_yet_is_found_by_the_windows() -> None:
    """Between the copy and SINK_COMMITTED: the places are those that the windows have."""
    logs = Logs({A: 5, B: 1})
    txid = SECOND[0].parts[0].txid  # type: ignore[union-attr]
    for place in (Placement(A, Offset(2), 3), Placement(B, Offset(0), 1)):
        logs.remember(txid, place)
    (fence,) = fences_of([ToldOfSinks([*FIRST, SECOND[0]], 2)], logs)
    assert (fence.batch, fence.query) == (1, "q")
    assert fence.placements == (Placement(A, Offset(2), 3), Placement(B, Offset(0), 1))


def test_batch_of_which_a_part_is_there_is_damage() -> None:
    """No node copies so: whoever finds it must not go on."""
    with pytest.raises(CorruptStorage, match="only a part of batch 1 of sink 'totals' is in the data logs"):
        fences_of([ToldOfSinks([*FIRST, *SECOND], 2)], Logs({A: 5, B: 0}))


def test_batch_whose_records_are_there_and_open_in_marker_mode_is_not_committed() -> None:
    """There its rows stand in the log long before its markers."""
    logs = Logs({MARKED: 9})
    records = committed(0, Placement(MARKED, Offset(4), 2))
    assert len(fences_of([ToldOfSinks(records, 0)], logs)) == 1
    logs.opened[MARKED, ProducerId(7)] = TxId(ProducerId(7), ProducerEpoch(0), 0)
    assert fences_of([ToldOfSinks(records, 0)], logs) == ()


def test_batch_whose_topic_was_deleted_long_ago_keeps_its_fence() -> None:
    """It was committed before the cut; its replay would make the topic anew."""
    assert [it.batch for it in fences_of([ToldOfSinks(FIRST, len(FIRST))], Logs({B: 0}))] == [0]
    assert fences_of([ToldOfSinks(FIRST, 1)], Logs({B: 0})) == ()


def test_fences_of_a_snapshot_are_those_of_the_backup_and_come_by_name() -> None:
    """All group journals' sinks, in one list."""
    snapshot = SinkRecord("totals", "q", 7, (Placement(A, Offset(0), 2),), NOW_MS)
    other = replace(snapshot, sink="alerts")
    told = [ToldOfSinks([snapshot], 1), ToldOfSinks([other], 1)]
    assert fences_of(told, Logs({A: 2})) == (other, snapshot)
