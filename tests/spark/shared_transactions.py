"""Transactions with a record in each of three partitions, which other shards lead, and a stream that reads them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tests.spark import topics
from tests.spark.streams import Batches, frame, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARES = 3
TRANSACTIONS = 40
UNDISTURBED_S = 1.0
WRITTEN_S = 120.0


def read_while_they_are_written(
    spark: SparkSession, address: str, directory: Path, *, disturb: Callable[[], None]
) -> None:
    """No micro-batch has a part of a transaction, and together they have all that was committed, once."""
    name = topics.make(address, "spread", SHARES)
    committed: set[bytes] = set()

    def write() -> None:
        producer = topics.transactional(address)
        for number in range(TRANSACTIONS):
            value = b"%d" % number
            try:
                producer.begin_transaction()
                for partition in range(SHARES):
                    producer.produce(name, value, partition=partition)
                producer.commit_transaction(topics.WAIT_S)
            except KafkaException:  # what came of it, the reader is told by its own promise
                producer = topics.transactional(address)
            else:
                committed.add(value)

    batches = Batches()
    query = start(frame(spark, address, subscribe=name, startingOffsets="earliest"), batches, directory)
    try:
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(UNDISTURBED_S)
        disturb()
        writing.join(WRITTEN_S)
        assert not writing.is_alive()
        query.processAllAvailable()
    finally:
        query.stop()
    for batch, rows in batches.seen.items():
        found = Counter(bytes(row.value) for row in rows)
        assert set(found.values()) <= {SHARES}, f"micro-batch {batch} splits a transaction"
    assert committed <= {bytes(row.value) for row in batches.rows}
    assert len(batches.rows) % SHARES == 0
    assert len(batches.seen) > 1
