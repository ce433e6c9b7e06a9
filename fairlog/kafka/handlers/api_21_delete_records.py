"""DeleteRecords: make partitions begin at a later offset.

Behaviour
- When this is answered, the records before the offset are deleted for good, also on disk. -1 means everything that was
  answered or decided before the request (invariant 13); if this is not copied yet, the request waits for the copy. The
  answer is the low watermark: the new start of the partition. Offsets do not change; a read before the start gets
  OFFSET_OUT_OF_RANGE. LMDB's file does not shrink, but reuses the space.
- An offset before the partition's start changes nothing. One after its end, or below -1, is OFFSET_OUT_OF_RANGE.
- A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
- If a topic's policy is compaction without deletion, the answer is POLICY_VIOLATION, as in Kafka: its records are not
  kept by age.
- A batch that contains the offset is kept whole. A client that asks for the right offset does not see the batch's
  earlier records.
- Large deletions are made in steps, between which others can write; the new start applies from the first step on. If a
  deletion is not complete after the request's time-out and after 20 seconds, whichever is longer, the answer is
  REQUEST_TIMED_OUT, and the rest is deleted in the background. The time-out is meant for waiting on other replicas, and
  there are none.

Version notes
- 2 is flexible.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import trio

from fairlog.cluster.interface import Topic
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DELETE_TOPIC, denied, may
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.noting import noting
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog.topic_configs import CleanupPolicy, cleanup_policies
from fairlog.trail import Action
from fairlog_types import LogId, Offset, StorageFailure
from shard.ends import OWN_WAIT_S, AskedEnds, EndRefusal

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 2

_ALL = -1
_NO_LOW_WATERMARK = -1

DELETE_REFUSALS = {
    EndRefusal.NOT_YET: ErrorCode.REQUEST_TIMED_OUT,
    EndRefusal.STORAGE: ErrorCode.KAFKA_STORAGE_ERROR,
    EndRefusal.DEPOSED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The answer if it is not possible to wait for the records to be deleted; then nothing is deleted."""


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    """(name, ((partition, offset), …))"""
    timeout_ms: int


def decode(reader: Reader, version: int) -> DeleteRecordsRequest:  # noqa: ARG001 (all versions look alike)
    def partition() -> tuple[int, int]:
        entry = reader.int32(), reader.int64()
        reader.end_of_fields()
        return entry

    def topic() -> tuple[str, tuple[tuple[int, int], ...]]:
        entry = reader.string(), reader.array(partition)
        reader.end_of_fields()
        return entry

    request = DeleteRecordsRequest(reader.array(topic), reader.int32())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DeleteRecordsRequest) -> Reply:
    cluster = context.broker.cluster
    allowed = (topic for topic in request.topics if may(context, DELETE_TOPIC, topic[0]))
    logs = (log_of(cluster.topic(name), index) for name, partitions in allowed for index, _ in partitions)
    wait_s = max(request.timeout_ms / 1000, OWN_WAIT_S)
    ends = await AskedEnds.ask(context.broker, (log for log in logs if log is not None), wait_s=wait_s)
    deadline = trio.current_time() + wait_s
    return Deferred(functools.partial(_finish, context, request, ends, deadline), keeps_request=True)


async def _finish(context: Context, request: DeleteRecordsRequest, ends: AskedEnds, deadline: float) -> Answer:
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.array_length(len(request.topics))
    for name, partitions in request.topics:
        writer.string(name)
        writer.array_length(len(partitions))
        refused = denied(context, DELETE_TOPIC, name)
        for index, offset in partitions:
            topic = context.broker.cluster.topic(name)
            with noting(context, Action.DELETE_RECORDS, f"{name}-{index}", before=offset) as is_answered:
                if refused is not None:
                    low_watermark, error = _NO_LOW_WATERMARK, refused
                else:
                    low_watermark, error = await _delete(context, ends, topic, index, offset, deadline)
                is_answered(error)
            writer.int32(index)
            writer.int64(low_watermark)
            writer.int16(error)
            writer.end_of_fields()
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


async def _delete(
    context: Context, ends: AskedEnds, topic: Topic | None, index: int, offset: int, deadline: float
) -> tuple[int, ErrorCode]:
    """The low watermark, or the error."""
    broker = context.broker
    log = log_of(topic, index)
    if topic is None or log is None:
        return _NO_LOW_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refusal = await ends.settled(log)
    if refusal is not None:
        return _NO_LOW_WATERMARK, DELETE_REFUSALS[refusal]
    end = ends.end(log)
    if end is None:
        return _NO_LOW_WATERMARK, code_of_unled(broker)
    if CleanupPolicy.DELETE not in cleanup_policies(topic, broker.settings):
        return _NO_LOW_WATERMARK, ErrorCode.POLICY_VIOLATION
    if not _ALL <= offset <= end:
        return _NO_LOW_WATERMARK, ErrorCode.OFFSET_OUT_OF_RANGE
    before = end if offset == _ALL else Offset(offset)
    refusal = await ends.reached_offset(log, before)
    if refusal is not None:
        return _NO_LOW_WATERMARK, DELETE_REFUSALS[refusal]
    return await _delete_before(context, log, before, deadline)


async def _delete_before(context: Context, log: LogId, offset: Offset, deadline: float) -> tuple[int, ErrorCode]:
    try:
        with trio.move_on_at(deadline):
            partition = context.broker.partitions.get(log)
            start = None if partition is None else await partition.delete_before(offset)
            if start is None:
                return _NO_LOW_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return start, ErrorCode.NONE
    except StorageFailure:
        return _NO_LOW_WATERMARK, ErrorCode.KAFKA_STORAGE_ERROR
    return _NO_LOW_WATERMARK, ErrorCode.REQUEST_TIMED_OUT


API = Api(21, "DeleteRecords", SERVED, FLEXIBLE_FROM, decode, handle, (DELETE_TOPIC,))
