"""Transactions of 10 x 1 KB to 2 partitions, one after the other, through confluent-kafka.

The mock cluster inside librdkafka does no work, writes nothing and answers at once: what a transaction takes
against it is what the client itself costs. The difference is the broker's, including one flush of the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks.measuring import WAIT_S, Bench, make_topics, quantile

SCENARIO = "txn-latency"
RECORDS, RECORD_BYTES, PARTITIONS = 10, 1024, 2
TRANSACTIONS = 1000
WARM_UP = 50


def run(bench: Bench) -> None:
    with bench.node() as node:
        make_topics(node.address, ["latency"], PARTITIONS)
        targets = {
            "fairlog": _producer({"bootstrap.servers": node.address}),
            "mock": _producer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1}),
        }
        whole: dict[str, list[list[float]]] = {name: [] for name in targets}
        commits: dict[str, list[list[float]]] = {name: [] for name in targets}
        for producer in targets.values():
            _transactions(producer, WARM_UP)
        for _ in range(bench.rounds):
            for name, producer in targets.items():
                totals, last_steps = _transactions(producer, bench.amount(TRANSACTIONS))
                whole[name].append(totals)
                commits[name].append(last_steps)
    columns: dict[str, Callable[[list[float]], float]] = {
        "median": lambda values: quantile(values, 0.5),
        "99 %": lambda values: quantile(values, 0.99),
    }
    for name in targets:
        for column, reduce in columns.items():
            bench.note(SCENARIO, f"{name}, transaction, {column}", "ms", [reduce(r) * 1e3 for r in whole[name]])
        bench.note(SCENARIO, f"{name}, its commit alone, median", "ms", [quantile(r, 0.5) * 1e3 for r in commits[name]])


def _producer(where: dict[str, str | int]) -> Producer:
    producer = Producer(where | {"transactional.id": "bench", "linger.ms": 0, "log_level": 0})
    producer.init_transactions(WAIT_S)
    return producer


def _transactions(producer: Producer, count: int) -> tuple[list[float], list[float]]:
    """Seconds per transaction, from begin to the commit's answer; and of these the commit's alone."""
    value = bytes(RECORD_BYTES)
    totals: list[float] = []
    commits: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce("latency", value, partition=number % PARTITIONS)
        asked = time.perf_counter()
        producer.commit_transaction(WAIT_S)
        answered = time.perf_counter()
        totals.append(answered - begun)
        commits.append(answered - asked)
    return totals, commits
