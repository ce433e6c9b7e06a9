"""What the benchmark knows of a broker: how to start and end it, where it is, and what it has used.

A peer is one broker in processes of its own, on loopback, over one directory. `catalogue.available(name, directory)`
answers the peer of that name, or `Missing` with the reason; the report names what is missing.

    peer = available("kafka", directory)
    if isinstance(peer, Missing): ...          # say peer.reason, and go on with the others
    peer.start()
    peer.create_topics(["latency"], partitions=2)
    ...                                        # clients connect to peer.address
    peer.stop()

Figures (`cpu_s`, `memory_bytes`, `written_bytes`) are those of the running process and begin again at zero with each
start; take differences. Nothing here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

NAMES = ("journal", "markers", "kafka", "kafka-fsync", "mock")
"""All peers, in the order of the report's columns."""

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that cannot be had on this machine. `reason` is a sentence for the report."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a scenario asks of every broker alike, beyond each one's defaults. None leaves the broker's own default."""

    retention_check_ms: int | None = None
    """Milliseconds between two looks for records that are too old or too many."""
    clean_check_ms: int | None = None
    """Milliseconds between two looks for what to compact."""


class PeerDidNotStart(Exception):
    """The broker ended, or did not serve in time. The message carries the end of what it wrote."""


class Peer(Protocol):
    """One broker. What it has stored outlives `stop` and `kill`, if it is `durable`."""

    @property
    def name(self) -> str:
        """One of NAMES."""
        ...

    @property
    def description(self) -> str:
        """What it is, with its version, in one line for the report."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Everything that is set other than the broker's own defaults, under the broker's own names."""
        ...

    @property
    def directory(self) -> Path:
        """Where it keeps its data and what it has to say; whoever gave it deletes it."""
        ...

    @property
    def data(self) -> Path:
        """What it has stored, all of it, in its `directory`. While it does not run, another's may take its place."""
        ...

    @property
    def storage(self) -> str:
        """What has written `data`, in which formats, as a part of a file's name. Peers may have each other's data if it
        is the same for both. Empty if it is not `durable`."""
        ...

    @property
    def durable(self) -> bool:
        """Whether it stores anything. The mock does not: it is the client's floor in latency, and nothing else."""
        ...

    @property
    def transactional_isolation(self) -> Isolation:
        """The isolation.level with which a consumer sees committed records only."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT for clients, the same over restarts if it is `durable`. Only after the first `start`."""
        ...

    @property
    def running(self) -> bool: ...

    def start(self, timeout_s: float = 120.0) -> None:
        """Start the process and return when it serves. Raises PeerDidNotStart."""
        ...

    def spawn(self) -> None:
        """Start the process and return at once; `answers` tells when it serves."""
        ...

    def stop(self) -> None:
        """End it in order and wait until it is gone. Does nothing if it does not run."""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Does nothing if it does not run."""
        ...

    def cpu_s(self) -> float:
        """CPU-seconds of the whole process since its start, user and system."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        ...

    def written_bytes(self) -> int:
        """Bytes that the process has passed to write calls since its start; 0 where the system does not tell."""
        ...

    def disk_bytes(self) -> int:
        """What its data takes on the disk (allocated blocks, so that a sparse file counts what it holds)."""
        ...

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Make these topics, with one replica, and return when they can be written to.

        `configs` are Kafka's names; a peer that is not `durable` ignores them.
        """
        ...
