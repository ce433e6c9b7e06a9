"""A plain consumer that reads partitions from the start, keeps what it saw, and knows when it is at the end.

It is librdkafka's consumer with `assign`, told `read_uncommitted` outright: librdkafka's own default is
`read_committed`, and the consumer that Fairlog is for is the one that knows nothing of transactions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from scripts.peers.watermarks import watermarks
from tests.clients.modes import Mode

WAIT_S = 15.0
NOTHING_ABORTED: Mapping[int, Sequence[bytes]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as the consumer got it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Reader:
    """Tails all partitions of one topic from their beginning."""

    def __init__(
        self,
        address: str,
        topic: str,
        partitions: int,
        *,
        isolation: str = "read_uncommitted",
        leaders_change: bool = False,
    ) -> None:
        self.topic = topic
        self._leaders_change = leaders_change
        self.records: list[Seen] = []
        self._ends: dict[int, int] = dict.fromkeys(range(partitions), -1)
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,  # answers of one connection come in order: nothing waits long behind a fetch
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # it says each refused connection; what matters comes as an error
            }
        )
        # From 0 and not from OFFSET_BEGINNING, for which librdkafka takes half a second.
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in self._ends])

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def wait_for(self, count: int, *, timeout_s: float = WAIT_S) -> list[Seen]:
        """Read on until at least `count` records were seen in all; fails the test if they do not come."""
        deadline = time.monotonic() + timeout_s
        while len(self.records) < count:
            assert time.monotonic() < deadline, f"{len(self.records)} of {count} records after {timeout_s} s"
            self._poll(0.05)
        return self.records

    def read_to_end(self, *, timeout_s: float = WAIT_S) -> list[Seen]:
        """Read on until the client itself reports the end of every partition, at the high watermark.

        This is the loop in which consumers hang when control records hide behind the last offset.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            marks = {partition: self.high_watermark(partition) for partition in self._ends}
            while any(self._ends[partition] < mark for partition, mark in marks.items()):
                assert time.monotonic() < deadline, f"ends {self._ends} never came to the high watermarks {marks}"
                self._poll(0.05)
            if all(self._ends[partition] == self.high_watermark(partition) for partition in self._ends):
                return self.records

    def idle(self, seconds: float) -> list[Seen]:
        """Read for a while whatever comes; for showing that nothing does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._poll(0.02)
        return self.records

    def high_watermark(self, partition: int) -> int:
        """Asked of the node now, not remembered from a fetch."""
        return watermarks(self._consumer, self.topic, partition, leaders_change=self._leaders_change)[1]

    def values(self, partition: int) -> list[bytes | None]:
        return [record.value for record in self.records if record.partition == partition]

    def by_partition(self) -> dict[int, list[bytes | None]]:
        return {partition: self.values(partition) for partition in self._ends}

    def _poll(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        # `consume` with a time-out would wait for that long or for as many; without one it takes what is there.
        for message in [first, *self._consumer.consume(500, 0)]:
            error = message.error()
            if error is None:
                self.records.append(_seen(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends[message.partition()] = message.offset()
            else:
                raise AssertionError(f"the consumer got {error}")


def _seen(message: Message) -> Seen:
    headers = message.headers() or []
    return Seen(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple((name, value) for name, value in headers),
        message.timestamp()[1],
    )


def assert_dense(records: Sequence[Seen]) -> None:
    """Invariant 2: the offsets of each partition are 0, 1, 2, … in the order in which they were read."""
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    for partition, found in offsets.items():
        assert found == list(range(len(found))), f"partition {partition} has holes or repeats: {found}"


def assert_ascending(records: Sequence[Seen]) -> None:
    """What is left of invariant 2 in marker mode: offsets of each partition grow, with gaps for what is not read."""
    offsets: dict[int, list[int]] = {}
    for record in records:
        offsets.setdefault(record.partition, []).append(record.offset)
    for partition, found in offsets.items():
        assert found == sorted(set(found)), f"partition {partition} goes back or repeats: {found}"


def assert_topic_holds(
    address: str,
    topic: str,
    expected: Mapping[int, Sequence[bytes]],
    *,
    mode: Mode = Mode.JOURNAL,
    aborted: Mapping[int, Sequence[bytes]] | None = NOTHING_ABORTED,
) -> None:
    """The topic holds exactly `expected` (values by partition, in order), for both isolation levels.

    In marker mode a plain consumer sees what was aborted as well: `aborted` says what, by partition, in any order;
    None if the test cannot know. Waits for what is committed and not yet copied; then reads to the end, so a record too
    many is found.
    """
    committed = {p: list(values) for p, values in expected.items()}
    total = sum(map(len, committed.values()))
    with Reader(address, topic, len(expected), isolation="read_committed") as reader:
        reader.wait_for(total)
        reader.read_to_end()
        assert reader.by_partition() == committed
        (assert_dense if mode is Mode.JOURNAL else assert_ascending)(reader.records)
    with Reader(address, topic, len(expected), isolation="read_uncommitted") as reader:
        reader.wait_for(total)
        reader.read_to_end()
        if mode is Mode.JOURNAL:
            assert reader.by_partition() == committed
            assert_dense(reader.records)
            return
        assert_ascending(reader.records)
        for partition, values in committed.items():
            seen = reader.values(partition)
            others = Counter(seen) - Counter(values)
            assert _without(seen, others) == values, f"partition {partition} holds {seen}"
            if aborted is not None:
                assert others == Counter(aborted.get(partition, ())), f"partition {partition} holds {seen}"


def _without(values: Sequence[bytes | None], others: Mapping[bytes | None, int]) -> list[bytes | None]:
    """`values` without those that are in `others`."""
    return [value for value in values if value not in others]
