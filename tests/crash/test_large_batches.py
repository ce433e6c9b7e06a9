"""Power cuts under batches that are large enough for allocated room, which no other crash test's load asks for."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from journal.frame import LARGE_FRAME_BYTES
from scripts.node_process import NodeProcess
from tests.crash import lossy_disk, uneven_flushes

pytestmark = pytest.mark.slow

POWER_CUTS = 4
ANSWERS_PER_LIFE = 6
ANSWER_WAIT_S = 60.0
TOPIC = "large"
LONG_FLUSH_S = 0.3
"""Long enough to be met at a look every 10 ms, on a loaded machine as well."""

SMALL_SEGMENTS = {
    "FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX": str(4 * 2**20),
    "FAIRLOG_REQUESTS_MESSAGE_BYTES_MAX": str(2**20),
    "FAIRLOG_DATALOG_MAP_BYTES": str(2**30),
}


def value_of(number: int) -> bytes:
    """A record's value, of its own size: a batch each, and now and then a small one, in zeros' place or blocks'."""
    rng = random.Random(number)
    return rng.randbytes(100 if number % 5 == 0 else LARGE_FRAME_BYTES + rng.randrange(100_000))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    ledger = {lossy_disk.LEDGER_VARIABLE: str(tmp_path / "ledger")}
    environment = SMALL_SEGMENTS | ledger | uneven_flushes.environment(1, long_s=LONG_FLUSH_S)
    node = NodeProcess(tmp_path / "data", environment, program=lossy_disk.PROGRAM)
    node.start()
    yield node
    node.kill()


def test_large_batches_that_were_answered_survive_power_cuts(node: NodeProcess, tmp_path: Path) -> None:
    """After each cut the node starts, and has every batch that was answered, whole, in order and once."""
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    rng, answered, sent = random.Random(1), set[int](), 0
    for _ in range(POWER_CUTS):
        sent = kill_amid_batches(node, tmp_path / "ledger", sent, answered)
        assert lossy_disk.lose_unsynced(node.data_dir, tmp_path / "ledger", rng)
        node.start()
        found = numbers_found(node)
        assert found == sorted(set(found))
        assert answered <= set(found)
    assert node.stop() == 0


def kill_amid_batches(node: NodeProcess, ledger: Path, sent: int, answered: set[int]) -> int:
    """Send records numbered from `sent` on; once enough are answered, kill while a flush is due; the next number.

    A producer that is given up first takes longer to end than a flush does: then all that it sent would be durable.
    """
    wanted = len(answered) + ANSWERS_PER_LIFE

    def note(error: object, message: Message) -> None:
        key = message.key()
        if error is None and isinstance(key, bytes):
            answered.add(int(key))

    producer = Producer(
        {
            "bootstrap.servers": node.address,
            "enable.idempotence": True,
            "message.max.bytes": 2**20,
            "batch.size": 1,
            "linger.ms": 0,
            "on_delivery": note,
            "log_level": 0,
        }
    )
    while len(answered) < wanted or not is_frozen_amid_flush(node, ledger):
        while len(producer) < 5:
            producer.produce(TOPIC, value_of(sent), str(sent), partition=0)
            sent += 1
        producer.poll(0.01)
    node.kill()
    producer.purge()
    return sent


def is_frozen_amid_flush(node: NodeProcess, ledger: Path) -> bool:
    """Freeze the node if it has written a large batch that is not durable yet."""
    os.kill(node.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, node.pid, os.WSTOPPED)
    if sum(len(each.before) for each in lossy_disk.owed(ledger)) > LARGE_FRAME_BYTES:
        return True
    os.kill(node.pid, signal.SIGCONT)
    return False


def numbers_found(node: NodeProcess) -> list[int]:
    """The numbers of all records, each of which has the value that belongs to it."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "reader", "log_level": 0})
    try:
        _low, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=ANSWER_WAIT_S)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[int] = []
        while len(found) < end:
            (message,) = consumer.consume(1, ANSWER_WAIT_S)
            key = message.key()
            assert isinstance(key, bytes), message.error()
            assert message.value() == value_of(int(key))
            found.append(int(key))
        return found
    finally:
        consumer.close()
