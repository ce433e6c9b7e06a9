"""Plain records at full speed: the shapes in which `produce` writes and `fetch` reads them, and the client.

A shape is the size of a record's value and the size of a request: librdkafka sends one batch per Produce request, so
its `batch.size` is the request's size. Records are sent to PARTITIONS partitions in turns, a run of them to each, by
one idempotent producer with acks=all that waits up to LINGER_MS for a request to fill: long enough that only the last
ones are not full. Values are zeros, uncompressed by client and broker. A record's size here is that of its value:
neither keys nor headers are sent, and framing takes librdkafka about 7 bytes per record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from confluent_kafka import KafkaError, Message, Producer
from peers.interface import Peer

from benchmarks.client import ClientProcess
from benchmarks.client_statistics import Counts, Tap
from benchmarks.scenario import Bench, Case

PARTITIONS = 4
LINGER_MS = 500
RUN_BYTES = 64 * 1024
FASTEST_BYTES_PER_S = 2e9
ANSWER_WAIT_S = 120.0
SMALL_REQUEST_BYTES, LARGE_REQUEST_BYTES = 16_384, 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one size in requests of one size; `total_bytes` is how much of it a full run moves at once."""

    record_bytes: int
    request_bytes: int
    total_bytes: int

    @property
    def name(self) -> str:
        requests = {SMALL_REQUEST_BYTES: "16 KB", LARGE_REQUEST_BYTES: "1 MB"}[self.request_bytes]
        records = f"{self.record_bytes} B" if self.record_bytes < 1024 else f"{self.record_bytes // 1024} KB"
        return f"{records} records, {requests} requests"

    @property
    def queue_bytes(self) -> int:
        """How much the client may have in its queue: enough for five requests in flight while others fill up.

        Not more: librdkafka's cost for a small request grows with the number of waiting records.
        """
        return max(1_000_000, 10 * PARTITIONS * self.request_bytes)


SHAPES: Sequence[Shape] = (
    Shape(100, SMALL_REQUEST_BYTES, 20_000_000),
    Shape(1024, SMALL_REQUEST_BYTES, 40_000_000),
    Shape(16_384, SMALL_REQUEST_BYTES, 40_000_000),
    Shape(100, LARGE_REQUEST_BYTES, 50_000_000),
    Shape(1024, LARGE_REQUEST_BYTES, 200_000_000),
    Shape(16_384, LARGE_REQUEST_BYTES, 200_000_000),
)


def cases() -> list[Case]:
    """One case per shape."""
    return [
        Case(shape.name, {"record_bytes": shape.record_bytes, "request_bytes": shape.request_bytes}) for shape in SHAPES
    ]


def shape_of(case: Case, quick: bool) -> Shape:
    """The shape of this case; a quick run moves a tenth of its bytes."""
    shape = next(shape for shape in SHAPES if shape.name == case.name)
    return replace(shape, total_bytes=shape.total_bytes // 10) if quick else shape


def records_of(shape: Shape) -> int:
    """The number of records in `total_bytes`: whole runs, the same number to each partition."""
    return runs_of(shape) * records_per_run(shape)


def runs_of(shape: Shape) -> int:
    runs = shape.total_bytes // (records_per_run(shape) * shape.record_bytes)
    return max(PARTITIONS, runs - runs % PARTITIONS)


def records_per_run(shape: Shape) -> int:
    return max(1, RUN_BYTES // shape.record_bytes)


def sender_of(bench: Bench, peer: Peer) -> ClientProcess:
    """This peer's PlainSender."""
    return bench.client(peer, "benchmarks.plain_load:PlainSender")


def write(bench: Bench, peer: Peer, topic: str, shape: Shape) -> None:
    """Write the shape's records to `topic`, with a separate producer."""
    sender = sender_of(bench, peer)
    sender.call("open", shape=asdict(shape))
    sender.call("send", topic=topic, shape=asdict(shape))
    sender.call("close")


class PlainSender:
    """A client process's class (client.py): one producer at a time, `open`, any number of `send`, `close`."""

    def __init__(self, address: str, client: Mapping[str, str] | None = None) -> None:
        """`client` are settings of librdkafka's that come after the address."""
        self._client = {"bootstrap.servers": address, **(client or {})}
        self._tap = Tap()
        self._before = Counts(0, {})
        self._producer: Producer | None = None
        self._failures: list[str] = []

    def open(self, shape: Mapping[str, int]) -> None:
        """Create the producer and let it connect. A shape is passed between processes as its fields by name."""
        size = Shape(**shape)
        self._tap = Tap()
        self._failures = []
        self._producer = Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "acks": "all",
                "batch.size": size.request_bytes,
                "linger.ms": LINGER_MS,
                "queue.buffering.max.kbytes": 2 * size.queue_bytes // 1024,
                "queue.buffering.max.messages": 2_000_000,
                "delivery.report.only.error": True,
                "on_delivery": self._note_failure,
                "log_level": 0,
                **self._tap.configuration,
            }
        )
        self._producer.list_topics(timeout=ANSWER_WAIT_S)
        self._before = self._tap.counts(self._producer.poll)

    def _note_failure(self, error: KafkaError, _message: Message) -> None:
        self._failures.append(str(error))

    def send(self, topic: str, shape: Mapping[str, int]) -> dict[str, float]:
        """Send the shape's records and wait until all were answered: {"records", "seconds", "client_cpu_s"}."""
        assert self._producer is not None
        producer, size = self._producer, Shape(**shape)
        in_run = records_per_run(size)
        run = [{"value": bytes(size.record_bytes)}] * in_run
        queue_max = max(in_run, size.queue_bytes // size.record_bytes)
        # Seldom enough to cost little, often enough that the queue never runs dry.
        pause_s = max(0.001, size.queue_bytes / FASTEST_BYTES_PER_S)
        cpu_before = time.process_time()
        started = time.perf_counter()
        for number in range(runs_of(size)):
            while len(producer) + in_run > queue_max:
                producer.poll(pause_s)
            if producer.produce_batch(topic, run, partition=number % PARTITIONS) != in_run:
                raise RuntimeError(f"records were not taken by the client library: {run[0]}")
        left = producer.flush(ANSWER_WAIT_S)
        seconds = time.perf_counter() - started
        if left or self._failures:
            raise RuntimeError(f"{left} records were not answered, {len(self._failures)} refused: {self._failures[:1]}")
        return {
            "records": runs_of(size) * in_run,
            "seconds": seconds,
            "client_cpu_s": time.process_time() - cpu_before,
        }

    def requests(self) -> int:
        """Produce requests since the last call of this, or since `open`."""
        assert self._producer is not None
        counts = self._tap.counts(self._producer.poll)
        sent = counts.since(self._before).requests["Produce"]
        self._before = counts
        return sent

    def close(self) -> None:
        """Close the producer and its connections."""
        self._producer = None
