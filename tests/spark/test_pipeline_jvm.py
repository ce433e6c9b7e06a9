"""A pipeline whose JVM is gone, as the kernel kills one for want of memory: no Spark, but what py4j says then."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from pyspark_fairlog.pipeline import running
from pyspark_fairlog.pipeline.plan import pipeline_of_options
from pyspark_fairlog.pipeline.running import StepFailed, run_pipeline

PIPELINE = pipeline_of_options({}, {"from": "a", "to": "b", "sql": "SELECT 1", "schema": "x int"})


class GoneQuery:
    """A query of a JVM that is not there any more."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        raise Py4JNetworkError("Answer from Java side is empty")

    def stop(self) -> None:
        raise ConnectionRefusedError("refused")


class GoneStep:
    step = PIPELINE.steps[0]
    reads = 1

    def start(self) -> GoneQuery:
        return GoneQuery()


def test_jvm_that_is_gone_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in a traceback of py4j's, whichever call meets it first."""
    monkeypatch.setattr(running, "plan_steps", lambda *_: [GoneStep()])
    with pytest.raises(StepFailed, match=r"Spark's JVM is gone: .*spark\.driver\.memory"):
        run_pipeline(cast("Any", None), PIPELINE, threading.Event(), show=lambda _: None, ask_ends=lambda _: None)
