"""results.json: what is read is what was written, and runs of two machines never get into one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from benchmarks.results import OtherRun, PeerSetup, Results, ScenarioRun, results_from_json
from benchmarks.rows import Row


def test_results_through_json_are_the_same(results: Results) -> None:
    """Header and rows survive being written and read."""
    assert results_from_json(json.loads(json.dumps(results.as_json()))) == results


def test_results_are_a_flat_list_of_rows_under_a_header(results: Results) -> None:
    """The file has the shape that it is promised to have."""
    document = results.as_json()
    assert list(document) == ["header", "rows"]
    assert isinstance(document["rows"], list)
    assert len(document["rows"]) == 6


def test_scenario_measured_again_replaces_its_rows(results: Results, run_of: Callable[..., ScenarioRun]) -> None:
    """A second run of a scenario leaves nothing of the first, and nothing of others is touched."""
    results.put(run_of("visible"), [Row("visible", "journal", "plain", "seen", "ms", (1.0,))])
    again = Row("txn-latency", "journal", "1 × 2", "transaction", "ms", (9.0,))
    results.put(run_of("txn-latency"), [again])
    assert results.of("txn-latency") == [again]
    assert len(results.of("visible")) == 1


@pytest.mark.parametrize("order", [("soak", "visible"), ("visible", "soak")])
def test_results_of_a_peer_say_what_it_was_set_to_in_all_scenarios(
    results: Results, run_of: Callable[..., ScenarioRun], order: tuple[str, str]
) -> None:
    """A later scenario's settings neither replace nor join those of an earlier one: each run keeps its own."""
    settings = {"soak": {"flush": "1", "clean": "500"}, "visible": {"flush": "1"}}
    for name in order:
        results.put(run_of(name, setups={"kafka": PeerSetup("kafka", settings[name])}), [])
    assert results.peers["kafka"].settings == {"flush": "1"}
    assert results.own_settings(results.scenarios["soak"]) == {"kafka": {"clean": "500"}}
    assert results.own_settings(results.scenarios["visible"]) == {}
    assert results.scenarios["soak"].setups["kafka"].settings == settings["soak"]


@pytest.mark.parametrize("what", ["machine", "versions"])
def test_results_of_another_machine_or_version_are_not_mixed(results: Results, what: str) -> None:
    """Rows that cannot be compared do not get into one report: the refusal says what differs."""
    other = replace(results, **{what: {**getattr(results, what), "cores": 64, "fairlog": "2.0"}})
    with pytest.raises(OtherRun, match="fairlog" if what == "versions" else "cores"):
        results.must_be_like(other)
    results.must_be_like(replace(results))


def test_results_with_one_quick_scenario_are_not_for_quoting(
    results: Results, run_of: Callable[..., ScenarioRun]
) -> None:
    """One quick scenario marks the whole file."""
    assert not results.quick
    results.put(run_of("visible", quick=True), [])
    assert results.quick
