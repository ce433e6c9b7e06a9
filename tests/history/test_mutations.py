"""Whatever single thing is wrong in a long history, the checker names it."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.history import model
from tests.history.anomalies import KINDS
from tests.history.checker import check
from tests.history.history_file import event_line, head_line, read_history
from tests.history.mutations import EXEMPT, MUTATIONS, Mutation
from tests.history.operations import Mode


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_checker_anomaly_planted_in_a_long_history_is_found(mutation: Mutation, mode: Mode, seed: int) -> None:
    """Each mutation of a clean history is found under its name."""
    events = copy.deepcopy(model.record(mode, seed, 250))
    assume(mutation(events, random.Random(seed), mode))
    verdict = check(read_history([head_line(mode), *map(event_line, events)]))
    expected = MUTATIONS[mutation]
    assert any(kind in verdict.found for kind in expected), f"found only {[kind.name for kind in verdict.found]}"
    if any(mode in kind.forbidden for kind in expected):
        assert not verdict.valid


def test_mutations_cover_the_catalogue() -> None:
    """No anomaly is without its mutation."""
    planted = {kind for kinds in MUTATIONS.values() for kind in kinds}
    assert planted | set(EXEMPT) == set(KINDS)
