"""A large group in stages: which batches each one writes, and when a group is large at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copier import staging
from copier.plan import Group, weight_bytes
from copier.staging import Staging, is_large
from fairlog_types import ApplyNumber, JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from partition.placed import BatchRef, PlacedBatch, PlacedMarker, PlacedState, PlacedTransaction
from partition.producer_window import ProducerWindow

A, B = (LogId("t", "ab" * 16, partition) for partition in range(2))
OFFSETS = LogId.of_offsets(0)
WINDOW = ProducerWindow(ProducerEpoch(0), (), (), 0, JournalPosition(0))
TXID = TxId(ProducerId(7), ProducerEpoch(0), 1)
END = JournalPosition(1000)


def part(log: LogId, *frames_bytes: int) -> PlacedTransaction:
    """A part with a batch of a record for each size."""
    batches = tuple(BatchRef(JournalPosition(0), size, 1, 0, -1) for size in frames_bytes)
    return PlacedTransaction(
        log, Offset(0), TXID, ApplyNumber(1), LeaderEpoch(1), len(batches), batches, WINDOW, END, END, 0
    )


def marker(log: LogId) -> PlacedMarker:
    return PlacedMarker(log, Offset(0), TXID, ApplyNumber(1), True, 1, LeaderEpoch(1), 0, WINDOW, END, END)


def stages(group: Group) -> list[list[tuple[LogId, int, int]]]:
    """All stages: which batches of which log."""
    found: list[list[tuple[LogId, int, int]]] = []
    staging_of = Staging(group)
    while pieces := staging_of.stage():
        assert staging_of.stage() == pieces, "a stage that is not written is planned again as it was"
        found.append([(piece.item.log, piece.first, piece.end) for piece in pieces])
        staging_of.was_written({})
    return found


def test_stages_hold_as_much_as_fits_and_go_on_in_the_next_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches in order, up to the bound; the next stage begins where the last one has ended."""
    monkeypatch.setattr(staging, "STAGE_BYTES", 100)
    group = (part(A, 60, 40, 30), part(B, 70, 1))
    assert stages(group) == [[(A, 0, 2)], [(A, 2, 3), (B, 0, 1)], [(B, 1, 2)]]


def test_batch_beyond_the_bound_is_a_stage_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch cannot be divided."""
    monkeypatch.setattr(staging, "STAGE_BYTES", 100)
    assert stages((part(A, 500, 40, 500),)) == [[(A, 0, 1)], [(A, 1, 2)], [(A, 2, 3)]]


def test_parts_of_one_log_follow_each_other_though_the_group_names_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes write to the same logs: what is behind a log's end is in the order of its journal."""
    monkeypatch.setattr(staging, "STAGE_BYTES", 50)
    group = (part(A, 40), part(B, 40), part(A, 50), part(A))
    assert [log for stage in stages(group) for log, *_ in stage] == [A, A, B]


@pytest.mark.parametrize("between", ["marker", "plain"])
def test_log_with_other_items_between_its_parts_is_not_staged(between: str) -> None:
    """Nor are offsets: they go with the last step."""
    batch = BatchRef(JournalPosition(0), 40, 1, 0, -1)
    plain = PlacedBatch(A, Offset(1), ProducerId(-1), ProducerEpoch(-1), LeaderEpoch(1), batch, None, END, END)
    state = PlacedState(B, ProducerId(7), WINDOW, END, END)
    other = marker(A) if between == "marker" else plain
    group = (part(A, 40), other, part(B, 40), state, part(B, 40), part(OFFSETS, 40))
    assert {log for stage in stages(group) for log, *_ in stage} == {B}
    assert Staging(group).sizes_bytes.keys() == {B}


@pytest.mark.parametrize(
    ("group", "large"),
    [
        ((part(A, 600, 600),), True),
        ((part(A, 300), part(B, 300)), True),
        ((part(A, 300),), False),
        ((marker(A), part(B, 600, 600)), True),
        ((part(OFFSETS, 600, 600),), False),
        ((marker(A), marker(B)), False),
    ],
)
def test_group_is_large_by_its_weight_if_there_is_something_to_stage(
    monkeypatch: pytest.MonkeyPatch, group: Group, large: Any
) -> None:
    """What cannot be divided is copied as ever."""
    monkeypatch.setattr(staging, "STAGED_FROM_BYTES", 1500)
    assert is_large(group, weight_bytes(group)) == large


@given(st.lists(st.lists(st.integers(1, 60), max_size=8), max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_stages_write_every_batch_once_and_keep_the_bound(sizes: list[list[int]], in_a: list[bool]) -> None:
    """Of any group."""
    group = tuple(part(A if first else B, *each) for each, first in zip(sizes, in_a, strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "STAGE_BYTES", 100)
        found = stages(group)
    written = [(log, last - first) for stage in found for log, first, last in stage]
    for log in (A, B):
        assert sum(count for at, count in written if at == log) == sum(
            len(each.batches) for each in group if each.log == log
        )
    assert all(found)
    assert sum(map(len, found)) < sum(map(len, sizes)) + len(sizes) + 1
