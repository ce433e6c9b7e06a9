"""The Flink job of the tests, which writes numbers exactly once: started, killed, resumed, and judged by what it wrote.

It flushes a transaction, makes a checkpoint, and commits afterwards: by another process, if it has died in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from peers.processes import Program

from tests.clients.modes import Mode
from tests.engines import topics
from tests.engines.jvm import FLINK
from tests.engines.programs import POLL_S, WAIT_S

COUNT = 20_000
_ENCAPSULATED = ("java.lang", "java.util", "java.util.concurrent", "java.nio", "java.net", "java.io", "java.time")
JAVA = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _ENCAPSULATED)
"""As Flink's own start scripts have it."""


class Job:
    """Writes the numbers below COUNT into a topic; each start goes on from the last checkpoint."""

    def __init__(self, address: str, topic: str, directory: Path) -> None:
        self._arguments = (address, topic, str(COUNT))
        self._checkpoints = directory / "checkpoints"
        self._program = Program([], directory / "flink.log")

    def start(self) -> None:
        done = sorted(self._checkpoints.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime_ns)
        arguments = [*self._arguments, str(self._checkpoints), *(str(path.parent) for path in done[-1:])]
        self._program.command = FLINK.command("WriteNumbers", *arguments, options=JAVA)
        self._program.spawn()

    def kill(self) -> None:
        self._program.kill()

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        """Fails the test if the job ends before, or if it takes too long."""
        deadline = time.monotonic() + WAIT_S
        while not reached():
            assert self._program.running, f"the job ended before {what}:\n{self._program.output_tail()}"
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s:\n{self._program.output_tail()}"
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Wait until it has written everything."""
        deadline = time.monotonic() + WAIT_S
        while self._program.running:
            assert time.monotonic() < deadline, f"the job does not end:\n{self._program.output_tail()}"
            time.sleep(POLL_S)
        assert self._program.status == 0, self._program.output_tail(200)


def written(address: str, topic: str) -> int:
    """How far the topic goes."""
    return topics.ends(address, topic, 1)[0]


def assert_all_rows(address: str, topic: str, mode: Mode) -> None:
    """Each number once."""
    [values] = topics.committed_values(address, topic, 1, mode)
    assert not topics.differs(values, map(str, range(COUNT)))
