"""Histories of a broker that keeps every promise are clean, whatever its clients do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history import model
from tests.history.checker import check
from tests.history.history_file import event_line, head_line, read_history
from tests.history.operations import Mode
from tests.history.report import as_text


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), turns=st.integers(0, 600))
def test_checker_history_of_a_correct_broker_is_clean(mode: Mode, seed: int, turns: int) -> None:
    """No false alarm: overlapping transactions, crashes, rebalances and readings at once."""
    lines = [head_line(mode), *map(event_line, model.record(mode, seed, turns))]
    verdict = check(read_history(lines))
    assert verdict.valid, as_text(verdict)
