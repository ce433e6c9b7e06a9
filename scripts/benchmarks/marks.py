"""The marks to reach: each a value made of a run's rows, and the bound that it should keep. Pure.

A mark is computed from medians of one run. Its spread is that of the same value made of each round alone, since the
peers were measured in turns. A mark whose rows are missing says which, and is neither reached nor missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import Results
from benchmarks.rows import Row

AT_MOST, AT_LEAST = "at most", "at least"


@dataclass(frozen=True, slots=True)
class Figure:
    """Which row a mark looks at."""

    peer: str
    case: str
    metric: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One promise. `value` gets the figures' medians, in their order, or one round's values."""

    scenario: str
    text: str
    figures: Sequence[Figure]
    value: Callable[[Sequence[float]], float]
    direction: str
    bound: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mark; `value` is None if it could not be computed, and `why` says why."""

    mark: Mark
    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def reached(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.mark.bound if self.mark.direction == AT_MOST else self.value >= self.mark.bound


def _ratio(values: Sequence[float]) -> float:
    return values[0] / values[1] if values[1] else float("inf")


def _difference(values: Sequence[float]) -> float:
    return values[0] - values[1]


def _itself(values: Sequence[float]) -> float:
    return values[0]


def _off_percent(values: Sequence[float]) -> float:
    """How far the first is from the second, in percent, either way."""
    return abs(_ratio(values) - 1) * 100


def verdict(mark: Mark, results: Results) -> Verdict:
    """What the mark's rows say."""
    rows: list[Row] = []
    for figure in mark.figures:
        row = results.find(mark.scenario, figure.peer, figure.case, figure.metric)
        if row is None:
            return Verdict(mark, None, why=f"no {figure.metric} of {figure.peer} for {figure.case}")
        rows.append(row)
    by_round = [mark.value(values) for values in zip(*(row.values for row in rows), strict=False)]
    return Verdict(mark, mark.value([row.median for row in rows]), min(by_round), max(by_round))


def _both(first: str, second: str, case: str, metric: str) -> tuple[Figure, Figure]:
    """The same figure of two peers."""
    return Figure(first, case, metric), Figure(second, case, metric)


def _ratio_at_most(scenario: str, other: str, case: str, metric: str, bound: float) -> Mark:
    text = f"{metric}, {case}, journal ÷ {other}"
    return Mark(scenario, text, _both("journal", other, case, metric), _ratio, AT_MOST, bound)


_SMALL, _EVERY_100_MS = "10 × 2", "commit every 100 ms"
_SEEN = "transaction of 10 × 1 KB to 2 partitions"

MARKS: tuple[Mark, ...] = (
    _ratio_at_most("txn-latency", "markers", _SMALL, "transaction", 0.8),
    _ratio_at_most("txn-latency", "kafka-fsync", _SMALL, "transaction", 0.6),
    _ratio_at_most("txn-latency", "kafka", _SMALL, "transaction", 1.0),
    Mark(
        "txn-latency", f"transaction, {_SMALL}, journal − mock",
        _both("journal", "mock", _SMALL, "transaction"), _difference, AT_MOST, 1.0, "ms",
    ),
    Mark(
        "txn-throughput", f"loss, {_EVERY_100_MS}, journal",
        [Figure("journal", _EVERY_100_MS, "loss")], _itself, AT_MOST, 3.0, "%",
    ),
    _ratio_at_most("visible", "kafka", _SEEN, "produced to seen", 1.0),
)  # fmt: skip
"""In the order of the report. The names of cases and metrics are the scenarios' own."""
