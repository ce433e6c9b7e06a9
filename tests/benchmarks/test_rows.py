"""Rows: what a summary of rounds says, and that it loses nothing on its way through JSON."""

from __future__ import annotations

import json

import pytest
from benchmarks.rows import Row, counted, quantile, row_from_json, rows_of, sampled

ROW = Row("visible", "journal", "plain", "seen", "ms", (3.0, 1.0, 2.0), (9.0, 7.0, 8.0))


def test_row_summary_is_of_the_rounds() -> None:
    """Median, lowest and highest are those of the rounds; p99 is the median of the rounds' own."""
    assert (ROW.median, ROW.p99, ROW.low, ROW.high, ROW.rounds) == (2.0, 8.0, 1.0, 3.0, 3)


def test_row_through_json_is_the_same() -> None:
    """What is written into results.json is read as it was, and has the fields that its readers are promised."""
    line = json.loads(json.dumps(ROW.as_json()))
    assert row_from_json(line) == ROW
    promised = {"scenario", "peer", "case", "metric", "unit", "median", "p99", "low", "high", "rounds"}
    assert promised <= set(line)


def test_row_of_counted_quantity_has_no_p99() -> None:
    """What a round has one value of has no percentiles."""
    row = rows_of("s", "p", "c", [{"rate": counted("MB/s", 1.0)}, {"rate": counted("MB/s", 3.0)}])[0]
    assert row == Row("s", "p", "c", "rate", "MB/s", (1.0, 3.0))
    assert row.p99 is None


def test_rows_keep_the_order_of_metrics_and_rounds() -> None:
    """Rows come as the first round names them, and their values as the rounds were measured."""
    rounds = [{"b": counted("s", 2.0), "a": sampled("ms", [1.0])}, {"a": sampled("ms", [5.0]), "b": counted("s", 1.0)}]
    rows = rows_of("s", "p", "c", rounds)
    assert [(row.metric, row.values) for row in rows] == [("b", (2.0, 1.0)), ("a", (1.0, 5.0))]


@pytest.mark.parametrize(
    "second",
    [{}, {"rate": counted("s", 1.0)}, {"rate": sampled("MB/s", [1.0])}],
    ids=["missing", "other unit", "sampled here only"],
)
def test_rows_of_rounds_that_do_not_agree_are_refused(second: dict[str, object]) -> None:
    """Rounds that measured different things make no row: a figure is never a mixture."""
    with pytest.raises(ValueError, match="rate"):
        rows_of("s", "p", "c", [{"rate": counted("MB/s", 1.0)}, second])  # type: ignore[list-item]


def test_sampled_without_samples_is_refused() -> None:
    """A round in which nothing was measured is an error, not a zero."""
    with pytest.raises(ValueError, match="nothing was sampled"):
        sampled("ms", [])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_quantile_is_one_of_the_values(share: float, expected: int) -> None:
    """A percentile is a value that was measured, never one in between."""
    assert quantile(range(100, 0, -1), share) == expected
