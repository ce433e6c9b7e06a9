"""OffsetDelete: delete a group's offsets for some partitions (KIP-496).

Behaviour
- Partitions of topics that members of the group consume are refused (GROUP_SUBSCRIBED_TO_TOPIC), the offsets of the
  others are deleted. If it is not known what the members consume, the group is NON_EMPTY_GROUP.
- A group with neither members nor offsets is GROUP_ID_NOT_FOUND. Deleting an offset that does not exist succeeds.
- Answered when the deletion is on disk. If the disk fails meanwhile, the answer is NOT_COORDINATOR: a retry does no
  harm.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 0 is the only one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from fairlog.groups.interface import GroupRefusal, is_group_id
from fairlog.groups.offset_index import Partition
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DELETE_GROUP, READ_TOPIC, denied
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.noting import note
from fairlog.kafka.ownership import code_of_group_elsewhere, is_group_elsewhere
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import CorruptStorage, StorageFailure

SERVED = Versions(0, 0)
FLEXIBLE_FROM = 1


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


def decode(reader: Reader, version: int) -> OffsetDeleteRequest:  # noqa: ARG001 (there is one version)
    def topic() -> tuple[str, tuple[int, ...]]:
        return reader.string(), reader.array(reader.int32)

    return OffsetDeleteRequest(reader.string(), reader.array(topic))


async def handle(context: Context, request: OffsetDeleteRequest) -> Reply:
    refused = denied(context, DELETE_GROUP, request.group)
    if refused is not None:
        note(context, Action.DELETE_OFFSETS, request.group, refused)
        return encode(context, request, refused, {})
    if not is_group_id(request.group):
        return encode(context, request, ErrorCode.INVALID_GROUP_ID, {})
    if is_group_elsewhere(context.broker, request.group):
        return encode(context, request, code_of_group_elsewhere(context.broker, request.group), {})
    return Deferred(functools.partial(_finish, context, request), keeps_request=True)


async def _finish(context: Context, request: OffsetDeleteRequest) -> Answer:
    broker = context.broker
    places: dict[tuple[str, int], Partition] = {}
    names: dict[Partition, str] = {}
    not_allowed: dict[tuple[str, int], ErrorCode] = {}
    for name, indexes in request.topics:
        refused = denied(context, READ_TOPIC, name)
        if refused is not None:
            not_allowed |= {(name, index): refused for index in indexes}
            continue
        topic = broker.cluster.topic(name)
        for index in indexes:
            if topic is not None and 0 <= index < topic.partitions:
                place = places[name, index] = (topic.topic_id.hex, index)
                names[place] = name
    try:
        outcome = await broker.offsets.delete_partitions(request.group, names)
    except (StorageFailure, CorruptStorage):
        note(context, Action.DELETE_OFFSETS, request.group, ErrorCode.KAFKA_STORAGE_ERROR)
        return encode(context, request, ErrorCode.NOT_COORDINATOR, {})
    except BaseException:
        note(context, Action.DELETE_OFFSETS, request.group, ErrorCode.REQUEST_TIMED_OUT)  # its client is cut off
        raise
    if isinstance(outcome, GroupRefusal):
        note(context, Action.DELETE_OFFSETS, request.group, GROUP_REFUSALS[outcome])
        return encode(context, request, GROUP_REFUSALS[outcome], {})
    errors = {asked: _code(outcome[place]) for asked, place in places.items()} | not_allowed
    deleted = [f"{name}-{index}" for (name, index), error in errors.items() if error is ErrorCode.NONE]
    if deleted:
        note(context, Action.DELETE_OFFSETS, request.group, ErrorCode.NONE, partitions=deleted)
    elif errors:
        note(context, Action.DELETE_OFFSETS, request.group, next(iter(errors.values())))
    return encode(context, request, ErrorCode.NONE, errors)


def _code(refusal: GroupRefusal | None) -> ErrorCode:
    return ErrorCode.NONE if refusal is None else GROUP_REFUSALS[refusal]


def encode(
    context: Context, request: OffsetDeleteRequest, error: ErrorCode, errors: Mapping[tuple[str, int], ErrorCode]
) -> Answer:
    """With an `error` for the whole request there are no topics in the answer, as in Kafka."""
    writer = context.writer()

    def topic(entry: tuple[str, tuple[int, ...]]) -> None:
        name, indexes = entry

        def partition(index: int) -> None:
            writer.int32(index)
            writer.int16(errors.get((name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

        writer.string(name)
        writer.array(indexes, partition)

    writer.int16(error)
    writer.int32(0)  # throttle time
    writer.array(request.topics if error is ErrorCode.NONE else (), topic)
    return writer.parts()


API = Api(47, "OffsetDelete", SERVED, FLEXIBLE_FROM, decode, handle, (DELETE_GROUP, READ_TOPIC))
