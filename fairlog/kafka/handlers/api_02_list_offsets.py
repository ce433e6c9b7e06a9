"""ListOffsets: the first and the next offset of a partition, and offsets by timestamp.

Behaviour
- latest (-1) is the end of what the isolation level can read: the high watermark, or the last stable offset. They
  differ only while a transaction is open in a topic of marker mode. earliest (-2) is the log start offset; max
  timestamp (-3, from version 7) is the first record that has it.
- Nothing is tiered: earliest local (-4, from version 8) is the log start offset; latest tiered (-5, from 9) and
  earliest pending upload (-6, from 11) have no offset (-1), as in Kafka without remote storage. The time-out (from 10)
  is for reading remote storage, and is ignored.
- Answers that depend on the end wait for the copy of everything that was answered or decided before the request
  (`shard.ends`, invariant 13): 20 seconds at most, then OFFSET_NOT_AVAILABLE; KAFKA_STORAGE_ERROR if the disk
  has failed. Clients retry on both.
- A timestamp (ms, 0 or more) finds the first record that is not older, exactly; -1 if there is none. A record that the
  isolation level cannot read yet counts as none, as in Kafka. Markers and aborted records are found as well.
- Another negative timestamp, or one that the version does not have, is UNSUPPORTED_VERSION, as in Kafka.
- A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
- If a partition is named more than once, the answer is INVALID_REQUEST, as in Kafka.
- Each search runs in a worker thread, so the answer is deferred, as it is for waiting: a client that disconnects is
  noticed between two searches.

Version notes
- OFFSET_NOT_AVAILABLE is LEADER_NOT_AVAILABLE before 5, as in Kafka.
- 2 adds the isolation level and the throttle time; 4 the leader epoch, which is checked; 6 is flexible; 7 adds -3; 8
  adds -4; 9 adds -5; 10 the time-out; 11 adds -6.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import trio

from datalog.interface import UnknownLog
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DESCRIBE_TOPIC, denied, may
from fairlog.kafka.errors import END_REFUSALS, ErrorCode
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog_types import LogId, Offset
from partition.partition import Partition
from shard.ends import AskedEnds, EndRefusal

SERVED = Versions(1, 11)
FLEXIBLE_FROM = 6

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that has each of them. Kafka's ReplicaManager has the same table."""
_WITHOUT_END = frozenset((EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD))
"""Requests whose answers do not depend on where the log ends."""
_TIMEOUT_FROM = 10
_OFFSET_NOT_AVAILABLE_FROM = 5
_READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    index: int
    leader_epoch: int
    """-1 if the client does not know."""
    timestamp: int
    """In ms, or one of the constants above."""


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    committed_only: bool
    topics: tuple[tuple[str, tuple[OffsetQuery, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    index: int
    error: ErrorCode
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def decode(reader: Reader, version: int) -> ListOffsetsRequest:
    def partition() -> OffsetQuery:
        entry = OffsetQuery(reader.int32(), reader.int32() if version >= 4 else -1, reader.int64())
        reader.end_of_fields()
        return entry

    def topic() -> tuple[str, tuple[OffsetQuery, ...]]:
        entry = reader.string(), reader.array(partition)
        reader.end_of_fields()
        return entry

    reader.int32()  # replica id
    isolation_level = reader.int8() if version >= 2 else 0
    request = ListOffsetsRequest(isolation_level == _READ_COMMITTED, reader.array(topic))
    if version >= _TIMEOUT_FROM:
        reader.int32()  # time-out
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ListOffsetsRequest) -> Reply:
    ends = await AskedEnds.ask(context.broker, _logs_with_ends(context, request))
    finish = functools.partial(_finish, context, request, ends)
    at_once = (*_WITHOUT_END, LATEST)
    searches = any(query.timestamp not in at_once for _, queries in request.topics for query in queries)
    if searches or not ends.can_be_read:
        return Deferred(finish, keeps_request=True)
    return await finish()


def _logs_with_ends(context: Context, request: ListOffsetsRequest) -> Iterator[LogId]:
    """The logs whose ends the answer depends on."""
    for name, queries in request.topics:
        topic = context.broker.cluster.topic(name) if may(context, DESCRIBE_TOPIC, name) else None
        for query in queries:
            log = log_of(topic, query.index)
            if log is not None and query.timestamp not in _WITHOUT_END:
                yield log


async def _finish(context: Context, request: ListOffsetsRequest, ends: AskedEnds) -> Answer:
    named = Counter((name, query.index) for name, queries in request.topics for query in queries)
    answers: list[tuple[str, list[_Line]]] = []
    for name, queries in request.topics:
        topic = context.broker.cluster.topic(name)
        lines: list[_Line] = []
        refused = denied(context, DESCRIBE_TOPIC, name)
        for query in queries:
            if refused is not None:
                lines.append(_Line(query.index, refused))
            elif named[name, query.index] > 1:
                lines.append(_Line(query.index, ErrorCode.INVALID_REQUEST))
            else:
                lines.append(await _answer(context, request, ends, log_of(topic, query.index), query))
            await trio.lowlevel.checkpoint()
        answers.append((name, lines))
    return encode(context, answers)


async def _answer(
    context: Context, request: ListOffsetsRequest, ends: AskedEnds, log: LogId | None, query: OffsetQuery
) -> _Line:
    if query.timestamp < 0 and context.version < _SPECIAL_SINCE.get(query.timestamp, context.version + 1):
        return _Line(query.index, ErrorCode.UNSUPPORTED_VERSION)
    broker = context.broker
    if log is None:
        return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = broker.partitions.get(log)
    if partition is None:
        return _Line(query.index, code_of_unled(broker))
    epoch = partition.leader_epoch
    if 0 <= query.leader_epoch < epoch:
        return _Line(query.index, ErrorCode.FENCED_LEADER_EPOCH)
    if query.leader_epoch > epoch:
        return _Line(query.index, ErrorCode.UNKNOWN_LEADER_EPOCH)
    if query.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _Line(query.index, ErrorCode.NONE, -1, partition.visibility.log_start, epoch)
    if query.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _Line(query.index, ErrorCode.NONE)
    refusal = await ends.reached(log)
    if refusal is not None:
        return _Line(query.index, _code_of(refusal, context.version))
    if query.timestamp == LATEST:
        if partition.has_gone:
            return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _Line(query.index, ErrorCode.NONE, -1, _readable_end(partition, request), epoch)
    try:
        if query.timestamp == MAX_TIMESTAMP:
            found = await trio.to_thread.run_sync(broker.data_logs.max_timestamp, log)
        else:
            found = await trio.to_thread.run_sync(broker.data_logs.offset_for_timestamp, log, query.timestamp)
    except UnknownLog:
        return _Line(query.index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if found is None or (request.committed_only and found.offset >= _readable_end(partition, request)):
        return _Line(query.index, ErrorCode.NONE)
    return _Line(query.index, ErrorCode.NONE, found.timestamp_ms, found.offset, epoch)


def _readable_end(partition: Partition, request: ListOffsetsRequest) -> Offset:
    visibility = partition.visibility
    return visibility.last_stable_offset if request.committed_only else visibility.high_watermark


def _code_of(refusal: EndRefusal, version: int) -> ErrorCode:
    code = END_REFUSALS[refusal]
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < _OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code


def encode(context: Context, answers: Sequence[tuple[str, Sequence[_Line]]]) -> Answer:
    version, writer = context.version, context.writer()

    def partition(line: _Line) -> None:
        writer.int32(line.index)
        writer.int16(line.error)
        writer.int64(line.timestamp)
        writer.int64(line.offset)
        if version >= 4:
            writer.int32(line.leader_epoch)
        writer.end_of_fields()

    def topic(entry: tuple[str, Sequence[_Line]]) -> None:
        name, lines = entry
        writer.string(name)
        writer.array(lines, partition)
        writer.end_of_fields()

    if version >= 2:
        writer.int32(0)  # throttle time
    writer.array(answers, topic)
    writer.end_of_fields()
    return writer.parts()


API = Api(2, "ListOffsets", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_TOPIC,))
