"""The brokers that a history can be recorded of: a Fairlog node with topics of either mode, and Apache Kafka.

Each listens on a port of its own and sends its clients to the proxy's. Both answer a commit as they do by default: the
node from the disk, Kafka from the system's memory, which a SIGKILL leaves alone. Kafka is run as the benchmark runs it
(scripts/peers/kafka.py), with these settings besides: group.min.session.timeout.ms = 500, as the node has it, and five
partitions in place of fifty for each of its two internal topics, which it makes before the clients come. Behind a
SIGKILL it comes back after 12 s, for the dead one's session has to end. The checker judges it as marker mode.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import ROOT, START_S, NodeProcess
from tests.clients.modes import MODE_CONFIG
from tests.crash.harness import SMALL
from tests.history.layout import PARTITIONS, TOPICS, TRANSFORMERS, place
from tests.history.operations import Mode
from tests.history.resuming import TIMEOUT_MS
from tests.history.routes import Routes

HOST = "127.0.0.1"
MIN_SESSION_MS = 500
KAFKA_START_S = 300.0
"""It takes 12 s of two cores that have nothing else to do."""
COORDINATOR_STARTS = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
POLL_S = 0.05
WARM_S = 60.0
"""For Kafka to make an internal topic; it takes a second."""


class Peer(Enum):
    """What a history is recorded of."""

    JOURNAL = "journal"
    MARKERS = "markers"
    KAFKA = "kafka"
    CLUSTER = "cluster"

    @property
    def mode(self) -> Mode:
        """By what it is judged."""
        return Mode.JOURNAL if self in (Peer.JOURNAL, Peer.CLUSTER) else Mode.MARKERS


class Unavailable(Exception):
    """The broker cannot be had on this machine. The message says why."""


def find_peers() -> None:
    """From now on `peers` can be imported, as they import each other; pytest has it in its settings."""
    if (scripts := str(ROOT / "scripts")) not in sys.path:
        sys.path.append(scripts)


class Broker(Protocol):
    """One broker, over its restarts."""

    @property
    def description(self) -> str:
        """What it is, for people."""
        ...

    @property
    def address(self) -> str:
        """Where it listens itself, after the first start; with several processes one for each, and commas between."""
        ...

    @property
    def running(self) -> bool: ...

    @property
    def pid(self) -> int:
        """Of the process; of several nodes, that of any one, each time another."""
        ...

    @property
    def processes(self) -> Sequence[int]:
        """The ids of the processes that a supervisor has started, and that live; without a supervisor none."""
        ...

    def start(self) -> None:
        """Return when it answers."""
        ...

    def wait_for_all(self) -> None:
        """Return when all of its processes can be reached."""
        ...

    def ends(self) -> Sequence[str]:
        """How processes have ended that nobody told to: a line for each."""
        ...

    def shards(self) -> Mapping[str, int]:
        """Which shard leads each partition, if there are several."""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Of several nodes, any one of them."""
        ...

    def stop(self) -> None:
        """End it in order. Raises if it does not end well. Of several nodes, any one of them."""
        ...

    def close(self) -> None:
        """Kill all that there is."""
        ...

    def create_topics(self) -> None:
        """Those of the layout."""
        ...

    def log_tail(self) -> str: ...


class Fairlog:
    """A node as a user runs it, with small segments; see Broker."""

    def __init__(
        self, directory: Path, mode: Mode, proxies: str, environment: Mapping[str, str], program: Sequence[str]
    ) -> None:
        self._mode = mode
        more = {
            "FAIRLOG_ADVERTISED": proxies,
            "FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS": str(MIN_SESSION_MS),
            "FAIRLOG_TRANSACTIONS_MAX_TIMEOUT_MS": str(TIMEOUT_MS),
        }
        self.description = f"Fairlog, topics of {mode.value} mode"
        self._processes = proxies.count(",") + 1
        if self._processes > 1:
            more["FAIRLOG_JOURNAL_GROUP_JOURNALS"] = str(self._processes + 1)  # so all coordinate, and one for two
            self.description += f", {self._processes} processes"
        settings = SMALL | more | dict(environment)
        self._node = NodeProcess(directory, settings, program=program, address=f"{HOST}:0", processes=self._processes)

    @property
    def address(self) -> str:
        return self._node.listening

    @property
    def processes(self) -> Sequence[int]:
        """The ids of the processes that a supervisor has started, and that live; without a supervisor none."""
        return self._node.pids if self._processes > 1 else ()

    def wait_for_all(self) -> None:
        """Until each process can be reached."""
        deadline = time.monotonic() + START_S
        for address in self.address.split(","):
            host, _, port = address.rpartition(":")
            while True:
                try:
                    socket.create_connection((host, int(port)), 1.0).close()
                except OSError:
                    assert time.monotonic() < deadline, f"nobody listens on {address}:\n{self.log_tail()}"
                    time.sleep(POLL_S)
                else:
                    break

    def ends(self) -> Sequence[str]:
        """How processes have ended that nobody told to, as their supervisors have reported it."""
        log = self._node.log_path.read_text(encoding="utf-8", errors="replace")
        return [line for line in log.splitlines() if "a process ended" in line]

    def shards(self) -> Mapping[str, int]:
        """Which shard leads each partition, if there are several."""
        if self._processes == 1:
            return {}
        routes = Routes(self.address, timeout_s=START_S)
        try:
            return {place(*partition): routes.leader_number(*partition) for partition in PARTITIONS}
        finally:
            routes.close()

    @property
    def running(self) -> bool:
        return self._node.running

    @property
    def pid(self) -> int:
        return self._node.pid

    def start(self) -> None:
        self._node.start()  # it says that it is ready on the proxy's address, where clients are to connect

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        """In good order; a process that was killed just before, and not yet started again, has not ended so."""
        ends = len(self.ends())
        status = self._node.stop()
        killed = any("SIGKILL" in end for end in self.ends()[ends:])
        assert status == 0 or killed, f"the node did not stop well, but with status {status}:\n{self.log_tail()}"

    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        new = [NewTopic(topic, count, 1, config={MODE_CONFIG: self._mode.value}) for topic, count in TOPICS.items()]
        for made in admin.create_topics(new).values():
            made.result(timeout=20)

    def close(self) -> None:
        self._node.kill()

    def log_tail(self) -> str:
        return self._node.log_tail()


class Kafka:
    """One node of Apache Kafka; see Broker. Raises Unavailable if its jars or Java are not to be had."""

    def __init__(self, directory: Path, proxy: str) -> None:
        find_peers()
        from peers import kafka, kafka_artifacts
        from peers.interface import Tuning

        more = {
            "group.min.session.timeout.ms": str(MIN_SESSION_MS),
            "transaction.max.timeout.ms": str(TIMEOUT_MS),
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "5",
        }
        try:
            artifacts = kafka_artifacts.obtain()
        except kafka_artifacts.Unavailable as unavailable:
            raise Unavailable(str(unavailable)) from None
        self._peer = kafka.Kafka("kafka", directory, artifacts, Tuning(), advertised=proxy, more=more)
        self.description = self._peer.description
        self.processes: Sequence[int] = ()

    def wait_for_all(self) -> None:
        """There is one."""

    def ends(self) -> Sequence[str]:
        return ()

    def shards(self) -> Mapping[str, int]:
        return {}

    @property
    def address(self) -> str:
        return self._peer.address

    @property
    def running(self) -> bool:
        return self._peer.running

    @property
    def pid(self) -> int:
        return self._peer.pid

    def start(self) -> None:
        self._peer.start(KAFKA_START_S)

    def kill(self) -> None:
        self._peer.kill()

    def stop(self) -> None:
        self._peer.stop()

    def create_topics(self) -> None:
        for topic, count in TOPICS.items():
            self._peer.create_topics([topic], count)
        # The internal topics are made when they are first asked for.
        Producer({"bootstrap.servers": self.address, "transactional.id": "first"}).init_transactions(WARM_S)
        self._ask_for_offsets()

    def _ask_for_offsets(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": TRANSFORMERS})
        deadline = time.monotonic() + WARM_S
        while True:
            try:
                consumer.committed([TopicPartition(topic, 0) for topic in TOPICS], WARM_S)
            except KafkaException as error:
                if error.args[0].code() not in COORDINATOR_STARTS or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                consumer.close()
                return

    def close(self) -> None:
        self._peer.kill()

    def log_tail(self) -> str:
        return self._peer.output_tail()


def broker(
    peer: Peer,
    directory: Path,
    proxies: str,
    environment: Mapping[str, str],
    program: Sequence[str] = ("-m", "fairlog.cli"),
) -> Broker:
    """The broker over `directory`, not started; of several nodes `tests.history.cluster` is one.

    Clients are sent to the proxies; a node has a process for each of them. The rest is for a node.
    """
    if peer is Peer.KAFKA:
        return Kafka(directory, proxies)
    return Fairlog(directory, peer.mode, proxies, environment, program)
