"""What the group journals tell of sinks' batches, against what the logs know: each once, in order, its lanes as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from coordinator.group_records import (
    BeginRecord,
    CommittedPart,
    CommittedRecord,
    Expectation,
    GroupRecord,
    PreparedPart,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
)
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.journals import AppliedPart
from fairlog.verify.transactions import LogView, check_transactions, committed_places, read_history
from fairlog_types import (
    ApplyNumber,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)

A, B = (LogId.of_topic(UUID(int=1), partition) for partition in range(2))
NAMES = {"a": A, "b": B}
Counts = Mapping[str, int]
Places = Mapping[str, tuple[int, int]]


def txid(slot: int, number: int) -> TxId:
    return TxId(ProducerId(100 + slot), ProducerEpoch(0), number)


def begin(slot: int, number: int) -> BeginRecord:
    return BeginRecord(txid(slot, number), f"fairlog.lane.{slot}.s", {A: LeaderEpoch(1), B: LeaderEpoch(1)}, 0)


def prepare(batch: int, *lanes: Counts, number: int | None = None, query: str = "q") -> SinkPrepareCommitRecord:
    """The batch, of which each lane has so many records in each log; the lanes' transactions have its number."""
    parts = tuple(
        PreparedPart(
            slot,
            txid(slot, batch if number is None else number),
            {NAMES[name]: Expectation(LeaderEpoch(1), count) for name, count in counts.items()},
        )
        for slot, counts in enumerate(lanes)
    )
    return SinkPrepareCommitRecord("s", query, batch, batch + 1, parts, 0)


def committed(batch: int, *lanes: Places, number: int | None = None) -> SinkCommittedRecord:
    parts = tuple(
        CommittedPart(slot, txid(slot, batch if number is None else number), placements(places))
        for slot, places in enumerate(lanes)
    )
    return SinkCommittedRecord("s", batch, parts, 0)


def placements(places: Places) -> tuple[Placement, ...]:
    return tuple(Placement(NAMES[name], Offset(base), count) for name, (base, count) in places.items())


def view(name: str, end: int, *applied: tuple[TxId, int, int, int], markers: bool = False) -> LogView:
    parts = {of: AppliedPart(base, count, ApplyNumber(number)) for of, base, count, number in applied}
    return LogView(name, end, parts, {}, markers)


LANES = {"a": 2, "b": 1}, {"a": 1}
PLACES = {"a": (0, 2), "b": (0, 1)}, {"a": (2, 1)}
RECORDS: list[GroupRecord] = [
    begin(0, 0),
    begin(1, 0),
    begin(2, 0),
    prepare(0, *LANES),
    committed(0, *PLACES),
    prepare(1, {"b": 1}, {"a": 1}),
]
LOGS = {
    A: view("a", 4, (txid(0, 0), 0, 2, 10), (txid(1, 0), 2, 1, 10), (txid(1, 1), 3, 1, 11)),
    B: view("b", 2, (txid(0, 0), 0, 1, 10), (txid(0, 1), 1, 1, 11)),
}
BEFORE = {A: view("a", 3, *((txid(0, 0), 0, 2, 10), (txid(1, 0), 2, 1, 10))), B: view("b", 1, (txid(0, 0), 0, 1, 10))}


def check(
    records: Sequence[GroupRecord], logs: Mapping[LogId, LogView] = LOGS, *, commit_number: int = 0
) -> list[Violation]:
    history = read_history("journals/group/0", records, commit_number=commit_number)
    return list(check_transactions([history], logs, Summary()))


def test_sinks_that_agree_with_their_logs_have_no_violation() -> None:
    """One batch is committed, one copied and not yet known to be, and a lane has lost."""
    assert check(RECORDS) == []
    assert check(RECORDS, BEFORE) == []
    assert check([*RECORDS, SinkAbortedRecord("s", 1, 0)], BEFORE) == []
    assert check([*RECORDS[:5], SinkForgottenRecord("s"), prepare(0, {"b": 1}, {"a": 1}, number=1, query="r")]) == []


def test_batch_aborted_may_be_prepared_again() -> None:
    """By other lanes, or the same ones with their next transactions."""
    again = prepare(1, {"b": 1}, {"a": 1}, number=2)
    logs = {
        A: view("a", 4, (txid(0, 0), 0, 2, 10), (txid(1, 0), 2, 1, 10), (txid(1, 2), 3, 1, 11)),
        B: view("b", 2, (txid(0, 0), 0, 1, 10), (txid(0, 2), 1, 1, 11)),
    }
    assert check([*RECORDS, SinkAbortedRecord("s", 1, 0), again], logs) == []


def test_snapshot_that_has_what_follows_it_has_no_violation() -> None:
    """Lanes stand there one by one, not in the order of their commits; what is prepared stands there, and again."""
    lanes = [
        CommittedRecord(txid(1, 0), "fairlog.lane.1.s", placements({"a": (2, 1)}), 0),
        CommittedRecord(txid(0, 0), "fairlog.lane.0.s", placements({"a": (0, 2), "b": (0, 1)}), 0),
    ]
    fence = SinkRecord("s", "q", 0, placements({"a": (0, 3), "b": (0, 1)}), 0)
    assert check([*lanes, fence, RECORDS[-1], RECORDS[-1]], commit_number=1) == []


def test_history_tells_where_records_of_lanes_are() -> None:
    """The places that SINK_COMMITTED has count like those of COMMITTED."""
    places = committed_places([read_history("journals/group/0", RECORDS)])
    assert sorted((place.base_offset, place.count, place.txid) for place in places[A]) == [
        (0, 2, txid(0, 0)),
        (2, 1, txid(1, 0)),
    ]


def test_lanes_in_a_log_of_marker_mode_need_not_follow_each_other() -> None:
    """Their records stand where they were written."""
    logs = {
        A: view("a", 9, (txid(0, 0), 1, 2, 10), (txid(1, 0), 6, 1, 10), markers=True),
        B: view("b", 1, (txid(0, 0), 0, 1, 10)),
    }
    assert check([*RECORDS[:4], committed(0, {"a": (1, 2), "b": (0, 1)}, {"a": (6, 1)})], logs) == []


def test_batches_in_a_log_of_marker_mode_may_have_their_records_in_any_order() -> None:
    """A later batch's lane may be written first. Elsewhere records are placed in the order of the batches."""
    records = [prepare(0, {"a": 1}, {}), prepare(1, {}, {"a": 1})]
    applied = (txid(0, 0), 5, 1, 10), (txid(1, 1), 2, 1, 11)
    assert check(records, {A: view("a", 9, *applied, markers=True)}) == []
    (found,) = check(records, {A: view("a", 9, *applied)})
    assert (found.kind, found.log, found.offset) == (Kind.WRONG_ORDER, A, 2)


ONE_LANE = {A: view("a", 2, (txid(0, 0), 0, 2, 10)), B: LOGS[B]}
TWO_NUMBERS = {A: view("a", 3, (txid(0, 0), 0, 2, 10), (txid(1, 0), 2, 1, 12)), B: BEFORE[B]}
APART = {A: view("a", 4, (txid(0, 0), 0, 2, 10), (txid(1, 0), 3, 1, 10)), B: BEFORE[B]}
SWAPPED = {A: view("a", 3, (txid(0, 0), 1, 2, 10), (txid(1, 0), 0, 1, 10)), B: BEFORE[B]}
LOSER = {A: view("a", 4, *((txid(0, 0), 0, 2, 10), (txid(1, 0), 2, 1, 10), (txid(2, 0), 3, 1, 10))), B: BEFORE[B]}
WRONG: dict[str, tuple[Sequence[GroupRecord], Mapping[LogId, LogView], int, str]] = {
    "one lane is copied, another is not": (RECORDS[:4], ONE_LANE, 7, "half of it is copied: .* in a, .*; and not 101"),
    "a lane was placed by itself": (RECORDS[:4], TWO_NUMBERS, 7, r"it has the apply numbers \[10, 12\]"),
    "something stands between two lanes": (RECORDS[:4], APART, 3, "lies at offset 3 of a, due is 2"),
    "two lanes have changed places": (RECORDS[:4], SWAPPED, 3, "lies at offset 0 of a, due is 3"),
    "a lane that was not named is placed": (RECORDS[:4], LOSER, 1, "has only begun, yet 1 records of it are placed"),
    "an aborted batch is placed": ([*RECORDS[:4], SinkAbortedRecord("s", 0, 0)], BEFORE, 1, "is aborted, yet 2"),
    "a lane has another count": (
        [*RECORDS[:3], prepare(0, {"a": 2, "b": 2}, {"a": 1})],
        BEFORE,
        5,
        "2 records are exp",
    ),
    "a batch comes twice": ([*RECORDS[:5], prepare(0, {"b": 1}, number=1)], LOGS, 5, "the sink has had batch 0"),
    "a batch behind the fence": (
        [SinkRecord("s", "q", 4, (), 0), prepare(1, {"b": 1}, {"a": 1})],
        LOGS,
        5,
        "batch 1 of sink 's': is prepared, and the sink has had batch 4",
    ),
    "a batch is prepared twice": ([*RECORDS, prepare(1, {"a": 9}, number=7)], LOGS, 5, "and was not aborted"),
    "batches go back": ([*RECORDS[:3], prepare(1, {}), prepare(0, *LANES)], BEFORE, 5, "had come to batch 1"),
    "another query": ([*RECORDS[:5], prepare(1, {"b": 1}, query="r")], LOGS, 5, "query 'r' .* of query 'q'"),
    "batches are committed out of order": (
        [*RECORDS[:4], RECORDS[5], committed(1, {"b": (1, 1)}, {"a": (3, 1)})],
        LOGS,
        5,
        "is committed before batch 0",
    ),
    "committed and not prepared": ([RECORDS[4]], BEFORE, 5, "nobody has prepared it"),
    "another lane is committed": ([*RECORDS[:4], committed(0, *PLACES, {})], BEFORE, 5, "other transactions than were"),
    "the second batch lies before the first": (
        [*RECORDS[:4], RECORDS[5]],
        {A: view("a", 4, *((txid(0, 0), 1, 2, 10), (txid(1, 0), 3, 1, 10), (txid(1, 1), 0, 1, 11))), B: LOGS[B]},
        6,
        "which its group has committed before it",
    ),
    "the fence's places are not there": (
        [SinkRecord("s", "q", 4, placements({"a": (3, 9)}), 0)],
        LOGS,
        5,
        "has 9 records at 3 of a, which ends at 4",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_sinks_that_contradict_their_logs_are_found(case: str) -> None:
    """Each contradiction is a violation of the invariant that it breaks."""
    records, logs, invariant, what = WRONG[case]
    found = check(records, logs)
    with pytest.raises(AssertionError, match=what):
        assert not found, "\n".join(map(str, found))
    assert invariant in {violation.invariant for violation in found}


def test_batch_that_one_shard_has_copied_and_another_one_holds_is_no_violation() -> None:
    """Until SINK_COMMITTED; each shard has its own apply numbers. What is neither there nor held is a violation."""
    first, second = txid(0, 0), txid(1, 0)
    records: list[GroupRecord] = [begin(0, 0), begin(1, 0), prepare(0, {"a": 1, "b": 2}, {"a": 1})]
    parts = {first: AppliedPart(0, 1, ApplyNumber(3)), second: AppliedPart(1, 1, ApplyNumber(3))}
    copied = LogView("a", 2, parts, {}, open={})
    holds = LogView("b", 0, {}, {}, shard=ShardNumber(1), open={first: 2})
    history = read_history("journals/group/0", records)
    assert list(check_transactions([history], {A: copied, B: holds}, Summary())) == []
    placed = replace(holds, pending={first: AppliedPart(0, 2, ApplyNumber(7))}, open={})
    assert list(check_transactions([history], {A: copied, B: placed}, Summary())) == []
    lost = replace(holds, open={first: 1})
    found = list(check_transactions([history], {A: copied, B: lost}, Summary()))
    assert {each.kind for each in found} == {Kind.HALF_A_TRANSACTION}
    assert any("batch 0 of sink 's': half of it is copied" in str(each) for each in found), found
