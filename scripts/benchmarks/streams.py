"""`streams`: what each stream costs a node, idle and beside others that have work.

The peers are one node with 1, 8, 32 and 64 shards (`shards-1` …), each shard with a stream of its own, on three brokers
of Kafka. The node owns all of its shards, so it writes the heartbeats of all and reads all of them back. An idle stream
costs the same at any time: what 1,000 of them would cost is a line through these figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from peers import processes
from peers.clusters import FairlogNodes
from peers.interface import Peer, Tuning

from benchmarks.processes import PRODUCERS_PER_CLIENT, RECORDS, TOUCHED, led
from benchmarks.rows import Measurements, counted, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

PARTITIONS = 64
SETTLE_S, IDLE_S, PACED_S, FULL_S, PAUSE_S = 5.0, 15.0, 5.0, 5.0, 0.02
TOPIC = "streams"


class Streams:
    """The case described in the module head."""

    name = "streams"
    question = (
        f"What does each stream cost? One node with as many shards as the peer's name says, {PARTITIONS} partitions"
        f" spread over them. *idle*: CPU time over {IDLE_S:.0f} s without clients, of the node and of its engine's"
        f" three brokers. *paced*: transactions of {RECORDS} × 1 KB to one shard for {PACED_S:.0f} s, each begun"
        f" {PAUSE_S * 1e3:.0f} ms after the answer of the one before. *full speed*: {PRODUCERS_PER_CLIENT} producers,"
        f" {TOUCHED} of all partitions in each transaction. By confluent-kafka, linger.ms 0. *until it serves*: from"
        " the start of an empty node until it owns all of its shards."
    )
    lifetime = Lifetime.OWN
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return [Case("one node")]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not isinstance(peer, FairlogNodes):
            raise NotMeasured("it has no streams")
        shorter = 0.1 if bench.quick else 1.0
        peer.start_engine()
        begun = time.monotonic()
        peer.start_nodes()
        serves_s = time.monotonic() - begun
        peer.create_topics([TOPIC], PARTITIONS)
        time.sleep(SETTLE_S)
        idle = _cores(peer, IDLE_S * shorter)
        memory = sum(map(processes.memory_bytes, peer.node_pids()))
        committer = bench.client(peer, "benchmarks.cluster:Committer", transactional_id="paced")
        own, _ = led(peer, TOPIC, "paced")
        paced = {"topic": TOPIC, "partitions": (own or [0])[:1], "pause_s": PAUSE_S}
        committer.call("run", seconds=1.0, **paced)
        committed = committer.call("run", seconds=PACED_S * shorter, **paced)
        writers = bench.client(peer, "benchmarks.processes:Writers", number=0)
        everywhere = {f"full-{number}": [*range(PARTITIONS)] for number in range(PRODUCERS_PER_CLIENT)}
        writers.call("transactions", topic=TOPIC, partitions=everywhere, seconds=1.0)
        totals = writers.call("transactions", topic=TOPIC, partitions=everywhere, seconds=FULL_S * shorter)
        return {
            "idle CPU of the node": counted("CPU-ms/s", idle[0] * 1e3),
            "idle CPU of the engine": counted("CPU-ms/s", idle[1] * 1e3),
            "memory of the node": counted("MB", memory / 1e6),
            "paced transaction": sampled("ms", [(answered - began) / 1e6 for began, answered in committed]),
            "full speed": counted("transactions/s", len(totals) / (FULL_S * shorter)),
            "until it serves": counted("s", serves_s),
        }


def _cores(peer: FairlogNodes, seconds: float) -> tuple[float, float]:
    """The CPU-seconds per second of the node, and of the engine."""

    def used() -> list[float]:
        return [sum(map(processes.cpu_s, pids)) for pids in (peer.node_pids(), peer.engine_pids())]

    before, begun = used(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = used(), time.monotonic() - begun
    node, engine = ((end - start) / elapsed for start, end in zip(before, after, strict=True))
    return node, engine


SCENARIO = Streams()
