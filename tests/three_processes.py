"""A node of three processes: the fixture `three`, one for all tests of a session that only look at it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.node_process import CONSOLE_PREFIX, READY_PREFIX, NodeProcess

PROCESSES = 3
FIRST_NODE_ID = 1
TOKEN = "the-token-of-these-tests"


class ThreeProcesses:
    """A started node of three processes."""

    def __init__(self, directory: Path) -> None:
        self.node = NodeProcess(
            directory / "data",
            {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0", "FAIRLOG_ADMIN_TOKEN": TOKEN},
            ("--processes", str(PROCESSES), "--listen", "127.0.0.1:0"),
        )
        self.node.start()

    @property
    def addresses(self) -> Sequence[str]:
        """Where clients reach each broker, by shard."""
        return self._said(READY_PREFIX)

    @property
    def consoles(self) -> Sequence[str]:
        """The URL of each process' admin listener, ending in a slash, by shard."""
        return self._said(CONSOLE_PREFIX)

    @contextmanager
    def frozen(self, shard: int) -> Generator[None]:
        """One process does not run, and answers nobody, for as long as the block lasts."""
        pid = self._pid(shard)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _said(self, prefix: str) -> Sequence[str]:
        lines = self.node.data_dir.with_name("data.out").read_text().splitlines()
        return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]

    def _pid(self, shard: int) -> int:
        supervisor = self.node.pid
        for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
            if f"FAIRLOG_PROCESS=[{shard}," in Path(f"/proc/{pid}/environ").read_text():
                return pid
        raise AssertionError(f"there is no process of shard {shard}")


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeProcesses]:
    """A node of three processes, which tests leave as it is but for topics, groups and ids of their own."""
    started = ThreeProcesses(tmp_path_factory.mktemp("three"))
    yield started
    assert started.node.stop() == 0, started.node.log_tail()
