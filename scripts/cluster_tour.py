"""The demonstration of `cluster.py`: transactions over a failover, as a plain consumer sees them.

Each transaction writes its number to every partition of a topic, and the partitions are spread over the shards, so each
transaction spans all of them. The node that owns partition 0 is killed with SIGKILL. Whatever happens, each partition
has the numbers of all commits that were answered, once and in order, at offsets without gaps.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]
from peers import kafka_artifacts
from peers.fairlog_cluster import FairlogCluster
from peers.interface import PeerDidNotStart
from peers.kafka_cluster import KafkaCluster
from peers.watermarks import watermarks
from rich.console import Console

TOPIC, PARTITIONS = "numbers", 6
BEFORE_S, AFTER_S, WAIT_S = 5.0, 12.0, 60.0
POLL_S = 0.2
BROKERS_OF_A_NODE = 1000
"""A broker's id is that of its node × 1000 + the shard."""

console = Console(highlight=False)


def tour(*, keep: bool) -> int:
    """Show it; the exit status."""
    try:
        artifacts = kafka_artifacts.obtain()
    except kafka_artifacts.Unavailable as error:
        console.print(f"[red]{error}[/red]")
        return 1
    with tempfile.TemporaryDirectory(prefix="fairlog-cluster-") as directory:
        kafka = KafkaCluster(Path(directory) / "kafka", artifacts)
        try:
            console.print("Starting three brokers of Apache Kafka: the engine, which keeps the journals …")
            kafka.start()
            nodes = FairlogCluster(Path(directory) / "fairlog", kafka.bootstrap)
            try:
                console.print("Starting three nodes of Fairlog …")
                nodes.start()
                return _shown(nodes, keep=keep)
            finally:
                nodes.stop()
        except PeerDidNotStart as error:
            console.print(f"[red]{error}[/red]")
            return 1
        finally:
            kafka.stop()


def _shown(nodes: FairlogCluster, *, keep: bool) -> int:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
    console.print(f"Clients begin at {nodes.bootstrap}. A producer commits transactions over {PARTITIONS} partitions …")
    _wait_until(lambda: all(map(nodes.is_in_sync, nodes.nodes)) and _are_owned(admin))
    writer = _Writer(nodes.bootstrap)
    _wait_until(lambda: bool(writer.committed or writer.failed))
    time.sleep(BEFORE_S)
    _wait_until(lambda: _are_owned(admin))
    owner = _owner_of(admin, 0)
    before = len(writer.committed)
    console.print(
        f"{before} were committed in about {BEFORE_S:.0f} s. Each partition's shard has an owner, and copies:\n"
    )
    _print_owners(admin)
    console.print(f"\n[bold]Killing node {owner}[/bold], which owns partition 0 …")
    nodes.kill(owner)
    time.sleep(AFTER_S)
    writer.end()
    _wait_until(lambda: _are_owned(admin))
    console.print(
        f"The longest that a commit took was {writer.longest_s:.1f} s: nodes wait for 3 s, and what follows takes a"
        f" moment, or longer on a busy machine. {len(writer.committed)} are committed:\n"
    )
    _print_owners(admin, killed=owner)
    findings = [_finding(nodes.bootstrap, partition, writer.committed) for partition in range(PARTITIONS)]
    stood = "" if len(writer.committed) > before else "nothing was committed after the kill"
    wrong = [finding for finding in (*findings, writer.failed, stood) if finding]
    for finding in wrong:
        console.print(f"[red]{finding}[/red]")
    if not wrong:
        console.print("\nA plain consumer found each of them in each partition, once, in order, and nothing else.")
    console.print(f"Starting node {owner} again: it reads on where its copy was.")
    nodes.spawn(owner)
    if keep:
        _wait_until(lambda: nodes.is_in_sync(owner))
        console.print(f"\nRunning until Ctrl-C: clients begin at [bold]{nodes.bootstrap}[/bold]. Look at it with\n")
        console.print(f"  .venv/bin/fairlog cluster --admin {nodes.admin(owner)}")
        console.print(f"  .venv/bin/fairlog shard list --admin {nodes.admin(owner)}")
        for node in nodes.nodes:
            console.print(
                f"  node {node}: data in {nodes.data(node)}, log in {nodes.log(node)}, console at http://{nodes.admin(node)}/"
            )
        _wait_for_ctrl_c()
    return 1 if wrong else 0


class _Writer:
    """One transactional producer, in a thread of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: list[bytes] = []
        self.longest_s = 0.0
        self.failed = ""
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"tour-{os.getpid()}",
                "transaction.timeout.ms": 60_000,
                "message.timeout.ms": 60_000,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._producer.init_transactions(WAIT_S)
        except KafkaException as exception:
            self.failed = f"the producer cannot begin: {exception.args[0]}"
            return
        for number in count():
            if self._ends.is_set():
                return
            value, began = str(number).encode(), time.monotonic()
            try:
                self._producer.begin_transaction()
                for partition in range(PARTITIONS):
                    self._producer.produce(TOPIC, value, partition=partition)
                self._producer.commit_transaction(WAIT_S)
            except KafkaException as exception:
                error = exception.args[0]
                if not error.txn_requires_abort():
                    self.failed = f"the producer cannot go on: {error}"
                    return
                try:
                    self._producer.abort_transaction(WAIT_S)
                except KafkaException as further:
                    self.failed = f"the producer cannot abort: {further.args[0]}"
                    return
            else:
                self.committed.append(value)
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(WAIT_S)
        if self._thread.is_alive():
            self.failed = self.failed or f"a commit was not answered within {WAIT_S:.0f} s"


def _finding(bootstrap: str, partition: int, committed: list[bytes]) -> str:
    """What is wrong with a partition; empty if it has exactly what was committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tour", "log_level": 2})
    try:
        _, end = watermarks(consumer, TOPIC, partition, leaders_change=True)
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < end and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    if found == committed:
        return ""
    return f"partition {partition} has {len(found)} records, and {len(committed)} transactions were committed"


def _owner_of(admin: AdminClient, partition: int) -> int:
    return admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[partition].leader // BROKERS_OF_A_NODE


def _are_owned(admin: AdminClient) -> bool:
    """Whether each partition has an owner; one that is just elected has not said so yet."""
    return all(part.leader >= 0 for part in admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions.values())


def _wait_until(is_so: Callable[[], bool]) -> None:
    """Raises PeerDidNotStart."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise PeerDidNotStart(f"the cluster has not settled in {WAIT_S:.0f} s; is this machine very busy?")
        time.sleep(POLL_S)


def _print_owners(admin: AdminClient, *, killed: int | None = None) -> None:
    for number, partition in sorted(admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions.items()):
        copies = sorted(broker // BROKERS_OF_A_NODE for broker in partition.replicas)
        owner = partition.leader // BROKERS_OF_A_NODE
        down = f" (node {killed} is down)" if killed in copies else ""
        console.print(
            f"  partition {number}: node {owner} owns it, copies on nodes {', '.join(map(str, copies))}{down}"
        )


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("stopping")
