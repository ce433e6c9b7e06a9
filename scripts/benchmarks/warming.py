"""The warm-up of a broker, which is not measured: transactions are written, and read at the same time.

A virtual machine that compiles frequent code (Kafka's) is many times slower in its first seconds than later, and Kafka
creates its internal topics when a client first asks for a coordinator. So every broker gets the same load before a
scenario; a scenario describes any further preparation itself. The warm-up lasts twenty seconds, because every scenario
whose brokers the runner starts has times or rates among its figures, and a broker that flushes every batch gets few
requests in ten seconds.
"""

from __future__ import annotations

import sys

from peers.interface import Peer

from benchmarks.scenario import Bench

WARM_UP_S, QUICK_WARM_UP_S = 20.0, 1.0
TOPIC, RECORDS, PARTITIONS = "warming-up", 10, 2


def warm_up_s(quick: bool) -> float:
    """How long each broker is warmed up before a scenario."""
    return QUICK_WARM_UP_S if quick else WARM_UP_S


def warm_up(bench: Bench, peer: Peer) -> None:
    """Write transactions of RECORDS × 1 KB to PARTITIONS, one after the other, while a consumer reads them.

    The mock is left cold: it compiles nothing and keeps nothing.
    """
    if not peer.durable:
        return
    seconds = warm_up_s(bench.quick)
    peer.create_topics([TOPIC], PARTITIONS)
    writer = bench.client(peer, "benchmarks.txn_latency:Transactor")
    isolation = peer.transactional_isolation
    reader = bench.client(peer, "benchmarks.visible:Watcher", topic=TOPIC, partitions=PARTITIONS, isolation=isolation)
    reader.ask("watch", count=sys.maxsize, timeout_s=seconds)
    writer.call("run", topic=TOPIC, records=RECORDS, partitions=PARTITIONS, seconds=seconds)
    reader.answer()
    bench.close_clients(peer)
