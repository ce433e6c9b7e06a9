"""What the tests of engines do with topics themselves, with librdkafka: make and fill them, and judge them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.modes import Mode
from tests.clients.reading import Reader, Seen

WAIT_S = 60.0
_COORDINATOR_COMES_BACK = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def _admin(address: str) -> AdminClient:
    """Without a word about its connections, some of which are to a node that is down."""
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def make(address: str, name: str, partitions: int = 1, **config: str) -> str:
    """Make a topic; its name."""
    admin = _admin(address)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([topic])[name].result(timeout=30)
    return name


def exists(address: str, topic: str) -> bool:
    """Is there such a topic?"""
    return topic in _admin(address).list_topics(timeout=30).topics


def fill(address: str, topic: str, partitions: int, records: Iterable[tuple[str, str]]) -> None:
    """Write plain records, keys and values, in turn into each partition."""
    _write(address, topic, ((number % partitions, *record) for number, record in enumerate(records)))


def fill_partition(address: str, topic: str, partition: int, records: Iterable[tuple[str, str]]) -> None:
    """Write plain records, keys and values, into one partition."""
    _write(address, topic, ((partition, *record) for record in records))


def _write(address: str, topic: str, records: Iterable[tuple[int, str, str]]) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for partition, key, value in records:
        producer.produce(topic, value, key, partition=partition)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def read(address: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Seen]:
    """All that is in a topic now, by partition and offset: several brokers answer in any order."""
    with Reader(address, topic, partitions, isolation=isolation) as reader:
        seen = reader.read_to_end(timeout_s=WAIT_S)
    return sorted(seen, key=lambda record: (record.partition, record.offset))


def committed(address: str, topic: str, partitions: int, mode: Mode) -> list[Seen]:
    """What a topic holds for readers: in journal mode both isolation levels are to see the same, at dense offsets."""
    seen = read(address, topic, partitions)
    if mode is Mode.JOURNAL:
        assert read(address, topic, partitions, "read_uncommitted") == seen
        for partition in range(partitions):
            offsets = [record.offset for record in seen if record.partition == partition]
            assert offsets == list(range(len(offsets)))
    return seen


def committed_values(address: str, topic: str, partitions: int, mode: Mode) -> list[list[str]]:
    """The values of each partition, likewise."""
    seen = committed(address, topic, partitions, mode)
    return [[(each.value or b"").decode() for each in seen if each.partition == p] for p in range(partitions)]


def differs(found: Iterable[object], truth: Iterable[object]) -> str:
    """What is too few, and too many, in a few words; empty if they are the same, whatever their order."""
    found_counts, truth_counts = Counter(found), Counter(truth)
    if found_counts == truth_counts:
        return ""
    missing, surplus = truth_counts - found_counts, found_counts - truth_counts
    return (
        f"{missing.total()} missing, {surplus.total()} too many; "
        f"missing {list(missing)[:5]}, too many {list(surplus)[:5]}"
    )


def group_offsets(address: str, group: str) -> Mapping[tuple[str, int], int]:
    """The committed offsets of a group, by topic and partition."""
    admin = _admin(address)
    deadline = time.monotonic() + WAIT_S
    while True:
        future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        try:
            partitions = future.result(timeout=30).topic_partitions or []
        except KafkaException as error:
            # One of several processes that was killed: the admin client does not ask again by itself.
            if error.args[0].code() not in _COORDINATOR_COMES_BACK or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return {(each.topic, each.partition): each.offset for each in partitions if each.offset >= 0}


def group_type(address: str, group: str) -> str | None:
    """The protocol by which the group's members are in it: "classic" or "consumer"; None if there is no such group."""
    admin = _admin(address)  # it has to live until the answer is there
    listed = admin.list_consumer_groups(request_timeout=30).result(timeout=30).valid or []
    return next((each.type.name.lower() for each in listed if each.group_id == group), None)


def ends(address: str, topic: str, partitions: int) -> list[int]:
    """The high watermarks."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "log_level": 0})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(partitions)
        ]
    finally:
        consumer.close()


def take_over(address: str, transactional_id: str) -> None:
    """Abort what a producer that is gone has left open."""
    Producer({"bootstrap.servers": address, "transactional.id": transactional_id}).init_transactions(WAIT_S)
