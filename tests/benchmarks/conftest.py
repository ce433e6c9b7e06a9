"""Results as a run leaves them, small enough to check by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.results import PeerSetup, Remark, Results, ScenarioRun
from benchmarks.rows import Row


def a_run(name: str = "txn-latency", *, quick: bool = False, **more: object) -> ScenarioRun:
    fields: dict[str, object] = {
        "name": name,
        "question": "How long does it take?",
        "quick": quick,
        "rounds": 3,
        "begun": "2026-01-31T12:00:00Z",
        "commit": "abc1234",
        "seconds": 12.5,
        "load_before": 0.25,
        "flush_us": 140.0,
        "cases": {"1 × 2": {"records": 1, "partitions": 2}, "10 × 2": {"records": 10, "partitions": 2}},
        **more,
    }
    return ScenarioRun(**fields)  # type: ignore[arg-type]


@pytest.fixture
def results() -> Results:
    """One scenario, two cases, four peers of which one is missing; the journal mode wins one case and loses one."""
    found = Results(
        machine={"processor": "P", "cores": 2, "memory_gb": 8.0, "system": "Linux", "file_system": "ext4"},
        versions={"fairlog": "1.0"},
    )
    setups = {
        name: PeerSetup(f"the {name} peer", {"flush": "1"} if name == "kafka" else {})
        for name in ("journal", "kafka", "mock")
    }
    values = {
        "journal": {"1 × 2": (2.0, 2.1, 1.9), "10 × 2": (3.0, 4.0, 3.5)},
        "kafka": {"1 × 2": (4.0, 4.0, 4.0), "10 × 2": (2.0, 2.0, 2.5)},
        "mock": {"1 × 2": (1.0, 1.0, 1.0), "10 × 2": (1.5, 1.4, 1.4)},
    }
    rows = [
        Row("txn-latency", peer, case, "transaction", "ms", rounds, rounds)
        for peer, cases in values.items()
        for case, rounds in cases.items()
    ]
    missing = Remark("missing", "kafka-fsync", "", "there is no Maven here")
    found.put(a_run(remarks=[missing], idle_cores={"kafka": 0.021}, setups=setups), rows)
    return found


@pytest.fixture
def run_of() -> Callable[..., ScenarioRun]:
    """A scenario's run, with what a test says about it."""
    return a_run
