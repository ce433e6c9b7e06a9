"""Whatever single thing is wrong in a long history, the checker names it."""

from __future__ import annotations

import copy
import random
from itertools import islice

import pytest

from tests.history import model
from tests.history.anomalies import KINDS
from tests.history.checker import check
from tests.history.history_file import event_line, head_line, read_history
from tests.history.mutations import EXEMPT, MUTATIONS, Mutation
from tests.history.operations import Mode

HISTORIES, SEEDS_MAX = 6, 100
"""Of so many each anomaly is found; not every history has a place for it."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_checker_anomaly_planted_in_a_long_history_is_found(mutation: Mutation, mode: Mode) -> None:
    """Each mutation of a clean history is found under its name."""
    mutated = islice((seed for seed in range(SEEDS_MAX) if _is_found(mutation, mode, seed)), HISTORIES)
    assert len(list(mutated)) == HISTORIES, "too few histories have a place for it"


def _is_found(mutation: Mutation, mode: Mode, seed: int) -> bool:
    """False if the history of this seed has no place for the anomaly; an AssertionError if it goes unnoticed."""
    events = copy.deepcopy(model.record(mode, seed, 250))
    if not mutation(events, random.Random(seed), mode):
        return False
    verdict = check(read_history([head_line(mode), *map(event_line, events)]))
    expected = MUTATIONS[mutation]
    found = [kind.name for kind in verdict.found]
    assert any(kind in verdict.found for kind in expected), f"seed {seed}: found only {found}"
    assert not verdict.valid or not any(mode in kind.forbidden for kind in expected), f"seed {seed}: {found} is valid"
    return True


def test_mutations_cover_the_catalogue() -> None:
    """No anomaly is without its mutation."""
    planted = {kind for kinds in MUTATIONS.values() for kind in kinds}
    assert planted | set(EXEMPT) == set(KINDS)
