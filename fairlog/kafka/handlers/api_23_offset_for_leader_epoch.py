"""OffsetForLeaderEpoch: where the records of a leader epoch end, so that a consumer can find out what was lost.

Behaviour
- The leader epoch is the count of the node's starts (decision 14). The current epoch ends at the end of everything that
  was answered or decided before the request; the request waits for its copy, as ListOffsets does. An earlier epoch ends
  where the records of the next one begin. The answer names the largest epoch up to the requested one that has records,
  or the requested one if none has, as in Kafka. For an epoch larger than the current one the answer is (-1, -1).
- A consumer whose position is after this end has read records that a loss of power has removed (journal.fsync =
  interval or never), and resets its position.
- A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
- The client's own idea of the current leader epoch is checked first.
- Each search runs in a worker thread, so the answer is deferred: a client that disconnects is noticed between two
  searches.

Version notes
- 2 is the first that consumers may send, and the one that librdkafka sends; 3 adds the replica id; 4 is flexible.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import trio

from datalog.interface import UnknownLog
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import ACT_AS_BROKER, DESCRIBE_TOPIC, denied, may
from fairlog.kafka.errors import END_REFUSALS, ErrorCode
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog_types import LeaderEpoch, LogId
from shard.ends import AskedEnds

SERVED = Versions(2, 4)
FLEXIBLE_FROM = 4


@dataclass(frozen=True, slots=True)
class EpochQuery:
    index: int
    current_leader_epoch: int
    """-1 if the client does not know."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    topics: tuple[tuple[str, tuple[EpochQuery, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    index: int
    error: ErrorCode
    leader_epoch: int = -1
    end_offset: int = -1


def decode(reader: Reader, version: int) -> OffsetForLeaderEpochRequest:
    def partition() -> EpochQuery:
        entry = EpochQuery(reader.int32(), reader.int32(), reader.int32())
        reader.end_of_fields()
        return entry

    def topic() -> tuple[str, tuple[EpochQuery, ...]]:
        entry = reader.string(), reader.array(partition)
        reader.end_of_fields()
        return entry

    if version >= 3:
        reader.int32()  # replica id
    request = OffsetForLeaderEpochRequest(reader.array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: OffsetForLeaderEpochRequest) -> Reply:
    cluster = context.broker.cluster
    is_broker = may(context, ACT_AS_BROKER)
    allowed = (topic for topic in request.topics if is_broker or may(context, DESCRIBE_TOPIC, topic[0]))
    logs = (log_of(cluster.topic(name), query.index) for name, queries in allowed for query in queries)
    ends = await AskedEnds.ask(context.broker, (log for log in logs if log is not None))
    return Deferred(functools.partial(_finish, context, request, ends), keeps_request=True)


async def _finish(context: Context, request: OffsetForLeaderEpochRequest, ends: AskedEnds) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(request.topics))
    for name, queries in request.topics:
        writer.string(name)
        writer.array_length(len(queries))
        refused = None if may(context, ACT_AS_BROKER) else denied(context, DESCRIBE_TOPIC, name)
        for query in queries:
            if refused is not None:
                line = _Line(query.index, refused)
            else:
                line = await _answer(context, ends, log_of(context.broker.cluster.topic(name), query.index), query)
            writer.int16(line.error)
            writer.int32(line.index)
            writer.int32(line.leader_epoch)
            writer.int64(line.end_offset)
            writer.end_of_fields()
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


async def _answer(context: Context, ends: AskedEnds, log: LogId | None, query: EpochQuery) -> _Line:
    broker = context.broker
    if log is None:
        return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = broker.partitions.get(log)
    if partition is None:
        return _Line(query.index, code_of_unled(broker))
    current = partition.leader_epoch
    if 0 <= query.current_leader_epoch < current:
        return _Line(query.index, ErrorCode.FENCED_LEADER_EPOCH)
    if query.current_leader_epoch > current:
        return _Line(query.index, ErrorCode.UNKNOWN_LEADER_EPOCH)
    if query.leader_epoch < 0:
        return _Line(query.index, ErrorCode.NONE)
    if query.leader_epoch > current:  # of the next owner, if there is one: only it may say that there is no such epoch
        refusal = await ends.settled(log)
        return _Line(query.index, ErrorCode.NONE if refusal is None else END_REFUSALS[refusal])
    if query.leader_epoch == current:
        refusal = await ends.reached(log)
        if refusal is not None:
            return _Line(query.index, END_REFUSALS[refusal])
        if partition.has_gone:
            return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _Line(query.index, ErrorCode.NONE, current, partition.visibility.high_watermark)
    try:
        end = await trio.to_thread.run_sync(broker.data_logs.end_of_epoch, log, LeaderEpoch(query.leader_epoch))
    except UnknownLog:
        return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    epoch = query.leader_epoch if end.leader_epoch is None else end.leader_epoch
    return _Line(query.index, ErrorCode.NONE, epoch, end.end_offset)


API = Api(23, "OffsetForLeaderEpoch", SERVED, FLEXIBLE_FROM, decode, handle, (ACT_AS_BROKER, DESCRIBE_TOPIC))
