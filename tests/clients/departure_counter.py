"""A consume-transform-produce worker: `departure_counter.py CLIENT ADDRESS SLOT`, a process that is made to be killed.

It reads flights from `departures` in the group `counters`, writes for each the minutes that were made up in the air
to `made-up`, and commits both in one transaction, as its client's own documentation does. The next worker of the same
SLOT takes its transactional id over. Whatever it cannot go on with ends the process; the test starts another.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

GROUP = "counters"
INPUT, OUTPUT = "departures", "made-up"
BATCH_RECORDS = 200
SESSION_MS = 3_000
AIOKAFKA_SESSION_MS = 8_000
"""It tells the broker no generation, so nothing stops what it commits behind the end of its session: such as when it
gets no processor for so long."""
TRANSACTION_MS = 10_000
WAIT_S = 30.0
LIVENESS_S = 15
"""A worker that makes no step for so long ends itself."""


def transform(departure: bytes) -> bytes:
    """`minutes made up in the air`, or `-` if the flight was cancelled or went elsewhere."""
    fields = departure.split(b",")
    left, arrived = fields[6], fields[7]
    return b"%d" % (int(left) - int(arrived)) if left and arrived else b"-"


# --- confluent-kafka -----------------------------------------------------------------------------


def confluent(address: str, slot: str) -> None:
    rebalanced = False

    def moved(_consumer: object, _partitions: object) -> None:
        nonlocal rebalanced
        rebalanced = True

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "cooperative-sticky",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": f"confluent-kafka-{slot}",
            "transaction.timeout.ms": TRANSACTION_MS,
            "reconnect.backoff.max.ms": 200,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    consumer.subscribe([INPUT], on_revoke=moved, on_lost=moved)
    while True:
        # librdkafka#5456: send_offsets_to_transaction may wait without end, whatever its time-out, if the node is
        # restarted in that moment. SIGALRM is left to its default: it ends the process, whichever call it is in.
        signal.alarm(LIVENESS_S)
        messages = consumer.consume(BATCH_RECORDS, 0.2)
        if rebalanced:
            # Some of these may belong to another worker by now: every partition goes on where its commit is.
            rebalanced = False
            _back_to_commits(consumer)
            continue
        records = [message for message in messages if message.error() is None]
        if not records:
            continue
        try:
            producer.begin_transaction()
            ends: dict[int, int] = {}
            for record in records:
                value = record.value()
                assert value is not None
                producer.produce(OUTPUT, transform(value), record.key(), partition=record.partition())
                ends[record.partition()] = record.offset() + 1
            producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(INPUT, partition, offset) for partition, offset in ends.items()],
                consumer.consumer_group_metadata(),
                WAIT_S,
            )
            _commit(producer)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(WAIT_S)
            _back_to_commits(consumer)


def _commit(producer: confluent_kafka.Producer) -> None:
    while True:
        try:
            return producer.commit_transaction(WAIT_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise


def _back_to_commits(consumer: confluent_kafka.Consumer) -> None:
    for partition in consumer.committed(consumer.assignment(), WAIT_S):
        if partition.offset < 0:
            partition.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.seek(partition)


# --- kafka-python --------------------------------------------------------------------------------


class _Moved(kafka.ConsumerRebalanceListener):  # type: ignore[misc, valid-type]
    """Tells that what was polled may belong to another worker by now.

    Told by both calls: between the two nothing is assigned, so nothing can be sought, and a partition that comes back
    goes on where this consumer has read to, and not where the group has committed.
    """

    def __init__(self) -> None:
        self.moved = False

    def on_partitions_revoked(self, revoked: object) -> None:
        self.moved = True

    def on_partitions_assigned(self, assigned: object) -> None:
        self.moved = True


def kafka_python(address: str, slot: str) -> None:
    listener = _Moved()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id=GROUP,
        enable_auto_commit=False,
        # Whoever takes a partition over waits for offsets that are pending (KIP-447).
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        max_poll_records=BATCH_RECORDS,
        reconnect_backoff_max_ms=200,
    )
    producer = _kafka_python_producer(address, slot)
    consumer.subscribe([INPUT], listener=listener)
    while True:
        # kafka-python 3.0.12 may keep a batch that it finds ready to be sent and never sends: its sender spins, and
        # what waits for it waits until the delivery time-out of two minutes, or without end.
        signal.alarm(LIVENESS_S)
        polled = consumer.poll(timeout_ms=200)
        if listener.moved:
            listener.moved = False
            _back_to_kafka_python_commits(consumer)
            continue
        # Before anything is sent: its heartbeats' thread may fall out of the group at any moment, and from then on the
        # client tells no generation at all, which no broker can refuse. What is told is fenced once it is not true.
        membership = consumer.group_metadata()
        if membership.generation_id < 0:
            _back_to_kafka_python_commits(consumer)
            continue
        if not polled:
            continue
        try:
            producer.begin_transaction()
            ends: dict[Any, Any] = {}
            for partition, records in polled.items():
                for record in records:
                    producer.send(OUTPUT, transform(record.value), key=record.key, partition=partition.partition)
                ends[partition] = kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
            producer.send_offsets_to_transaction(ends, membership)
            producer.commit_transaction()
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError):
            raise
        except kafka.errors.KafkaError:
            # kafka-python 3.0.12 keeps offsets that were refused, and sends them along with those of the next
            # transaction, past records that nobody has done. A new producer knows nothing of them, and aborts what is
            # open.
            producer.close(timeout=0)
            producer = _kafka_python_producer(address, slot)
            _back_to_kafka_python_commits(consumer)


def _kafka_python_producer(address: str, slot: str) -> Any:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        transactional_id=f"kafka-python-{slot}",
        transaction_timeout_ms=TRANSACTION_MS,
        reconnect_backoff_max_ms=200,
        linger_ms=5,
        max_block_ms=WAIT_S * 1000,
    )
    producer.init_transactions()
    return producer


def _back_to_kafka_python_commits(consumer: Any) -> None:
    for partition in consumer.assignment():
        committed = consumer.committed(partition)
        if committed is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, committed)


# --- aiokafka ------------------------------------------------------------------------------------


class _NotInMidTransaction(aiokafka.ConsumerRebalanceListener):
    """Partitions go only between two transactions: this client tells the broker no generation (KIP-447)."""

    def __init__(self) -> None:
        self.transaction = asyncio.Lock()

    async def on_partitions_revoked(self, revoked: object) -> None:
        async with self.transaction:
            pass

    async def on_partitions_assigned(self, assigned: object) -> None:
        pass


async def aio(address: str, slot: str) -> None:
    listener = _NotInMidTransaction()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=AIOKAFKA_SESSION_MS,
        heartbeat_interval_ms=500,
        retry_backoff_ms=50,
    )
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address,
        transactional_id=f"aiokafka-{slot}",
        transaction_timeout_ms=TRANSACTION_MS,
        retry_backoff_ms=50,
        linger_ms=5,
    )
    consumer.subscribe([INPUT], listener=listener)
    await producer.start()
    await consumer.start()
    while True:
        polled: dict[Any, Any] = {}
        async with listener.transaction:
            polled = await consumer.getmany(timeout_ms=0, max_records=BATCH_RECORDS)
            if polled:
                async with producer.transaction():
                    ends: dict[Any, int] = {}
                    for partition, records in polled.items():
                        for record in records:
                            await producer.send(
                                OUTPUT, transform(record.value), key=record.key, partition=partition.partition
                            )
                        ends[partition] = records[-1].offset + 1
                    await producer.send_offsets_to_transaction(ends, GROUP)
        if not polled:
            await asyncio.sleep(0.02)


def main() -> None:
    client, address, slot = sys.argv[1:]
    try:
        if client == "confluent-kafka":
            confluent(address, slot)
        elif client == "kafka-python":
            kafka_python(address, slot)
        else:
            asyncio.run(aio(address, slot))
    except Exception as error:  # noqa: BLE001 - whatever it is, the next worker goes on
        sys.stderr.write(f"{client} {slot}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    # As a crash would end it: nothing is said goodbye to, and nothing waits for a node that is down.
    os._exit(1)


if __name__ == "__main__":
    main()
