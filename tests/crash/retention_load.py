"""A log with retention and a compacted one under load, and what each of them owes at any moment.

One producer numbers its records and sends each to both logs, so a record's number is its offset, for ever: in the log
that retention cuts from the front, and in the one out of which compaction takes what a later record of the same key
supersedes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.raw_client import NONE, OFFSET_OUT_OF_RANGE, RawClient, records_of
from tests.crash.checker import Violation
from tests.crash.recording import Dated

AGING, COMPACTED = "aging", "compacted"
TOPICS = {
    AGING: {"retention.bytes": "200000"},
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "min.compaction.lag.ms": "0"},
}
KEYS = 20
EARLIEST = -2
BURST = 5
PAUSE_S = 0.02


class RetentionLoad:
    """The writer, and the check. `acknowledged` has of each topic the last offset that was answered."""

    def __init__(self, acknowledged: Dated[str, int]) -> None:
        self._acknowledged = acknowledged

    def make_topics(self, address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for made in admin.create_topics(topics).values():
            made.result(timeout=20)

    def write(self, address: str, stopping: threading.Event) -> None:
        """Send until told to stop."""
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
        number = 0
        while not stopping.wait(PAUSE_S):
            for _ in range(BURST):
                value = b"%d|" % number + b"x" * (number * 7919 % 3001)
                for topic in TOPICS:
                    producer.produce(topic, value, key=b"%d" % (number % KEYS), partition=0, on_delivery=self._answered)
                number += 1
            producer.flush(20)

    def _answered(self, error: object, message: Message) -> None:
        assert error is None, error
        topic, offset = message.topic(), message.offset()
        assert topic is not None
        assert offset is not None
        self._acknowledged[topic] = offset

    def violations(self, address: str, moment: int) -> Iterator[Violation]:
        """What a node owes that had come so far when the power was cut."""
        acknowledged = self._acknowledged.as_of(moment)
        for topic in TOPICS:
            start, found = _read(address, topic)
            numbers = [offset for offset, _ in found]
            for offset, value in found:
                if value is None or int(value.partition(b"|")[0]) != offset:
                    yield Violation(2, f"{topic} has at {offset} {value!r:.40}")
            last = acknowledged.get(topic, -1)
            if topic == AGING:
                if numbers != list(range(start, start + len(numbers))):
                    yield Violation(2, f"{topic} starts at {start} and has {numbers}")
                if last >= start + len(numbers):
                    yield Violation(5, f"{topic} was answered up to {last} and ends before {start + len(numbers)}")
                continue
            if numbers != sorted(set(numbers)):
                yield Violation(2, f"{topic} has {numbers}")
            newest = {number % KEYS: number for number in numbers}
            for number in range(max(0, last - KEYS + 1), last + 1):
                if newest.get(number % KEYS, -1) < number:
                    yield Violation(5, f"{topic} has lost {number}, the newest of its key that was answered")


def _read(address: str, topic: str) -> tuple[int, list[tuple[int, bytes | None]]]:
    """The log's start, and all of its records."""
    with RawClient(address) as client:
        while True:
            _, start = client.list_offset(topic, 0, EARLIEST)
            found = _read_from(client, topic, start)
            if found is not None:
                return start, found


def _read_from(client: RawClient, topic: str, start: int) -> list[tuple[int, bytes | None]] | None:
    """None if retention has taken the offset meanwhile."""
    found: list[tuple[int, bytes | None]] = []
    offset = start
    while True:
        row = client.fetch(topic, 0, offset, wait_ms=0)
        if row.error_code == OFFSET_OUT_OF_RANGE:
            return None
        assert row.error_code == NONE, row
        records = [record for record in records_of(row.records or b"") if record[0] >= offset]
        if not records and offset >= row.high_watermark:
            return found
        found += records
        offset = records[-1][0] + 1 if records else offset + 1  # else compaction has emptied the batch there
