"""What `fairlog audit` says, and its exit codes; the audit itself is tried in `tests/spark`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fairlog.cli import audit
from fairlog.directory import locked_directory

pytest.importorskip("pyspark")

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fairlog.audit.job import Finding, Report
from tests.cli.in_process import FairlogCommand, fairlog_command

PROVED = {"batches": 1234}
FINDING = Finding("hole", 2, "orders-0", 3, "the offsets 3 to 3 are missing")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs `fairlog audit` in this process: exit code, stdout, stderr."""
    return partial(fairlog_command(monkeypatch, capsys), "audit")


def made(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    monkeypatch.setattr(audit, "_made", lambda *_: report)


def test_findings_are_a_table_and_exit_code_1(
    run: FairlogCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each with its place; how many there are of each kind, and how to see more, in every shard."""
    made(monkeypatch, Report([FINDING], {"hole": 1, "sequence": 2000}, PROVED, {"older batches": 5}, 1.5))
    for shard in ("0", "10", "2"):
        (tmp_path / "shards" / shard).mkdir(parents=True)
    code, out, err = run(tmp_path)
    assert (code, err) == (1, "")
    for words in (
        "the offsets 3 to 3 are missing",
        "orders-0",
        "2,001 findings in all, 1 shown",
        "1,234",
        "not checked: 5 older batches",
        *(f"fairlog inspect {tmp_path}/shards/{shard}/datalog/data.mdb --from OFFSET" for shard in (0, 2, 10)),
    ):
        assert words in out, out


def test_nothing_found_is_said_with_what_was_looked_at_and_exit_code_0(
    run: FairlogCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of which nothing could be read would show in the numbers."""
    made(monkeypatch, Report([], {}, PROVED, {}, 1.5))
    code, out, err = run("data")
    assert (code, err) == (0, "")
    assert out.startswith("data: no findings. Checked:\n")
    assert "1,234" in out


@pytest.mark.parametrize(("kinds", "code"), [({}, 0), ({"hole": 7}, 1)])
def test_json_has_all_and_the_same_exit_code(
    run: FairlogCommand, monkeypatch: pytest.MonkeyPatch, kinds: dict[str, int], code: int
) -> None:
    """One document for programs."""
    made(monkeypatch, Report([FINDING][: len(kinds)], kinds, PROVED, {}, 1.5))
    found, out, _ = run("data", "--json")
    document = json.loads(out)
    assert found == code
    assert document["total"] == sum(kinds.values())
    assert document["proved"] == PROVED
    assert [each["log"] for each in document["findings"]] == ["orders-0"][: len(kinds)]


class TaskFailed(Py4JJavaError):
    """As Spark ends a job: an exception of Java's, whose text is fetched from the JVM."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        return (
            "An error occurred while calling o42.count.\n: org.apache.spark.SparkException: Job aborted due to stage "
            "failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) "
            "(here executor driver): java.io.IOException: No space left on device\n\tat java.io.Some.line(Some.java:1)"
        )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TaskFailed(), "No space left on device"),
        (Py4JNetworkError("the JVM is gone"), "the JVM is gone"),
        (PySparkException("refused by Spark"), "refused by Spark"),
    ],
    ids=["task", "JVM", "refusal"],
)
def test_job_that_fails_is_exit_code_2(
    run: FairlogCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    """It is no finding, which is what an exception that nobody catches would say: 1 is Python's code for these."""

    def fails(*_: object, **__: object) -> Report:
        raise error

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: MagicMock())
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr("fairlog.audit.job.audit", fails)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "data.mdb").touch()
    code, out, err = run(tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("fairlog: Spark has given the job up: ")
    assert told in err
    assert "Some.java" not in err


def test_directory_of_nobody_is_exit_code_2(run: FairlogCommand, tmp_path: Path) -> None:
    """A typing error is neither "nothing found" nor a finding."""
    code, out, err = run(tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "is not a data directory: it does not contain cluster/data.mdb" in err


def test_directory_of_a_running_node_is_exit_code_2(run: FairlogCommand, tmp_path: Path) -> None:
    """Said before Spark is started."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "data.mdb").touch()
    with locked_directory(tmp_path):
        code, out, err = run(tmp_path)
    assert (code, out) == (2, "")
    assert "is in use by process" in err
    assert "stop the node first" in err
