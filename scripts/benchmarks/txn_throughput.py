"""The cost of transactions in throughput: records at full speed with regular commits, against the same without.

Both halves of a case run in the same round, one right after the other, alternately first, so the loss is a ratio of two
neighbouring measurements. Full speed is as fast as client and broker can work: on a small machine they share the cores,
and a broker that takes more CPU time leaves the client less.

A broker that flushes before it answers does so for every plain request, but for transactional ones perhaps only at the
commit. Then transactions may be the faster half, and the loss is negative.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime

INTERVALS_MS = (10, 100, 1000)
PARTITIONS = 4
RECORD_BYTES = 1024
# `buffer.memory` of Kafka's own producer, which KIP-98 was measured with. What is queued when the interval is over, the
# commit waits for, so the queue bounds how far apart commits can get; librdkafka's own default is a gigabyte.
QUEUE_KB = 32_768
HALF_S, WARM_UP_S = 2.0, 3.0
WAIT_S = 120.0
TOPIC = "throughput"


class Pump:
    """A producer at full speed in a process of its own; plain and idempotent, or transactional."""

    def __init__(self, address: str, transactional_id: str | None = None) -> None:
        own = {"enable.idempotence": True} if transactional_id is None else {"transactional.id": transactional_id}
        self._producer = Producer(
            {"bootstrap.servers": address, "queue.buffering.max.kbytes": QUEUE_KB, "log_level": 0, **own}
        )
        if transactional_id is not None:
            self._producer.init_transactions(WAIT_S)
        self._failures: list[str] = []
        self._value = bytes(RECORD_BYTES)

    def plain(self, seconds: float) -> tuple[int, float]:
        """The number of records, and the seconds until the last was answered."""
        started = time.perf_counter()
        sent = self._produce_until(started + seconds)
        left = self._producer.flush(WAIT_S)
        taken = time.perf_counter() - started
        self._must_be_well(left)
        return sent, taken

    def transactional(self, seconds: float, interval_ms: int) -> tuple[int, float, int]:
        """The number of records, the seconds until the last commit was answered, and the number of transactions."""
        started = time.perf_counter()
        deadline = started + seconds
        sent = transactions = 0
        while time.perf_counter() < deadline:
            self._producer.begin_transaction()
            sent += self._produce_until(time.perf_counter() + interval_ms / 1e3)
            self._producer.commit_transaction(WAIT_S)
            transactions += 1
        taken = time.perf_counter() - started
        self._must_be_well(0)
        return sent, taken, transactions

    def _produce_until(self, deadline: float) -> int:
        sent = 0
        while True:
            # The clock is looked at once in 16 records: it costs a tenth of a produce().
            for number in range(16):
                while True:
                    try:
                        self._producer.produce(
                            TOPIC, self._value, partition=number % PARTITIONS, on_delivery=self._delivered
                        )
                        break
                    except BufferError:
                        self._producer.poll(0.01)
            sent += 16
            self._producer.poll(0)
            if time.perf_counter() >= deadline:
                return sent

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))

    def _must_be_well(self, left: int) -> None:
        if left or self._failures:
            raise RuntimeError(f"{left} records were not answered, {len(self._failures)} refused: {self._failures[:1]}")


class TxnThroughput:
    """A commit every 10, 100 and 1000 ms."""

    name = "txn-throughput"
    question = (
        f"One producer sends records of 1 KB to {PARTITIONS} partitions as fast as it can, with a queue of"
        f" {QUEUE_KB // 1024} MB and librdkafka's defaults: {HALF_S:.0f} s plain (idempotent, acks=all) and"
        f" {HALF_S:.0f} s with a commit after every interval, in turns first. An interval runs from begin to the asking"
        " for the commit, which waits for what is queued: *from commit to commit* is what became of it. *loss* compares"
        f" the two halves of one round. {WARM_UP_S:.0f} s of each before the first round."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:
        intervals = (100,) if quick else INTERVALS_MS
        return [Case(f"commit every {interval} ms", {"interval_ms": interval}) for interval in intervals]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        if first := bench.first_time(peer):
            peer.create_topics([TOPIC], PARTITIONS)
        interval_ms = int(case.parameters["interval_ms"])
        plain = bench.client(peer, "benchmarks.txn_throughput:Pump", "plain")
        transactional = bench.client(peer, "benchmarks.txn_throughput:Pump", "transactional", transactional_id="pump")
        shorter = 0.1 if bench.quick else 1.0
        if first:
            plain.call("plain", seconds=WARM_UP_S * shorter)
            transactional.call("transactional", seconds=WARM_UP_S * shorter, interval_ms=100)
        halves: dict[str, Measurements] = {}
        for half in ("plain", "transactional") if round_number % 2 == 0 else ("transactional", "plain"):
            cpu_before = peer.cpu_s()
            if half == "plain":
                sent, taken = plain.call("plain", seconds=HALF_S * shorter)
                more: Measurements = {}
            else:
                amounts = {"seconds": HALF_S * shorter, "interval_ms": interval_ms}
                sent, taken, transactions = transactional.call("transactional", **amounts)
                more = {"from commit to commit": counted("ms", taken / transactions * 1e3)}
            megabytes = sent * RECORD_BYTES / 1e6
            cpu_s = peer.cpu_s() - cpu_before
            halves[half] = {
                half: counted("MB/s", megabytes / taken),
                f"{half}, broker CPU": counted("CPU-s/GB", cpu_s / (megabytes / 1e3)),
                **more,
            }
        loss = 1 - halves["transactional"]["transactional"].value / halves["plain"]["plain"].value
        return {"loss": counted("%", loss * 100), **halves["plain"], **halves["transactional"]}


SCENARIO = TxnThroughput()
