"""OffsetCommit: a group's next offsets, outside any transaction.

Behaviour
- Answered when the offsets are on disk and every later OffsetFetch sees them. If the disk fails meanwhile, or it takes
  longer than five seconds, the answer is COORDINATOR_NOT_AVAILABLE, and the client retries.
- A partition that does not exist, or whose metadata string is too long, is refused alone; the others are committed
  together. If none is left, membership is not checked (as in Kafka).
- The group decides who may commit: a member of the current generation, or a client that is not a member while the group
  has no members. A member of the new protocol names its epoch instead; if its epoch has changed since, the answer is
  STALE_MEMBER_EPOCH.
- A group that another broker coordinates is NOT_COORDINATOR; partitions are checked before. While the engine of several
  machines is away, it is COORDINATOR_NOT_AVAILABLE.

Version notes
- 2 to 4 have a retention time, which is ignored: `offsets.retention_minutes` applies to all. 3 adds the throttle time,
  6 the leader epoch, 7 the group instance id; 8 is flexible. 9 is for members of the new protocol, and has the format
  of 8. 10 names topics by id.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from fairlog.groups.interface import is_group_id
from fairlog.groups.offset_values import CommitUnderWay, Sender
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import READ_GROUP, READ_TOPIC, denied
from fairlog.kafka.errors import ErrorCode, code_of_commit_refusal
from fairlog.kafka.noting import note
from fairlog.kafka.offset_lines import OffsetLines, TopicKey, check_lines, read_lines, write_lines
from fairlog.kafka.ownership import why_no_write_of_group
from fairlog.kafka.wire import Reader
from fairlog.trail import Action

SERVED = Versions(2, 10)
FLEXIBLE_FROM = 8


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    group: str
    sender: Sender
    lines: OffsetLines


def decode(reader: Reader, version: int) -> OffsetCommitRequest:
    group, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= 7 else None
    if version <= 4:
        reader.int64()  # retention time
    request = OffsetCommitRequest(
        group,
        Sender(member_id, instance_id, generation),
        read_lines(reader, has_leader_epoch=version >= 6, by_id=version >= 10),
    )
    reader.end_of_fields()
    return request


async def handle(context: Context, request: OffsetCommitRequest) -> Reply:
    not_allowed = denied(context, READ_GROUP, request.group)
    if not_allowed is not None:
        _note(context, request, not_allowed)
        return encode(context, request, {}, not_allowed)
    if not is_group_id(request.group):
        return encode(context, request, {}, ErrorCode.INVALID_GROUP_ID)
    offsets, refused = await check_lines(context, request.lines, unknown_partition=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not offsets:
        if refused:
            _note(context, request, next(iter(refused.values())))
        return encode(context, request, refused, ErrorCode.NONE)
    cannot = why_no_write_of_group(context.broker, request.group)
    if cannot is not None:
        return encode(context, request, refused, cannot)
    outcome = await context.broker.offsets.commit(request.group, request.sender, offsets)
    if not isinstance(outcome, CommitUnderWay):
        code = code_of_commit_refusal(outcome)
        _note(context, request, code)
        return encode(context, request, refused, code)
    _note(context, request, ErrorCode.NONE)
    return Deferred(functools.partial(_finish, context, request, refused, outcome), keeps_request=True)


def _note(context: Context, request: OffsetCommitRequest, error: ErrorCode) -> None:
    """Who does not commit as a member may be an operator who resets the group."""
    if request.sender.generation < 0:
        note(context, Action.RESET_OFFSETS, request.group, error, often=True)


async def _finish(
    context: Context,
    request: OffsetCommitRequest,
    refused: Mapping[tuple[TopicKey, int], ErrorCode],
    commit: CommitUnderWay,
) -> Answer:
    settled = await context.broker.offsets.settled(commit)
    return encode(context, request, refused, ErrorCode.NONE if settled else ErrorCode.COORDINATOR_NOT_AVAILABLE)


def encode(
    context: Context,
    request: OffsetCommitRequest,
    refused: Mapping[tuple[TopicKey, int], ErrorCode],
    outcome: ErrorCode,
) -> Answer:
    writer = context.writer()
    if context.version >= 3:
        writer.int32(0)  # throttle time
    write_lines(writer, request.lines, refused, outcome)
    writer.end_of_fields()
    return writer.parts()


API = Api(8, "OffsetCommit", SERVED, FLEXIBLE_FROM, decode, handle, (READ_GROUP, READ_TOPIC))
