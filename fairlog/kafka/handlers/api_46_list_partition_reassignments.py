"""ListPartitionReassignments: the partitions whose replicas are being moved to other brokers.

Behaviour
- There is one broker, so there are none, whichever partitions the request names; partitions that do not exist are left
  out as in Kafka.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import DESCRIBE_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 0


def decode(reader: Reader, version: int) -> None:  # noqa: ARG001 (there is one version)
    def topic() -> None:
        reader.string()
        reader.array(reader.int32)
        reader.end_of_fields()

    reader.int32()  # time-out
    reader.nullable_array(topic)
    reader.end_of_fields()


async def handle(context: Context, request: None) -> Answer:  # noqa: ARG001 (what is asked for makes no difference)
    writer = context.writer()
    writer.int32(0)  # throttle time
    writer.int16(denied(context, DESCRIBE_CLUSTER) or ErrorCode.NONE)
    writer.nullable_string(None)  # error message
    writer.array_length(0)
    writer.end_of_fields()
    return writer.parts()


API = Api(46, "ListPartitionReassignments", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_CLUSTER,))
