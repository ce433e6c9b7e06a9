"""AlterReplicaLogDirs: move a partition to another directory of its broker.

Behaviour
- There is one directory, `data_dir`: every partition is there already. Another directory is LOG_DIR_NOT_FOUND; the
  directory is checked before the partition, as in Kafka.
- If a partition is named more than once, the last directory counts. Other clients are served between one partition and
  the next.

Version notes
- 1 is the first that Kafka 4 serves; 2 is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader

SERVED = Versions(1, 2)
FLEXIBLE_FROM = 2


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsRequest:
    directories: tuple[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], ...]
    """Path, and the topics with the partitions to move there."""


def decode(reader: Reader, version: int) -> AlterReplicaLogDirsRequest:  # noqa: ARG001 (both look alike)
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def directory() -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
        entry = reader.string(), reader.array(topic)
        reader.end_of_fields()
        return entry

    request = AlterReplicaLogDirsRequest(reader.array(directory))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: AlterReplicaLogDirsRequest) -> Answer:
    broker, writer = context.broker, context.writer()
    outcomes: dict[str, dict[int, ErrorCode]] = {}
    refused = denied(context, ALTER_CLUSTER)
    for path, topics in request.directories:
        for name, partitions in topics:
            topic, of_topic = broker.cluster.topic(name), outcomes.setdefault(name, {})
            for index in partitions:
                if refused is not None:
                    of_topic[index] = refused
                elif path != broker.log_dir:
                    of_topic[index] = ErrorCode.LOG_DIR_NOT_FOUND
                elif log_of(topic, index) is None:
                    of_topic[index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    of_topic[index] = ErrorCode.NONE
                await trio.lowlevel.checkpoint()
    writer.int32(0)  # throttle time
    writer.array_length(len(outcomes))
    for name, of_topic in outcomes.items():
        writer.string(name)
        writer.array_length(len(of_topic))
        for index, error in of_topic.items():
            writer.int32(index)
            writer.int16(error)
            writer.end_of_fields()
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(34, "AlterReplicaLogDirs", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
