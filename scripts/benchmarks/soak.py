"""Ten times what is kept: what must stay flat while records are written and expire all the time?

    | fill 1 | fill 2 | fill 3 |  …  | fill 10 |      each as many bytes as the topic keeps
      first tenth                     last tenth

The producer never waits for what expires; so a broker that cannot keep up shows it in the size of its files, and one
that keeps up at the producer's expense in the rate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.rows import Measurements, counted
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

TENTHS = 10
PARTITIONS = 4
KEPT_BYTES = 256_000_000
SEGMENTS_PER_PARTITION = 4
SEGMENT_BYTES_MIN = 1_048_576  # Kafka 4 takes no less
LARGE_RECORD, SMALL_RECORD = 62_000, 1_000
LARGE_SHARE = 0.9
REQUEST_BYTES_MAX, QUEUE_KB = 1_000_000, 65_536
CHECK_MS = 500
SETTLED_S, SETTLING_S_MAX = 1.0, 60.0
WAIT_S = 120.0
TOPIC = "soak"


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
        """Seconds until that much was answered: that share of the bytes in records of 62 KB, the rest of 1 KB."""
        started = time.perf_counter()
        for record_bytes, share in ((LARGE_RECORD, large_share), (SMALL_RECORD, 1 - large_share)):
            value = bytes(record_bytes)
            for number in range(int(total_bytes * share / record_bytes)):
                self._produce(topic, value, number % partitions)
        left = self._producer.flush(WAIT_S)
        if left or self._failures:
            raise RuntimeError(f"{left} records were not answered, {len(self._failures)} refused: {self._failures[:1]}")
        return time.perf_counter() - started

    def _produce(self, topic: str, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.05)
        self._producer.poll(0)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))


class Soak:
    """One case; a round is a whole soak, from an empty directory."""

    name = "soak"
    question = (
        f"One producer writes at full speed to a topic of {PARTITIONS} partitions that keeps"
        f" {KEPT_BYTES // 1_000_000} MB by retention.bytes, until {TENTHS} times as much has passed: nine tenths of the"
        f" bytes in records of {LARGE_RECORD // 1000} KB and one in records of 1 KB, in requests of up to 1 MB. A round"
        " begins with an empty directory. Every broker looks for what has expired every"
        f" {CHECK_MS} ms; segment.bytes is a {SEGMENTS_PER_PARTITION}th of what a partition keeps (Kafka deletes by"
        " segments; Fairlog's data logs have none) and file.delete.delay.ms is 0. *disk* is what the whole directory"
        " takes, journals included, at the end of each tenth, with nothing waited for; *settled* is when the broker has"
        " come to rest. Before the first tenth, a quarter of what is kept goes to another topic."
    )
    lifetime = Lifetime.OWN
    tuning = Tuning(retention_check_ms=CHECK_MS)

    def cases(self, quick: bool) -> Sequence[Case]:
        kept = KEPT_BYTES // 10 if quick else KEPT_BYTES
        return [Case("deletion", {"kept_bytes": kept, "partitions": PARTITIONS})]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("it stores nothing that could expire")
        kept = int(case.parameters["kept_bytes"])
        per_partition = kept // PARTITIONS
        configs = {
            "retention.bytes": str(per_partition),
            "segment.bytes": str(max(SEGMENT_BYTES_MIN, per_partition // SEGMENTS_PER_PARTITION)),
            "file.delete.delay.ms": "0",
        }
        peer.start()
        try:
            peer.create_topics(["warm-up"], PARTITIONS, configs)
            peer.create_topics([TOPIC], PARTITIONS, configs)
            filler = bench.client(peer, "benchmarks.soak:Filler")
            filler.call("fill", topic="warm-up", partitions=PARTITIONS, total_bytes=kept // 4, large_share=LARGE_SHARE)
            rates: list[float] = []
            disk: list[float] = []
            for _ in range(TENTHS):
                seconds: float = filler.call(
                    "fill", topic=TOPIC, partitions=PARTITIONS, total_bytes=kept, large_share=LARGE_SHARE
                )
                rates.append(kept / 1e6 / seconds)
                disk.append(peer.disk_bytes() / 1e6)
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
            "memory": counted("MB", memory),
        }


def _settled_disk_bytes(peer: Peer) -> int:
    """What is left on the disk when the broker computes nothing to speak of any more, or after a minute."""
    deadline = time.monotonic() + SETTLING_S_MAX
    while time.monotonic() < deadline:
        before = peer.cpu_s()
        time.sleep(SETTLED_S)
        if peer.cpu_s() - before < SETTLED_S / 5:
            break
    return peer.disk_bytes()


SCENARIO = Soak()
