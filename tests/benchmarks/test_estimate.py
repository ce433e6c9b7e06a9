"""The estimate: there is one for every scenario, and it grows with what is asked for."""

from __future__ import annotations

from importlib import import_module

import bench
import pytest
from benchmarks.estimate import COSTS, duration, estimate_s
from peers.interface import NAMES


def test_every_scenario_has_an_estimate() -> None:
    """Whatever can be named on the command line can be planned."""
    assert COSTS.keys() == {*bench.SCENARIOS, *bench.ONLY_NAMED}


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("txn-latency", 11), ("txn-throughput", 8), ("visible", 3), ("hung", 16), ("aborts", 6), ("produce", 8),
        ("fetch", 8), ("offsets", 4), ("recovery", 18), ("recovery-full", 52),
    ],
)  # fmt: skip
def test_estimate_of_five_rounds_on_five_peers_is_what_the_documentation_says(name: str, minutes: int) -> None:
    """The figures of docs/benchmarks.md are those of the program, for the cases that the scenario has now."""
    cases = import_module(f"benchmarks.{name.replace('-', '_')}").SCENARIO.cases(quick=False)
    seconds = estimate_s(name, NAMES, cases=len(cases), rounds=5, quick=False)
    assert duration(seconds) == f"{minutes} min"


def test_estimate_grows_with_cases_rounds_and_peers_and_not_with_the_mock_that_is_not_measured() -> None:
    """Every turn counts once; a quick run is far shorter."""
    base = estimate_s("visible", ["journal"], cases=2, rounds=5, quick=False)
    assert estimate_s("visible", ["journal", "mock"], cases=2, rounds=5, quick=False) == base
    assert estimate_s("visible", ["journal", "kafka"], cases=2, rounds=5, quick=False) == 2 * base
    assert estimate_s("visible", ["journal"], cases=2, rounds=6, quick=False) == pytest.approx(base + 2 * 2.2)
    assert estimate_s("visible", ["journal"], cases=2, rounds=5, quick=True) < base / 3


@pytest.mark.parametrize(("seconds", "words"), [(40.2, "40 s"), (480, "8 min"), (9000, "2.5 h")])
def test_duration_is_said_as_people_say_it(seconds: float, words: str) -> None:
    """No seconds of minutes, and no minutes of hours."""
    assert duration(seconds) == words
