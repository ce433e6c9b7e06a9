"""Marks: computed from medians of one run, and never reached by what was not measured."""

from __future__ import annotations

from importlib import import_module

import pytest
from benchmarks.marks import AT_LEAST, AT_MOST, MARKS, Figure, Mark, verdict
from benchmarks.results import Results

BOTH = (Figure("journal", "10 × 2", "transaction"), Figure("kafka", "10 × 2", "transaction"))


def mark(bound: float, direction: str = AT_MOST) -> Mark:
    return Mark("txn-latency", "a ratio", BOTH, lambda values: values[0] / values[1], direction, bound)


def test_mark_value_is_the_ratio_of_medians(results: Results) -> None:
    """The value is made of medians; its spread is that of the rounds, each by itself."""
    found = verdict(mark(2.0), results)
    assert (found.value, found.low, found.high) == (3.5 / 2.0, 3.5 / 2.5, 4.0 / 2.0)


@pytest.mark.parametrize(
    ("bound", "direction", "reached"),
    [(1.75, AT_MOST, True), (1.74, AT_MOST, False), (1.75, AT_LEAST, True), (1.76, AT_LEAST, False)],
)
def test_mark_is_reached_at_its_bound(results: Results, bound: float, direction: str, reached: bool) -> None:
    """The bound itself still counts."""
    assert verdict(mark(bound, direction), results).reached is reached


def test_mark_without_its_rows_is_neither_reached_nor_missed(results: Results) -> None:
    """What was not measured is said to be so, with the row that is not there."""
    absent = Mark("txn-latency", "x", (Figure("markers", "10 × 2", "transaction"),), lambda v: v[0], AT_MOST, 1.0)
    found = verdict(absent, results)
    assert found.reached is None
    assert found.value is None
    assert "markers" in found.why


def test_mark_without_a_bound_is_neither_reached_nor_missed(results: Results) -> None:
    """Information has its value, and promises nothing."""
    found = verdict(Mark("txn-latency", "x", BOTH, lambda values: values[0]), results)
    assert (found.value, found.reached) == (3.5, None)


def test_mark_against_flushed_kafka_says_what_its_figure_is_made_of() -> None:
    """The client's back-off is named beside the mark, and the paced line, which is free of it, follows at once."""
    against = [mark for mark in MARKS if mark.scenario == "txn-latency" and mark.figures[-1].peer == "kafka-fsync"]
    assert [(mark.figures[-1].metric, mark.bound) for mark in against] == [
        ("transaction", 0.6),
        ("transaction, paced", 0.6),
    ]
    assert "back-off" in against[0].note
    assert MARKS.index(against[1]) == MARKS.index(against[0]) + 1


def test_mark_of_a_scenario_that_was_not_run_says_so(results: Results) -> None:
    """A report of some scenarios has all marks, and tells those that nobody asked for."""
    found = verdict(Mark("soak", "x", BOTH, lambda values: values[0], AT_MOST, 1.0), results)
    assert (found.reached, found.why) == (None, "the scenario was not run")


def test_marks_of_the_latency_scenario_are_found(results: Results) -> None:
    """The marks name cases and metrics as the scenario does: those whose peers are here have a value."""
    values = {found.mark.text: found.value for found in (verdict(each, results) for each in MARKS) if found.value}
    assert values == {
        "transaction, 10 × 2, journal ÷ kafka": 1.75,
        "transaction, 10 × 2, journal − mock": pytest.approx(2.1),
    }


@pytest.mark.parametrize("promise", MARKS, ids=lambda promise: f"{promise.scenario}, {promise.text}")
def test_mark_looks_at_cases_that_are_measured(promise: Mark) -> None:
    """A mark names cases of its scenario as the scenario does; and no two marks say the same."""
    module = import_module(f"benchmarks.{promise.scenario.replace('-', '_')}")
    names = {case.name for case in module.SCENARIO.cases(quick=False)}
    assert {figure.case for figure in promise.figures} <= names
    assert sum(other.text == promise.text for other in MARKS) == 1


def test_rate_over_a_whole_run_counts_each_tenth_by_its_time() -> None:
    """Ten equal parts: one that is ten times as slow as the others takes more than half of the time."""
    (whole,) = [mark for mark in MARKS if "whole run" in mark.text]
    assert [figure.peer for figure in whole.figures] == ["journal"] * 10 + ["kafka"] * 10
    assert whole.value([100.0] * 9 + [10.0] + [95.0] * 10) == pytest.approx((10 / 95) / (9 / 100 + 1 / 10))
    assert whole.value([50.0] * 10 + [100.0] * 10) == pytest.approx(0.5)


def test_rate_over_a_whole_run_that_came_to_rest_is_zero() -> None:
    """A tenth without progress must not divide by zero: the rate of its run is 0."""
    (whole,) = [mark for mark in MARKS if "whole run" in mark.text]
    assert whole.value([0.0] + [50.0] * 9 + [100.0] * 10) == 0
