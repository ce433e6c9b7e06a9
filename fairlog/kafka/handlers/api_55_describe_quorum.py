"""DescribeQuorum: the nodes that keep the cluster's metadata, and their progress (KIP-595).

Behaviour
- There is no quorum: the node decides alone (`fairlog.cluster`). The answer shows a quorum of one voter, the
  controller, which leads; other brokers of the node are observers. The epoch is that of this broker's start (decision
  14); high watermark and end of the log are the number of changes since. All have always caught up (decision 42).
- The only partition is 0 of `__cluster_metadata`, as in Kafka. If the request names another partition, all that it
  names are UNKNOWN_TOPIC_OR_PARTITION. The topic cannot be read.
- Other clients are served between one partition and the next.
- The node has no listener for controllers, so the answer has no endpoints for it, and no directory id.

Version notes
- 0 is flexible; 1 adds when a voter last fetched and had caught up (KIP-836); 2 error messages, the voters' nodes and
  directory ids (KIP-853).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.ownership import NO_NODE
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 0
_TIMES_FROM = 1
_NODES_FROM = 2

METADATA_TOPIC = "__cluster_metadata"
_NOT_FETCHED_MS = -1


@dataclass(frozen=True, slots=True)
class DescribeQuorumRequest:
    topics: tuple[tuple[str, tuple[int, ...]], ...]


def decode(reader: Reader, version: int) -> DescribeQuorumRequest:  # noqa: ARG001 (all versions look alike)
    def partition() -> int:
        index = reader.int32()
        reader.end_of_fields()
        return index

    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(partition)
        reader.end_of_fields()
        return entry

    request = DescribeQuorumRequest(reader.array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: DescribeQuorumRequest) -> Answer:
    version, writer, broker = context.version, context.writer(), context.broker
    refused = denied(context, DESCRIBE_CLUSTER)
    if refused is not None:
        request = DescribeQuorumRequest(())
    changes, now_ms = broker.cluster.generation, time.time_ns() // 1_000_000
    known = request.topics == ((METADATA_TOPIC, (0,)),)
    started = sorted(broker.started) if known else ()
    voters = [node_id for node_id in started if node_id == broker.cluster.controller_id]
    observers = [node_id for node_id in started if node_id not in voters]

    def replica(node_id: int) -> None:
        writer.int32(node_id)
        if version >= _NODES_FROM:
            writer.uuid(None)  # directory
        writer.int64(changes)
        if version >= _TIMES_FROM:
            writer.int64(_NOT_FETCHED_MS)
            writer.int64(now_ms)
        writer.end_of_fields()

    async def partition(index: int) -> None:
        writer.int32(index)
        writer.int16(ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if version >= _NODES_FROM:
            writer.nullable_string(None if known else f"there is no quorum but that of {METADATA_TOPIC}, partition 0")
        writer.int32(voters[0] if voters else NO_NODE)
        writer.int32(broker.cluster.starts if known else -1)
        writer.int64(changes if known else -1)
        writer.array(voters, replica)
        writer.array(observers, replica)
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()

    def node(node_id: int) -> None:
        writer.int32(node_id)
        writer.array_length(0)  # listeners
        writer.end_of_fields()

    writer.int16(refused or ErrorCode.NONE)
    if version >= _NODES_FROM:
        writer.nullable_string(None)  # error message
    writer.array_length(len(request.topics))
    for name, partitions in request.topics:
        writer.string(name)
        writer.array_length(len(partitions))
        for index in partitions:
            await partition(index)
        writer.end_of_fields()
    if version >= _NODES_FROM:
        writer.array(voters, node)
    writer.end_of_fields()
    return writer.parts()


API = Api(55, "DescribeQuorum", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
