"""`fairlog pipeline` as a process: started, watched by the lines that it writes, killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scripts.node_process import ROOT

POLL_S = 0.05
PATIENCE_S = 240.0
"""For a step that takes some ten seconds on a machine that does nothing else."""

_BATCH = re.compile(r"^([\w.-]+): batch (\d+), ", re.MULTILINE)


class PipelineProcess:
    """One run. Its output goes to files in `directory`, so that it never waits for a reader."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._out, self._err = directory / "pipeline.out", directory / "pipeline.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "fairlog.cli", "pipeline", *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Spark's processes are in it, too
            )

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def batches(self, step: str) -> int:
        """How many micro-batches of the step this run has reported."""
        return sum(name == step for name, _ in _BATCH.findall(self.err))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds or the process has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and not self.ended:
            assert time.monotonic() < deadline, f"nothing happened for {PATIENCE_S} s:\n{self.err}"
            time.sleep(POLL_S)

    def wait(self) -> int:
        """The exit status."""
        return self._child.wait(PATIENCE_S)

    def interrupt(self) -> None:
        """Ctrl-C, to the process alone."""
        self._child.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the driver alone: Spark's own processes find out by themselves, as in a crash."""
        self._child.kill()
        self._child.wait()

    def kill_all(self) -> None:
        """For the end of a test: nothing of it stays."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._child.wait()
