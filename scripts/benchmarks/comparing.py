"""Which of two figures is better, and by how much: between the journal mode and every other peer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results import Results
from benchmarks.rows import Row

OURS, BASELINE = "journal", "mock"
LOST_FROM = 1.02
"""Worse by more than two percent: less is within what rounds differ by."""

SHARES = frozenset({"%", "ratio"})
"""Units of what is a comparison already, of two figures of one peer: those are compared, each by itself."""

AMOUNTS = frozenset({"transactions"})
"""Units of how much a round did: context, of which more is neither better nor worse."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the journal mode beside another broker's."""

    row: Row
    other: Row

    @property
    def times_worse(self) -> float:
        """Above 1 if the journal mode is worse: 1.5 is half as much time again, or two thirds of the rate."""
        ratio = ratio_of(self.row, self.other)
        assert ratio is not None
        if more_is_better(self.row.unit):
            return 1 / ratio if ratio else float("inf")
        return ratio

    @property
    def lost(self) -> bool:
        return self.times_worse > LOST_FROM


def comparisons(results: Results) -> Iterator[Comparison]:
    """Every figure of the journal mode beside that of every broker that does the same work."""
    peers = list(dict.fromkeys(row.peer for row in results.rows))
    for row in results.rows:
        if row.peer != OURS:
            continue
        for peer in peers:
            other = results.find(row.scenario, peer, row.case, row.metric)
            if peer not in (OURS, BASELINE) and other is not None and ratio_of(row, other) is not None:
                yield Comparison(row, other)


def more_is_better(unit: str) -> bool:
    """Rates are; times, sizes, and what something costs are not."""
    return unit.endswith("/s")


def ratio_of(row: Row, other: Row) -> float | None:
    """Of the medians; None where a ratio says nothing: of shares, of mere amounts, and if one is not positive."""
    if row.unit in SHARES | AMOUNTS or row.median <= 0 or other.median <= 0:
        return None
    return row.median / other.median


def figure(value: float) -> str:
    """Three digits that count, as people write them: 0.0123, 1.23, 12.3, 1,234."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"
