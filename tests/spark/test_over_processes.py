"""`spark.readStream.format("fairlog")` over a node of three processes, one of which is killed meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.native.steps_of_cuts import ends_of_steps
from tests.spark import topics
from tests.spark.shared_transactions import SHARES, read_while_they_are_written
from tests.spark.streams import Batches, frame, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

LARGE_TRANSACTIONS = 60
LARGE_RECORDS = 500
STEPS = 3
KEPT_WITHIN_S = 120.0
"""How often cuts are kept depends on how long commits waited for the last one."""


def test_micro_batches_split_no_transaction_over_processes(
    spark: SparkSession, three: NodeProcess, tmp_path: Path
) -> None:
    """Each has a record in three partitions, led by three processes: all are in one micro-batch, whatever is killed."""
    read_while_they_are_written(spark, three.address, tmp_path, disturb=lambda: three.kill_process(1))


def write_large(producer: Producer, topic: str, number: int) -> None:
    """A transaction with many records in every partition, after a tenth of the time between two cuts that are kept."""
    time.sleep(0.1)
    producer.begin_transaction()
    for _ in range(LARGE_RECORDS):
        for partition in range(SHARES):
            producer.produce(topic, b"%d" % number, partition=partition)
    producer.commit_transaction(topics.WAIT_S)


def test_stream_with_a_limit_goes_over_processes_from_cut_to_cut(
    spark: SparkSession, three: NodeProcess, tmp_path: Path
) -> None:
    """It reads what was written before it began in several micro-batches, none of which splits a transaction."""
    name = topics.make(three.address, "limited", SHARES)
    producer = topics.transactional(three.address)
    deadline_s, written, steps = time.monotonic() + KEPT_WITHIN_S, 0, 0
    with Native.connect(three.address.partition(",")[0]) as native:
        while steps < STEPS:
            assert time.monotonic() < deadline_s, f"{written} transactions, and {steps} steps from cut to cut"
            for _ in range(LARGE_TRANSACTIONS):
                write_large(producer, name, written)
                written += 1
            steps = len(ends_of_steps([native], name, SHARES, written * LARGE_RECORDS)) - 1
    batches = Batches()
    source = frame(spark, three.address, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    query = start(source, batches, tmp_path)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(batches.rows) == written * LARGE_RECORDS * SHARES
    for batch, rows in batches.seen.items():
        found = Counter(bytes(row.value) for row in rows)
        assert set(found.values()) <= {LARGE_RECORDS * SHARES}, f"micro-batch {batch} splits a transaction"
    assert len(batches.seen) >= STEPS
