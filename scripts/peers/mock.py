"""librdkafka's mock cluster in a process of its own: the client's minimum.

The time of a transaction with it is the cost of the client and the loopback. It stores nothing, so it takes no part in
scenarios about storage, and after many records it drops old ones.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import confluent_kafka

from peers import processes
from peers.interface import Isolation, PeerDidNotStart

_PROGRAM = Path(__file__).resolve().parent / "mock_cluster.py"


class Mock:
    """interface.Peer documents its methods."""

    name = "mock"
    durable = False
    storage = ""
    transactional_isolation: Isolation = "read_uncommitted"
    settings: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self.directory = self.data = directory
        version, _number = confluent_kafka.libversion()
        self.description = f"the mock cluster of librdkafka {version}: in memory, stores nothing, answers at once"
        self._child: subprocess.Popen[str] | None = None
        self._address: str | None = None

    @property
    def address(self) -> str:
        assert self._address is not None, "the mock was never started"
        return self._address

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def spawn(self) -> None:
        assert not self.running, "the mock is running already"
        # Pipes, as it says a line only when asked. Their end is its end, so it does not outlive its caller.
        self._child = subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._address = self._answer()

    def start(self, timeout_s: float = 120.0) -> None:  # noqa: ARG002 (it is there at once or not at all)
        self.spawn()

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()

    def cpu_s(self) -> float:
        return processes.cpu_s(self._pid)

    def memory_bytes(self) -> int:
        return processes.memory_bytes(self._pid)

    def written_bytes(self) -> int:
        return processes.written_bytes(self._pid)

    def disk_bytes(self) -> int:
        return 0

    def create_topics(
        self,
        names: Sequence[str],
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,  # noqa: ARG002 (it has none)
    ) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        for name in names:
            self._child.stdin.write(f"{name} {partitions}\n")
            self._child.stdin.flush()
            if (answer := self._answer()) != "ok":
                raise RuntimeError(f"the mock did not make the topic {name}: {answer}")

    @property
    def _pid(self) -> int:
        assert self._child is not None, "the mock was never started"
        return self._child.pid

    def _answer(self) -> str:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline().strip()
        if not line:
            raise PeerDidNotStart(f"the mock ended with status {self._child.wait()}")
        return line
