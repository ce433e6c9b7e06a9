"""From SIGKILL to ready.

Journals are given back as they are copied, so a gigabyte of them does not lie about by itself. What keeps them is
an open transaction with a frame at their beginning; that is also the worst case, since a restart reads the
journals from there. The other case, with all given back, is what a restart takes otherwise.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer
from node_process import NodeProcess

from benchmarks.measuring import WAIT_S, Bench, make_topics
from benchmarks.produce import PARTITIONS, produce

SCENARIO = "restart"
JOURNAL_BYTES = 1_000_000_000


def run(bench: Bench) -> None:
    with bench.node() as node:
        make_topics(node.address, ["restart"], PARTITIONS)
        bench.note(SCENARIO, "nearly empty", "s", _restarts(bench, node))
        hung = Producer(
            {
                "bootstrap.servers": node.address,
                "transactional.id": "pins-the-journals",
                "transaction.timeout.ms": 900_000,
                "log_level": 0,
            }
        )
        hung.init_transactions(WAIT_S)
        hung.begin_transaction()
        for partition in range(PARTITIONS):
            hung.produce("restart", b"first", partition=partition)
        hung.flush(WAIT_S)
        produce(node.address, "restart", bench.amount(JOURNAL_BYTES), 1_000_000, 62_000)
        held = sum(path.stat().st_size for path in Path(node.data_dir).rglob("*.journal"))
        # The first restart aborts the open transaction, and the journals may go: so there is one round of this.
        node.kill()
        bench.note(SCENARIO, f"{held / 1e9:.2f} GB of journals to read", "s", [_seconds_to_ready(node)])


def _restarts(bench: Bench, node: NodeProcess) -> list[float]:
    seconds: list[float] = []
    for _ in range(bench.rounds):
        node.kill()
        seconds.append(_seconds_to_ready(node))
    return seconds


def _seconds_to_ready(node: NodeProcess) -> float:
    started = time.perf_counter()
    node.start(timeout_s=WAIT_S)
    return time.perf_counter() - started
