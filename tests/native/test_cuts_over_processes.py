"""Cuts of a real node of three processes, while stock clients commit transactions that go over all of them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_fairlog.native import CutPartition, Native, Topics
from tests.native.steps_of_cuts import ends_of_steps
from tests.three_processes import ThreeProcesses

pytestmark = pytest.mark.slow

PARTITIONS = 6
COMMITS = 60
LARGE_COMMITS = 40
LARGE_RECORDS = 500
STEPS = 3
WAIT_S = 20.0
KEPT_WITHIN_S = 60.0
"""How often cuts are kept depends on how long commits waited for the last one."""


@pytest.fixture
def topic(three: ThreeProcesses) -> str:
    name = f"cut-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": three.node.address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)
    return name


def commit(address: str, topic: str, name: str) -> None:
    """So many transactions, each with a record in every partition."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-{name}", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    for _ in range(COMMITS):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x", partition=partition)
        producer.commit_transaction(WAIT_S)


def cuts_from(addresses: list[str], topic: str) -> Iterator[tuple[CutPartition, ...]]:
    """Cut after cut, of one broker after the other."""
    natives = [Native.connect(address, timeout_s=30) for address in addresses]
    try:
        while True:
            for native in natives:
                yield tuple(native.cut(Topics((topic,))))
    finally:
        for native in natives:
            native.close()


def test_cuts_of_any_broker_hold_each_transaction_in_all_partitions(three: ThreeProcesses, topic: str) -> None:
    """All partitions end alike in each cut; the cuts stop no producer, and the last one has all that was answered."""
    committing = [
        threading.Thread(target=commit, args=(three.node.address, topic, name), daemon=True) for name in ("a", "b")
    ]
    for thread in committing:
        thread.start()
    seen: set[int] = set()
    cuts = cuts_from(list(three.addresses), topic)
    while any(thread.is_alive() for thread in committing):
        cut = next(cuts)
        assert sorted(part.partition for part in cut) == list(range(PARTITIONS))
        (end,) = {part.end for part in cut}
        seen.add(end)
    assert {part.end for part in next(cuts)} == {2 * COMMITS}
    assert len(seen) > COMMITS // 4, "cuts were taken all the while"
    cuts.close()


def commit_large(address: str, topic: str) -> None:
    """Transactions with many records in every partition, for longer than two cuts that are kept lie apart."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(WAIT_S)
    for _ in range(LARGE_COMMITS):
        producer.begin_transaction()
        for _ in range(LARGE_RECORDS):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x", partition=partition)
        producer.commit_transaction(WAIT_S)
        time.sleep(0.1)


def test_reader_with_a_limit_goes_from_one_kept_cut_to_the_next(three: ThreeProcesses, topic: str) -> None:
    """Any broker is asked. All partitions end alike in each, and the reader comes to the end in several steps."""
    natives = [Native.connect(address, timeout_s=30) for address in three.addresses]
    deadline_s = time.monotonic() + KEPT_WITHIN_S
    committed, ends = 0, [0]
    while len(ends) <= STEPS:
        assert time.monotonic() < deadline_s, f"commits came to {committed} records each, and all kept cuts are {ends}"
        commit_large(three.node.address, topic)
        committed += LARGE_COMMITS * LARGE_RECORDS
        ends = ends_of_steps(natives, topic, PARTITIONS, committed)
        assert ends[-1] == committed
        assert all(end % LARGE_RECORDS == 0 for end in ends)
    two_steps = natives[0].cut(Topics((topic,)), limit=PARTITIONS * ends[2])
    assert {part.end for part in two_steps} == {ends[2]}
    for native in natives:
        native.close()
