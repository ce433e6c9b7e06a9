"""Sinks over a real node of three processes: lanes and offsets in all shards, over kills of one of them."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.lane_ids import group_of_sink
from coordinator.transaction_groups import journal_of
from pyspark_fairlog.native import Committed, Native, NativeError, Offsets, Topics
from pyspark_fairlog.persistence import persistently
from scripts.node_process import NodeProcess

pytestmark = pytest.mark.slow

PROCESSES = 3
GROUP_JOURNALS = 16
PARTITIONS = 6
WAIT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Tests kill its processes, one at a time."""
    started = NodeProcess(tmp_path_factory.mktemp("sinks") / "data", processes=PROCESSES)
    started.start()
    yield started
    assert started.stop() == 0, started.log_tail()


@pytest.fixture
def topic(node: NodeProcess) -> str:
    name = f"out-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)
    return name


def shard_of(sink: str) -> int:
    return journal_of(group_of_sink(sink), GROUP_JOURNALS) % PROCESSES


def sink_at(shard: int) -> str:
    """A new sink that the shard has."""
    return next(name for name in (uuid.uuid4().hex for _ in range(1000)) if shard_of(name) == shard)


def of(sink: str, batch: int) -> dict[str, str | int]:
    return {"sink": sink, "query": "q", "run": "r", "batch": batch}


def write(native: Native, node: NodeProcess, topic: str, sink: str, batch: int, lane: int, attempt: int = 0) -> None:
    """A lane of the batch with a record in each partition."""
    name = native.join(**of(sink, batch), partition=lane, attempt=attempt)  # type: ignore[arg-type]
    assert name is not None
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, f"{batch}-{lane}".encode(), partition=partition)
    assert producer.flush(WAIT_S) == 0


def commit(native: Native, sink: str, batch: int, lanes: int, offsets: Offsets | None = None) -> Committed:
    winners = [(lane, 0, PARTITIONS) for lane in range(lanes)]
    return native.commit(**of(sink, batch), winners=winners, offsets=offsets)  # type: ignore[arg-type]


def commit_or_write_again(node: NodeProcess, topic: str, sink: str, batch: int, group: str) -> Committed:
    """Commit the batch of one lane, with offsets of the group, as a sink does whatever happens to the node."""
    offsets = Offsets(group, ((topic, 0, batch), (topic, 5, 100 + batch)))
    deadline = time.monotonic() + 2 * WAIT_S
    while True:
        try:
            return persistently(
                lambda native: commit(native, sink, batch, 1, offsets),
                node.address,
                work_s=120,
            )
        except NativeError as error:
            if error.kind not in ("unknown-lane", "lane-aborted") or time.monotonic() > deadline:
                raise
            persistently(lambda native: write(native, node, topic, sink, batch, 0), node.address)


def values(node: NodeProcess, topic: str) -> Counter[str]:
    """What a plain consumer finds below a cut."""
    with Native.connect(node.address, timeout_s=WAIT_S) as native:
        ends = {part.partition: part.end for part in native.cut(Topics((topic,)))}
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "unused", "enable.auto.commit": False})
    found: Counter[str] = Counter()
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        deadline = time.monotonic() + WAIT_S
        while sum(found.values()) < sum(ends.values()):
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                found[value.decode()] += 1
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("asked", range(PROCESSES))
def test_batch_over_all_shards_is_committed_whichever_broker_is_asked(
    node: NodeProcess, topic: str, asked: int
) -> None:
    """The client is sent to the sink's broker, and stays there; the places are in all partitions."""
    sink = sink_at(1)
    with Native.connect(node.addresses[asked], timeout_s=WAIT_S) as native:
        for batch in range(3):
            for lane in range(2):
                write(native, node, topic, sink, batch, lane)
            done = commit(native, sink, batch, 2)
            assert not done.already
            assert {it.partition for it in done.placements} == set(range(PARTITIONS))
            assert sum(it.records for it in done.placements) == 2 * PARTITIONS
            assert commit(native, sink, batch, 2) == Committed(True, done.placements)
        native.forget(sink)
        with pytest.raises(NativeError) as refused:
            native.forget(sink)
        assert refused.value.kind == "unknown-sink"
    assert values(node, topic) == {f"{batch}-{lane}": PARTITIONS for batch in range(3) for lane in range(2)}


def test_lane_with_another_count_is_refused_and_written_again(node: NodeProcess, topic: str) -> None:
    """The counts of all shards are known before anything is decided."""
    sink = sink_at(0)
    with Native.connect(node.address, timeout_s=WAIT_S) as native:
        write(native, node, topic, sink, 0, 0)
        with pytest.raises(NativeError) as refused:
            native.commit(**of(sink, 0), winners=[(0, 0, PARTITIONS + 1)])  # type: ignore[arg-type]
        assert refused.value.kind == "wrong-count"
        write(native, node, topic, sink, 0, 0)
        assert not commit(native, sink, 0, 1).already
    assert values(node, topic) == {"0-0": PARTITIONS}


def test_offsets_of_any_shards_groups_are_committed_with_the_batch(node: NodeProcess, topic: str) -> None:
    """Whichever broker has the group, and only with the batch."""
    sink = sink_at(2)
    groups = [f"{topic}-{number}" for number in range(6)]
    with Native.connect(node.address, timeout_s=WAIT_S) as native:
        for batch, group in enumerate(groups):
            write(native, node, topic, sink, batch, 0)
            commit(native, sink, batch, 1, Offsets(group, ((topic, 0, batch), (topic, 5, 100 + batch))))
    for batch, group in enumerate(groups):
        assert committed(node, group, topic) == {0: batch, 5: 100 + batch}


def committed(node: NodeProcess, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in (0, 5)], timeout=WAIT_S)
        return {each.partition: each.offset for each in found}
    finally:
        consumer.close()


def test_group_with_members_in_another_shard_is_refused(node: NodeProcess, topic: str) -> None:
    """The broker that has it says so; nothing of the batch is committed, and it can be without the offsets."""
    sink = sink_at(2)
    consumers: list[Consumer] = []
    with Native.connect(node.address, timeout_s=WAIT_S) as native:
        write(native, node, topic, sink, 0, 0)
        for number in range(3):
            group = f"{topic}-{number}"
            consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
            consumers.append(consumer)
            consumer.subscribe([topic])
            deadline = time.monotonic() + WAIT_S
            while not consumer.assignment():
                assert time.monotonic() < deadline
                consumer.poll(0.2)
            with pytest.raises(NativeError) as refused:
                commit(native, sink, 0, 1, Offsets(group, ((topic, 0, 1),)))
            assert refused.value.kind == "group-in-use"
        assert not commit(native, sink, 0, 1).already
    for consumer in consumers:
        consumer.close()
    assert values(node, topic) == {"0-0": PARTITIONS}


@pytest.mark.parametrize("killed", range(PROCESSES))
def test_process_killed_while_a_batch_is_committed(node: NodeProcess, topic: str, killed: int) -> None:
    """Asked again it is committed once; or, if its lanes were lost with the sink's process, written again first."""
    sink, group = sink_at(1), f"{topic}-group"
    for batch in range(4):
        persistently(lambda native, batch=batch: write(native, node, topic, sink, batch, 0), node.address)
        killing = threading.Timer(0.004 * batch, node.kill_process, (killed,))
        killing.start()
        done = commit_or_write_again(node, topic, sink, batch, group)
        killing.join()
        again = persistently(lambda native, batch=batch: commit(native, sink, batch, 1), node.address, work_s=120)
        assert again == Committed(True, done.placements)
    assert values(node, topic) == {f"{batch}-0": PARTITIONS for batch in range(4)}
    assert committed(node, group, topic) == {0: 3, 5: 103}
