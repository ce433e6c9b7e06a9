"""Which of two figures is better, and by how much, for the journal mode and every other peer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results import Results
from benchmarks.rows import Row

OURS, BASELINE = "journal", "mock"
LOST_FROM = 1.02
"""Worse by more than two percent: smaller differences occur between rounds."""

SHARES = frozenset({"%", "ratio"})
"""Units of metrics that already compare two figures of one peer; those figures are compared separately."""

AMOUNTS = frozenset({"transactions"})
"""Units for the amount of work in a round: context, neither better nor worse if larger."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the journal mode, with another broker's."""

    row: Row
    other: Row

    @property
    def times_worse(self) -> float:
        """Above 1 if the journal mode is worse: 1.5 means 1.5 times the time, or two thirds of the rate."""
        ratio = ratio_of(self.row, self.other)
        assert ratio is not None
        if more_is_better(self.row.unit):
            return 1 / ratio if ratio else float("inf")
        return ratio

    @property
    def lost(self) -> bool:
        return self.times_worse > LOST_FROM


def comparisons(results: Results) -> Iterator[Comparison]:
    """Every figure of the journal mode, with that of every broker that does the same work."""
    peers = list(dict.fromkeys(row.peer for row in results.rows))
    for row in results.rows:
        if row.peer != OURS:
            continue
        for peer in peers:
            other = results.find(row.scenario, peer, row.case, row.metric)
            if peer not in (OURS, BASELINE) and other is not None and ratio_of(row, other) is not None:
                yield Comparison(row, other)


def more_is_better(unit: str) -> bool:
    """Whether larger is better: for rates it is; for times, sizes and costs it is not."""
    return unit.endswith("/s")


def ratio_of(row: Row, other: Row) -> float | None:
    """The ratio of the medians; None where it means nothing: for shares, for amounts, and if one is not positive."""
    if row.unit in SHARES | AMOUNTS or row.median <= 0 or other.median <= 0:
        return None
    return row.median / other.median


def figure(value: float) -> str:
    """Three significant digits in the usual form: 0.0123, 1.23, 12.3, 1,234."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"
