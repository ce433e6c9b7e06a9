"""How long a transaction takes, from begin to the commit's answer, by its size and its number of partitions.

The mock cluster inside librdkafka stores nothing and answers at once, so the time of a transaction with it is the cost
of the client itself. The broker's cost is also measured in a second way, the same for every peer: the CPU time of its
whole process over the round, per transaction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks import java_latency
from benchmarks.client import ClientProcess
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime

RECORDS = (1, 10, 100, 1000)
PARTITIONS = (1, 2, 10, 50)
RECORD_BYTES = 1024
ROUND_S, WARM_UP_S = 0.7, 0.1
PAUSE_S, PACED_S = 0.008, 1.0
TRANSACTIONS_MIN = 5
WAIT_S = 120.0


class Transactor:
    """One transactional producer in a process of its own."""

    def __init__(
        self, address: str, transactional_id: str = "latency", client: Mapping[str, str] | None = None
    ) -> None:
        """`client` are settings of librdkafka's that come after the address."""
        own = {"transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": address, **(client or {}), **own})
        self._producer.init_transactions(WAIT_S)
        self._committed = 0

    def run(
        self, topic: str, records: int, partitions: int, seconds: float, pause_s: float = 0.0
    ) -> tuple[list[float], list[float]]:
        """Run transactions one after the other for this time, and at least TRANSACTIONS_MIN of them.

        Each begins `pause_s` after the answer of the previous one; no figure includes the pause. Returns the ms of
        each, from begin to the commit's answer, and the part of the commit.
        """
        value = bytes(RECORD_BYTES)
        totals: list[float] = []
        commits: list[float] = []
        deadline = time.perf_counter() + seconds
        while len(totals) < TRANSACTIONS_MIN or time.perf_counter() < deadline:
            # With fewer records than partitions, each transaction goes on where the last one ended.
            first = self._committed * records
            begun = time.perf_counter()
            self._producer.begin_transaction()
            for number in range(first, first + records):
                self._producer.produce(topic, value, partition=number % partitions)
            asked = time.perf_counter()
            self._producer.commit_transaction(WAIT_S)
            answered = time.perf_counter()
            self._committed += 1
            if pause_s:
                time.sleep(pause_s)
            totals.append((answered - begun) * 1e3)
            commits.append((answered - asked) * 1e3)
        return totals, commits


def case_of(records: int, partitions: int) -> Case:
    return Case(f"{records} × {partitions}", {"records": records, "partitions": partitions})


PACED = case_of(10, 2)
"""The case that is also measured with pauses."""
JAVA = Case(f"{PACED.name}, Java", {**PACED.parameters, "client": "java"})
"""The same with a Java client, in both versions of the protocol (java_latency.py)."""


class TxnLatency:
    """Records × partitions; and one case again with the pauses of an application that does other work in between."""

    name = "txn-latency"
    question = (
        "One producer commits transactions one after the other; a case is records (1 KB each) × partitions, the records"
        " in turns over the partitions, linger.ms 0. With fewer records than partitions, a transaction touches as many"
        f" partitions as it has records, others each time. {ROUND_S} s per round, at least {TRANSACTIONS_MIN}"
        f" transactions, after {WARM_UP_S} s that are not measured. A broker that is still busy with the last"
        " transaction (as Kafka is, which writes its markers after the answer) answers CONCURRENT_TRANSACTIONS, and"
        " librdkafka waits some 20 ms before it asks again: that is in the figure, and with every batch flushed it is"
        f" most of it. *transaction, paced* is free of it: {PACED.name} once more in the same round, for {PACED_S} s,"
        f" each begun {PAUSE_S * 1e3:.0f} ms after the answer of the one before, with the pause outside of the figure."
        " *broker CPU* is the CPU time of the"
        " broker's whole process over the round, by transaction: the same measure for every peer."
        f" *{JAVA.name}* is the same by Java's client {java_latency.PROGRAM.version}, its linger.ms 0 as well, with the"
        " broker's feature transaction.version at 1 and at 2: a producer for each level, both in one virtual machine,"
        f" in {java_latency.SLICES} turns each per round, of at least {TRANSACTIONS_MIN} transactions, after"
        f" {java_latency.WARM_UP_S:.0f} s of either. *Java requests* are those that the client sent for a transaction."
        f" *{java_latency.SAVED}* is a ratio of each round by itself, of its medians or of its 99th percentiles."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:
        if quick:
            return [case_of(10, 2), case_of(100, 10), JAVA]
        return [*(case_of(records, partitions) for partitions in PARTITIONS for records in RECORDS), JAVA]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        shorter = 0.1 if bench.quick else 1.0
        if bench.first_time(peer):
            for partitions in PARTITIONS:
                peer.create_topics([f"latency-{partitions}"], partitions)
        if case == JAVA:
            return java_latency.measure(bench, peer, _load(shorter), round_number)
        client = bench.client(peer, "benchmarks.txn_latency:Transactor")
        _run(client, case, WARM_UP_S * shorter)
        cpu_before = peer.cpu_s()
        totals, commits = _run(client, case, ROUND_S * shorter)
        cpu_ms = (peer.cpu_s() - cpu_before) * 1e3
        paced = {"transaction, paced": sampled("ms", _paced(client, case, PACED_S * shorter))} if case == PACED else {}
        return {
            "transaction": sampled("ms", totals),
            **paced,
            "commit alone": sampled("ms", commits),
            "broker CPU": counted("CPU-ms/transaction", cpu_ms / len(totals)),
            "transactions measured": counted("transactions", len(totals)),
        }


def _load(shorter: float) -> java_latency.Load:
    """The Java client's work: the case that is also measured with pauses, with the same amounts."""
    partitions = int(JAVA.parameters["partitions"])
    return java_latency.Load(
        topic=f"latency-{partitions}",
        records=int(JAVA.parameters["records"]),
        partitions=partitions,
        transactions_min=TRANSACTIONS_MIN,
        warm_up_s=WARM_UP_S * shorter,
        seconds=ROUND_S * shorter,
        paced_s=PACED_S * shorter,
        pause_s=PAUSE_S,
    )


def _paced(client: ClientProcess, case: Case, seconds: float) -> list[float]:
    """The first is left out: it may wait for earlier ones that were made without a pause."""
    totals, _ = _run(client, case, seconds, PAUSE_S)
    return totals[1:]


def _run(client: ClientProcess, case: Case, seconds: float, pause_s: float = 0.0) -> tuple[list[float], list[float]]:
    partitions = case.parameters["partitions"]
    totals, commits = client.call(
        "run",
        topic=f"latency-{partitions}",
        records=case.parameters["records"],
        partitions=partitions,
        seconds=seconds,
        pause_s=pause_s,
    )
    return totals, commits


SCENARIO = TxnLatency()
