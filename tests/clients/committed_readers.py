"""The three stock clients as consumers of committed records: each tails one partition, from its beginning.

    with READERS["aiokafka"](address, topic) as reader:
        reader.read_until(position=12)      # as far as the client itself says it has come
        reader.values

Fetches are kept small, so that what an answer says of aborted transactions matters to the next one.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType

import aiokafka
import confluent_kafka
import kafka

WAIT_S = 15.0
POLL_S = 0.05
FETCH_BYTES = 300
"""Three or four batches of one short record."""


class CommittedReader(ABC):
    """`isolation_level=read_committed`, partition 0 of `topic`."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[bytes | None] = []

    def __enter__(self) -> CommittedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read_until(self, position: int) -> None:
        """Read until the client says that the offset that it reads next is `position`; fails if it does not come."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.position()) < position:
            assert time.monotonic() < deadline, f"the client is at {found}, not at {position}: {self.values}"
            self.poll()

    def idle(self, seconds: float) -> None:
        """Read for a while, whatever comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()

    @abstractmethod
    def poll(self) -> None: ...

    @abstractmethod
    def position(self) -> int:
        """The offset of the next record that the client will read, as it sees it itself."""

    @abstractmethod
    def end(self) -> int:
        """The end of the partition, as the client is told."""

    @abstractmethod
    def close(self) -> None: ...


class ConfluentReader(CommittedReader):
    """Its position stays behind the last record given out; how far it has come it says at the end of the partition."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(topic)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": FETCH_BYTES,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        self._ended = 0

    def poll(self) -> None:
        message = self._consumer.poll(POLL_S)
        if message is None:
            return
        error = message.error()
        if error is None:
            self.values.append(message.value())
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            self._ended = message.offset()
        else:
            raise AssertionError(f"the consumer got {error}")

    def position(self) -> int:
        return self._ended

    def end(self) -> int:
        partition = confluent_kafka.TopicPartition(self.topic, 0)
        return self._consumer.get_watermark_offsets(partition, timeout=WAIT_S)[1]

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader(CommittedReader):
    def __init__(self, address: str, topic: str) -> None:
        super().__init__(topic)
        self._partition = kafka.TopicPartition(topic, 0)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="none",
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)

    def poll(self) -> None:
        for records in self._consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            self.values += [record.value for record in records]

    def position(self) -> int:
        return self._consumer.position(self._partition)

    def end(self) -> int:
        return self._consumer.end_offsets([self._partition])[self._partition]

    def close(self) -> None:
        self._consumer.close()


class AiokafkaReader(CommittedReader):
    def __init__(self, address: str, topic: str) -> None:
        super().__init__(topic)
        self._partition = aiokafka.TopicPartition(topic, 0)
        self._loop = asyncio.new_event_loop()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address,
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
                fetch_max_wait_ms=50,
                max_partition_fetch_bytes=FETCH_BYTES,
            )
            await consumer.start()
            consumer.assign([self._partition])
            consumer.seek(self._partition, 0)
            return consumer

        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> None:
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        for records in found.values():
            self.values += [record.value for record in records]

    def position(self) -> int:
        return self._loop.run_until_complete(self._consumer.position(self._partition))

    def end(self) -> int:
        return self._loop.run_until_complete(self._consumer.end_offsets([self._partition]))[self._partition]

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


READERS: dict[str, Callable[[str, str], CommittedReader]] = {
    "confluent": ConfluentReader,
    "kafka-python": KafkaPythonReader,
    "aiokafka": AiokafkaReader,
}
