"""What the benchmark knows about a broker: how to start and stop it, its address, and the resources that it has used.

A peer is one broker in processes of its own, on loopback, with one directory. `catalogue.available(name, directory)`
returns the peer with that name, or `Missing` with the reason; the report names what is missing.

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
from typing import Literal, Protocol, runtime_checkable

NAMES = ("journal", "markers", "kafka", "kafka-fsync", "mock")
"""All peers of most scenarios, in the order of the report's columns."""

SPREAD_NAMES = ("journal-2", "journal-4")
"""Nodes of so many processes; for the scenario `processes`."""

CLUSTER_NAMES = ("cluster", "kafka-3")
"""Several nodes on several brokers, and such brokers alone; for the scenario `cluster`."""

SHARDS_NAMES = ("shards-1", "shards-8", "shards-32", "shards-64")
"""One node with so many shards on such brokers; for the scenario `streams`."""

SECURED_NAMES = ("journal-tls", "journal-acls", "kafka-tls")
"""One broker each with a second listener, for TLS and clients with certificates; for the scenario `tls`. That of the
second one asks an authorizer what a client may do.
"""

ALL_NAMES = (*NAMES, *SPREAD_NAMES, *CLUSTER_NAMES, *SHARDS_NAMES, *SECURED_NAMES)

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that is not available on this machine. `reason` is a sentence for the report."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings that a scenario makes for every broker. None keeps the broker's own default."""

    retention_check_ms: int | None = None
    """Milliseconds between two checks for records that are too old or too many."""
    clean_check_ms: int | None = None
    """Milliseconds between two checks for records to compact."""


class PeerDidNotStart(Exception):
    """The broker ended, or did not serve in time. The message contains the end of its output."""


class Peer(Protocol):
    """One broker. Its data outlive `stop` and `kill` if it is `durable`."""

    @property
    def name(self) -> str:
        """One of NAMES."""
        ...

    @property
    def description(self) -> str:
        """A description with the version, in one line for the report."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """All settings that differ from the broker's defaults, by the broker's own names."""
        ...

    @property
    def directory(self) -> Path:
        """The directory for its data and its output; the caller that gave it deletes it."""
        ...

    @property
    def data(self) -> Path:
        """All its stored data, in its `directory`. While it does not run, another peer's data may replace them."""
        ...

    @property
    def storage(self) -> str:
        """The program that wrote `data`, and its formats, as a part of a file's name. Peers with the same value can use
        each other's data. Empty if it is not `durable`.
        """
        ...

    @property
    def durable(self) -> bool:
        """Whether it stores anything. The mock does not: it only shows the client's minimum latency."""
        ...

    @property
    def transactional_isolation(self) -> Isolation:
        """The isolation.level with which a consumer sees only committed records."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT for clients, a cluster's with commas between them. The same over restarts if it is `durable`.
        Available after the first `start`.
        """
        ...

    @property
    def running(self) -> bool: ...

    def start(self, timeout_s: float = 120.0) -> None:
        """Start the process and return when it serves. Raises PeerDidNotStart."""
        ...

    def spawn(self) -> None:
        """Start the process and return at once; `answers` says when it serves."""
        ...

    def stop(self) -> None:
        """Stop it in order and wait for its end. Does nothing if it does not run."""
        ...

    def kill(self) -> None:
        """Send SIGKILL, and wait for its end. Does nothing if it does not run."""
        ...

    def cpu_s(self) -> float:
        """CPU-seconds of the whole process since its start, user and system."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        ...

    def written_bytes(self) -> int:
        """Bytes that the process has passed to write calls since its start; 0 where the system does not report it."""
        ...

    def disk_bytes(self) -> int:
        """The size of its data on the disk (allocated blocks, so that a sparse file counts only its content)."""
        ...

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create these topics, with one replica, and return when they can be written to.

        `configs` are Kafka's names; a peer that is not `durable` ignores them.
        """
        ...


@runtime_checkable
class SecuredPeer(Protocol):
    """A peer of SECURED_NAMES, which can be reached at two listeners. Whoever comes to `address` may do everything."""

    @property
    def secured(self) -> Mapping[str, str] | None:
        """A client's settings for the listener with TLS, its address among them, by librdkafka's names; None: there is
        none. Available after the first `start`.
        """
        ...
