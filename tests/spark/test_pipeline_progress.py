"""Spark's reports folded into how far a step is."""

from __future__ import annotations

from typing import Any

from pyspark_fairlog.pipeline.progress import StepProgress, behind, folded


def report(number: int, *, batch: int, rows: int = 0, out: int = 0, end: int = 0, done: bool = True) -> dict[str, Any]:
    """A report as Spark makes it, of what is used of it."""
    return {
        "timestamp": f"2026-11-22T09:18:{number:02}.000Z",
        "batchId": batch,
        "batchDuration": 500,
        "numInputRows": rows,
        "durationMs": {"addBatch": 400} if done else {"latestOffset": 1},
        "stateOperators": [{"numRowsTotal": 3}, {"numRowsTotal": 4}],
        "sources": [{"endOffset": {"#version": 2, "#topicIds": {"orders": "0f"}, "orders": {"0": end, "1": 7}}}],
        "observedMetrics": {"fairlog_out": {"rows": out}},
    }


def test_reports_add_up_and_each_counts_once() -> None:
    """Spark keeps its last reports, so the same ones are seen at every look."""
    progress = StepProgress("s")
    for each in (report(1, batch=0, rows=100, out=10, end=50), report(2, batch=1, rows=40, out=2, end=70)):
        for _ in range(2):
            progress = folded(progress, each, reads=1)
    assert (progress.batch, progress.rows_in, progress.rows_out, progress.state_rows) == (1, 140, 12, 7)
    assert (progress.in_per_s, progress.out_per_s) == (80, 4)
    assert behind(progress.read_to, {("orders", 0): 75, ("orders", 1): 7, ("orders", 2): 3}) == 8


def test_idle_look_is_no_batch() -> None:
    """An idle query reports under the id of the batch that would be next; rates stay those of the last rows."""
    progress = folded(StepProgress("s"), report(1, batch=4, rows=10, out=1), reads=1)
    idle = folded(progress, report(2, batch=5, done=False), reads=1)
    assert (idle.batch, idle.rows_in, idle.in_per_s) == (4, 10, 20)


def test_records_that_are_read_twice_count_once() -> None:
    """Beside bad values that are set aside, each record is read a second time."""
    assert folded(StepProgress("s"), report(1, batch=0, rows=100), reads=2).rows_in == 50


def test_nothing_read_yet_is_not_known_to_be_behind() -> None:
    """Before the first batch there is nothing to compare with."""
    assert behind(None, {("orders", 0): 75}) is None
