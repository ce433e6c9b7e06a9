"""Apache Kafka in KRaft mode: one process that is broker and controller, as in its own quick start.

Settings are Kafka's defaults, except where one node on one machine needs others: ports and a directory of its own, one
replica of its internal topics, and no wait for other members in a group. The heap and the collector's flags are those
of Kafka's start script. `kafka-fsync` flushes every partition after every batch, including its transaction log and its
offsets, and so answers when the data are on the disk, as Fairlog does by default; `kafka` leaves flushing to the
system. Log lines below WARN are off, for Kafka and for Fairlog.

On two cores the first start takes 3 to 5 s until the first answer (a separate JVM formats the directory), a later one 3
s, and one after SIGKILL 12 s: the controller lets a broker register again when the session of the one that was killed
has expired (broker.session.timeout.ms, 9 s). Stopping takes 0.6 s. Idle, it takes a tenth of a core in its first
seconds. The internal topics are created when a client first asks for a coordinator: that `init_transactions` takes a
second, which must not be measured by mistake.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from peers import processes, topics
from peers.certificates import Certificates
from peers.interface import Isolation, PeerDidNotStart, Tuning
from peers.kafka_artifacts import Artifacts
from peers.ports import free_ports

HEAP = "1g"
"""From Kafka's start script."""
_COLLECTOR = (
    "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
_JVM = (f"-Xms{HEAP}", f"-Xmx{HEAP}", "-server", *_COLLECTOR, "-Djava.awt.headless=true",
        "-Dorg.apache.logging.log4j.level=WARN")  # fmt: skip
_ONE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_CLUSTER_ID = "RmFpcmxvZy1iZW5jaG1hcg"
_POLL_S = 0.005
_FORMAT_S = 120.0
_STOP_S = 60.0


class Kafka:
    """One node in `directory`. interface.Peer documents its methods."""

    durable = True
    transactional_isolation: Isolation = "read_committed"

    def __init__(
        self,
        name: Literal["kafka", "kafka-fsync", "kafka-tls"],
        directory: Path,
        artifacts: Artifacts,
        tuning: Tuning,
        *,
        advertised: str | None = None,
        more: Mapping[str, str] | None = None,
        tls: Certificates | None = None,
    ) -> None:
        """`advertised` is the HOST:PORT for clients, if it differs from where the broker listens: a proxy's. The
        broker's requests to itself do not use it. `more` are settings, by Kafka's names. With `tls` there is a second
        listener.
        """
        self.name = name
        self._advertised = advertised
        self.directory = directory
        self.data = directory / "data"
        self.storage = f"kafka-{artifacts.version}"
        self._properties = directory / "server.properties"
        flushed = name == "kafka-fsync"
        self.description = f"Apache Kafka {artifacts.version}, KRaft, one node, " + (
            "every batch flushed before it is answered" if flushed else "its default durability: no flush is waited for"
        )
        self._tls = tls
        self._tls_port: int | None = None
        if tls is not None:
            self.description += "; a second listener with TLS"
        self._settings = dict(_ONE_NODE)
        self._settings |= more or {}
        if flushed:
            self._settings["log.flush.interval.messages"] = "1"
        if tuning.retention_check_ms is not None:
            self._settings["log.retention.check.interval.ms"] = str(tuning.retention_check_ms)
            # The first look comes after this, by default after 30 s.
            self._settings["log.initial.task.delay.ms"] = str(tuning.retention_check_ms)
        if tuning.clean_check_ms is not None:
            self._settings["log.cleaner.backoff.ms"] = str(tuning.clean_check_ms)
        self._java = [artifacts.java, *_JVM, "-cp", f"{artifacts.jars}/*"]
        self._program = processes.Program([*self._java, "kafka.Kafka", str(self._properties)], directory / "kafka.log")
        self._port: int | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        return self._settings | {"JVM": " ".join(_JVM)}

    @property
    def address(self) -> str:
        assert self._port is not None, "Kafka was never started"
        return f"127.0.0.1:{self._port}"

    @property
    def secured(self) -> Mapping[str, str] | None:
        if self._tls is None:
            return None
        assert self._tls_port is not None, "Kafka was never started"
        return {"bootstrap.servers": f"127.0.0.1:{self._tls_port}", **self._tls.client}

    @property
    def running(self) -> bool:
        return self._program.running

    @property
    def pid(self) -> int:
        return self._program.pid

    def output_tail(self) -> str:
        """The end of its output."""
        return self._program.output_tail()

    def spawn(self) -> None:
        if self._port is None:
            self._format()
        self._program.spawn()

    def start(self, timeout_s: float = 120.0) -> None:
        self.spawn()
        deadline = time.monotonic() + timeout_s
        while not topics.answers(self.address):
            if not self._program.running:
                raise PeerDidNotStart(
                    f"{self.name} ended with status {self._program.status}:\n{self._program.output_tail()}"
                )
            if time.monotonic() > deadline:
                raise PeerDidNotStart(
                    f"{self.name} did not answer within {timeout_s:.0f} s:\n{self._program.output_tail()}"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        self._program.stop(_STOP_S)

    def kill(self) -> None:
        self._program.kill()

    def cpu_s(self) -> float:
        return processes.cpu_s(self._program.pid)

    def memory_bytes(self) -> int:
        return processes.memory_bytes(self._program.pid)

    def written_bytes(self) -> int:
        return processes.written_bytes(self._program.pid)

    def disk_bytes(self) -> int:
        return processes.disk_bytes(self.data)

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        topics.create(self.address, names, partitions, configs or {})

    def _format(self) -> None:
        """Write properties for free ports that stay the node's own; and meta.properties, if there is no data."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port, controller, internal = free_ports(3)
        address = f"127.0.0.1:{self._port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": str(self.data),
            **self._settings,
        }
        if self._advertised is not None:
            for key, client_address in (("listeners", address), ("advertised.listeners", self._advertised)):
                properties[key] = (
                    f"PLAINTEXT://{client_address},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}"
                )
            properties["inter.broker.listener.name"] = "INTERNAL"
            properties["listener.security.protocol.map"] = ",".join(
                f"{listener}:PLAINTEXT" for listener in ("PLAINTEXT", "INTERNAL", "CONTROLLER")
            )
        if self._tls is not None:
            (self._tls_port,) = free_ports(1)
            for key in ("listeners", "advertised.listeners"):
                properties[key] += f",SSL://127.0.0.1:{self._tls_port}"
            properties |= {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._tls.node_with_key),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._tls.ca),
                "ssl.client.auth": "required",
            }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        if (self.data / "meta.properties").exists():
            return
        command = [*self._java, "kafka.tools.StorageTool", "format", "--standalone", "--cluster-id", _CLUSTER_ID,
                   "--config", str(self._properties)]  # fmt: skip
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=_FORMAT_S, check=False
        )
        if done.returncode != 0:
            raise PeerDidNotStart(f"Kafka's directory could not be formatted:\n{done.stdout}{done.stderr}")
