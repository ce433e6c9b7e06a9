"""One run at a time with a pipeline's checkpoints, also when the last one was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_fairlog.pipeline.checkpoints import LOG, held
from pyspark_fairlog.pipeline.plan import PlanError


def test_second_run_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    """While one runs, the other one is told where."""
    place = tmp_path / "a" / "b"
    with held(place) as log:
        log.write(b"x")
        with pytest.raises(PlanError, match=r"runs with the checkpoints in .*/a/b already"), held(place, patience_s=0):
            raise AssertionError
    waits: list[str] = []
    with (
        held(place),
        pytest.raises(PlanError),
        held(place, patience_s=0.2, on_wait=lambda: waits.append("once")),
    ):
        raise AssertionError
    assert waits == ["once"], "whoever waits is told so, and not at each look"
    with held(place, patience_s=0):
        assert (place / LOG).read_bytes() == b"x"


def test_child_that_outlives_its_run_keeps_the_place(tmp_path: Path) -> None:
    """What a killed driver leaves running may still write; the next run waits until it is gone."""
    with held(tmp_path) as log:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=log, stderr=log)
    with pytest.raises(PlanError, match="already"), held(tmp_path, patience_s=0):
        raise AssertionError
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    with held(tmp_path, patience_s=0):
        pass


def test_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A sentence, and no traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match=r"cannot use .*/file for checkpoints"), held(tmp_path / "file"):
        raise AssertionError
