"""`cluster`: what journals on a replicated log cost, and how long a failover takes, beside the log's own transactions.

The peers are three nodes with their engine (`cluster`), and the same three brokers of Kafka alone (`kafka-3`).

    within one shard, over two shards    transactions, one after the other, each begun after a pause
    failover                             the broker that coordinates them and leads their partition gets SIGKILL
    hand-over                            it gets SIGTERM
    plain                                plain records at full speed, as `produce` sends them

A pause, because Kafka writes its markers after the answer, and a client that begins at once waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from peers.clusters import ClusterPeer
from peers.interface import Peer, Tuning

from benchmarks import plain_load, produce
from benchmarks.processes import led
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

RECORDS, RECORD_BYTES = 10, 1024
PARTITIONS = 12
ROUND_S, WARM_UP_S, PAUSE_S = 5.0, 2.0, 0.02
BEFORE_KILL_S, AFTER_KILL_S = 3.0, 12.0
RECONNECT_MAX_MS = 200
WAIT_S = 120.0
WITHIN, OVER, FAILOVER, HAND_OVER = "within one shard", "over two shards", "failover", "hand-over"
PLAIN = next(shape for shape in plain_load.SHAPES if shape.name == "1 KB records, 1 MB requests")


class Committer:
    """One transactional producer in a process of its own."""

    def __init__(self, address: str, transactional_id: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(WAIT_S)

    def run(self, topic: str, partitions: Sequence[int], seconds: float, pause_s: float) -> list[tuple[int, int]]:
        """Begin and answer of each commit by the monotonic clock, in ns. What has to be aborted is, and is left out."""
        value = bytes(RECORD_BYTES)
        committed: list[tuple[int, int]] = []
        deadline = time.monotonic() + seconds
        while not committed or time.monotonic() < deadline:
            begun = time.monotonic_ns()
            try:
                self._producer.begin_transaction()
                for number in range(RECORDS):
                    self._producer.produce(topic, value, partition=partitions[number % len(partitions)])
                self._producer.commit_transaction(WAIT_S)
            except KafkaException as exception:
                if not exception.args[0].txn_requires_abort():
                    raise
                self._producer.abort_transaction(WAIT_S)
            else:
                committed.append((begun, time.monotonic_ns()))
            time.sleep(pause_s)
        return committed


def longest_wait_ms(since_ns: int, committed: Sequence[tuple[int, int]]) -> float:
    """From one answer to the next, after that time. Raises ValueError with fewer than two answers."""
    answers = [answered for _, answered in committed if answered > since_ns]
    if len(answers) < 2:
        raise ValueError("nothing was committed after the hand-over")
    return max(after - before for before, after in pairwise(answers)) / 1e6


def outage_ms(killed_ns: int, committed: Sequence[tuple[int, int]]) -> float:
    """The time from the kill to the end of the longest time without an answer.

    The first answer after the kill may have been on its way already. Raises ValueError if there is none after it.
    """
    answers = [killed_ns, *(answered for _, answered in committed if answered > killed_ns)]
    if len(answers) == 1:
        raise ValueError("nothing was committed after the kill")
    longest = max(range(1, len(answers)), key=lambda index: answers[index] - answers[index - 1])
    return (answers[longest] - killed_ns) / 1e6


class Cluster:
    """The cases described in the module head."""

    name = "cluster"
    question = (
        "What do journals on a replicated log cost, and how long does a failover take? Three nodes of Fairlog with"
        " their engine, three brokers of Kafka, beside three such brokers alone; all on this one machine, so all share"
        f" its cores. Transactions of {RECORDS} × 1 KB by confluent-kafka, linger.ms 0, for {ROUND_S:.0f} s per round,"
        f" each begun {PAUSE_S * 1e3:.0f} ms after the answer of the one before: to two partitions led by the broker"
        " that coordinates them, or to one of these and one led by another broker. *failover*: such transactions run to"
        f" one partition; after {BEFORE_KILL_S:.0f} s the broker that leads it and coordinates them gets SIGKILL; the"
        " time until the next commit is answered, with a client that connects again within"
        f" {RECONNECT_MAX_MS} ms. A node takes over after 3 s without its owner's heartbeat, Kafka after 2 s (of its"
        " own accord 9). *hand-over*: the same with SIGTERM, after which a broker hands over what it has; the longest"
        f" time from one answer to the next. *plain*: {PLAIN.name}, as in `produce`. CPU time and bytes written are"
        " those of all processes, the engine's too."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        plain = next(case for case in plain_load.cases() if case.name == PLAIN.name)
        return [Case(WITHIN, {"over": 1}), Case(OVER, {"over": 2}), Case(FAILOVER), Case(HAND_OVER), plain]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        if not isinstance(peer, ClusterPeer):
            raise NotMeasured("it is one broker")
        if case.name in (FAILOVER, HAND_OVER):
            return _without_a_broker(bench, peer, case.name, round_number)
        if "over" in case.parameters:
            return _transactions(bench, peer, int(case.parameters["over"]))
        return produce.SCENARIO.measure(bench, peer, case, round_number)


def _transactions(bench: Bench, peer: ClusterPeer, over: int) -> Measurements:
    shorter = 0.1 if bench.quick else 1.0
    if bench.first_time(peer, "transactions"):
        peer.create_topics(["transactions"], PARTITIONS)
    transactional_id = f"over-{over}"
    client = bench.client(peer, "benchmarks.cluster:Committer", transactional_id, transactional_id=transactional_id)
    own, others = led(peer, "transactions", transactional_id)
    partitions = own[:2] if over == 1 else [own[0], others[0]]
    client.call("run", topic="transactions", partitions=partitions, seconds=WARM_UP_S * shorter, pause_s=PAUSE_S)
    cpu_before = peer.cpu_s()
    committed = client.call(
        "run", topic="transactions", partitions=partitions, seconds=ROUND_S * shorter, pause_s=PAUSE_S
    )
    cpu_ms = (peer.cpu_s() - cpu_before) * 1e3
    return {
        "transaction": sampled("ms", [(answered - begun) / 1e6 for begun, answered in committed]),
        "broker CPU, paced": counted("CPU-ms/transaction", cpu_ms / len(committed)),
    }


def _without_a_broker(bench: Bench, peer: ClusterPeer, how: str, round_number: int) -> Measurements:
    topic = transactional_id = f"{how}-{round_number}"
    peer.create_topics([topic], PARTITIONS)
    client = bench.client(peer, "benchmarks.cluster:Committer", transactional_id, transactional_id=transactional_id)
    own, _ = led(peer, topic, transactional_id)
    leader = (
        AdminClient({"bootstrap.servers": peer.address}).list_topics(topic, WAIT_S).topics[topic].partitions[own[0]]
    )
    client.ask("run", topic=topic, partitions=own[:1], seconds=BEFORE_KILL_S + AFTER_KILL_S, pause_s=PAUSE_S)
    time.sleep(BEFORE_KILL_S)
    begun_ns = time.monotonic_ns()
    if how == FAILOVER:
        peer.kill_broker(leader.leader)
    else:
        peer.stop_broker(leader.leader)
    committed = client.answer()
    peer.make_whole()
    if how == FAILOVER:
        return {"from SIGKILL to a commit": counted("ms", outage_ms(begun_ns, committed))}
    return {"longest wait for a commit": counted("ms", longest_wait_ms(begun_ns, committed))}


SCENARIO = Cluster()
