"""Whole nodes while their engine is away, lost to one of them, written into, or trimmed: nothing answered is lost.

`test_lost_engine.py` has what nodes cannot survive.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from peers import links, processes
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_cluster import KafkaCluster
from peers.watermarks import watermarks

from tests.clients.raw_client import (
    COORDINATOR_NOT_AVAILABLE,
    NOT_ENOUGH_REPLICAS,
    RawClient,
    batch,
    produce_request,
)
from tests.on_kafka.brokers import three_nodes
from tests.on_kafka.test_cluster import (
    PARTITIONS,
    WAIT_S,
    all_is_there,
    all_write_on,
    is_spread,
    make_topic,
    owned,
    owner_of,
    values,
    wait_until,
    writing,
)

pytestmark = pytest.mark.slow

REQUEST_TIMED_OUT = 7
LARGE = 900_000
"""Bytes."""
REFUSED = 100
"""Large requests."""
GROWTH_MAX = 30 << 20
"""Of a node that refuses three times as much."""
CONNECTIONS_MAX = 20
"""To other shards, of a node that is cut off. If it opened them without end, the owner and it would part each other."""
FILE_BYTES = 4 << 20
"""No file of a node whose disk is full may become longer."""
GIVES_UP = "is not the owner any more"
BEING_PLACED = 2
"""Of a writer's last transactions: answered, and perhaps not placed in each shard yet, which needs the engine."""
PATIENCE_S = 5.0
"""Of a client that waits for one answer."""


NUMBERS = count()


@pytest.fixture(scope="module")
def cluster(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FairlogCluster]:
    """One for all of these: each leaves it whole. Between refusing and giving up owners have twelve seconds."""
    with three_nodes(kafka, tmp_path_factory.mktemp("nodes"), failover_ms=3000) as nodes:
        yield nodes


@pytest.fixture
def topic(cluster: FairlogCluster) -> str:
    name = f"t-{next(NUMBERS)}"
    make_topic(cluster.bootstrap, name)
    return name


def is_whole(cluster: FairlogCluster) -> bool:
    return all(cluster.is_in_sync(node) for node in cluster.nodes)


def produced(cluster: FairlogCluster, topic: str, value: bytes) -> int | None:
    """The error code that partition 0's leader answers a plain batch with; None if it does not answer."""
    with suppress(OSError), RawClient(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
        return client.produce(topic, 0, batch([value]))[0]
    return None


def read(cluster: FairlogCluster, topic: str, wanted: set[bytes]) -> list[list[bytes]]:
    """Each partition up to the last of what is wanted, without asking where it begins or ends."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "nobody", "log_level": 2}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    missing = [set(wanted) for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + WAIT_S
        while any(missing):
            assert time.monotonic() < deadline, [len(values) for values in missing]
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                partition, value = message.partition() or 0, message.value() or b""
                found[partition].append(value)
                missing[partition].discard(value)
    finally:
        consumer.close()
    return found


def test_engine_is_away_for_longer_than_clients_wait(cluster: FairlogCluster, topic: str, kafka: KafkaCluster) -> None:
    """What is new is refused at once, without a queue of it. Reads go on, also when the owners have given up, and then
    hang up on writers. A node that is to end does; and when the engine is back, all goes on without a restart.
    """
    wait_until(lambda: is_spread(cluster))
    before = {node: cluster.pid(node) for node in cluster.nodes}
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        committed = [writer.committed[:-BEING_PLACED] for writer in writers]
        gave_up_before = sum(_gave_up(cluster, node) for node in cluster.nodes)
        try:
            for broker in kafka.brokers:
                kafka.pause(broker)
            wait_until(lambda: produced(cluster, topic, b"begun before") == NOT_ENOUGH_REPLICAS)
            assert produced(cluster, topic, b"refused") == NOT_ENOUGH_REPLICAS
            owner = owner_of(cluster, topic)
            with RawClient(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
                assert client.init_producer_id("another").error_code == COORDINATOR_NOT_AVAILABLE
                bytes_before = processes.memory_bytes(cluster.pid(owner))
                for _ in range(REFUSED):
                    assert client.produce(topic, 0, batch([bytes(LARGE)]))[0] == NOT_ENOUGH_REPLICAS
            assert processes.memory_bytes(cluster.pid(owner)) < bytes_before + GROWTH_MAX
            wanted = {value for mine in committed for value in mine}
            _have_all(read(cluster, topic, wanted), committed)
            gave_up = gave_up_before + cluster.shards
            wait_until(lambda: sum(_gave_up(cluster, node) for node in cluster.nodes) >= gave_up)
            assert produced(cluster, topic, b"refused") is None
            _have_all(read(cluster, topic, wanted), committed)
            cluster.leave(3)
            assert cluster.status(3) == 0
        finally:
            kafka.heal()
        all_write_on(writers)
        assert [cluster.pid(node) for node in (1, 2)] == [before[1], before[2]]
        cluster.spawn(3)
        wait_until(lambda: is_whole(cluster))
    assert b"refused" not in values(cluster.bootstrap, topic, 0)
    all_is_there(cluster, topic, writers)


def _gave_up(cluster: FairlogCluster, node: int) -> int:
    return sum(line["event"] == GIVES_UP for line in cluster.lines(node))


def _have_all(found: Sequence[Sequence[bytes]], committed: Sequence[Sequence[bytes]]) -> None:
    for each in found:
        for mine in committed:
            wanted = set(mine)
            assert [value for value in each if value in wanted] == list(mine)


def test_node_without_its_engine_answers_nothing_and_another_one_takes_over(
    cluster: FairlogCluster, topic: str, kafka: KafkaCluster
) -> None:
    """Clients still reach it, and are refused. When it hears the engine again it goes on, as a copy."""
    assert kafka.links is not None
    wait_until(lambda: is_spread(cluster))
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        lost = owner_of(cluster, topic)
        pid = cluster.pid(lost)
        others = [node for node in cluster.nodes if node != lost]
        owned_before, connected_before = owned(cluster, others), connected(cluster, lost)
        with RawClient(leader_at(cluster, lost, topic), timeout_s=WAIT_S) as at_lost:
            try:
                for broker in kafka.brokers:
                    kafka.links.cut(links.node(lost), broker)
                at_lost.send(produce_request(topic, 0, batch([b"unknown"])))
                wait_until(lambda: owned(cluster, others) > owned_before)
                all_write_on(writers)
                with suppress(ConnectionError):
                    assert at_lost.receive_produce()[0] == REQUEST_TIMED_OUT
                assert connected(cluster, lost) < connected_before + CONNECTIONS_MAX
            finally:
                kafka.heal()
        wait_until(lambda: is_whole(cluster))
        assert cluster.pid(lost) == pid
        all_write_on(writers)
    all_is_there(cluster, topic, writers)


def connected(cluster: FairlogCluster, node: int) -> int:
    """How often it has connected to the owner of another shard."""
    return sum(line["event"] == "connected to a shard" for line in cluster.lines(node))


def leader_at(cluster: FairlogCluster, node: int, topic: str) -> str:
    """The address of partition 0's leader, as this node knows it."""
    with RawClient(cluster.address(node)) as client:
        return client.leader(topic, 0) or ""


def test_what_somebody_writes_into_the_streams_is_nothing(
    cluster: FairlogCluster, topic: str, kafka: KafkaCluster
) -> None:
    """Neither noise nor what was there before, once more: nobody stops, and no record comes or goes."""
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        streams = [f"{cluster.name}.{name}" for name in ("metadata", "reports", "shard-0", "shard-1", "shard-2")]
        reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "nobody", "log_level": 2})
        writer = Producer({"bootstrap.servers": kafka.bootstrap})
        try:
            for stream in streams:
                low, end = watermarks(reader, stream, 0, leaders_change=True)
                reader.assign([TopicPartition(stream, 0, max(low, end - 20))])
                there = [each.value() or b"" for each in reader.consume(20, timeout=WAIT_S)]
                cut = () if stream.endswith(".metadata") else [each[:-1] for each in there]
                for data in (b"", b"noise", bytes(5000), *there, *cut):
                    writer.produce(stream, data, partition=0)
            assert writer.flush(WAIT_S) == 0
        finally:
            reader.close()
        all_write_on(writers)
        wait_until(lambda: is_whole(cluster))
    all_is_there(cluster, topic, writers)


def test_node_whose_disk_is_full_hands_over_and_comes_back(cluster: FairlogCluster, topic: str) -> None:
    """Of all that it keeps: its own shard, and the others' copies. Writers go on, and with room it has it all again."""
    wait_until(lambda: is_spread(cluster))
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        full = owner_of(cluster, topic)
        others = [node for node in cluster.nodes if node != full]
        before = owned(cluster, others)
        _soft, hard = resource.prlimit(cluster.pid(full), resource.RLIMIT_FSIZE)
        resource.prlimit(cluster.pid(full), resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
        numbers = count()

        def is_full() -> bool:
            """Write, until the node has handed over what it owns."""
            for partition in range(PARTITIONS):
                with suppress(OSError), RawClient(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
                    client.produce(topic, partition, batch([b"%d " % next(numbers) + bytes(LARGE)]))
            return owned(cluster, others) > before

        wait_until(is_full)
        all_write_on(writers)
        if cluster.running(full):
            resource.prlimit(cluster.pid(full), resource.RLIMIT_FSIZE, (hard, hard))
            cluster.leave(full)
        cluster.spawn(full)
        wait_until(lambda: is_whole(cluster))
        all_write_on(writers)
    all_is_there(cluster, topic, writers)
