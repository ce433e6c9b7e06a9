"""SIGKILL of one of several processes at each named point that a transaction over their shards passes there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.clients.modes import Mode
from tests.crash.over_shards import (
    COORDINATOR,
    PARTICIPANT,
    PARTICIPANT_POINTS,
    POINTS,
    TOGETHER,
    KillsOverShards,
    Outcome,
)

pytestmark = pytest.mark.slow

SEED = 1


def test_kill_of_one_process_leaves_a_transaction_over_shards_whole(tmp_path: Path) -> None:
    """In all shards or in none, as its client was told, whichever process dies; and its id goes on."""
    run = KillsOverShards(tmp_path, Mode.JOURNAL)
    rng = random.Random(SEED)
    with run.running():
        for number, points in ((COORDINATOR, POINTS), (PARTICIPANT, PARTICIPANT_POINTS)):
            for point in points:
                run.kill_once(point, number, rng)
    print(run.report())  # noqa: T201 - `pytest -rP` shows which points were hit
    assert run.outcomes[Outcome.COMMITTED]
    assert run.outcomes[Outcome.ABORTED]


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
def test_kill_at_a_point_of_what_shards_do_together_leaves_a_transaction_whole(tmp_path: Path, mode: Mode) -> None:
    """The same between the steps of the protocol of shards, and of the cuts over them."""
    run = KillsOverShards(tmp_path, mode)
    rng = random.Random(SEED)
    with run.running():
        for point, numbers in TOGETHER.items():
            for number in numbers:
                run.kill_once(point, number, rng)
    print(run.report())  # noqa: T201
