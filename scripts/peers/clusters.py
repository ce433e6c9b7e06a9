"""Clusters as peers: three brokers of Kafka alone, and nodes of Fairlog whose journals such brokers keep.

    kafka-3     client ──▶ brokers 1, 2, 3
    cluster     client ──▶ nodes 1, 2, 3 ──▶ brokers 1, 2, 3
    shards-N    client ──▶ one node with N shards ──▶ brokers 1, 2, 3

The brokers of both have the same settings (`kafka_cluster`); topics have three replicas, and two of them have what is
answered. Figures are those of all processes together: what the nodes cost and what their engine costs is one sum.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import fairlog
from peers import processes, topics
from peers.fairlog_cluster import FairlogCluster
from peers.interface import Isolation
from peers.kafka_artifacts import Artifacts
from peers.kafka_cluster import SHORT_TIMEOUTS, KafkaCluster

REPLICAS, MIN_IN_SYNC = 3, 2
BROKERS_OF_A_NODE = 1000
"""A Fairlog broker's id is its node × 1000 + the shard."""
_WHOLE_S = 120.0
_POLL_S = 0.2


class ClusterPeer(ABC):
    """Several processes at several addresses. interface.Peer documents what is the same for all peers."""

    durable = True
    storage = ""
    description: str
    transactional_isolation: Isolation

    def __init__(self, name: str, directory: Path, artifacts: Artifacts) -> None:
        self.name = name
        self.directory = directory
        self.data = directory
        self.kafka = KafkaCluster(directory / "kafka", artifacts)
        self.settings: Mapping[str, str] = SHORT_TIMEOUTS
        self.running = False

    @property
    @abstractmethod
    def address(self) -> str:
        """All addresses for clients, with commas between them."""

    @abstractmethod
    def kill_broker(self, broker: int) -> None:
        """SIGKILL for the process with this broker, by its id in Metadata."""

    @abstractmethod
    def stop_broker(self, broker: int) -> None:
        """SIGTERM for that process, and wait for its end. Raises TimeoutError."""

    @abstractmethod
    def make_whole(self) -> None:
        """Start what was killed, and return when every replica is in sync. Raises TimeoutError."""

    @abstractmethod
    def pids(self) -> Sequence[int]: ...

    @abstractmethod
    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None: ...

    def start(self, timeout_s: float = 120.0) -> None:
        self.kafka.start(timeout_s)
        self.running = True

    def spawn(self) -> None:
        raise NotImplementedError("a cluster is started as a whole")

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.kafka.stop()
        self.running = False

    def cpu_s(self) -> float:
        return sum(map(processes.cpu_s, self.pids()))

    def memory_bytes(self) -> int:
        return sum(map(processes.memory_bytes, self.pids()))

    def written_bytes(self) -> int:
        return sum(map(processes.written_bytes, self.pids()))

    def disk_bytes(self) -> int:
        return processes.disk_bytes(self.directory)


class KafkaAlone(ClusterPeer):
    """`kafka-3`: three brokers, their own transactions."""

    description = "Apache Kafka, three brokers, three replicas, acks=all with two in sync, nothing flushed"
    transactional_isolation: Isolation = "read_committed"

    @property
    def address(self) -> str:
        return self.kafka.bootstrap

    def kill_broker(self, broker: int) -> None:
        self.kafka.kill(broker)

    def stop_broker(self, broker: int) -> None:
        self.kafka.leave(broker)

    def make_whole(self) -> None:
        self.kafka.heal()
        deadline = time.monotonic() + _WHOLE_S
        while not topics.all_in_sync(self.address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all replicas of Kafka were in sync after {_WHOLE_S:.0f} s")
            time.sleep(_POLL_S)

    def pids(self) -> Sequence[int]:
        return [self.kafka.pid(broker) for broker in self.kafka.brokers]

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        in_sync = {"min.insync.replicas": str(MIN_IN_SYNC)}
        topics.create(self.address, names, partitions, in_sync | dict(configs or {}), replicas=REPLICAS)


class FairlogNodes(ClusterPeer):
    """`cluster`: three nodes, a copy of each of three shards on each, and their engine. `shards-N`: one node."""

    transactional_isolation: Isolation = "read_uncommitted"

    def __init__(self, name: str, directory: Path, artifacts: Artifacts, *, nodes: int = 3, shards: int = 3) -> None:
        super().__init__(name, directory, artifacts)
        self.description = f"Fairlog {fairlog.__version__}, nodes: {nodes}, shards: {shards}; their engine: Kafka"
        self._nodes = FairlogCluster(directory / "fairlog", self.kafka.bootstrap, nodes=nodes, shards=shards)

    @property
    def address(self) -> str:
        return self._nodes.bootstrap

    def start(self, timeout_s: float = 120.0) -> None:
        self.start_engine(timeout_s)
        self.start_nodes(timeout_s)

    def start_engine(self, timeout_s: float = 120.0) -> None:
        super().start(timeout_s)

    def start_nodes(self, timeout_s: float = 120.0) -> None:
        """After the engine. Raises PeerDidNotStart."""
        self._nodes.start(timeout_s)

    def kill(self) -> None:
        self._nodes.stop()
        super().kill()

    def kill_broker(self, broker: int) -> None:
        self._nodes.kill(broker // BROKERS_OF_A_NODE)

    def stop_broker(self, broker: int) -> None:
        self._nodes.leave(broker // BROKERS_OF_A_NODE)

    def make_whole(self) -> None:
        for node in self._nodes.nodes:
            if not self._nodes.running(node):
                self._nodes.spawn(node)
        deadline = time.monotonic() + _WHOLE_S
        while not all(map(self._nodes.is_in_sync, self._nodes.nodes)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all copies were in sync after {_WHOLE_S:.0f} s")
            time.sleep(_POLL_S)

    def pids(self) -> Sequence[int]:
        return [*self.engine_pids(), *self.node_pids()]

    def engine_pids(self) -> Sequence[int]:
        return [self.kafka.pid(broker) for broker in self.kafka.brokers]

    def node_pids(self) -> Sequence[int]:
        return [*map(self._nodes.pid, self._nodes.nodes)]

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        topics.create(self.address, names, partitions, configs or {})
