"""Figures that follow each other in time are one metric to read, and keep their rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.charts import draw
from benchmarks.document import as_markdown
from benchmarks.report import blocks_of
from benchmarks.results import Results, ScenarioRun
from benchmarks.rows import Row
from benchmarks.series import unrolled


@pytest.fixture
def soaked(results: Results, run_of: Callable[..., ScenarioRun]) -> Results:
    """A soak of two kinds in three thirds, and a figure for the whole."""
    rows = [
        Row("soak", "journal", kind, f"rate, third {number}", "MB/s", (100.0 - number, 90.0))
        for kind in ("deletion", "compaction")
        for number in (1, 2, 3)
    ]
    whole = [Row("soak", "journal", kind, "memory", "MB", (60.0,)) for kind in ("deletion", "compaction")]
    cases = {"deletion": {"kept_bytes": 5}, "compaction": {"keys": 7}}
    results.put(run_of("soak", cases=cases), rows + whole)
    return results


def test_series_is_one_metric_with_a_case_for_each_number(soaked: Results) -> None:
    """The numbers become cases, in their order; what is not numbered, and every value, stays as it was."""
    found = unrolled(soaked)
    rates = [row for row in found.of("soak") if row.metric == "rate"]
    assert [row.case for row in rates][:3] == ["deletion, third 1", "deletion, third 2", "deletion, third 3"]
    assert rates[0].values == (99.0, 90.0)
    assert found.scenarios["soak"].cases["compaction, third 2"] == {"third": 2, "of": "compaction"}
    assert found.of("txn-latency") == soaked.of("txn-latency")
    assert [row.case for row in found.of("soak") if row.metric == "memory"] == ["deletion", "compaction"]


def test_series_has_one_table(soaked: Results) -> None:
    """The report shows a series in one table, not one for each number."""
    page = as_markdown(blocks_of(soaked, []))
    assert page.count("### rate, MB/s") == 1
    assert "| deletion, third 3 | 93.5 (90.0–97.0) |" in page


@pytest.mark.slow
def test_series_is_drawn_over_its_number(soaked: Results, tmp_path: Path) -> None:
    """A series is a line over its number, with a panel for each case of the scenario."""
    drawn = {chart.picture.name: chart.picture.svg.decode() for chart in draw(unrolled(soaked), tmp_path)}
    assert {"soak.rate", "soak.memory"} <= drawn.keys()
    for word in ("third", "deletion", "compaction"):
        assert f">{word}<" in drawn["soak.rate"]


@pytest.mark.slow
def test_cases_with_the_same_numbers_are_bars(
    results: Results, run_of: Callable[..., ScenarioRun], tmp_path: Path
) -> None:
    """What is written and read with records of one size has no place of its own on an axis of sizes."""
    cases = {f"{what} {size}": {"record_bytes": size} for what in ("produce", "fetch") for size in (100, 1000)}
    rows = [Row("tls", "journal-tls", case, "loss", "%", (10.0, 12.0)) for case in cases]
    run = run_of("tls", cases=cases)
    drawn = draw(dataclasses.replace(results, rows=rows, scenarios={"tls": run}), tmp_path)
    assert [chart.picture.name for chart in drawn] == ["tls.loss"]
