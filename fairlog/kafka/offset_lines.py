"""The partitions of an OffsetCommit or a TxnOffsetCommit: checked one by one, and answered one by one.

The two requests carry the same lines and are answered with the same lines; since OffsetCommit 10 topics are named by
id. A line that cannot be accepted (unknown partition, too long a metadata string) is refused alone, as in Kafka; the
others are committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from fairlog.groups.offset_values import NewOffset
from fairlog.kafka.api import Context
from fairlog.kafka.checks import READ_TOPIC, denied
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.topic_lookup import find_topic
from fairlog.kafka.wire import Reader, TopicKey, Writer

LINES_AT_ONCE = 500
"""The number of lines that are checked, or written, before other tasks run."""


@dataclass(frozen=True, slots=True)
class OffsetLine:
    """A partition of the request."""

    partition: int
    offset: int
    leader_epoch: int
    """-1 if the version does not have it, or the client did not say."""
    metadata: str | None


OffsetLines = tuple[tuple[TopicKey, tuple[OffsetLine, ...]], ...]
"""(topic, its partitions)"""

Refusals = dict[tuple[TopicKey, int], ErrorCode]
"""Why single partitions are refused, by (topic, partition)."""


def read_lines(reader: Reader, *, has_leader_epoch: bool, by_id: bool = False) -> OffsetLines:
    """The request's array of topics. Raises Malformed."""

    def line() -> OffsetLine:
        partition, offset = reader.int32(), reader.int64()
        leader_epoch = reader.int32() if has_leader_epoch else -1
        entry = OffsetLine(partition, offset, leader_epoch, reader.nullable_string())
        reader.end_of_fields()
        return entry

    def topic() -> tuple[TopicKey, tuple[OffsetLine, ...]]:
        entry = reader.topic_key(by_id=by_id), reader.array(line)
        reader.end_of_fields()
        return entry

    return reader.array(topic)


async def check_lines(
    context: Context, lines: OffsetLines, *, unknown_partition: ErrorCode
) -> tuple[list[NewOffset], Refusals]:
    """The offsets that may be committed, and why each other (topic, partition) may not. Other tasks run in between."""
    broker = context.broker
    offsets: list[NewOffset] = []
    refused: Refusals = {}
    seen = 0
    for key, partitions in lines:
        topic = find_topic(broker, key)
        no_such_topic = unknown_partition if isinstance(key, str) else ErrorCode.UNKNOWN_TOPIC_ID
        name = key if topic is None else topic.name
        if isinstance(name, str) and (not_allowed := denied(context, READ_TOPIC, name)) is not None:
            topic, no_such_topic = None, not_allowed
        for line in partitions:
            seen += 1
            if seen % LINES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            metadata = line.metadata or ""
            if topic is None or not 0 <= line.partition < topic.partitions:
                refused[key, line.partition] = no_such_topic if topic is None else unknown_partition
            elif len(metadata.encode()) > broker.settings.offsets.metadata_bytes_max:
                refused[key, line.partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                partition = (topic.topic_id.hex, line.partition)
                offsets.append(NewOffset(partition, line.offset, line.leader_epoch, metadata))
    return offsets, refused


def write_lines(
    writer: Writer, lines: OffsetLines, refused: Mapping[tuple[TopicKey, int], ErrorCode], outcome: ErrorCode
) -> None:
    """The answer's array of topics: `outcome` for all partitions except those that were refused alone.

    If the sender may not commit at all, `outcome` also applies to a partition with too long a metadata string, as in
    Kafka, which checks the sender first; but not to a partition that does not exist.
    """

    def topic(entry: tuple[TopicKey, Sequence[OffsetLine]]) -> None:
        key, partitions = entry

        def partition(line: OffsetLine) -> None:
            writer.int32(line.partition)
            error = refused.get((key, line.partition), outcome)
            if error is ErrorCode.OFFSET_METADATA_TOO_LARGE and outcome is not ErrorCode.NONE:
                error = outcome
            writer.int16(error)
            writer.end_of_fields()

        writer.topic_key(key)
        writer.array(partitions, partition)
        writer.end_of_fields()

    writer.array(lines, topic)
