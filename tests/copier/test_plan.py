"""The copier's order: histories of several journals, cut by crashes at arbitrary points, are merged again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copier.backlog import Backlog
from copier.plan import Group, batches_at, is_copied, logs_of, merge, plan, weight_bytes
from fairlog_types import (
    NO_APPLY_NUMBER,
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from partition.placed import BatchRef, Placed, PlacedBatch, PlacedMarker, PlacedState, PlacedTransaction
from partition.producer_window import ProducerWindow

LOGS = tuple(LogId("t", "ab" * 16, partition) for partition in range(3))
MARKED = LOGS[1]
"""A log of marker mode: its part of a transaction is the marker."""


@dataclass
class Journals:
    """What the journals of one node place: positions and offsets as a leader would count them."""

    per_log: dict[LogId, list[Placed]] = field(default_factory=lambda: {log: [] for log in LOGS})
    groups: list[Group] = field(default_factory=list)
    apply_number: int = 0
    next_number: int = 0

    def end(self, log: LogId) -> int:
        items = self.per_log[log]
        return items[-1].end if items else 0

    def next_offset(self, log: LogId) -> int:
        for item in reversed(self.per_log[log]):
            if isinstance(item, PlacedBatch):
                return item.base_offset + item.batch.record_count
            if isinstance(item, PlacedTransaction):
                return item.base_offset + item.record_count
            if isinstance(item, PlacedMarker):
                return item.offset + 1
        return 0

    def plain(self, log: LogId, records: int = 1) -> PlacedBatch:
        position = self.end(log)
        end = JournalPosition(position + 100)
        item = PlacedBatch(
            log,
            Offset(self.next_offset(log)),
            ProducerId(7),
            ProducerEpoch(0),
            LeaderEpoch(3),
            BatchRef(JournalPosition(position), 100, records, 0, -1),
            _window(end),
            end,
            end,
        )
        return self._add((item,))[0]  # type: ignore[return-value]

    def state(self, log: LogId, producer_id: int = 8, *, forgotten: bool = False) -> PlacedState:
        end = JournalPosition(self.end(log) + 40)
        item = PlacedState(log, ProducerId(producer_id), None if forgotten else _window(end), end, end)
        return self._add((item,))[0]  # type: ignore[return-value]

    def transaction(
        self,
        logs: Sequence[LogId],
        txid: TxId | None = None,
        counts: Sequence[int] = (2, 3),
        number: ApplyNumber | None = None,
    ) -> Group:
        return self.together([(self.new_txid() if txid is None else txid, logs)], counts, number)

    def together(
        self,
        lanes: Sequence[tuple[TxId, Sequence[LogId]]],
        counts: Sequence[int] = (2, 3),
        number: ApplyNumber | None = None,
    ) -> Group:
        """Several transactions, placed as one."""
        if number is None:
            self.apply_number += 1
            number = ApplyNumber(self.apply_number)
        group: list[Placed] = []
        for txid, logs in lanes:
            for log in logs:
                if log == MARKED:
                    item: Placed = self._marker(txid, number, committed=True)
                else:
                    item = self._part(log, txid, counts, number)
                self.per_log[log].append(item)
                group.append(item)
        self.groups.append(tuple(group))
        return tuple(group)

    def new_txid(self) -> TxId:
        self.next_number += 1
        return TxId(ProducerId(9), ProducerEpoch(0), self.next_number - 1)

    def _part(self, log: LogId, txid: TxId, counts: Sequence[int], number: ApplyNumber) -> PlacedTransaction:
        position = self.end(log)
        batches = tuple(BatchRef(JournalPosition(position + 100 * i), 100, n, 0, -1) for i, n in enumerate(counts))
        end = JournalPosition(position + 100 * len(counts) + 40)
        base_offset = Offset(self.next_offset(log))
        return PlacedTransaction(
            log, base_offset, txid, number, LeaderEpoch(3), sum(counts), batches, _window(end), end, end, 0
        )

    def aborted(self) -> Group:
        return self._add((self._marker(self.new_txid(), NO_APPLY_NUMBER, committed=False),))

    def _marker(self, txid: TxId, number: ApplyNumber, *, committed: bool) -> PlacedMarker:
        end = JournalPosition(self.end(MARKED) + 56)
        offset = Offset(self.next_offset(MARKED))
        return PlacedMarker(MARKED, offset, txid, number, committed, 3, LeaderEpoch(3), 0, _window(end), end, end)

    def _add(self, group: Group) -> Group:
        self.groups.append(group)
        for item in group:
            self.per_log[item.log].append(item)
        return group


def _window(end: JournalPosition) -> ProducerWindow:
    return ProducerWindow(ProducerEpoch(0), (), (), 0, end)


logs_of_one_step = st.lists(st.sampled_from(LOGS), min_size=1, unique=True)
steps = st.one_of(
    st.tuples(st.just("plain"), logs_of_one_step),
    st.tuples(st.just("state"), logs_of_one_step),
    st.tuples(st.just("forget"), logs_of_one_step),
    st.tuples(st.just("transaction"), logs_of_one_step),
    st.tuples(st.just("together"), st.lists(logs_of_one_step, min_size=2, max_size=3)),
    st.tuples(st.just("abort"), st.just([MARKED])),
)


@st.composite
def histories(draw: st.DrawFn) -> Journals:
    """Any mix of plain batches, changes of state, transactions and sink commits over three logs."""
    journals = Journals()
    for what, logs in draw(st.lists(steps, max_size=20)):
        if what == "transaction":
            journals.transaction(logs)
        elif what == "together":
            journals.together([(journals.new_txid(), lane) for lane in logs])
        elif what == "plain":
            journals.plain(logs[0])
        elif what == "abort":
            journals.aborted()
        else:
            journals.state(logs[0], forgotten=what == "forget")
    return journals


@st.composite
def crashed(draw: st.DrawFn, journals: Journals) -> dict[LogId, list[Placed]]:
    """What survives of each journal: a prefix, cut independently of the others."""
    return {log: items[: draw(st.integers(0, len(items)))] for log, items in journals.per_log.items()}


def assert_every_item_once_and_in_order(groups: Sequence[Group], per_log: Mapping[LogId, Sequence[Placed]]) -> None:
    merged: dict[LogId, list[Placed]] = defaultdict(list)
    for group in groups:
        for item in group:
            merged[item.log].append(item)
    assert merged == {log: list(items) for log, items in per_log.items() if items}


def parts_of(group: Group) -> list[PlacedTransaction | PlacedMarker]:
    """What of the group was placed by a commit."""
    return [
        item
        for item in group
        if isinstance(item, PlacedTransaction) or (isinstance(item, PlacedMarker) and item.committed)
    ]


def groups_by_number(groups: Sequence[Group]) -> dict[ApplyNumber, list[Group]]:
    """The groups that hold parts of commits, by apply number; asserts that none holds parts of several."""
    found: dict[ApplyNumber, list[Group]] = defaultdict(list)
    for group in groups:
        parts = parts_of(group)
        if parts:
            assert {part.apply_number for part in parts} == {parts[0].apply_number}
            found[parts[0].apply_number].append(group)
        else:
            assert len(group) == 1
    return found


def missing_of(group: Group, after: Journals) -> tuple[ApplyNumber | None, list[tuple[TxId, list[LogId]]]]:
    """What is to be placed again of a commit's group after a crash: under which number, if any part survived."""
    survived: ApplyNumber | None = None
    lanes: dict[TxId, list[LogId]] = {}
    for part in parts_of(group):
        if part in after.per_log[part.log]:
            survived = part.apply_number
        else:
            lanes.setdefault(part.txid, []).append(part.log)
    return survived, list(lanes.items())


@pytest.mark.slow
@given(st.data())
def test_merge_after_a_crash_anywhere_keeps_order_and_whole_groups(data: st.DataObject) -> None:
    """However the crash cut each journal, every log keeps its order and what survives of a commit is one group."""
    survivors = data.draw(crashed(data.draw(histories())))
    groups = merge(survivors)
    assert_every_item_once_and_in_order(groups, survivors)
    assert all(len(found) == 1 for found in groups_by_number(groups).values())


@pytest.mark.slow
@given(st.data())
def test_merge_behind_any_copied_prefix_gives_the_rest(data: st.DataObject) -> None:
    """The copier had copied some groups before the crash: the merge of the rest keeps order and whole groups."""
    journals = data.draw(histories())
    copied = journals.groups[: data.draw(st.integers(0, len(journals.groups)))]
    marks = {item.log: item.end for group in copied for item in group}
    rest = {
        log: [item for item in items if not is_copied(item, marks.get(log, JournalPosition(0)))]
        for log, items in journals.per_log.items()
    }
    groups = merge(rest)
    assert_every_item_once_and_in_order(groups, rest)
    assert all(len(found) == 1 for found in groups_by_number(groups).values())


@pytest.mark.slow
@given(st.data())
def test_merge_after_what_was_lost_is_placed_again_in_order_gives_whole_groups(data: st.DataObject) -> None:
    """Some logs lost a part: placed again under the number that survived, all parts are one group; also if that is cut.

    What was lost everywhere comes behind, under a new number. A restart writes discards and aborts before it places.
    """
    before = data.draw(histories())
    after = Journals(data.draw(crashed(before)), [], before.apply_number, before.next_number)
    missing = [missing_of(group, after) for group in before.groups]
    again = sorted((it for it in missing if it[0] is not None), key=lambda it: it[0] or 0)
    again += data.draw(st.permutations([it for it in missing if it[0] is None]))
    for log in data.draw(st.lists(st.sampled_from(LOGS), max_size=3)):
        after.state(log)
    if data.draw(st.booleans()):
        after.aborted()
    for number, lanes in again:
        if lanes:
            after.together(lanes, number=number)
    survivors = data.draw(st.one_of(st.just(after.per_log), crashed(after)))
    groups = merge(survivors)
    assert_every_item_once_and_in_order(groups, survivors)
    assert all(len(found) == 1 for found in groups_by_number(groups).values())


@pytest.mark.slow
@given(st.data())
def test_merge_after_parts_were_placed_again_in_another_order_still_gives_every_item(data: st.DataObject) -> None:
    """A second crash before the re-placed parts are copied leaves orders that contradict: still nothing is lost."""
    before = data.draw(histories())
    after = Journals(data.draw(crashed(before)), [], before.apply_number, before.next_number)
    missing = [missing_of(group, after) for group in before.groups]
    for number, lanes in data.draw(st.permutations(missing)):
        if lanes:
            after.together(lanes, number=number)
    for log in data.draw(st.lists(st.sampled_from(LOGS), max_size=3)):
        after.plain(log)
    survivors = data.draw(crashed(after))
    assert_every_item_once_and_in_order(merge(survivors), survivors)


def test_merge_of_contradicting_orders_splits_the_transaction_that_was_placed_first() -> None:
    """T1 before T2 in one log and behind it in another: T1 goes in pieces, T2 stays whole."""
    journals = Journals()
    first, second = LOGS[0], LOGS[2]
    one, two = (ApplyNumber(number) for number in (1, 2))
    for log, number in ((first, one), (first, two), (second, two), (second, one)):
        journals.transaction([log], number=number)
    found = groups_by_number(merge(journals.per_log))
    assert [len(group) for group in found[one]] == [1, 1]
    assert [len(group) for group in found[two]] == [2]


def test_merge_of_transactions_placed_as_one_gives_one_group() -> None:
    """Two lanes wrote to the same logs: in one group, and behind each other in each log."""
    journals = Journals()
    first, second = LOGS[0], LOGS[2]
    lanes = [(journals.new_txid(), (first, second)), (journals.new_txid(), (first, second))]
    journals.plain(first)
    group = journals.together(lanes)
    journals.transaction([second])
    merged = merge(journals.per_log)
    assert len(merged) == 3
    assert sorted(merged[1], key=id) == sorted(group, key=id)
    for log in (first, second):
        assert [part.txid for part in parts_of(merged[1]) if part.log == log] == [txid for txid, _ in lanes]


def test_merge_of_parts_with_a_discard_between_them_keeps_the_discard_in_its_place() -> None:
    """A crash took the second lane's part and the restart discarded something before it placed that again."""
    journals = Journals()
    lanes = [(journals.new_txid(), [LOGS[0]]), (journals.new_txid(), [LOGS[0]])]
    journals.together(lanes[:1], number=ApplyNumber(5))
    journals.state(LOGS[0])
    journals.together(lanes[1:], number=ApplyNumber(5))
    behind = journals.state(LOGS[0])
    assert merge(journals.per_log) == [tuple(journals.per_log[LOGS[0]][:3]), (behind,)]


def test_merge_of_transactions_that_share_no_log_follows_the_apply_numbers() -> None:
    """Where the logs leave a choice, the transaction that was placed first comes first."""
    journals = Journals()
    groups = [journals.transaction([log]) for log in reversed(LOGS)]
    assert merge(journals.per_log) == groups


@dataclass
class DataLogsModel:
    """What writing plans leads to."""

    data: dict[LogId, list[Placed]] = field(default_factory=lambda: defaultdict(list))
    windows: dict[tuple[LogId, ProducerId], ProducerWindow] = field(default_factory=dict)
    marks: dict[LogId, JournalPosition] = field(default_factory=lambda: dict.fromkeys(LOGS, JournalPosition(0)))

    def copy(self, groups: Sequence[Group], bytes_max: int = 10**9) -> list[Sequence[Group]]:
        """Copy the groups chunk by chunk; answer the chunks."""
        chunks: list[Sequence[Group]] = []
        backlog = Backlog()
        for group in groups:
            backlog.add(group, None, 0.0)
        while chunk := backlog.take(lambda _: True, bytes_max=bytes_max):
            backlog.taken_is_done()
            chunks.append(chunk)
            for log_plan in plan(chunk, self.marks):
                self.data[log_plan.log] += log_plan.data
                self.marks[log_plan.log] = log_plan.copied_through
                for producer_id, window in log_plan.windows.items():
                    self.windows.pop((log_plan.log, producer_id), None)
                    if window is not None:
                        self.windows[log_plan.log, producer_id] = window
        return chunks


@pytest.mark.slow
@given(st.data())
def test_plan_of_any_suffix_already_copied_changes_nothing(data: st.DataObject) -> None:
    """Copying any suffix again leaves data, windows and marks as they are (invariant 4)."""
    journals = data.draw(histories())
    cut = data.draw(st.integers(0, len(journals.groups)))
    once, twice = DataLogsModel(), DataLogsModel()
    once.copy(journals.groups)
    twice.copy(journals.groups)
    twice.copy(journals.groups[cut:])
    assert twice == once


@pytest.mark.slow
@given(st.data())
def test_plan_in_any_chunks_writes_what_one_chunk_writes(data: st.DataObject) -> None:
    """However the queue is cut into chunks, data, last windows and last marks come out the same."""
    journals = data.draw(histories())
    bytes_max = data.draw(st.integers(1, 4000))
    whole, pieces = DataLogsModel(), DataLogsModel()
    whole.copy(journals.groups)
    chunks = pieces.copy(journals.groups, bytes_max)
    assert pieces == whole
    assert all(len(chunk) == 1 or sum(map(weight_bytes, chunk)) <= bytes_max for chunk in chunks)


@pytest.mark.slow
@given(st.data())
def test_plan_gives_every_record_one_dense_place(data: st.DataObject) -> None:
    """Offsets are dense and a transaction's batches contiguous, in produce order (invariants 2 and 3)."""
    journals = data.draw(histories())
    for log_plan in plan(journals.groups, dict.fromkeys(LOGS, JournalPosition(0))):
        next_offset = 0
        for item in log_plan.data:
            if isinstance(item, PlacedMarker):
                assert item.offset == next_offset
                next_offset += 1
                continue
            positions = []
            for base_offset, batch in batches_at(item):
                assert base_offset == next_offset
                next_offset += batch.record_count
                positions.append(batch.position)
            assert positions == sorted(positions)


def test_plan_of_a_dropped_log_keeps_the_other_parts_of_its_groups() -> None:
    """A log without a mark was deleted; what its transactions placed elsewhere is copied."""
    journals = Journals()
    journals.transaction(LOGS)
    plans = plan(journals.groups, {log: JournalPosition(0) for log in LOGS[1:]})
    assert [log_plan.log for log_plan in plans] == list(LOGS[1:])


def test_plan_of_a_forgotten_producer_deletes_its_window_unless_it_comes_back() -> None:
    """Within one chunk the last word counts: forgotten behind its batch, or back behind being forgotten."""
    journals = Journals()
    batch = journals.plain(LOGS[0])
    forgotten = journals.state(LOGS[0], batch.producer_id, forgotten=True)
    back = journals.plain(LOGS[0])
    start = {LOGS[0]: JournalPosition(0)}
    assert [p.windows for p in plan([(batch,), (forgotten,)], start)] == [{batch.producer_id: None}]
    assert [p.windows for p in plan([(batch,), (forgotten,), (back,)], start)] == [{batch.producer_id: back.window}]


def test_plan_of_items_out_of_order_is_refused() -> None:
    """A log's items must come in the journal's order; anything else is a bug of ours and stops the copy."""
    journals = Journals()
    groups = [(journals.plain(LOGS[0]),), (journals.plain(LOGS[0]),)]
    with pytest.raises(AssertionError, match="placed behind"):
        plan(list(reversed(groups)), dict.fromkeys(LOGS, JournalPosition(0)))


def test_logs_of_groups_names_each_log() -> None:
    """The logs that a chunk touches are known before it is planned."""
    journals = Journals()
    assert logs_of([journals.transaction(LOGS[:2]), (journals.plain(LOGS[2]),)]) == set(LOGS)
