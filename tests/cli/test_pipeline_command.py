"""`fairlog pipeline`: what it says before Spark is started, and how it shows progress."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlog.cli.pipeline_output import COLUMNS, Lines, line, shown_progress

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pyspark_fairlog.pipeline import session
from pyspark_fairlog.pipeline.plan import PlanError
from pyspark_fairlog.pipeline.progress import StepProgress

Fairlog = Callable[..., tuple[int, str, str]]
STEP = ("--from", "orders", "--schema", "id bigint", "--sql", "SELECT id FROM orders", "--to", "out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "orders", "--to", "out"), "--sql is missing; give it, or a file"),
        (("file.toml", "--to", "out"), "not allowed with a file, which contains the steps"),
        ((*STEP, "--conf", "spark.x"), "'spark.x' is not KEY=VALUE"),
        ((*STEP, "--conf", "driver.memory=4g"), "did you mean spark.driver.memory?"),
        ((*STEP, "--mode", "complete"), "complete"),
    ],
)
def test_wrong_command_line_is_wrong_usage(fairlog: Fairlog, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2, as for all commands."""
    code, _, error = fairlog("pipeline", *arguments)
    assert code == 2
    assert said in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*STEP, "--watermark", "soon"), "orders-to-out: watermark: 'soon' is not a column"),
        (("no-such.toml",), "cannot read no-such.toml"),
        ((*STEP, "--bootstrap", "127.0.0.1:1"), "cannot reach a broker at 127.0.0.1:1"),
    ],
)
def test_pipeline_that_cannot_be_is_a_sentence(fairlog: Fairlog, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 1, in a moment: Spark is not started for it."""
    code, out, error = fairlog("pipeline", *arguments)
    assert (code, out) == (1, "")
    assert said in error
    assert error.count("\n") == 1


def test_file_is_named_with_what_is_wrong_in_it(fairlog: Fairlog, tmp_path: Path) -> None:
    """The file, the step, the setting."""
    file = tmp_path / "p.toml"
    file.write_text('name = "p"\n[[step]]\nfrom = "a"\nto = "b"\nsql = "SELECT 1"\nschemo = "x int"\n')
    assert fairlog("pipeline", str(file)) == (
        1, "", f"fairlog: {file}: step a-to-b: nothing is called schemo; did you mean schema?\n"
    )  # fmt: skip


def test_missing_spark_is_said_with_what_to_install(fairlog: Fairlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the command line does without."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert fairlog("pipeline", *STEP) == (1, "", "fairlog: pipeline needs Spark: pip install 'fairlog[spark]'\n")


def test_missing_or_old_java_is_said_with_what_to_install(
    fairlog: Fairlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark itself would say it in a stack trace."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java 17 or newer, and there is none at" in fairlog("pipeline", *STEP)[2]
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    assert f"Spark needs Java 17 or newer, and {java} is 11: install one" in fairlog("pipeline", *STEP)[2]
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    session.check_java()


def test_line_of_progress_says_what_is_known() -> None:
    """What is not known, or is nothing, is left out."""
    done = StepProgress("hours", batch=3, rows_in=12_000, rows_out=7, in_per_s=1234.5, out_per_s=0.7)
    assert line(done) == "hours: batch 3, 12,000 rows in (1,234/s), 7 out (1/s)"


def test_lines_of_progress_come_once_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """However often one looks."""
    lines, steps = Lines(), [StepProgress("a", batch=0, behind=5, state_rows=2), StepProgress("b")]
    lines.show(steps)
    lines.show(steps)
    lines.show([StepProgress("a", batch=1), StepProgress("b", batch=0)])
    assert [each.partition(",")[0] for each in capsys.readouterr().err.splitlines()] == [
        "a: batch 0",
        "a: batch 1",
        "b: batch 0",
    ]


def test_progress_on_a_terminal_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each step; what is not known yet is a dash."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with shown_progress() as show:
        show([StepProgress("hours", batch=3, rows_in=12_000, rows_out=7, behind=0), StepProgress("days")])
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", terminal.getvalue())
    rows = [row.split() for row in shown.splitlines()]
    assert " ".join(COLUMNS).split() in rows
    assert ["hours", "3", "12,000", "0", "7", "0", "0", "0"] in rows
    assert ["days", "-", "0", "0", "0", "0", "-", "0"] in rows


def test_spark_that_does_not_start_is_said_with_javas_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first line of such an exception only says which constructor was called."""

    def refused(_: object) -> None:
        raise RuntimeError(
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'nonsense'\n"
            "\tat org.apache.spark.SparkContext$.x(SparkContext.scala:1)"
        )

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refused)
    with (
        (tmp_path / "spark.log").open("ab") as log,
        pytest.raises(PlanError) as raised,
        session.spark_session("p", "nonsense", {}, log),
    ):
        pass
    assert str(raised.value) == (
        f"Spark cannot be started on nonsense: Could not parse Master URL: 'nonsense'; {log.name} says more"
    )
