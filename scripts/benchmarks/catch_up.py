"""A consumer that catches up: it repeatedly reads logs from their beginning to their end, as fast as it can.

The caller says how much there is to read: reading ends with the last record that must be delivered, so that the time
includes no waiting for more. Some settings differ from the client library's defaults: `queued.min.messages` and
`fetch.queue.backoff.ms` let it fetch while it is busy (by default it stops fetching for up to a second at a time), and
`fetch.wait.max.ms` is short, since a pass can begin only when the fetch that still waits at the log's end after the
previous pass is answered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.client_statistics import Counts, Tap

AT_ONCE = 1000
FETCH_WAIT_MS = 10
SILENCE_S_MAX = 60.0


class CatchUpReader:
    """A client process's class (client.py): one consumer at a time, `open`, `read`, `fetched`, `close`."""

    def __init__(self, address: str, client: Mapping[str, str] | None = None) -> None:
        """`client` are settings of librdkafka's that come after the address."""
        self._client = {"bootstrap.servers": address, **(client or {})}
        self._tap = Tap()
        self._before = Counts(0, {})
        self._consumer: Consumer | None = None

    def open(self, isolation: str, fetch_bytes: int) -> None:
        """Create the consumer and let it connect; it asks for at most `fetch_bytes` per partition and request."""
        self._tap = Tap()
        self._consumer = Consumer(
            {
                **self._client,
                "group.id": "benchmark",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "fetch.message.max.bytes": fetch_bytes,
                "queued.min.messages": 1_000_000,
                "fetch.queue.backoff.ms": 1,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "log_level": 0,
                **self._tap.configuration,
            }
        )
        self._consumer.list_topics(timeout=SILENCE_S_MAX)
        self._before = self._tap.counts(self._consumer.poll)

    def read(self, topic: str, partitions: int, records: int, seconds_min: float) -> dict[str, float]:
        """Read `records` records from the beginning, in whole passes until `seconds_min` have passed.

        {"passes", "records", "bytes", "seconds", "client_cpu_s"}: all passes together, bytes those of values. Raises
        TimeoutError if expected records do not arrive.
        """
        assert self._consumer is not None
        beginning = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        passes = value_bytes = 0
        cpu_before = time.process_time()
        started = time.perf_counter()
        while passes == 0 or time.perf_counter() - started < seconds_min:
            self._consumer.assign(beginning)
            left = records
            while left > 0:
                # Never more than are left: consume() would wait for them.
                messages = self._consumer.consume(min(AT_ONCE, left), SILENCE_S_MAX)
                if not messages:
                    raise TimeoutError(f"{left} of {records} records were not delivered in {SILENCE_S_MAX:.0f} s")
                value_bytes += _bytes_of(messages)
                left -= len(messages)
            passes += 1
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before
        self._consumer.unassign()
        return {
            "passes": passes,
            "records": passes * records,
            "bytes": value_bytes,
            "seconds": seconds,
            "client_cpu_s": cpu_s,
        }

    def fetched(self) -> dict[str, int]:
        """{"bytes", "requests"}: received, and Fetch requests, since the last call of this, or since `open`."""
        assert self._consumer is not None
        counts = self._tap.counts(self._consumer.poll)
        fetched = counts.since(self._before)
        self._before = counts
        return {"bytes": fetched.received_bytes, "requests": fetched.requests.get("Fetch", 0)}

    def close(self) -> None:
        """Close the consumer and its connections."""
        assert self._consumer is not None
        self._consumer.close()
        self._consumer = None


def _bytes_of(messages: list[Message]) -> int:
    """The bytes of their values. Raises RuntimeError for an error, which is returned instead of a message."""
    total = 0
    for message in messages:
        if error := message.error():
            raise RuntimeError(f"the consumer says: {error}")
        total += len(message)
    return total
