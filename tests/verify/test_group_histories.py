"""What the group journals tell, against what the logs know: once, whole, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    Expectation,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
)
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.journals import AppliedPart
from fairlog.verify.transactions import LogView, check_transactions, committed_places, read_history
from fairlog_types import ApplyNumber, LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId

A, B = (LogId.of_topic(UUID(int=1), partition) for partition in range(2))
GONE = LogId.of_topic(UUID(int=2), 0)
T1, T2, T3 = (TxId(ProducerId(7), ProducerEpoch(0), number) for number in range(3))


def begin(txid: TxId) -> BeginRecord:
    return BeginRecord(txid, "id", {A: LeaderEpoch(1), B: LeaderEpoch(1)}, 0)


def prepare(txid: TxId, **counts: int) -> PrepareCommitRecord:
    logs = {"a": A, "b": B, "gone": GONE}
    return PrepareCommitRecord(
        txid,
        "id",
        {logs[name]: Expectation(LeaderEpoch(1), count) for name, count in counts.items()},
        0,
        commit_number=txid.number + 1,
    )


def committed(txid: TxId, *places: tuple[LogId, int, int]) -> CommittedRecord:
    return CommittedRecord(txid, "id", tuple(Placement(log, Offset(base), count) for log, base, count in places), 0)


def view(name: str, end: int, applied: Mapping[TxId, tuple[int, int, int]] | None = None) -> LogView:
    parts = {
        txid: AppliedPart(base, count, ApplyNumber(number)) for txid, (base, count, number) in (applied or {}).items()
    }
    return LogView(name, end, parts, {})


RECORDS: list[GroupRecord] = [
    begin(T1),
    prepare(T1, a=2, b=1),
    begin(T2),
    prepare(T2, a=1, gone=5),
    committed(T1, (A, 0, 2), (B, 0, 1)),
    committed(T2, (A, 2, 1)),
    begin(T3),
    prepare(T3, a=1, b=1),
]
LOGS = {
    A: view("a", 4, {T1: (0, 2, 10), T2: (2, 1, 11), T3: (3, 1, 12)}),
    B: view("b", 2, {T1: (0, 1, 10), T3: (1, 1, 12)}),
}


def check(
    records: list[GroupRecord], logs: Mapping[LogId, LogView] = LOGS, *, loses_nothing: bool = True
) -> list[Violation]:
    history = read_history("journals/group/0", records)
    history.loses_nothing = loses_nothing
    return list(check_transactions([history], logs, Summary()))


def test_history_that_agrees_with_its_logs_has_no_violation() -> None:
    """Committed ones, one that is copied and not yet known to be, and a log that was deleted meanwhile."""
    assert check(RECORDS) == []


def test_history_tells_where_records_are() -> None:
    """The places of all COMMITTEDs, by log; none from a journal that may have lost some."""
    history = read_history("journals/group/0", RECORDS)
    places = committed_places([history])
    assert [(place.base_offset, place.count, place.txid) for place in places[A]] == [(0, 2, T1), (2, 1, T2)]
    history.loses_nothing = False
    assert committed_places([history]) == {}


def test_transaction_not_yet_copied_anywhere_is_no_violation() -> None:
    """PREPARE_COMMIT alone, whether its APPLYs stand in the journals or not: the next start decides."""
    undecided = {A: view("a", 3, {T1: (0, 2, 10), T2: (2, 1, 11)}), B: view("b", 1, {T1: (0, 1, 10)})}
    assert check(RECORDS, undecided) == []
    pending = {
        log: replace(each, pending={T3: AppliedPart(each.next_offset, 1, ApplyNumber(12))})
        for log, each in undecided.items()
    }
    assert check(RECORDS, pending) == []


def test_log_that_forgets_a_producer_lacks_nothing_for_certain() -> None:
    """Without local journals only the window tells what is copied, and it remembers the last transactions alone."""
    half = {A: LOGS[A], B: view("b", 2, {T1: (0, 1, 10)})}
    (found,) = check(RECORDS, half)
    assert (found.kind, found.log, found.offset) == (Kind.HALF_A_TRANSACTION, A, 3)
    assert check(RECORDS, {**half, B: replace(half[B], forgetful={T3.producer_id})}) == []


def test_transaction_whose_copy_went_with_the_last_commit_of_the_data_logs_is_no_violation() -> None:
    """After a power cut COMMITTED may be on disk and the copy undone; the journals still have it."""
    records = [*RECORDS, committed(T3, (A, 3, 1), (B, 1, 1))]
    logs = {
        A: LogView("a", 3, LOGS[A].applied, {T3: AppliedPart(3, 1, ApplyNumber(12))}),
        B: LogView("b", 1, {T1: LOGS[B].applied[T1]}, {T3: AppliedPart(1, 1, ApplyNumber(12))}),
    }
    assert check(records, logs) == []


HALF = {A: LOGS[A], B: view("b", 1, {T1: (0, 1, 10)})}
OTHER_ORDER = {A: LOGS[A], B: view("b", 2, {T1: (1, 1, 10), T3: (0, 1, 12)})}
ELSEWHERE = {A: LOGS[A], B: view("b", 2, {T1: (1, 1, 10), T3: (2, 1, 12)})}
TWO_NUMBERS = {A: LOGS[A], B: view("b", 2, {T1: (0, 1, 99), T3: (1, 1, 12)})}
TOO_MANY = {A: view("a", 5, {T1: (0, 2, 10), T2: (2, 1, 11), T3: (3, 2, 12)}), B: LOGS[B]}

WRONG = {
    "half of it is copied": (RECORDS, HALF, 7, "half of it is copied: it is in a, and not in b"),
    "prepared and placed with another count": (RECORDS, TOO_MANY, 5, "1 records are expected in a, placed are 2"),
    "a part is missing": (
        [*RECORDS[:4], committed(T1, (A, 0, 2))],
        LOGS,
        5,
        "0 records in b, PREPARE_COMMIT",
    ),
    "a part is short": ([*RECORDS[:4], committed(T1, (A, 0, 1), (B, 0, 1))], LOGS, 5, "1 records in a, PREPARE_COMMIT"),
    "a part too many": ([begin(T2), prepare(T2, a=1), committed(T2, (A, 2, 1), (B, 1, 1))], LOGS, 1, "where none were"),
    "lies elsewhere": (RECORDS, ELSEWHERE, 4, "COMMITTED has 1 records at 0 of b, the log knows of 1 at 1"),
    "behind the end": (
        [committed(T1, (A, 4, 2))],
        {A: view("a", 5)},
        5,
        "has 2 records at 4 of a, which ends",
    ),
    "another order": (RECORDS, OTHER_ORDER, 6, "which its group has committed before it"),
    "two apply numbers": (RECORDS, TWO_NUMBERS, 6, "has more than one apply number: 10 in a, 99 in b"),
    "aborted and placed": (
        [*RECORDS[:6], begin(T3), PrepareAbortRecord(T3, "id", (A, B), 0)],
        LOGS,
        1,
        "is aborted, yet",
    ),
    "aborted long ago and placed": ([*RECORDS[:6], AbortedRecord(T3, "id", 0)], LOGS, 1, "is aborted, yet 1 records"),
    "begun and placed": (RECORDS[:7], LOGS, 1, "has only begun, yet 1 records of it are placed"),
    "never told and placed": (RECORDS[:6], LOGS, 1, "and no PREPARE_COMMIT tells of it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_history_that_disagrees_with_its_logs_is_a_violation(case: str) -> None:
    """Each kind is seen, with its invariant and in words."""
    records, logs, invariant, words = WRONG[case]
    found = check(records, logs)
    assert any(each.invariant == invariant and words in each.what for each in found), found


@pytest.mark.parametrize("case", ["aborted and placed", "begun and placed", "never told and placed"])
def test_history_that_may_have_lost_its_tail_accuses_nobody(case: str) -> None:
    """With fsync=interval or never a power cut takes a group journal's tail, and the data logs have what it told."""
    records, logs, *_ = WRONG[case]
    assert check(records, logs, loses_nothing=False) == []


def test_transaction_older_than_what_is_told_accuses_nobody() -> None:
    """A snapshot forgets all but the last commits of an id; the windows may remember older ones."""
    assert check([committed(T2, (A, 2, 1))], {A: view("a", 3, {T1: (0, 2, 10), T2: (2, 1, 11)})}) == []


def test_prepare_commit_that_is_written_again_keeps_its_place_in_the_order() -> None:
    """A restart writes it a second time, behind later ones."""
    history = read_history("journals/group/0", [*RECORDS, prepare(T2, a=1), prepare(T1, a=2, b=1)])
    assert list(history.commits) == [T1, T2, T3]


def member(name: str, txid: TxId, number: int, **counts: int) -> list[GroupRecord]:
    """A commit of a member of the group `g`."""
    granted = ProducerRecord(name, "g", txid.producer_id, txid.epoch, ProducerEpoch(-1), 1000, 0, False, 0)
    return [granted, replace(prepare(txid, **counts), transactional_id=name, commit_number=number)]


def test_members_of_a_group_out_of_their_commit_order_are_a_violation() -> None:
    """In whichever order their records stand, as in a snapshot; with markers, they lie where they were written."""
    first, second = (TxId(ProducerId(number), ProducerEpoch(0), 0) for number in (1, 2))
    records = [*member("g::2", second, 2, a=1), *member("g::1", first, 1, a=1)]
    history = read_history("journals/group/0", records, commit_number=2)
    in_order = {A: view("a", 2, {first: (0, 1, 10), second: (1, 1, 11)})}
    assert list(check_transactions([history], in_order, Summary())) == []
    wrong = {A: view("a", 2, {first: (1, 1, 11), second: (0, 1, 10)})}
    (found,) = check_transactions([history], wrong, Summary())
    assert (found.kind, found.invariant, found.offset) == (Kind.WRONG_ORDER, 6, 0)
    assert "2.0.0 of 'g::2': lies at offset 0 of a, and 1.0.0, which its group has committed before it, at 1" in str(
        found
    )
    marked = {A: replace(wrong[A], markers=True)}
    assert list(check_transactions([history], marked, Summary())) == []


def test_commit_number_that_is_missing_is_a_violation() -> None:
    """Those of a snapshot are past, and one that is written again has its old number."""
    without_second = [record for record in RECORDS if record not in (RECORDS[2], RECORDS[3], RECORDS[5])]
    (found,) = (each for each in check(without_second) if "missing" in each.what)
    assert str(found) == "journals/group/0: PREPARE_COMMIT 1 is followed by 3: 1 are missing (invariant 6)"
    assert not any("missing" in each.what for each in check([*RECORDS, RECORDS[1]]))
