"""Runs the steps: starts their queries, watches them, and ends them all when one fails or somebody says stop.

A pipeline that goes on has all its queries at once. One that works off what is there and ends (`available-now`) has one
after the other, in their order: a step takes the end of its topic when it begins, and what the steps before it have
written is there by then, because a commit is answered when its records can be read.

Stopping loses nothing: the micro-batch that is under way is not committed, and the next run does it again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]

from pyspark_fairlog.pipeline.plan import Pipeline
from pyspark_fairlog.pipeline.progress import Ends, StepProgress, behind, folded
from pyspark_fairlog.pipeline.reasons import reason
from pyspark_fairlog.pipeline.steps import PlannedStep, plan_steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.5
"""How often the queries are looked at."""

GONE = (Py4JNetworkError, ConnectionRefusedError, ConnectionResetError)
"""What py4j raises when there is no JVM any more."""

Show = Callable[[Sequence[StepProgress]], None]
AskEnds = Callable[[Iterable[str]], Ends | None]
"""The ends of topics just now; None if the broker does not answer."""


class StepFailed(Exception):
    """A step's query has failed. The message is one sentence that names the step."""


def run_pipeline(
    spark: SparkSession, pipeline: Pipeline, stop: threading.Event, *, show: Show, ask_ends: AskEnds
) -> Sequence[StepProgress]:
    """Run until the pipeline ends, or `stop` is set; answers how far it came. Raises PlanError, StepFailed."""
    try:
        return _run(spark, pipeline, stop, show, ask_ends)
    except GONE as error:
        raise StepFailed(
            "Spark's JVM is gone: it was killed, perhaps for want of memory, which spark.driver.memory sets; the same "
            "command goes on from here"
        ) from error


def _run(
    spark: SparkSession, pipeline: Pipeline, stop: threading.Event, show: Show, ask_ends: AskEnds
) -> Sequence[StepProgress]:
    planned = plan_steps(spark, pipeline)
    progress = {each.step.name: StepProgress(each.step.name) for each in planned}
    for together in [[each] for each in planned] if pipeline.ends else [list(planned)]:
        if not stop.is_set():
            _run_together(together, progress, stop, show, ask_ends)
    return list(progress.values())


def _run_together(
    steps: Sequence[PlannedStep],
    progress: dict[str, StepProgress],
    stop: threading.Event,
    show: Show,
    ask_ends: AskEnds,
) -> None:
    queries: list[StreamingQuery] = []
    try:
        queries.extend(each.start() for each in steps)
        while True:
            active = [query for query in queries if query.isActive]
            topics = [each.step.source for each in steps]
            ends = ask_ends(topics)
            for each, query in zip(steps, queries, strict=True):
                name = each.step.name
                progress[name] = _looked_at(progress[name], each, query, ends)
            show(list(progress.values()))
            for each, query in zip(steps, queries, strict=True):
                error = query.exception()
                if error is not None and not stop.is_set():
                    raise StepFailed(f"step {each.step.name} failed: {reason(str(error))}")
            if not active or stop.wait(LOOK_S):
                return
    finally:
        for query in queries:
            query.stop()


def _looked_at(before: StepProgress, step: PlannedStep, query: StreamingQuery, ends: Ends | None) -> StepProgress:
    after, last = before, query.lastProgress
    if last is not None and last.timestamp > before.reported:  # the list is long, and mostly known
        for report in query.recentProgress:
            after = folded(after, json.loads(report.json), reads=step.reads)
    if ends is None:
        return replace(after, behind=None)
    return replace(
        after, behind=behind(after.read_to, {at: end for at, end in ends.items() if at[0] == step.step.source})
    )
