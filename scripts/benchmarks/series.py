"""Figures of one round that differ by a number, such as a rate in each tenth of a soak. Pure.

A scenario measures them in one run, so they are metrics with a number at the end: "rate, tenth 1", "rate, tenth 2". For
reading they become one metric whose cases are the numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.results import Results, ScenarioRun
from benchmarks.rows import Row

_NUMBERED = re.compile(r"(?P<metric>.+), (?P<word>[a-z]+) (?P<number>\d+)")


def unrolled(results: Results) -> Results:
    """The same results, with all numbered metrics of a kind as one, and a case for each number: "deletion, tenth 3"."""
    scenarios = dict(results.scenarios)
    rows: list[Row] = []
    for row in results.rows:
        numbered = _NUMBERED.fullmatch(row.metric)
        if numbered is None:
            rows.append(row)
            continue
        case = f"{row.case}, {numbered['word']} {numbered['number']}"
        rows.append(replace(row, metric=numbered["metric"], case=case))
        scenarios[row.scenario] = _with_case(
            scenarios[row.scenario], case, numbered["word"], int(numbered["number"]), row.case
        )
    return replace(results, scenarios=scenarios, rows=rows)


def _with_case(run: ScenarioRun, case: str, word: str, number: int, of: str) -> ScenarioRun:
    return replace(run, cases={**run.cases, case: {word: number, "of": of}})
