"""The results of a benchmark: one row per quantity, with its spread over the rounds. Pure.

    a round       one measurement of one case on one peer: `Measured`, by the name of what was measured
    a row         the same over all rounds: `Row`, the line of results.json and of every table

A quantity is either counted once per round (MB/s, CPU-seconds) or sampled many times within it (a latency). Of its
samples a round keeps the median and the 99th percentile. A row's `median` is the median over the rounds, `low` and
`high` are the lowest and the highest round, and `p99` is the median of the rounds' 99th percentiles: one bad round
shows in `high` and does not hide the others. Quantities that are counted have no `p99`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one round for one quantity. Created by `counted` and `sampled`."""

    unit: str
    value: float
    p99: float | None = None


Measurements = Mapping[str, Measured]
"""One round of one case on one peer, by metric: a short name in words, such as "transaction" or "broker CPU"."""


def counted(unit: str, value: float) -> Measured:
    """A quantity with one value per round."""
    return Measured(unit, value)


def sampled(unit: str, values: Sequence[float]) -> Measured:
    """A quantity with many values per round, at least one. Raises ValueError without any."""
    if not values:
        raise ValueError("nothing was sampled: a round without a single value says nothing")
    return Measured(unit, quantile(values, 0.5), quantile(values, 0.99))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value such that at least `share` (0 to 1) of all values are not above it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one case on one peer, over all rounds. `values` and `p99s` are in the order of the rounds."""

    scenario: str
    peer: str
    case: str
    metric: str
    unit: str
    values: tuple[float, ...]
    p99s: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float | None:
        return statistics.median(self.p99s) if self.p99s else None

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def rounds(self) -> int:
        return len(self.values)

    def as_json(self) -> dict[str, object]:
        """The entry in results.json: the row's summary, and the rounds that it summarizes."""
        summary = {"median": self.median, "p99": self.p99, "low": self.low, "high": self.high, "rounds": self.rounds}
        return {
            "scenario": self.scenario,
            "peer": self.peer,
            "case": self.case,
            "metric": self.metric,
            "unit": self.unit,
            **summary,
            "values": list(self.values),
            "p99s": list(self.p99s),
        }


def row_from_json(line: Mapping[str, Any]) -> Row:
    """The inverse of `as_json`."""
    return Row(
        scenario=line["scenario"],
        peer=line["peer"],
        case=line["case"],
        metric=line["metric"],
        unit=line["unit"],
        values=tuple(line["values"]),
        p99s=tuple(line["p99s"]),
    )


def rows_of(scenario: str, peer: str, case: str, rounds: Sequence[Measurements]) -> list[Row]:
    """One row per metric, in the order in which the first round names them.

    A metric that is not in every round, or that changes its unit, is an error in the scenario: ValueError.
    """
    rows: list[Row] = []
    for metric, first in (rounds[0] if rounds else {}).items():
        where = f"{scenario}, {peer}, {case}: {metric}"
        if any(metric not in each or each[metric].unit != first.unit for each in rounds):
            raise ValueError(f"{where}: is missing in a round, or has another unit there")
        all_rounds = [each[metric] for each in rounds]
        p99s = tuple(each.p99 for each in all_rounds if each.p99 is not None)
        if p99s and len(p99s) != len(all_rounds):
            raise ValueError(f"{where}: is sampled in some rounds and counted in others")
        rows.append(Row(scenario, peer, case, metric, first.unit, tuple(each.value for each in all_rounds), p99s))
    return rows
