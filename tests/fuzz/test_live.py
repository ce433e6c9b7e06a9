"""A node under mutated requests for some seconds; longer by `python -m tests.fuzz.live`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.live import attack
from tests.processes import ALSO_ON_THREE
from tests.seeds import seed_of_the_code


@ALSO_ON_THREE
@pytest.mark.slow
def test_node_under_mutated_requests_lives_and_serves_others(tmp_path: Path, processes: int):
    """It answers or closes, stays small, tells of no fault of its own, and a witness's transactions go on."""
    seed = seed_of_the_code()
    outcome = attack(tmp_path, seconds=5, seed=seed, processes=processes)
    assert not outcome.found, f"seed {seed}: {outcome.found}"
    assert outcome.rounds > 0
    assert outcome.requests > 100
