"""Writes ten times the amount that is kept: what must stay constant while records are written and expire all the time?

    | fill 1 | fill 2 | fill 3 |  …  | fill 10 |      each as many bytes, or keys, as the topic keeps
      first tenth                     last tenth

The producer never waits for the expiry. So a broker that cannot keep up shows it in the size of its files, and one that
keeps up at the producer's expense shows it in the rate. Meanwhile another producer sends one small record at a time:
its latency shows waits for a lock or a disk that the expiry uses.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.rows import Measurements, counted, quantile, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

TENTHS = 10
KEPT_BYTES, PARTITIONS = 256_000_000, 4
KEYS, KEY_VALUE_BYTES = 100_000, 200
SEGMENTS_PER_PARTITION = 4
SEGMENT_BYTES_MIN = 1_048_576  # Kafka 4 takes no less
LARGE_RECORD, SMALL_RECORD = 62_000, 1_000
LARGE_SHARE = 0.9
REQUEST_BYTES_MAX, QUEUE_KB = 1_000_000, 65_536
CHECK_MS = 500
PROBE_PAUSE_S = 0.005
SETTLED_S, SETTLING_S_MAX = 1.0, 60.0
WAIT_S = 120.0
TOPIC, WARM_UP, PROBED = "soak", "warm-up", "probe"


class Filler:
    """A plain producer at full speed, in a process of its own: idempotent, acks=all, requests of up to 1 MB."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "batch.size": REQUEST_BYTES_MAX,
                "linger.ms": 20,
                "queue.buffering.max.kbytes": QUEUE_KB,
                "log_level": 0,
            }
        )
        self._failures: list[str] = []

    def fill(self, topic: str, partitions: int, total_bytes: int, large_share: float) -> float:
        """The seconds until this amount was answered: this share of the bytes in records of 62 KB, the rest of 1 KB."""
        started = time.perf_counter()
        for record_bytes, share in ((LARGE_RECORD, large_share), (SMALL_RECORD, 1 - large_share)):
            value = bytes(record_bytes)
            for number in range(int(total_bytes * share / record_bytes)):
                self._produce(topic, value, None, number % partitions)
        self._flush()
        return time.perf_counter() - started

    def fill_keys(self, topic: str, keys: int, seed: int) -> float:
        """The seconds until each key was written once, to partition 0, in an order that depends on the seed."""
        order = list(range(keys))
        random.Random(seed).shuffle(order)
        value = bytes(KEY_VALUE_BYTES)
        started = time.perf_counter()
        for key in order:
            self._produce(topic, value, b"key-%d" % key, 0)
        self._flush()
        return time.perf_counter() - started

    def _produce(self, topic: str, value: bytes, key: bytes | None, partition: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition=partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.05)
        self._producer.poll(0)

    def _flush(self) -> None:
        left = self._producer.flush(WAIT_S)
        if left or self._failures:
            raise RuntimeError(f"{left} records were not answered, {len(self._failures)} refused: {self._failures[:1]}")

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))


class Probe:
    """A producer in a process of its own that sends a small record every few milliseconds, acks=all, one at a time."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0, "log_level": 0})
        self._waits_ms: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> list[float]:
        """How long each record waited for its answer, in ms."""
        self._done.set()
        self._thread.join(WAIT_S)
        return self._waits_ms

    def _probe(self) -> None:
        while not self._done.is_set():
            started = time.perf_counter()
            self._producer.produce(PROBED, b"probe")
            self._producer.flush(WAIT_S)
            self._waits_ms.append((time.perf_counter() - started) * 1e3)
            self._done.wait(PROBE_PAUSE_S)


class Soak:
    """Two cases; a round of each is a whole soak, from an empty directory."""

    name = "soak"
    question = (
        f"One producer writes at full speed until {TENTHS} times as much has passed as the topic keeps. *deletion*:"
        f" {PARTITIONS} partitions that keep {KEPT_BYTES // 1_000_000} MB together by retention.bytes, nine tenths of"
        f" the bytes in records of {LARGE_RECORD // 1000} KB and one in records of 1 KB, in requests of up to 1 MB."
        f" *compaction*: {KEYS:,} keys with values of {KEY_VALUE_BYTES} B in one partition, each tenth writes every key"
        " once in another order. A round begins with an empty directory. Every broker looks for what has expired, or"
        f" is to be compacted, every {CHECK_MS} ms; segment.bytes is a quarter of what a partition keeps (Kafka expires"
        " by segments; Fairlog's data logs have none), at least 1 MB, and file.delete.delay.ms is 0. *disk* is what the"
        " whole directory takes, journals included, at the end of each tenth, with nothing waited for; *settled* is"
        " when the broker has come to rest. *record beside it* is how long another producer waits that sends one small"
        " record at a time all the while. A quarter of what is kept is written to another topic beforehand."
    )
    lifetime = Lifetime.OWN
    tuning = Tuning(retention_check_ms=CHECK_MS, clean_check_ms=CHECK_MS)

    def cases(self, quick: bool) -> Sequence[Case]:
        shorter = 10 if quick else 1
        return [
            Case("deletion", {"kept_bytes": KEPT_BYTES // shorter}),
            Case("compaction", {"keys": KEYS // shorter}),
        ]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("it stores nothing that could expire")
        peer.start()
        try:
            self._make_topics(peer, case)
            filler = bench.client(peer, "benchmarks.soak:Filler")
            probe = bench.client(peer, "benchmarks.soak:Probe")
            _fill(filler, case, WARM_UP, 0, 0.25)
            probe.call("begin")
            rates: list[float] = []
            disk: list[float] = []
            for number in range(1, TENTHS + 1):
                rates.append(_fill(filler, case, TOPIC, number, 1.0))
                disk.append(peer.disk_bytes() / 1e6)
            waits_ms: list[float] = probe.call("end")
            settled = _settled_disk_bytes(peer) / 1e6
            memory = peer.memory_bytes() / 1e6
        finally:
            bench.close_clients(peer)
            peer.stop()
        return {
            "last tenth against first": counted("%", (rates[-1] / rates[0] - 1) * 100),
            **{f"rate, tenth {number}": counted("MB/s", rate) for number, rate in enumerate(rates, 1)},
            **{f"disk, tenth {number}": counted("MB", size) for number, size in enumerate(disk, 1)},
            "disk, settled": counted("MB", settled),
            "record beside it": sampled("ms", waits_ms),
            "record beside it, longest": counted("ms", quantile(waits_ms, 1.0)),
            "memory": counted("MB", memory),
        }

    @staticmethod
    def _make_topics(peer: Peer, case: Case) -> None:
        """The topic, a similar one for the warm-up, and the probe's topic."""
        if case.name == "deletion":
            partitions, kept = PARTITIONS, int(case.parameters["kept_bytes"]) // PARTITIONS
            configs = {"retention.bytes": str(kept)}
        else:
            partitions, kept = 1, int(case.parameters["keys"]) * KEY_VALUE_BYTES
            configs = {"cleanup.policy": "compact"}
        configs |= {
            "segment.bytes": str(max(SEGMENT_BYTES_MIN, kept // SEGMENTS_PER_PARTITION)),
            "file.delete.delay.ms": "0",
        }
        peer.create_topics([TOPIC, WARM_UP], partitions, configs)
        peer.create_topics([PROBED])


def _fill(filler: ClientProcess, case: Case, topic: str, number: int, share: float) -> float:
    """Write this share of the kept amount; returns MB/s of values."""
    if case.name == "deletion":
        amount = int(int(case.parameters["kept_bytes"]) * share)
        seconds: float = filler.call(
            "fill", topic=topic, partitions=PARTITIONS, total_bytes=amount, large_share=LARGE_SHARE
        )
    else:
        keys = int(int(case.parameters["keys"]) * share)
        amount = keys * KEY_VALUE_BYTES
        seconds = filler.call("fill_keys", topic=topic, keys=keys, seed=number)
    return amount / 1e6 / seconds


def _settled_disk_bytes(peer: Peer) -> int:
    """The size on the disk when the broker is nearly idle, or after a minute."""
    deadline = time.monotonic() + SETTLING_S_MAX
    while time.monotonic() < deadline:
        before = peer.cpu_s()
        time.sleep(SETTLED_S)
        if peer.cpu_s() - before < SETTLED_S / 5:
            break
    return peer.disk_bytes()


SCENARIO = Soak()
