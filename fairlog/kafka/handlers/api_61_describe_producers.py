"""DescribeProducers: what a partition knows about its idempotent and transactional producers.

Behaviour
- The coordinator epoch is that of the last marker that was written for the producer in this partition, or -1 if there
  is none, as in Kafka. In journal mode it is always -1.
- The current start offset is where a producer's open transaction begins, or -1 if none is open, as in Kafka. In journal
  mode a record's offset is not known before its transaction commits; there the answer is the smallest offset that the
  records can get, the high watermark.
- A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
- A partition that is named more than once is answered once. Other clients are served in between.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import READ_TOPIC, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from partition.answers import ActiveProducer

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest:
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    index: int
    error: ErrorCode
    producers: Sequence[ActiveProducer]
    high_watermark: int


def decode(reader: Reader, version: int) -> DescribeProducersRequest:  # noqa: ARG001 (there is one version)
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    request = DescribeProducersRequest(reader.array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeProducersRequest) -> Answer:
    writer = context.writer()

    def producer(line: _Line, active: ActiveProducer) -> None:
        writer.int64(active.producer_id)
        writer.int32(active.producer_epoch)
        writer.int32(active.last_sequence)
        writer.int64(active.last_timestamp_ms)
        writer.int32(active.coordinator_epoch)
        writer.int64(_start_offset(line, active))
        writer.end_of_fields()

    def partition(line: _Line) -> None:
        writer.int32(line.index)
        writer.int16(line.error)
        writer.nullable_string(None)
        writer.array(line.producers, lambda active: producer(line, active))
        writer.end_of_fields()

    asked: dict[str, dict[int, None]] = {}
    for name, indexes in request.topics:
        asked.setdefault(name, {}).update(dict.fromkeys(indexes))
    writer.int32(0)  # throttle time
    writer.array_length(len(asked))
    for name, indexes in asked.items():
        writer.string(name)
        writer.array_length(len(indexes))
        for index in indexes:
            partition(_describe(context, name, index))
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


def _describe(context: Context, name: str, index: int) -> _Line:
    broker = context.broker
    refused = denied(context, READ_TOPIC, name)
    if refused is not None:
        return _Line(index, refused, (), -1)
    log = log_of(broker.cluster.topic(name), index)
    if log is None:
        return _Line(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (), -1)
    partition = broker.partitions.get(log)
    if partition is None:
        return _Line(index, code_of_unled(broker), (), -1)
    return _Line(index, ErrorCode.NONE, partition.describe_producers(), partition.visibility.high_watermark)


def _start_offset(line: _Line, active: ActiveProducer) -> int:
    if not active.in_transaction:
        return -1
    return line.high_watermark if active.first_offset is None else active.first_offset


API = Api(61, "DescribeProducers", SERVED, FLEXIBLE_FROM, decode, handle, (READ_TOPIC,))
