"""Members of consumer groups: the three stock clients, each consuming in a thread of its own.

A member says what it was assigned and what it lost, and keeps what it read. It begins each partition at its start
whenever it is given one, and commits nothing: these are members, not offsets.

Run as a program it is a member to be killed:

    python -m tests.clients.group_members CLIENT ADDRESS TOPIC GROUP SESSION_MS
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiokafka
import aiokafka.coordinator.assignors.range
import confluent_kafka

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

WAIT_S = 20.0
SESSION_MS = 2_000
HEARTBEAT_MS = 200


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Look again and again, until it holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


class GroupMember(ABC):
    """A consumer of one topic in a group, started; close it, or it stays in the group for its session time-out."""

    def __init__(
        self,
        address: str,
        topic: str,
        group: str,
        *,
        instance: str | None = None,
        cooperative: bool = False,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.address, self.topic, self.group = address, topic, group
        self.instance, self.cooperative, self.session_ms = instance, cooperative, session_ms
        self.assigned: frozenset[int] = frozenset()
        """Partitions that it reads now."""
        self.changes: list[tuple[str, frozenset[int]]] = []
        """("given" | "taken", partitions), in the order in which it was told."""
        self.seen: dict[int, list[bytes]] = {}
        """By partition, since that was given the last time."""
        self.failure: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group (a static member does not: it may come back), and wait for it."""
        self._closing.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not come to its end"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._consume()
        except Exception as failure:  # noqa: BLE001 (`close` raises it)
            self.failure = failure

    @abstractmethod
    def _consume(self) -> None:
        """Read until closing."""

    def _given(self, partitions: Iterable[int]) -> None:
        given = frozenset(partitions)
        self.changes.append(("given", given))
        self.seen |= {partition: [] for partition in given}
        self.assigned |= given

    def _taken(self, partitions: Iterable[int]) -> None:
        taken = frozenset(partitions)
        self.changes.append(("taken", taken))
        self.assigned -= taken


class ConfluentMember(GroupMember):
    def _consume(self) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "group.id": self.group,
            "enable.auto.commit": False,
            "session.timeout.ms": self.session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": 30_000,
            "partition.assignment.strategy": "cooperative-sticky" if self.cooperative else "range",
            "log_level": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        if self.instance is not None:
            config["group.instance.id"] = self.instance
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        try:
            while not self._closing.is_set():
                message = consumer.poll(0.05)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.fatal() or not error.retriable():
                        raise confluent_kafka.KafkaException(error)
                    continue
                self.seen[message.partition()].append(message.value())
        finally:
            consumer.close()

    def _on_assign(self, consumer: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = confluent_kafka.OFFSET_BEGINNING
        self._given(partition.partition for partition in partitions)
        (consumer.incremental_assign if self.cooperative else consumer.assign)(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._taken(partition.partition for partition in partitions)
        if self.cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()


class KafkaPythonMember(GroupMember):
    def _consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=30_000,
            partition_assignment_strategy=(CooperativeStickyAssignor if self.cooperative else RangePartitionAssignor,),
        )
        member = self

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                member._given(each.partition for each in assigned)
                if assigned:
                    consumer.seek_to_beginning(*assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member._taken(each.partition for each in revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                member._taken(each.partition for each in lost)

        consumer.subscribe([self.topic], listener=Listener())
        try:
            while not self._closing.is_set():
                # kafka-python 3.0.12 tries again itself, but for one moment: where it asks for metadata after it was
                # refused a connection, and is refused that one, too. An application polls again.
                with suppress(kafka.errors.KafkaConnectionError):
                    for partition, records in consumer.poll(50).items():
                        self.seen[partition.partition] += [record.value for record in records]
        finally:
            consumer.close()


class AiokafkaMember(GroupMember):
    def _consume(self) -> None:
        asyncio.run(self._consume_async())

    async def _consume_async(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=30_000,
            partition_assignment_strategy=(aiokafka.coordinator.assignors.range.RangePartitionAssignor,),
        )
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Any) -> None:
                member._given(each.partition for each in assigned)
                for partition in assigned:
                    consumer.seek(partition, 0)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                member._taken(each.partition for each in revoked)

        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self._closing.is_set():
                for partition, records in (await consumer.getmany(timeout_ms=50)).items():
                    self.seen[partition.partition] += [record.value for record in records]
        finally:
            await consumer.stop()


MEMBERS: dict[str, type[GroupMember]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


def main(client: str, address: str, topic: str, group: str, session_ms: str) -> None:
    """Be a member until killed; say each change on standard output."""
    member = MEMBERS[client](address, topic, group, session_ms=int(session_ms))
    told = 0
    while member.failure is None:
        for kind, partitions in member.changes[told:]:
            print(kind, *sorted(partitions), flush=True)  # noqa: T201
            told += 1
        time.sleep(0.02)
    raise member.failure


if __name__ == "__main__":
    main(*sys.argv[1:])
