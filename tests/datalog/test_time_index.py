"""The sparse time index's rule, and that searching by it is exact and short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalog import time_index
from datalog.layout import LogRecord
from datalog.time_index import ENTRY_SPACING_BYTES, note, note_all
from fairlog_types import Offset

QUARTER = ENTRY_SPACING_BYTES // 4


def entries_of(timestamps_ms: list[int], size_bytes: int = QUARTER) -> list[tuple[int, int]]:
    """The entries of a log of one-record batches of a quarter of the spacing each."""
    kept = [(Offset(offset), timestamp, size_bytes) for offset, timestamp in enumerate(timestamps_ms)]
    return [(before, int(at)) for before, at in note_all(LogRecord(0), kept)]


def test_note_growing_timestamps_gives_an_entry_per_spacing() -> None:
    """Every fourth quarter of the spacing has one, and it names the running max before its batch."""
    assert entries_of(list(range(100, 110))) == [(103, 4), (107, 8)]


def test_note_long_stretch_without_growth_gives_its_entry_at_the_growth() -> None:
    """A flat stretch is jumped over: the entry names the batch that ends it."""
    assert entries_of([5, *[3] * 20, 6]) == [(5, 21)]


def test_note_timestamps_that_never_grow_give_no_entry() -> None:
    """An index of a log whose clock stands still is empty."""
    assert entries_of([9] * 50) == []


def test_note_remembers_the_first_batch_with_the_max() -> None:
    """Of two batches with the same max the first one is named."""
    record = LogRecord(0)
    for offset, timestamp in enumerate([3, 8, 8, 2]):
        note(record, Offset(offset), timestamp, 10)
    assert (record.max_timestamp_ms, record.max_timestamp_at) == (8, 1)


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(0, 13))
def test_lookup_starts_not_behind_the_answer_and_not_far_before(timestamps_ms: list[int], wanted_ms: int) -> None:
    """From the floor entry the first match is reached, and within the spacing and one batch."""
    answer = next((offset for offset, t in enumerate(timestamps_ms) if t >= wanted_ms), None)
    start = max((at for before, at in entries_of(timestamps_ms) if before < wanted_ms), default=0)
    if answer is not None:
        assert start <= answer
        assert (answer - start) * QUARTER <= ENTRY_SPACING_BYTES


def test_spacing_is_what_the_format_page_says() -> None:
    """The page and the code name the same figure."""
    assert time_index.ENTRY_SPACING_BYTES == 1_048_576


@pytest.mark.parametrize("smallest", [-(2**63) + 1, -1])
def test_note_negative_timestamps_are_ordinary(smallest: int) -> None:
    """−1, Kafka's "no timestamp", and anything a client may write are only small."""
    assert entries_of([smallest] * 4 + [0]) == [(smallest, 4)]
