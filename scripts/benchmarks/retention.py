"""A soak: many times what is kept is produced, and goes by size or by key. What must stay flat from pass to pass?

The size of the data logs' file, the producer's rate, and how long one small record waits that another producer sends
all the while, acks=all: its copy needs the write lock that retention takes, too.

    deletion     four partitions keep KEPT_BYTES together; each pass produces as much again, nine tenths in requests of
                 1 MB and the rest in requests of 16 KB: large values in a space that small ones have broken up
    compaction   one partition of KEYS keys; each pass produces every key once
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from node_process import NodeProcess

from benchmarks.measuring import WAIT_S, Bench, quantile
from benchmarks.produce import PARTITIONS, SHAPES, produce

SCENARIO = "retention"
KEPT_BYTES = 500_000_000
SHARES = {"1 MB": 0.9, "16 KB": 0.1}
KEYS, VALUE_BYTES = 100_000, 200
PASSES_PER_ROUND = 4
PROBE_PAUSE_S = 0.005
SETTLED_S, SETTLING_S_MAX = 1.0, 60.0

INTERVALS = {"FAIRLOG_RETENTION_CHECK_INTERVAL_MS": "500", "FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": "500"}


def run(bench: Bench) -> None:
    passes = bench.rounds * PASSES_PER_ROUND
    kept = bench.amount(KEPT_BYTES)
    with bench.node(**INTERVALS) as node:
        _make_topic(node.address, "expiring", PARTITIONS, **{"retention.bytes": str(kept // PARTITIONS)})
        soak = _Soak(node, "deletion")
        for _ in range(passes):
            with soak.one_pass(kept / 1e6):
                for shape, share in SHARES.items():
                    produce(node.address, "expiring", int(kept * share), *SHAPES[shape])
        soak.note(bench)
    keys = bench.amount(KEYS)
    with bench.node(**INTERVALS) as node:
        _make_topic(node.address, "compacting", 1, **{"cleanup.policy": "compact"})
        soak = _Soak(node, "compaction")
        for number in range(passes):
            with soak.one_pass(keys * VALUE_BYTES / 1e6):
                _produce_keys(node.address, "compacting", keys, number)
        soak.note(bench)


def _make_topic(address: str, name: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topics = [NewTopic(name, partitions, 1, config=config), NewTopic("probe", 1, 1)]
    for future in admin.create_topics(topics).values():
        future.result(timeout=WAIT_S)


class _Soak:
    """The passes over one node, a line for each."""

    def __init__(self, node: NodeProcess, kind: str) -> None:
        self._node = node
        self._kind = kind
        self._rates: list[float] = []
        self._files: list[float] = []
        self._memory: list[float] = []
        self._waits: list[float] = []
        self._longest: list[float] = []

    @contextmanager
    def one_pass(self, produced_mb: float) -> Generator[None]:
        with _probing(self._node.address) as waits_ms:
            started = time.perf_counter()
            yield
            seconds = time.perf_counter() - started
            self._settle()
        self._rates.append(produced_mb / seconds)
        self._files.append(self._file_mb())
        self._memory.append(self._node.memory_bytes() / 1e6)
        self._waits.append(quantile(waits_ms, 0.99))
        self._longest.append(max(waits_ms))
        print(
            f"  {self._kind} {len(self._files):3d}: {self._rates[-1]:7.1f} MB/s, file {self._files[-1]:7.1f} MB,"
            f" a record waits {quantile(waits_ms, 0.5):5.1f} ms, p99 {self._waits[-1]:6.1f}, at most"
            f" {self._longest[-1]:6.1f}",
            flush=True,
        )

    def note(self, bench: Bench) -> None:
        bench.note(SCENARIO, f"{self._kind}, producer", "MB/s", self._rates)
        bench.note(SCENARIO, f"{self._kind}, data logs' file", "MB", self._files)
        bench.note(SCENARIO, f"{self._kind}, resident memory", "MB", self._memory)
        bench.note(SCENARIO, f"{self._kind}, a record beside it, p99", "ms", self._waits)
        bench.note(SCENARIO, f"{self._kind}, a record beside it, at most", "ms", self._longest)

    def _file_mb(self) -> float:
        return (self._node.data_dir / "datalog" / "data.mdb").stat().st_blocks * 512 / 1e6

    def _settle(self) -> None:
        """Wait until retention has done its work: the node computes no more than for the probe."""
        deadline = time.monotonic() + SETTLING_S_MAX
        while time.monotonic() < deadline:
            before = self._node.cpu_s()
            time.sleep(SETTLED_S)
            if self._node.cpu_s() - before < SETTLED_S / 2:
                return


@contextmanager
def _probing(address: str) -> Generator[list[float]]:
    """Sends a record every few milliseconds, one at a time; the list fills with how long each has waited, in ms."""
    waits_ms: list[float] = []
    done = threading.Event()

    def probe() -> None:
        producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0, "log_level": 0})
        while not done.is_set():
            started = time.perf_counter()
            producer.produce("probe", b"probe")
            producer.flush(WAIT_S)
            waits_ms.append((time.perf_counter() - started) * 1e3)
            time.sleep(PROBE_PAUSE_S)

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        yield waits_ms
    finally:
        done.set()
        prober.join()


def _produce_keys(address: str, topic: str, keys: int, number: int) -> None:
    """Each key once, in an order of its own for each pass."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    order = list(range(keys))
    random.Random(number).shuffle(order)
    value = bytes(VALUE_BYTES)
    for index, key in enumerate(order):
        producer.produce(topic, value, b"key-%d" % key, partition=0)
        if index % 256 == 0:
            producer.poll(0)
    if producer.flush(WAIT_S):
        raise RuntimeError("not all records were answered")
