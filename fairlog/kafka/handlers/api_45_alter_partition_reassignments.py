"""AlterPartitionReassignments: move the replicas of a partition to other brokers.

Behaviour
- Partitions stay with their brokers, so the only possible assignment is the present one, which is answered with
  success. Every other one is INVALID_REPLICA_ASSIGNMENT, with a message that says why.
- No replica is ever being moved to another broker, so there is nothing to cancel: NO_REASSIGNMENT_IN_PROGRESS.
- Nothing is clamped here, whatever `topics.replication_factor_policy` says: an operator who moves replicas wants
  exactly this assignment.
- Other clients are served between one partition and the next.

Version notes
- 0 is flexible; 1 lets a client forbid a change of the number of replicas (it cannot change), and repeats this in the
  answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 0
_FACTOR_FROM = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    index: int
    replicas: tuple[int, ...] | None
    """None: cancel the one in progress."""


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    may_change_factor: bool
    topics: tuple[tuple[str, tuple[Reassignment, ...]], ...]


def decode(reader: Reader, version: int) -> AlterPartitionReassignmentsRequest:
    def partition() -> Reassignment:
        entry = Reassignment(reader.int32(), reader.nullable_array(reader.int32))
        reader.end_of_fields()
        return entry

    def topic() -> tuple[str, tuple[Reassignment, ...]]:
        entry = reader.string(), reader.array(partition)
        reader.end_of_fields()
        return entry

    reader.int32()  # time-out
    may_change_factor = reader.boolean() if version >= _FACTOR_FROM else True
    request = AlterPartitionReassignmentsRequest(may_change_factor, reader.array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AlterPartitionReassignmentsRequest) -> Answer:
    broker, writer = context.broker, context.writer()
    writer.int32(0)  # throttle time
    if context.version >= _FACTOR_FROM:
        writer.boolean(request.may_change_factor)
    refused = denied(context, ALTER_CLUSTER)
    writer.int16(refused or ErrorCode.NONE)
    writer.nullable_string(None)  # error message
    asked = () if refused is not None else request.topics
    writer.array_length(len(asked))
    for name, partitions in asked:
        topic = broker.cluster.topic(name)
        leaders = () if topic is None else broker.cluster.leaders(topic)
        writer.string(name)
        writer.array_length(len(partitions))
        for wanted in partitions:
            exists = 0 <= wanted.index < len(leaders)
            error, message = _outcome(wanted, leaders[wanted.index].node_id if exists else None)
            writer.int32(wanted.index)
            writer.int16(error)
            writer.message(message)
            writer.end_of_fields()
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


def _outcome(wanted: Reassignment, node_id: int | None) -> tuple[ErrorCode, str | None]:
    """`node_id` is the broker that has the partition; None if there is no such partition."""
    replicas = wanted.replicas
    if node_id is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of the partition is in progress"
    if not replicas:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assignment names no broker"
    others = sorted({broker_id for broker_id in replicas if broker_id != node_id})
    if others:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the partition cannot be on broker {others[0]}: it stays on {node_id}",
        )
    if len(replicas) > 1:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the assignment names broker {node_id} more than once"
    return ErrorCode.NONE, None


API = Api(45, "AlterPartitionReassignments", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
