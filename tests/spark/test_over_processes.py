"""`spark.readStream.format("fairlog")` over a node of three processes, one of which is killed meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from scripts.node_process import NodeProcess
from tests.spark import topics
from tests.spark.streams import Batches, frame, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TRANSACTIONS = 40
SHARES = 3


def test_micro_batches_split_no_transaction_over_processes(
    spark: SparkSession, three: NodeProcess, tmp_path: Path
) -> None:
    """Each has a record in three partitions, led by three processes: all are in one micro-batch, whatever is killed."""
    name = topics.make(three.address, "spread", SHARES)
    committed: set[bytes] = set()

    def write() -> None:
        producer = topics.transactional(three.address)
        for number in range(TRANSACTIONS):
            value = b"%d" % number
            try:
                producer.begin_transaction()
                for partition in range(SHARES):
                    producer.produce(name, value, partition=partition)
                producer.commit_transaction(topics.WAIT_S)
            except KafkaException:  # what came of it, the reader is told by its own promise
                producer = topics.transactional(three.address)
            else:
                committed.add(value)

    batches = Batches()
    query = start(frame(spark, three.address, subscribe=name, startingOffsets="earliest"), batches, tmp_path)
    try:
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(1.0)
        three.kill_process(1)
        writing.join(120.0)
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
