"""ElectLeaders: make the preferred replica of a partition, or any live one, its leader.

Behaviour
- This node is the only and preferred replica of every partition, and leads it: the answer is ELECTION_NOT_NEEDED for
  each partition, for either kind of election. A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
- If the request names all partitions (null), the answer lists each topic without partitions, as Kafka does for topics
  that have the wanted leaders.
- A kind of election that does not exist is INVALID_REQUEST.
- Other clients are served between one partition and the next.

Version notes
- 0 has preferred leaders only, and no error for the whole answer; 1 adds both; 2 is flexible.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ALTER_CLUSTER, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader

SERVED = Versions(0, 2)
FLEXIBLE_FROM = 2

_PREFERRED, _UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    election_type: int
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    """None: all partitions of all topics."""


def decode(reader: Reader, version: int) -> ElectLeadersRequest:
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    election_type = reader.int8() if version >= 1 else _PREFERRED
    request = ElectLeadersRequest(election_type, reader.nullable_array(topic))
    reader.int32()  # time-out
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ElectLeadersRequest) -> Answer:
    cluster, writer = context.broker.cluster, context.writer()
    known = request.election_type in (_PREFERRED, _UNCLEAN)
    refused = denied(context, ALTER_CLUSTER)
    all_of_them = request.topics is None and known and refused is None
    asked = [(topic.name, ()) for topic in cluster.topics()] if all_of_them else request.topics or ()
    writer.int32(0)  # throttle time
    if context.version >= 1:
        writer.int16(refused or (ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST))
    writer.array_length(len(asked))
    for name, partitions in asked:
        topic = cluster.topic(name)
        writer.string(name)
        writer.array_length(len(partitions))
        for index in partitions:
            if refused is not None:
                error, message = refused, None
            elif not known:
                error, message = ErrorCode.INVALID_REQUEST, f"there is no election type {request.election_type}"
            elif log_of(topic, index) is None:
                error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name}"
            else:
                error, message = ErrorCode.ELECTION_NOT_NEEDED, "the partition's only replica leads it"
            writer.int32(index)
            writer.int16(error)
            writer.message(message)
            writer.end_of_fields()
            await trio.lowlevel.checkpoint()
        writer.end_of_fields()
        await trio.lowlevel.checkpoint()
    writer.end_of_fields()
    return writer.parts()


API = Api(43, "ElectLeaders", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER,))
