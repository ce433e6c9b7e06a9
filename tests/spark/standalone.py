"""A standalone cluster of Spark on loopback, and a Python for its executors that has what docs/spark.md asks for.

Master and workers are started as Spark's own scripts do it (`spark-class`), each in a session of its own, so that a
worker can be killed with its executors and their Python processes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.node_process import ROOT
from tests.spark.counting import kill_session

READY_S = 120.0
POLL_S = 0.05

SHIPPED = ("pyarrow", "confluent_kafka", "cbor2")
"""All that executors need beside our own, where nobody signs in by SCRAM."""

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = "worker"
_REGISTERED = "Successfully registered with master"


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def executors_python(directory: Path) -> Path:
    """Make an environment with `SHIPPED` and nothing else, not even pyspark, which Spark brings; its Python."""
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], capture_output=True, check=True
    )
    packages = Path(asked.stdout.decode().strip())
    for name in SHIPPED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        installed = Path(spec.origin).parent
        for path in (installed, installed.with_name(f"{name}.libs")):  # some wheels have their libraries beside them
            if path.exists():
                (packages / path.name).symlink_to(path)
    return python


def zipped_package(directory: Path) -> Path:
    """`pyspark_fairlog`, and the module that it needs, as a file for the PYTHONPATH."""
    package = Path(shutil.make_archive(str(directory / "pyspark_fairlog"), "zip", ROOT, "pyspark_fairlog"))
    with zipfile.ZipFile(package, "a") as archive:
        archive.write(ROOT / "fairlog_client_security.py", "fairlog_client_security.py")
    return package


def environment(**more: str) -> dict[str, str]:
    """The caller's, without its ways to find Python modules."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    return kept | {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"} | more


class Program:
    """One of Spark's programs in a session of its own; what it says goes to a file."""

    def __init__(self, output: Path, script: str, *arguments: str, environment: Mapping[str, str]) -> None:
        self._output = output
        with output.open("wb") as file:
            self._child = subprocess.Popen(
                [str(spark_home() / "bin" / script), *arguments],
                cwd=output.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = READY_S) -> re.Match[str]:
        """The first match in what it says. It must not end before."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.output)) is None:
            assert not self.ended, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not say {pattern!r} in {timeout_s:.0f} s:\n{self.output}"
            time.sleep(POLL_S)
        return found

    def wait(self, timeout_s: float) -> int:
        """Its exit status."""
        return self._child.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to it and to all that it has started."""
        kill_session(self._child.pid)
        self._child.wait()


class Standalone:
    """A master and workers of one core each. `url` is for `--master`."""

    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        directory.mkdir()
        arguments = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master = Program(directory / "master.out", "spark-class", *arguments, environment=environment())
        self._workers: dict[Path, Program] = {}
        try:
            self.url = self._master.wait_for(_MASTER)[1]
            self._start_workers([directory / f"{_WORKER}{number}" for number in range(workers)])
        except BaseException:
            self.kill()
            raise

    def _start_workers(self, directories: Sequence[Path]) -> None:
        for work in directories:
            # Each has a host of its own: Spark does not start a task twice on one.
            host = f"127.0.0.{1 + int(work.name.removeprefix(_WORKER))}"
            self._workers[work] = Program(
                work.with_suffix(".out"),
                "spark-class",
                *("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0"),
                *("--cores", "1", "--memory", "512m", "--work-dir", str(work), self.url),
                environment=environment(),
            )
        for work in directories:
            self._workers[work].wait_for(_REGISTERED)

    def make_whole(self) -> None:
        """Start the workers that were killed."""
        self._start_workers([work for work, worker in self._workers.items() if worker.ended])

    def worker_at(self, path: Path) -> Path:
        """The worker, called by its directory, whose executor has `path` for its working directory."""
        return next(work for work in self._workers if path.is_relative_to(work))

    def workers(self) -> Iterator[Path]:
        """Those that run, called by their directories."""
        return (work for work, worker in self._workers.items() if not worker.ended)

    def kill_worker(self, work: Path) -> None:
        self._workers[work].kill()

    def kill(self) -> None:
        for program in (*self._workers.values(), self._master):
            program.kill()


def submit(
    output: Path, master: str, python: Path, package: Path, *program: str, conf: Mapping[str, str] | None = None
) -> Program:
    """`spark-submit` as docs/spark.md has it: the package is a zip on the PYTHONPATH, at one path for all."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
        "spark.ui.enabled": "false",
        **(conf or {}),
    }
    return Program(
        output,
        "spark-submit",
        *("--master", master),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        *program,
        environment=environment(
            PYTHONPATH=str(package), PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=sys.executable
        ),
    )
