"""`offsets`: the cost of committing a consumer's offsets in every transaction, as consume-transform-produce does."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from peers.interface import Peer, Tuning

from benchmarks.rows import Measurements, counted, quantile, sampled
from benchmarks.scenario import Bench, Case, Lifetime, Scenario

RECORDS, RECORD_BYTES, PARTITIONS = 10, 1024, 2
TURNS, TURN_S, WARM_UP_S = 4, 0.5, 2.5
SETTLING, TRANSACTIONS_MIN = 2, 5
ANSWER_WAIT_S = 60.0


class Offsets:
    """One case; transactions with and without offsets take turns within a round."""

    name = "offsets"
    question = (
        f"What do a consumer's offsets add to a transaction? Transactions of {RECORDS} records of "
        f"{RECORD_BYTES // 1024} KB to {PARTITIONS} partitions, linger.ms=0, one after the other, from one producer, "
        "from begin to the commit's answer: with one send_offsets_to_transaction in each, and without, in turns of "
        f"{TURN_S} s, {TURNS} of each in a round. The first {SETTLING} of a turn are left out: they may wait for the "
        "turn before. The offsets are those of one partition, in the name of a consumer that has joined its group; it "
        f"reads nothing meanwhile. Before the first round, {WARM_UP_S} s of each kind."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return [Case(f"{RECORDS} × {PARTITIONS}", {"records": RECORDS, "partitions": PARTITIONS})]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        shorter = 0.1 if bench.quick else 1.0
        first = bench.first_time(peer)
        if first:
            peer.create_topics(["offsets-in"], 1)
            peer.create_topics(["offsets-out"], PARTITIONS)
        client = bench.client(peer, "benchmarks.offsets:Transformer")
        client.call("join")
        if first:
            for offsets in (False, True):
                client.call("run", seconds=WARM_UP_S * shorter, offsets=offsets)
        took: dict[bool, list[float]] = {True: [], False: []}
        sending: list[float] = []
        cpu_ms: dict[bool, float] = {True: 0.0, False: 0.0}
        count: dict[bool, int] = {True: 0, False: 0}
        for _ in range(TURNS):
            for offsets in (False, True):
                cpu_before = peer.cpu_s()
                turn = client.call("run", seconds=TURN_S * shorter, offsets=offsets)
                cpu_ms[offsets] += (peer.cpu_s() - cpu_before) * 1e3
                count[offsets] += len(turn["transactions_ms"])
                took[offsets] += turn["transactions_ms"][SETTLING:]
                sending += turn["sending_ms"][SETTLING:]
        client.call("leave")
        return {
            "with offsets": sampled("ms", took[True]),
            "without": sampled("ms", took[False]),
            "with / without": counted("ratio", quantile(took[True], 0.5) / quantile(took[False], 0.5)),
            "the call that sends them": sampled("ms", sending),
            "broker CPU, with offsets": counted("CPU-ms per transaction", cpu_ms[True] / count[True]),
            "broker CPU, without": counted("CPU-ms per transaction", cpu_ms[False] / count[False]),
        }


class Transformer:
    """A client process's class (client.py): a transactional producer, and the consumer whose offsets it commits."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._offset = 0
        self._value = bytes(RECORD_BYTES)
        self._consumer: Consumer | None = None
        self._producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "offsets", "linger.ms": 0, "log_level": 0}
        )
        self._producer.init_transactions(ANSWER_WAIT_S)

    def join(self) -> None:
        """Create the consumer and wait until the group has assigned its partition."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "offsets",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.subscribe(["offsets-in"])
        deadline = time.monotonic() + ANSWER_WAIT_S
        while not self._consumer.assignment():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the group gave out no partition in {ANSWER_WAIT_S:.0f} s")
            self._consumer.poll(0.05)
        # It belongs to the group, and sends heartbeats; its fetches are not what is measured.
        self._consumer.pause(self._consumer.assignment())

    def leave(self) -> None:
        assert self._consumer is not None
        self._consumer.close()
        self._consumer = None

    def run(self, seconds: float, offsets: bool) -> dict[str, list[float]]:
        """Run transactions one after the other for this time, and at least TRANSACTIONS_MIN of them.

        {"transactions_ms", "sending_ms"}: the time of each, from begin to the commit's answer, and the part of the call
        that sends its offsets.
        """
        assert self._consumer is not None
        transactions_ms: list[float] = []
        sending_ms: list[float] = []
        self._consumer.poll(0)
        deadline = time.perf_counter() + seconds
        while len(transactions_ms) < TRANSACTIONS_MIN or time.perf_counter() < deadline:
            begun = time.perf_counter()
            self._producer.begin_transaction()
            for number in range(RECORDS):
                self._producer.produce("offsets-out", self._value, partition=number % PARTITIONS)
            if offsets:
                self._offset += RECORDS
                asked = time.perf_counter()
                self._producer.send_offsets_to_transaction(
                    [TopicPartition("offsets-in", 0, self._offset)],
                    self._consumer.consumer_group_metadata(),
                    ANSWER_WAIT_S,
                )
                sending_ms.append((time.perf_counter() - asked) * 1e3)
            self._producer.commit_transaction(ANSWER_WAIT_S)
            transactions_ms.append((time.perf_counter() - begun) * 1e3)
        return {"transactions_ms": transactions_ms, "sending_ms": sending_ms}


SCENARIO: Scenario = Offsets()
