"""A node of three processes: the fixture `three`, one for all tests of a session that only look at it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.node_process import CONSOLE_PREFIX, NodeProcess

PROCESSES = 3
FIRST_NODE_ID = 1
TOKEN = "the-token-of-these-tests"


class ThreeProcesses:
    """A started node of three processes."""

    def __init__(self, directory: Path) -> None:
        self.node = NodeProcess(
            directory / "data",
            {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0", "FAIRLOG_ADMIN_TOKEN": TOKEN},
            processes=PROCESSES,
        )
        self.node.start()

    @property
    def addresses(self) -> Sequence[str]:
        """Where clients reach each broker, by shard."""
        return self.node.addresses

    @property
    def consoles(self) -> Sequence[str]:
        """The URL of each process' admin listener, ending in a slash, by shard."""
        lines = self.node.data_dir.with_name("data.out").read_text().splitlines()
        return [line.removeprefix(CONSOLE_PREFIX) for line in lines if line.startswith(CONSOLE_PREFIX)]

    @contextmanager
    def frozen(self, shard: int) -> Generator[None]:
        """One process does not run, and answers nobody, for as long as the block lasts."""
        pid = self.node.pids[shard]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeProcesses]:
    """A node of three processes, which tests leave as it is but for topics, groups and ids of their own."""
    started = ThreeProcesses(tmp_path_factory.mktemp("three"))
    yield started
    assert started.node.stop() == 0, started.node.log_tail()
