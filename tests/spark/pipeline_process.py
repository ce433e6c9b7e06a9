"""`fairlog pipeline` as a process: started, watched by the lines that it writes, killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scripts.node_process import ROOT

POLL_S = 0.05
PATIENCE_S = 240.0
"""For a step that takes some ten seconds on a machine that does nothing else."""

_BEHIND = re.compile(r"^([\w.-]+): batch .*?, ([\d,]+) behind", re.MULTILINE)
_BATCH = re.compile(r"^([\w.-]+): batch (\d+), ", re.MULTILINE)


class PipelineProcess:
    """One run. Its output goes to files in `directory`, so that it never waits for a reader."""

    def __init__(self, directory: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._out, self._err = directory / "pipeline.out", directory / "pipeline.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "fairlog.cli", "pipeline", *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
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

    def wait_for_batches(self, step: str, least: int) -> None:
        """Return when the step has reported so many, or can report no more: there is nothing left, or it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.ended and self.batches(step) < least and not self.idle:
            assert time.monotonic() < deadline, f"nothing happened for {PATIENCE_S} s:\n{self.err}"
            time.sleep(POLL_S)

    @property
    def idle(self) -> bool:
        """Has every step that said how far it is behind come to the end?"""
        last = dict(_BEHIND.findall(self.err))
        return bool(last) and set(last.values()) == {"0"} and len(last) > 1

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
