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
OF_MARKERS = (
    ("group.prepare_abort.appended", COORDINATOR),
    ("participant.discarded", PARTICIPANT),
    ("participant.prepare.flushed", PARTICIPANT),
    ("participant.said_all.done", PARTICIPANT),
    ("coordinator.place.between_logs", PARTICIPANT),
    ("copier.copy.before_commit", PARTICIPANT),
)


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


def test_kill_at_a_point_of_what_shards_do_together_leaves_a_transaction_whole(tmp_path: Path) -> None:
    """The same between the steps of the protocol of shards, and of the cuts over them."""
    run = KillsOverShards(tmp_path, Mode.JOURNAL)
    rng = random.Random(SEED)
    with run.running():
        for point, numbers in TOGETHER.items():
            for number in numbers:
                run.kill_once(point, number, rng)
    print(run.report())  # noqa: T201
    assert run.cuts_judged > 0, "no cut was taken, so this has shown nothing of them"


def test_kill_of_one_process_leaves_a_transaction_with_markers_whole(tmp_path: Path) -> None:
    """Where there are markers, what ends a transaction is seen by readers: at points around that."""
    run = KillsOverShards(tmp_path, Mode.MARKERS)
    rng = random.Random(SEED)
    with run.running():
        for point, number in OF_MARKERS:
            run.kill_once(point, number, rng)
    print(run.report())  # noqa: T201
