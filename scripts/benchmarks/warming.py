"""The first seconds of a broker, which are nobody's figure: transactions are written, and read beside it.

A virtual machine that compiles what runs often (Kafka's) is many times slower in its first seconds than ever after, and
makes its internal topics when a client first asks for a coordinator. So every broker gets the same load before a
scenario; what else a scenario does before it measures, it says itself. It lasts twenty seconds, as every scenario whose
brokers the runner starts has times or rates among its figures, and who flushes every batch sees few requests in ten.
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
