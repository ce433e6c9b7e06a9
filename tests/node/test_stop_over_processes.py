"""SIGTERM to a node of three processes, whose producers commit transactions that go over all of them.

The processes end at different times. A commit that is under way then may need one that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.three_processes import PROCESSES

pytestmark = pytest.mark.slow

TOPIC = "t"
PARTITIONS = 6
PRODUCERS = 8
COMMITS = 40
"""That are answered before the stop, by all together."""
WAIT_S = 30.0
LONG_GRACE = {"FAIRLOG_STOP_GRACE_MS": "120000"}
COMMIT_S = 1.0
STOPS = 3
PATIENCE_S = 40.0
"""What waits for nothing has ended by then, on the slowest machine; with the long grace, what waits for it has not."""


class Committing:
    """Producers that commit one transaction after the other, each with the same record in every partition."""

    def __init__(self, address: str, number: int) -> None:
        """`number` makes their records others than those of earlier ones."""
        self.answered: list[str] = []
        """The records of commits that were answered."""
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        for which in range(PRODUCERS):
            producer = Producer(
                {"bootstrap.servers": address, "transactional.id": f"p{which}", "linger.ms": 0, "log_level": 0}
            )
            producer.init_transactions(WAIT_S)
            names = f"p{which} {number}"
            self._threads.append(threading.Thread(target=self._commit, args=(producer, names), daemon=True))
        for thread in self._threads:
            thread.start()

    def _commit(self, producer: Producer, name: str) -> None:
        """Until there is no answer any more to a commit, which may have happened all the same."""
        for commit in count():
            value = f"{name} {commit}"
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, value.encode(), partition=partition)
            while True:
                try:
                    producer.commit_transaction(COMMIT_S)
                except KafkaException:
                    if self._stopped.is_set():
                        return
                else:
                    break
            self.answered.append(value)

    def wait_for(self, commits: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.answered) < commits:
            assert time.monotonic() < deadline, f"{len(self.answered)} commits after {WAIT_S:.0f} s"
            time.sleep(0.01)

    def node_has_stopped(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def records_of(address: str) -> list[list[str]]:
    """All records of each partition."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True, "auto.offset.reset": "error"}
    )
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    ended: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"only {ended} were read to their ends"
        if (message := consumer.poll(1.0)) is None:
            continue
        if message.error() is None:
            found[message.partition()].append(message.value().decode())
        else:
            ended.add(message.partition())
    consumer.close()
    return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data", LONG_GRACE, processes=PROCESSES)
    node.start()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
    yield node
    node.kill()


def test_stop_waits_for_no_process_that_has_ended_and_tears_no_transaction(node: NodeProcess) -> None:
    answered: list[str] = []
    for number in range(STOPS):
        committing = Committing(node.address, number)
        committing.wait_for(COMMITS)
        assert node.stop(PATIENCE_S) == 0, node.log_tail()
        committing.node_has_stopped()
        answered += committing.answered
        node.start()
    first, *others = map(sorted, records_of(node.address))
    assert len(set(first)) == len(first)
    assert set(answered) <= set(first)
    assert all(other == first for other in others)
