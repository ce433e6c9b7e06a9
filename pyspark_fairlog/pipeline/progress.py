"""How far the steps are: Spark's reports, one for each micro-batch, folded into a line for each step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pyspark_fairlog.options import OURS

OUT = "fairlog_out"
"""The observed metric that counts the rows that a step writes (`steps`)."""

Ends = Mapping[tuple[str, int], int]
"""By (topic, partition): the offset behind the last record that was read, or that can be read."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """One step since this run began. Rates are those of the last micro-batch that had rows, in rows per second."""

    name: str
    batch: int | None = None
    """The last micro-batch that was done; None before the first one."""
    rows_in: int = 0
    rows_out: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    state_rows: int = 0
    read_to: Ends | None = None
    behind: int | None = None
    """Records that can be read and that no batch has read; None if that is not known."""
    reported: str = ""
    """When the last report's batch began, which tells reports apart."""


def folded(before: StepProgress, report: Mapping[str, Any], *, reads: int) -> StepProgress:
    """With one more report, unless it was folded already. The step reads each record `reads` times."""
    begun, batch = str(report["timestamp"]), int(report["batchId"])
    if begun <= before.reported:
        return before
    duration_s = max(int(report["batchDuration"]), 1) / 1000
    rows_in = int(report["numInputRows"]) // reads
    observed: Any = report.get("observedMetrics") or {}
    rows_out = int(observed[OUT]["rows"]) if OUT in observed else 0
    sources: Any = report.get("sources") or ({},)
    # An idle trigger reports as well, with the id of the batch that it would have been.
    done = "addBatch" in (report.get("durationMs") or {})
    busy = rows_in or rows_out
    return replace(
        before,
        batch=batch if done else before.batch,
        rows_in=before.rows_in + (rows_in if done else 0),
        rows_out=before.rows_out + (rows_out if done else 0),
        in_per_s=rows_in / duration_s if busy and done else before.in_per_s,
        out_per_s=rows_out / duration_s if busy and done else before.out_per_s,
        state_rows=sum(int(each["numRowsTotal"]) for each in report.get("stateOperators") or ()),
        read_to=ends_of(sources[0].get("endOffset")) or before.read_to,
        reported=begun,
    )


def ends_of(offsets: object) -> Ends | None:
    """What stands in a source's offsets, {"topic": {"0": 42}}; None if they are no such thing."""
    if not isinstance(offsets, dict):
        return None
    named = cast("Mapping[str, Mapping[str, int]]", offsets)
    return {
        (topic, int(partition)): int(end)
        for topic, partitions in named.items()
        if not topic.startswith(OURS)
        for partition, end in partitions.items()
    }


def behind(read_to: Ends | None, ends: Ends) -> int | None:
    """How many records lie between what was read and what can be read."""
    if read_to is None:
        return None
    return sum(max(0, end - read_to.get(place, 0)) for place, end in ends.items())
