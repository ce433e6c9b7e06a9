"""Topics with records in them, for the tests of Spark's source: made and filled by stock clients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 15.0
MARKERS = {"fairlog.transactions": "markers"}


def make(address: str, name: str, partitions: int = 1, **config: str) -> str:
    """Make a topic, and answer its name. Names of settings are written with `__` for a dot."""
    settings = {key.replace("__", "."): value for key, value in config.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([topic])[name].result(WAIT_S)
    return name


def delete(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([name])[name].result(WAIT_S)


def delete_records(address: str, name: str, before: Mapping[int, int]) -> None:
    """Delete the records of partitions below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_records([TopicPartition(name, number, at) for number, at in before.items()]).values():
        future.result(WAIT_S)


def produce(address: str, name: str, values: Sequence[bytes | None], *, partition: int = 0, **more: Any) -> None:
    """Write records outside a transaction; they can be read when this returns."""
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for value in values:
        producer.produce(name, value, partition=partition, **more)
    assert producer.flush(WAIT_S) == 0


def wait_for_end(address: str, name: str, end: int, partition: int = 0) -> None:
    """Wait until the partition can be read up to `end`: a commit is answered before its records are visible."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
    deadline = time.monotonic() + WAIT_S
    try:
        while (found := consumer.get_watermark_offsets(TopicPartition(name, partition), WAIT_S)[1]) < end:
            assert time.monotonic() < deadline, f"{name}-{partition} ends at {found}, and not at {end}"
    finally:
        consumer.close()


def transactional(address: str, name: str = "writer", timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": name, "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
    )
    producer.init_transactions(WAIT_S)
    return producer


def transact(producer: Producer, records: Mapping[str, Sequence[bytes]], *, commit: bool = True) -> None:
    """One transaction over the first partitions of several topics."""
    producer.begin_transaction()
    for name, values in records.items():
        for value in values:
            producer.produce(name, value, partition=0)
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.flush(WAIT_S)  # else the abort would only purge what was never sent
        producer.abort_transaction(WAIT_S)
