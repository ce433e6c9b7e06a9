"""A Spark session for pipelines, in which Spark is quiet: what it has to say goes to a file.

Spark's processes (the JVM, and Python workers below it) inherit standard output and error when they are started; for
that moment both are the log file, so that the terminal is left to us.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pyspark_fairlog.pipeline.plan import PlanError
from pyspark_fairlog.pipeline.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
"""Spark 4 asks for it."""

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


def check_java() -> None:
    """Raises PlanError if there is no Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
    how = "install one (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
    if program is None or not Path(program).exists():
        raise PlanError(f"{needed}, and there is none at {program or 'any place of PATH'}: {how}")
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        raise PlanError(f"{needed}, and {program} is {found[1] if found else 'something else'}: {how}")


@contextmanager
def spark_session(name: str, master: str, settings: Mapping[str, str], log: BinaryIO) -> Generator[SparkSession]:
    """A session, stopped at the end. Raises PlanError if Spark does not start; `log` says more then."""
    # What pyspark itself logs of failed SQL is in the exceptions, too.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from py4j.protocol import Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(f"fairlog pipeline {name}")
    for key, value in {**_defaults(master), **settings}.items():
        builder = builder.config(key, value)
    with _output_to(log.fileno()):
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise PlanError(
                f"Spark cannot be started on {master}: {reason(str(error))}; {log.name} says more"
            ) from error
    try:
        yield session
    finally:
        with suppress(Py4JNetworkError, ConnectionRefusedError, ConnectionResetError):  # it is gone already
            session.stop()


def _defaults(master: str) -> Mapping[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if "PYTHONPATH" in os.environ:
        # Spark passes it on to executors for the sources that it has found by itself, and for none that is registered.
        settings["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    local = _LOCAL.fullmatch(master)
    if local:
        cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
        # As many partitions of the state as there are cores: Spark's 200 would make each micro-batch 200 tasks.
        settings |= {
            "spark.sql.shuffle.partitions": str(cores),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    return settings


@contextmanager
def _output_to(descriptor: int) -> Generator[None]:
    """What is started in the block has `descriptor` for its standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(descriptor, number)
        yield
    finally:
        for number, earlier in enumerate(kept, start=1):
            os.dup2(earlier, number)
            os.close(earlier)
