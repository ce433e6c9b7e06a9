"""Plain produce, idempotent and acks=all, in requests of 1 MB and of 16 KB.

An answer means durable and visible, so the time includes the flush and the copy. CPU is the broker's own, from
/proc; the client shares the machine, and on two cores it is usually what limits the rate.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer
from node_process import NodeProcess

from benchmarks.measuring import WAIT_S, Bench, make_topics

SCENARIO = "produce"
PARTITIONS = 4
TOTAL_BYTES = 1_000_000_000
# Requests, by the size of a batch and of the records that fill it.
SHAPES = {"1 MB": (1_000_000, 62_000), "16 KB": (16_384, 8_000)}


def run(bench: Bench) -> None:
    rates: dict[str, list[float]] = {name: [] for name in SHAPES}
    cpu: dict[str, list[float]] = {name: [] for name in SHAPES}
    written: dict[str, list[float]] = {name: [] for name in SHAPES}
    with bench.node() as node:
        topics = {
            (name, number): f"produce-{number}-{name[:2].strip()}" for name in SHAPES for number in range(bench.rounds)
        }
        make_topics(node.address, list(topics.values()), PARTITIONS)
        for number in range(bench.rounds):
            for name, (batch_bytes, record_bytes) in SHAPES.items():
                cpu_before, written_before = node.cpu_s(), _written_bytes(node)
                total = bench.amount(TOTAL_BYTES)
                seconds = produce(node.address, topics[name, number], total, batch_bytes, record_bytes)
                rates[name].append(total / 1e6 / seconds)
                cpu[name].append((node.cpu_s() - cpu_before) / (total / 1e9))
                written[name].append((_written_bytes(node) - written_before) / total)
    for name in SHAPES:
        bench.note(SCENARIO, f"{name} requests", "MB/s", rates[name])
        bench.note(SCENARIO, f"{name} requests, broker CPU", "CPU-s/GB", cpu[name])
        bench.note(SCENARIO, f"{name} requests, written", "GB/GB", written[name])


def produce(address: str, topic: str, total_bytes: int, batch_bytes: int, record_bytes: int) -> float:
    """Seconds until all was answered."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "acks": "all",
            "batch.size": batch_bytes,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 256 * 1024,
            "log_level": 0,
        }
    )
    value = bytes(record_bytes)
    failures: list[str] = []
    started = time.perf_counter()
    for number in range(total_bytes // record_bytes):
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, _message: failures.append(str(error)) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 256 == 0:
            producer.poll(0)
    left = producer.flush(WAIT_S)
    if left or failures:
        raise RuntimeError(f"{left} records were not answered, {len(failures)} refused: {failures[:1]}")
    return time.perf_counter() - started


def _written_bytes(node: NodeProcess) -> int:
    """What the node has given to the system to write into files; 0 where the system does not tell.

    Not `write_bytes` of the same file: that counts the pages made dirty, and where the page cache keeps a file in
    large folios (ext4 on Linux 6.16 and newer) one write of 16 KB makes up to 2 MB dirty, of which the disk sees 16.
    """
    try:
        lines = Path(f"/proc/{node.pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["wchar"])
