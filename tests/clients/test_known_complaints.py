"""What users of other brokers complained of, as tests that it does not happen here.

Each test names the report. Two more stand elsewhere: InitProducerId repeated (librdkafka#3928) and the torn
transaction of KAFKA-17754 in test_raw_protocol.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT, ClientKind
from tests.clients.raw_client import NONE, UNKNOWN_TOPIC_OR_PARTITION, RawClient, batch
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds
from tests.clients.test_timeouts import wait_until_ended

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("last", ["commit", "abort"])
def test_lag_behind_a_transaction_reaches_zero(
    node: NodeProcess, isolation: str, last: str, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#3917: with a control record at the end, position never reaches the high watermark."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        for outcome in ("commit", last):
            producer.begin()
            for _ in range(3):
                producer.send(topic, 0, outcome.encode())
            producer.flush()
            if outcome == "commit":
                producer.commit()
            else:
                producer.abort()
    with Reader(node.address, topic, 1, isolation=isolation) as reader:
        records = reader.wait_for(6 if last == "commit" else 3)
        reader.read_to_end()
        assert records[-1].offset + 1 == reader.high_watermark(0) == len(records)


def test_read_to_end_loop_of_aiokafka_ends(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """aiokafka#911: `while position < end_offset: getone()` waits for ever if a marker is the last record."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        for outcome in ("committed", "aborted"):
            producer.begin()
            producer.send(topic, 0, outcome.encode())
            producer.flush()
            if outcome == "committed":
                producer.commit()
            else:
                producer.abort()
    with Reader(node.address, topic, 1) as reader:
        reader.wait_for(1)

    async def read_to_end() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=node.address, isolation_level="read_committed")
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            values: list[bytes | None] = []
            while await consumer.position(partition) < end:
                values.append((await consumer.getone()).value)
            return values
        finally:
            await consumer.stop()

    async def bounded() -> list[bytes | None]:
        return await asyncio.wait_for(read_to_end(), WAIT_S)

    assert asyncio.run(bounded()) == [b"committed"]


def test_transaction_begun_and_empty_expires(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """redpanda#18324: partitions added, nothing ever produced; it must time out like any other."""
    topic, transactional_id = new_topic(), new_id()
    with RawClient(node.address) as client:
        granted = client.init_producer_id(transactional_id, timeout_ms=1000)
        added = client.add_partitions(transactional_id, granted.producer_id, granted.producer_epoch, topic, [0])
        assert added == {0: NONE}
        assert client.transaction_state(transactional_id).transaction_state == "Ongoing"
        wait_until_ended(node, transactional_id)
    with CONFLUENT.producer(node.address, transactional_id) as successor:
        successor.begin()
        successor.send(topic, 0, b"next")
        successor.commit()
    assert_topic_holds(node.address, topic, {0: [b"next"]})


def test_abort_that_races_adding_partitions_is_not_fatal(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#4849: abort while partitions are still being registered; the producer stays usable."""
    topic = new_topic(20)
    with client.producer(node.address, new_id()) as producer:
        for _ in range(10):
            producer.begin()
            for partition in range(20):
                producer.send(topic, partition, b"aborted")
            producer.abort()  # no flush: AddPartitionsToTxn and Produce are on their way
        producer.begin()
        for partition in range(20):
            producer.send(topic, partition, b"committed")
        producer.commit()
    assert_topic_holds(node.address, topic, {partition: [b"committed"] for partition in range(20)})


def test_topic_deleted_inside_a_transaction_does_not_hold_it_up(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """apache/kafka#21672: no endless retries; the rest commits
    (docs/decisions/0003-deleted-topics.md), the next as well."""
    doomed, other = new_topic(), new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        producer.begin()
        producer.send(doomed, 0, b"deleted")
        producer.send(other, 0, b"the rest")
        producer.flush()
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.delete_topics([doomed])[doomed].result(timeout=WAIT_S)
        started = time.monotonic()
        producer.commit()
        assert time.monotonic() - started < WAIT_S / 3
        producer.begin()
        producer.send(other, 0, b"next")
        producer.commit()
    assert_topic_holds(node.address, other, {0: [b"the rest", b"next"]})


def test_next_transaction_begins_without_a_back_off(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """CONCURRENT_TRANSACTIONS is never answered for a transaction that is only being copied."""
    topic = new_topic(4)
    with RawClient(node.address) as client:
        transactional_id = new_id()
        granted = client.init_producer_id(transactional_id)
        for number in range(50):
            added = client.add_partitions(
                transactional_id, granted.producer_id, granted.producer_epoch, topic, range(4)
            )
            assert added == dict.fromkeys(range(4), NONE), f"transaction {number}"
            for partition in range(4):
                records = batch(
                    [b"%d" % number] * 10,
                    producer_id=granted.producer_id,
                    epoch=granted.producer_epoch,
                    sequence=10 * number,
                    transactional=True,
                )
                assert client.produce(topic, partition, records, transactional_id=transactional_id)[0] == NONE
            assert client.end(transactional_id, granted.producer_id, granted.producer_epoch, commit=True) == NONE
    expected = [b"%d" % number for number in range(50) for _ in range(10)]
    assert_topic_holds(node.address, topic, dict.fromkeys(range(4), expected))


def test_delivery_report_inside_a_transaction_claims_no_offset(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """An offset is not known before the commit; librdkafka must report none rather than plausible lies."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        producer.begin()
        for number in range(5):
            producer.send(topic, 0, b"%d" % number)
        offsets = producer.flush()
        producer.commit()
    assert all(offset is None or offset < 0 for offset in offsets), offsets


def test_consumer_offsets_for_times_works_with_a_stock_client(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """`offsets_for_times` inside batches, compressed ones included."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, compression="zstd") as producer:
        for number in range(100):
            producer.send(topic, 0, b"x" * 50, timestamp_ms=1_000_000 + number)
        producer.flush()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.address, "group.id": "unused"})
    try:
        asked = [confluent_kafka.TopicPartition(topic, 0, 1_000_040)]
        assert [each.offset for each in consumer.offsets_for_times(asked, timeout=WAIT_S)] == [40]
    finally:
        consumer.close()


def test_transaction_to_a_topic_that_is_missing_is_aborted_and_the_next_one_commits(
    fresh_node: Callable[..., NodeProcess],
) -> None:
    """A refused AddPartitions leaves a transaction that only the client knows; its abort must not be an error."""
    node = fresh_node(FAIRLOG_TOPICS_AUTO_CREATE="false")
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("there", 1, 1)])["there"].result(timeout=WAIT_S)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": "t",
            "topic.metadata.propagation.max.ms": 100,
            "log_level": 2,
        }
    )
    producer.init_transactions(WAIT_S)
    for number in range(2):
        producer.begin_transaction()
        producer.produce("there", b"%d" % number, partition=0)
        producer.commit_transaction(WAIT_S)
        failures: list[confluent_kafka.KafkaError | None] = []
        producer.begin_transaction()
        missing = f"missing-{number}"  # one that is known to be missing is refused without asking the node
        producer.produce(missing, b"lost", partition=0, on_delivery=lambda error, _, to=failures: to.append(error))
        producer.flush(WAIT_S)
        assert [error is not None for error in failures] == [True]
        producer.abort_transaction(WAIT_S)
    assert_topic_holds(node.address, "there", {0: [b"0", b"1"]})


def test_partition_missing_is_refused_and_the_abort_that_follows_succeeds(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """The same by hand: after a commit, error 3 for the partition, then EndTxn(abort), then the next one."""
    topic, name = new_topic(), new_id()
    with RawClient(node.address) as client:
        granted = client.init_producer_id(name)
        mine = name, granted.producer_id, granted.producer_epoch
        for sequence in range(2):
            assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
            record = batch(
                [b"%d" % sequence], producer_id=mine[1], epoch=mine[2], sequence=sequence, transactional=True
            )
            assert client.produce(topic, 0, record, transactional_id=name)[0] == NONE
            assert client.end(*mine, commit=True) == NONE
            assert client.add_partitions(*mine, topic, [9]) == {9: UNKNOWN_TOPIC_OR_PARTITION}
            assert client.end(*mine, commit=False) == NONE
    assert_topic_holds(node.address, topic, {0: [b"0", b"1"]})
