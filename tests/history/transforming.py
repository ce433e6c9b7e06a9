"""The workload's members of a consumer group: consume, transform, produce, in transactions that commit the offsets.

As the client's documentation has it: offsets go into the transaction with the group's metadata, and after an abort or a
rebalance reading goes on where the group's commits are. Every assignment and every seek is noted, for between them the
checker holds a consumer to reading on.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.history.consuming import is_out_of_range
from tests.history.layout import IN, OUT, PARTITIONS, TRANSFORMERS, place
from tests.history.producing import ABORTED_SHARE, ANSWER_S, CLIENT, PAUSE_S, TransactionalProducer
from tests.history.recorder import Recorder

SESSION_MS = 1_000
BATCH = 20
LIVENESS_S = 12
"""A transformer that makes no step for so long is ended by SIGALRM: librdkafka#5456, a call that does not come back."""


class _Member:
    """The consumer, and what it was given."""

    def __init__(self, address: str, recorder: Recorder) -> None:
        self.recorder = recorder
        self.moved = False
        """Since it was last looked at: what was polled meanwhile may belong to another by now."""
        self.consumer = Consumer(
            CLIENT
            | {
                "bootstrap.servers": address,
                "group.id": TRANSFORMERS,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "range",
                "fetch.wait.max.ms": 20,
            }
        )
        self.consumer.subscribe([IN], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)

    def _given(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.moved = True
        committed = self._committed(partitions)
        self._note(committed)
        consumer.assign(committed)

    def _taken(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.moved = True
        self.recorder.whole("assign", revoked=[place(each.topic, each.partition) for each in partitions])
        consumer.unassign()

    def back_to_commits(self) -> None:
        """Read on where the group's commits are."""
        committed = self._committed(self.consumer.assignment())
        self.consumer.assign(committed)
        self._note(committed)

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        committed = self.consumer.committed(partitions, ANSWER_S)
        for each in committed:
            if each.error is not None:
                raise KafkaException(each.error)
            each.offset = max(each.offset, 0)  # groups begin at the beginning
        return committed

    def _note(self, partitions: list[TopicPartition]) -> None:
        positions = {place(each.topic, each.partition): each.offset for each in partitions}
        self.recorder.whole("assign", positions=positions)


def transform(
    address: str, transactional_id: str, recorder: Recorder, rng: random.Random, going: Callable[[], bool]
) -> None:
    """For each record of IN one in OUT, in transactions."""
    producer = TransactionalProducer(address, transactional_id, recorder)
    member = _Member(address, recorder)
    out = [index for topic, index in PARTITIONS if topic == OUT]
    try:
        while going():
            signal.alarm(LIVENESS_S)
            messages = member.consumer.consume(BATCH, 0.2)
            if member.moved:
                member.moved = False
                member.back_to_commits()
                continue
            polls = _polls(messages, recorder)
            if not polls:
                continue
            count = sum(len(records) for _poll, _partition, records in polls)
            planned = [["send", place(OUT, rng.choice(out)), recorder.new_value()] for _ in range(count)]
            op = recorder.invoke("txn", group=transactional_id, consumer_group=TRANSFORMERS, micro=[*polls, *planned])
            if not _one(producer, member, op, polls, planned, aborted=rng.random() < ABORTED_SHARE):
                member.back_to_commits()
            time.sleep(rng.uniform(0, 2 * PAUSE_S))
    finally:
        member.consumer.close()


def _one(
    producer: TransactionalProducer,
    member: _Member,
    op: int,
    polls: list[list[Any]],
    planned: list[list[Any]],
    *,
    aborted: bool,
) -> bool:
    """One transaction; whether it was committed."""
    try:
        producer.begin()
        for _send, partition, value in planned:
            producer.send(OUT, int(partition.rpartition("/")[2]), value)
        offsets = [
            TopicPartition(IN, int(partition.rpartition("/")[2]), records[-1][0] + 1)
            for _poll, partition, records in polls
        ]
        metadata = member.consumer.consumer_group_metadata()
        producer.producer.send_offsets_to_transaction(offsets, metadata, ANSWER_S)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        producer.abort(op, planned, polls, why=str(error))
        return False
    if aborted:
        producer.abort(op, planned, polls)
        return False
    return producer.commit(op, planned, polls)


def _polls(messages: list[Message], recorder: Recorder) -> list[list[Any]]:
    """What was consumed, by partition."""
    records: dict[str, list[list[Any]]] = {}
    for message in messages:
        error = message.error()
        if error is None:
            value = message.value()
            assert value is not None
            found = records.setdefault(place(message.topic(), message.partition()), [])
            found.append([message.offset(), value.decode()])
        elif error.fatal() or not error.retriable():
            if is_out_of_range(error):
                recorder.end(recorder.invoke("poll"), "fail", error=str(error))
            raise KafkaException(error)
    return [["poll", partition, found] for partition, found in records.items()]
