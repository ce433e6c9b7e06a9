"""Run the tests in an environment of their own: `python3 scripts/test.py [pytest arguments]`.

The first run creates .venv and installs the packages in requirements-test.lock; later runs start at once. Tests of real
nodes and clients wait more than they compute, so several processes run them, a file at a time. `-n 0` runs all in one
process, as a debugger needs. Spark's tests run after the others, in fewer processes, since each has a JVM. Failures of
both parts are repeated at the end, with the stacks of tests that hung (tests/hung.py). Files are in memory, if there is
enough space (scratch.py).

The console is tested in Chromium, the protocol also with kcat, two-phase commit with PostgreSQL, and the data source
with Spark and its Java 17, together with the Kafka connector's jars from Maven. Kafka's brokers (tests/on_kafka), and
its own clients and engines (tests/engines), also come from Maven. On CI (the variable CI is set) missing programs are
installed; elsewhere their tests are skipped, and say what is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import debian
import environment
import failures
import scratch
from peers import kafka_artifacts

WORKERS_PER_CORE = 1.5
"""With more processes, the load of some tests delays others: no test is timed, but clients give up."""

SPARK = "tests/spark"
SPARK_WORKERS = 2

GREEN, RED = 0, 1
"""Pytest's exit codes when it has run the tests."""


def main() -> None:
    python = environment.ensure("test")
    if os.environ.get("CI"):
        debian.ensure()
        _have_jars()
        _have_engines(python)
    os.chdir(environment.ROOT)
    sys.stdout.flush()
    with scratch.directory() as files:
        workers = max(1, int((os.cpu_count() or 1) * WORKERS_PER_CORE))
        chosen = sys.argv[1:]
        if code := _pytest(python, files, workers, chosen) if chosen else _all(python, files, workers):
            sys.exit(code)


def _all(python: Path, files: Path, workers: int) -> int:
    """Run both parts and repeat the failures; returns the exit code of the first part that failed."""
    reports = [files / "node.xml", files / "spark.xml"]
    codes = [
        _pytest(python, files, workers, ["--ignore", SPARK, f"--junitxml={reports[0]}"]),
        _pytest(python, files, SPARK_WORKERS, [SPARK, f"--junitxml={reports[1]}"]),
    ]
    print(failures.tell(reports), *(path.read_text("utf-8") for path in files.glob("hung-*.txt")), flush=True)
    return codes[0] or codes[1]


def _have_jars() -> None:
    """Those of Kafka and of the connector to it. Exits with a message if they are not available."""
    try:
        kafka_artifacts.obtain()
        kafka_artifacts.obtain_connector()
    except kafka_artifacts.Unavailable as error:
        sys.exit(str(error))


def _have_engines(python: Path) -> None:
    """Exits if something that tests/engines needs is not available; the message was already printed."""
    if subprocess.run([python, "-m", "tests.engines", "--obtain"], cwd=environment.ROOT, check=False).returncode:
        sys.exit("the engines of tests/engines cannot be had")


def _pytest(python: Path, files: Path, workers: int, arguments: Sequence[str]) -> int:
    """Returns pytest's exit code. All files of the tests, and of Spark, are created in `files`.

    Other output than pytest's goes to a file there: clients that outlive their test log many errors about a stopped
    node. It is shown if pytest reached no verdict, since it may contain the reason.
    """
    spread = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    environ = os.environ | {"TMPDIR": str(files), "SPARK_LOCAL_DIRS": str(files)}
    # Whatever the caller has: a node is started more than a thousand times, and would compile its modules each time.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    aside = files / "stderr"
    with aside.open("wb") as stderr:
        command = [str(python), "-m", "pytest", *spread, *arguments]
        code = subprocess.run(command, env=environ, stderr=stderr, check=False).returncode
    if code not in (GREEN, RED):
        print(aside.read_text(encoding="utf-8", errors="replace"), flush=True)
    return code


if __name__ == "__main__":
    main()
