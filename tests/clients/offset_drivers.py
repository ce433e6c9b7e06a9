"""Stock consumers that assign themselves and commit, and producers that send offsets: one face for the three clients.

As in `drivers`: each calls its client's public API as that client's documentation does. The consumers have a group
id and never subscribe, so nobody is a member of anything.
"""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

import aiokafka
import confluent_kafka

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from tests.clients.drivers import WAIT_S, ClientKind

Result = TypeVar("Result")


class OffsetsDriver(ABC):
    """A read_committed consumer of a group with assigned partitions of one topic, beside a transactional producer."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic, self.group = topic, group

    def __enter__(self) -> OffsetsDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def commit(self, partition: int, offset: int, metadata: str = "") -> None: ...

    @abstractmethod
    def committed(self, partition: int) -> tuple[int, str] | None:
        """(offset, metadata); waits while there is a pending one, if the client asks for stable offsets."""

    @abstractmethod
    def positions_after_poll(self, partitions: Sequence[int]) -> dict[int, int]:
        """Where the consumer stands after it has read to the end from where the group had committed."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: bytes, partition: int | None = None) -> None:
        """To any partition, if none is named."""

    @abstractmethod
    def send_offsets(self, partition: int, offset: int) -> None: ...

    @abstractmethod
    def end(self, *, commit: bool) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ConfluentOffsets(OffsetsDriver):
    def __init__(self, address: str, topic: str, group: str, transactional_id: str) -> None:
        super().__init__(topic, group)
        common = {"bootstrap.servers": address, "log_level": 2, "reconnect.backoff.max.ms": 100}
        self._consumer = confluent_kafka.Consumer(
            common
            | {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
            | {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        )
        self._producer = confluent_kafka.Producer(common | {"transactional.id": transactional_id, "linger.ms": 0})
        self._producer.init_transactions(WAIT_S)

    def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        place = confluent_kafka.TopicPartition(self.topic, partition, offset, metadata)
        (done,) = self._consumer.commit(offsets=[place], asynchronous=False)
        assert done.error is None, done.error

    def committed(self, partition: int) -> tuple[int, str] | None:
        (place,) = self._consumer.committed([confluent_kafka.TopicPartition(self.topic, partition)], WAIT_S)
        assert place.error is None, place.error
        return None if place.offset < 0 else (place.offset, place.metadata or "")

    def positions_after_poll(self, partitions: Sequence[int]) -> dict[int, int]:
        places = [confluent_kafka.TopicPartition(self.topic, partition) for partition in partitions]
        self._consumer.assign(places)
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = self._consumer.poll(WAIT_S)
            assert message is not None, "nothing came"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return {place.partition: place.offset for place in self._consumer.position(places)}

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int | None = None) -> None:
        self._producer.produce(topic, value, partition=-1 if partition is None else partition)

    def send_offsets(self, partition: int, offset: int) -> None:
        place = confluent_kafka.TopicPartition(self.topic, partition, offset)
        self._producer.send_offsets_to_transaction([place], self._consumer.consumer_group_metadata(), WAIT_S)

    def end(self, *, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(WAIT_S)

    def close(self) -> None:
        self._producer.purge()
        self._consumer.close()


class KafkaPythonOffsets(OffsetsDriver):
    def __init__(self, address: str, topic: str, group: str, transactional_id: str) -> None:
        super().__init__(topic, group)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            group_id=group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, max_block_ms=WAIT_S * 1000, linger_ms=0
        )
        self._producer.init_transactions()

    def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        place = kafka.TopicPartition(self.topic, partition)
        self._consumer.commit({place: kafka.OffsetAndMetadata(offset, metadata, -1)}, timeout_ms=WAIT_S * 1000)

    def committed(self, partition: int) -> tuple[int, str] | None:
        place = kafka.TopicPartition(self.topic, partition)
        found = self._consumer.committed(place, metadata=True, timeout_ms=WAIT_S * 1000)
        return None if found is None else (found.offset, found.metadata)

    def positions_after_poll(self, partitions: Sequence[int]) -> dict[int, int]:
        places = [kafka.TopicPartition(self.topic, partition) for partition in partitions]
        self._consumer.assign(places)
        ends = self._consumer.end_offsets(places)
        while any(self._consumer.position(place) < ends[place] for place in places):
            self._consumer.poll(timeout_ms=200)
        return {place.partition: self._consumer.position(place) for place in places}

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int | None = None) -> None:
        self._producer.send(topic, value, partition=partition)

    def send_offsets(self, partition: int, offset: int) -> None:
        offsets = {kafka.TopicPartition(self.topic, partition): kafka.OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())

    def end(self, *, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()

    def close(self) -> None:
        self._producer.close(timeout=1)
        self._consumer.close(autocommit=False)


class AiokafkaOffsets(OffsetsDriver):
    """Owns an event loop, which runs while one of its methods does."""

    def __init__(self, address: str, topic: str, group: str, transactional_id: str) -> None:
        super().__init__(topic, group)
        self._runner = asyncio.Runner()

        async def start() -> None:
            self._consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address,
                group_id=group,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            self._producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=transactional_id)
            await self._consumer.start()
            await self._producer.start()

        self._run(start())

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        async def bounded() -> Result:
            return await asyncio.wait_for(call, WAIT_S)

        return self._runner.run(bounded())

    def _place(self, partition: int) -> aiokafka.TopicPartition:
        place = aiokafka.TopicPartition(self.topic, partition)
        if place not in self._consumer.assignment():
            self._consumer.assign([*self._consumer.assignment(), place])
        return place

    def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        async def call() -> None:
            await self._consumer.commit({self._place(partition): (offset, metadata)})

        self._run(call())

    def committed(self, partition: int) -> tuple[int, str] | None:
        async def call() -> int | None:
            return await self._consumer.committed(self._place(partition))

        offset = self._run(call())
        return None if offset is None else (offset, "")  # it has no way to ask for the metadata

    def positions_after_poll(self, partitions: Sequence[int]) -> dict[int, int]:
        async def call() -> dict[int, int]:
            places = [self._place(partition) for partition in partitions]
            ends = await self._consumer.end_offsets(places)
            found: dict[int, int] = {}
            for place in places:
                while await self._consumer.position(place) < ends[place]:
                    await self._consumer.getmany(place, timeout_ms=200)
                found[place.partition] = await self._consumer.position(place)
            return found

        return self._run(call())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int | None = None) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, partition: int, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(self.topic, partition): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, self.group))

    def end(self, *, commit: bool) -> None:
        self._run(self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            await self._producer.stop()
            await self._consumer.stop()

        try:
            self._run(stop())
        finally:
            self._runner.close()


_DRIVERS: dict[str, Any] = {
    "confluent-kafka": ConfluentOffsets,
    "kafka-python": KafkaPythonOffsets,
    "aiokafka": AiokafkaOffsets,
}


def offsets_of(client: ClientKind, address: str, topic: str, group: str, transactional_id: str) -> OffsetsDriver:
    """A started consumer and producer of this client."""
    return _DRIVERS[client.name](address, topic, group, transactional_id)
