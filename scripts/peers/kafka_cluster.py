"""Several brokers of Apache Kafka in KRaft mode on this machine; each is broker and controller.

    client ──▶ proxy ──▶ broker 1 ◀── proxies ──▶ broker 2 …

Settings are Kafka's defaults, but for small heaps, ports of their own, and time-outs that are short, so that the death
of a broker is noticed within two seconds instead of nine. A node's directory holds its properties, its data and its
output. With `links` all traffic, also that among the brokers, goes through proxies that can cut it (`links`): two
brokers from each other, or one from its clients. Without, addresses are the brokers' own. With `hosts` each broker runs
on one of its own (`network`).

A cluster of three takes some 15 s to its first answer on two cores, and 1.2 GB.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from peers import processes, topics
from peers.interface import PeerDidNotStart
from peers.kafka_artifacts import Artifacts
from peers.links import Links
from peers.network import HERE, Host
from peers.ports import free_ports

HEAP = "384m"
_JVM = (f"-Xms{HEAP}", f"-Xmx{HEAP}", "-server", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
        "-Djava.awt.headless=true", "-Dorg.apache.logging.log4j.level=WARN")  # fmt: skip
SHORT_TIMEOUTS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "800",
    "controller.quorum.request.timeout.ms": "1500",
    "replica.lag.time.max.ms": "2500",
    "replica.socket.timeout.ms": "2500",
    "replica.fetch.wait.max.ms": "250",
    "controller.socket.timeout.ms": "2500",
}
"""How soon brokers notice that one of them is gone. Kafka's own: 9 s, 2 s, 2 s, 1 s, 2 s, 30 s, 30 s, 500 ms, 30 s."""
_SETTINGS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.enable": "true",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}
_CLUSTER_ID = "RmFpcmxvZy1lbmdpbmUAAA"
_LISTENERS = ("CLIENT", "INTERNAL", "CONTROLLER")
_POLL_S = 0.05
_FORMAT_S = 120.0
_STOP_S = 60.0


class KafkaCluster:
    """`start` it, use `bootstrap`, `stop` it. Brokers are numbered from 1."""

    def __init__(
        self,
        directory: Path,
        artifacts: Artifacts,
        *,
        brokers: int = 3,
        links: bool = False,
        hosts: Mapping[int, Host] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """`more` are settings of all brokers, by Kafka's names; they come before SHORT_TIMEOUTS. `links` are for
        brokers on this machine itself.
        """
        assert not (links and hosts)
        self.brokers = range(1, brokers + 1)
        self.links = Links(self.brokers, _LISTENERS) if links else None
        self._hosts = hosts or dict.fromkeys(self.brokers, HERE)
        self._directory = directory
        self._settings = _SETTINGS | SHORT_TIMEOUTS | dict(more or {})
        if brokers < int(self._settings["offsets.topic.replication.factor"]):
            self._settings["offsets.topic.replication.factor"] = str(brokers)
        self._java = [artifacts.java, *_JVM, "-cp", f"{artifacts.jars}/*"]
        keys = [(broker, listener) for broker in self.brokers for listener in _LISTENERS]
        self._ports = dict(zip(keys, free_ports(len(keys)), strict=True))
        self._programs = {
            broker: processes.Program(
                [
                    *self._hosts[broker].prefix,
                    *self._java,
                    "kafka.Kafka",
                    str(self._home(broker) / "server.properties"),
                ],
                self._home(broker) / "kafka.log",
            )
            for broker in self.brokers
        }

    @property
    def bootstrap(self) -> str:
        """All brokers' addresses for clients."""
        return ",".join(self.address(broker) for broker in self.brokers)

    def address(self, broker: int) -> str:
        """Where clients reach this broker."""
        return f"{self._hosts[broker].address}:{self._reached(broker, 'CLIENT')}"

    def start(self, timeout_s: float = 120.0) -> None:
        """Start all; return when each answers and a controller was elected. Raises PeerDidNotStart."""
        if self.links is not None:
            self.links.start(self._ports)
        self._format()
        for program in self._programs.values():
            program.spawn()
        self.wait_until_up(timeout_s)

    def stop(self) -> None:
        """Kill what remains: nothing of it is wanted any more."""
        for broker, program in self._programs.items():
            if program.running:
                self.resume(broker)
                program.kill()
        if self.links is not None:
            self.links.close()

    def kill(self, broker: int) -> None:
        """SIGKILL; also a paused one."""
        self._programs[broker].kill()

    def leave(self, broker: int) -> None:
        """SIGTERM, and wait for its end. Raises TimeoutError."""
        self._programs[broker].stop(_STOP_S)

    def restart(self, broker: int) -> None:
        """Start one that was killed. It takes some seconds until it answers: `wait_until_up`."""
        self._programs[broker].spawn()

    def pause(self, broker: int) -> None:
        """SIGSTOP."""
        self._programs[broker].send(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        """SIGCONT."""
        self._programs[broker].send(signal.SIGCONT)

    def pid(self, broker: int) -> int:
        return self._programs[broker].pid

    def heal(self, timeout_s: float = 120.0) -> None:
        """Undo whatever was done to links and brokers, and wait until all are up."""
        if self.links is not None:
            self.links.join_all()
        for broker, program in self._programs.items():
            if program.running:
                self.resume(broker)
            else:
                program.spawn()
        self.wait_until_up(timeout_s)

    def wait_until_up(self, timeout_s: float = 120.0) -> None:
        """Return when each broker answers and knows all of them. Raises PeerDidNotStart."""
        deadline = time.monotonic() + timeout_s
        for broker in self.brokers:
            while topics.brokers_known(self.address(broker)) < len(self.brokers):
                program = self._programs[broker]
                if not program.running:
                    raise PeerDidNotStart(
                        f"Kafka's broker {broker} ended with status {program.status}:\n{program.output_tail()}"
                    )
                if time.monotonic() > deadline:
                    raise PeerDidNotStart(
                        f"Kafka's broker {broker} was not up within {timeout_s:.0f} s:\n{program.output_tail()}"
                    )
                time.sleep(_POLL_S)

    def is_up(self) -> bool:
        """Whether each broker answers and knows all of them."""
        return all(topics.brokers_known(self.address(broker)) == len(self.brokers) for broker in self.brokers)

    def _home(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}"

    def _reached(self, broker: int, listener: str) -> int:
        return self._ports[broker, listener] if self.links is None else self.links.port(broker, listener)

    def _format(self) -> None:
        """Write every node's properties, and its meta.properties."""
        voters = ",".join(
            f"{broker}@{self._hosts[broker].address}:{self._reached(broker, 'CONTROLLER')}" for broker in self.brokers
        )
        formatting: list[subprocess.Popen[str]] = []
        for broker in self.brokers:
            home = self._home(broker)
            home.mkdir(parents=True, exist_ok=True)
            address = self._hosts[broker].address
            own = [f"{name}://{address}:{self._ports[broker, name]}" for name in _LISTENERS]
            reached = [f"{name}://{address}:{self._reached(broker, name)}" for name in _LISTENERS]
            properties = {
                "process.roles": "broker,controller",
                "node.id": str(broker),
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "inter.broker.listener.name": "INTERNAL",
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in _LISTENERS),
                "listeners": ",".join(own),
                "advertised.listeners": ",".join(reached),
                "log.dirs": str(home / "data"),
                **self._settings,
            }
            path = home / "server.properties"
            path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            if not (home / "data" / "meta.properties").exists():
                command = [*self._java, "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID,
                           "--config", str(path)]  # fmt: skip
                formatting.append(
                    subprocess.Popen(
                        command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
                    )
                )
        for each in formatting:
            output, _ = each.communicate(timeout=_FORMAT_S)
            if each.returncode != 0:
                raise PeerDidNotStart(f"a directory of Kafka could not be formatted:\n{output}")
