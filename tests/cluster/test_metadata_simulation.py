"""Metadata on a stream that loses, doubles and delays entries, under crashes: simulated from seeds."""

from __future__ import annotations

import pytest

from tests.cluster.metadata_mutations import MUTATIONS
from tests.cluster.metadata_world import run_world
from tests.simulation.planting import Mutation

SEEDS_MAX = 40
"""A planted bug is caught by one of so many."""


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(4))
def test_metadata_of_several_nodes_are_one_fold(tens: int) -> None:
    """Whatever the stream does: one content, nothing told falsely, no ids twice, and any node can begin anew."""
    trims = restarts = 0
    for seed in range(tens * 10, tens * 10 + 10):
        world = run_world(seed)
        trims += world.trims
        restarts += world.restarts
    assert trims > 0
    assert restarts > 0


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation: Mutation) -> None:
    """The simulation finds what it is there for."""
    for seed in range(SEEDS_MAX):
        with mutation.plant():
            try:
                run_world(seed)
            except Exception:  # noqa: BLE001 - a node stops, or the world finds something that must not be
                return
    pytest.fail(f"{SEEDS_MAX} seeds have not caught that {mutation.what}")
