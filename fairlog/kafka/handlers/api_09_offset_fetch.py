"""OffsetFetch: the offsets that a group has committed.

Behaviour
- Returns every commit that was answered before, plain or by the end of a transaction.
- A group or a partition without offsets, and a partition that does not exist: offset -1 without an error.
- `require_stable` (set by read_committed consumers): a partition with offsets in a transaction that is still open is
  UNSTABLE_OFFSET_COMMIT, and the client retries. The transaction's time-out bounds the wait. A request for all
  partitions also returns those that have no other offset yet; Kafka leaves them out, so they look uncommitted.
- A group, or a partition of it, that is named more than once is answered once, for everything requested. Otherwise a
  small request could cause an answer without bounds.
- If a member of the new protocol names itself, it is refused if it names an epoch that is not its own
  (STALE_MEMBER_EPOCH), or if it is not a member (UNKNOWN_MEMBER_ID): it would read offsets that are no longer its own.
- COORDINATOR_LOAD_IN_PROGRESS, on which clients retry, while decided offsets cannot be read because a disk has failed,
  while unread answers use all the available room, and on several machines as long as it is not certain that no other
  node coordinates the group by now.
- A group that another broker coordinates is NOT_COORDINATOR.

Version notes
- 2 may ask for all partitions and has an error for the whole answer; 3 adds the throttle time, 5 the leader epoch, 7
  `require_stable`; 6 is flexible; 8 asks for several groups, 9 says which member asks, 10 names topics by id.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
import trio

from datalog.offset_entries import CommittedOffset
from fairlog.broker import Broker
from fairlog.groups.offset_index import Partition
from fairlog.groups.offset_values import FetchedOffset
from fairlog.kafka.answer_budget import AnswerRoom
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import DESCRIBE_GROUP, DESCRIBE_TOPIC, denied, may
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.offset_lines import LINES_AT_ONCE
from fairlog.kafka.ownership import code_of_group_elsewhere, is_group_elsewhere
from fairlog.kafka.topic_lookup import find_topic
from fairlog.kafka.wire import Reader, TopicKey, Writer
from fairlog_types import CorruptStorage, Offset, StorageFailure
from shard.owner_at_question import CERTAIN_S, OwnerAtQuestion

log = structlog.get_logger()

SERVED = Versions(1, 10)
FLEXIBLE_FROM = 6
_MANY_GROUPS_FROM = 8
_MEMBERS_FROM = 9
_TOPIC_IDS_FROM = 10

_NONE = FetchedOffset(None, pending=False)
_NO_OFFSET = CommittedOffset(Offset(-1), -1, "", -1)

Topics = tuple[tuple[TopicKey, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupRequest:
    group: str
    topics: Topics | None
    """None: all partitions that have offsets. No topic, and no partition of one, is in it twice."""
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    groups: tuple[GroupRequest, ...]
    """Exactly one before version 8. None is in it twice."""
    require_stable: bool


Lines = list[tuple[TopicKey, list[tuple[int, FetchedOffset | ErrorCode]]]]
"""The answer for each partition, by topic."""


@dataclass(frozen=True, slots=True)
class _GroupAnswer:
    group: str
    error: ErrorCode
    topics: Lines


def decode(reader: Reader, version: int) -> OffsetFetchRequest:
    def topic() -> tuple[TopicKey, tuple[int, ...]]:
        entry = reader.topic_key(by_id=version >= _TOPIC_IDS_FROM), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def group() -> GroupRequest:
        name = reader.string()
        member_id, member_epoch = None, -1
        if version >= _MEMBERS_FROM:
            member_id, member_epoch = reader.nullable_string(), reader.int32()
        topics = reader.nullable_array(topic) if version >= 2 else reader.array(topic)
        return GroupRequest(name, topics, member_id, member_epoch)

    def group_of_many() -> GroupRequest:
        entry = group()
        reader.end_of_fields()
        return entry

    groups = reader.array(group_of_many) if version >= _MANY_GROUPS_FROM else (group(),)
    request = OffsetFetchRequest(_each_once(groups), reader.boolean() if version >= 7 else False)
    reader.end_of_fields()
    return request


def _each_once(groups: Sequence[GroupRequest]) -> tuple[GroupRequest, ...]:
    """The same request, without repetitions."""
    asked: dict[str, dict[TopicKey, dict[int, None]] | None] = {}
    members: dict[str, tuple[str | None, int]] = {}
    for group in groups:
        members.setdefault(group.group, (group.member_id, group.member_epoch))
        topics = asked.setdefault(group.group, {})
        if group.topics is None or topics is None:
            asked[group.group] = None
            continue
        for name, indexes in group.topics:
            topics.setdefault(name, {}).update(dict.fromkeys(indexes))
    return tuple(
        GroupRequest(
            name,
            None if topics is None else tuple((topic, tuple(found)) for topic, found in topics.items()),
            *members[name],
        )
        for name, topics in asked.items()
    )


async def handle(context: Context, request: OffsetFetchRequest) -> Reply:
    room = AnswerRoom(context.answers)
    owner = OwnerAtQuestion(context.broker)
    return Deferred(functools.partial(_finish, context, request, owner, room), room=room, keeps_request=True)


async def _finish(context: Context, request: OffsetFetchRequest, owner: OwnerAtQuestion, room: AnswerRoom) -> Answer:
    writer = context.writer()
    until_s = trio.current_time() + CERTAIN_S
    if context.version >= 3:
        writer.int32(0)  # throttle time
    if context.version >= _MANY_GROUPS_FROM:
        writer.array_length(len(request.groups))
        for group in request.groups:
            answer = await _fetch(context, group, owner, until_s, require_stable=request.require_stable)
            writer.string(group.group)
            await _write_topics(writer, context.version, answer)
            writer.int16(answer.error)
            writer.end_of_fields()
            room.keep(writer.size_bytes)  # the next group is refused if that was the last of it
    else:
        answer = await _fetch(context, request.groups[0], owner, until_s, require_stable=request.require_stable)
        await _write_topics(writer, context.version, answer)
        if context.version >= 2:
            writer.int16(answer.error)
    writer.end_of_fields()
    room.keep(writer.size_bytes)
    return writer.parts()


async def _fetch(
    context: Context, request: GroupRequest, owner: OwnerAtQuestion, until_s: float, *, require_stable: bool
) -> _GroupAnswer:
    """Waits until `until_s` at most, to be certain that no other node coordinated the group when this was asked."""
    broker = context.broker
    not_allowed = denied(context, DESCRIBE_GROUP, request.group)
    if not_allowed is not None:
        return _GroupAnswer(request.group, not_allowed, _unanswered(request))
    if is_group_elsewhere(broker, request.group):
        return _GroupAnswer(request.group, code_of_group_elsewhere(broker, request.group), _unanswered(request))
    refusal = broker.groups.may_fetch(request.group, request.member_id, request.member_epoch)
    if refusal is not None:
        return _GroupAnswer(request.group, GROUP_REFUSALS[refusal], [])
    by_id = context.version >= _TOPIC_IDS_FROM
    asked = None if request.topics is None else await _partitions(broker, request.topics)
    fetched: Mapping[Partition, FetchedOffset] | None = None
    if not context.answers.spent and await owner.doubt(until_s) is None:
        try:
            partitions = None if asked is None else [found for found in asked.values() if found is not None]
            fetched = await broker.offsets.fetch(request.group, partitions, require_stable=require_stable)
        except (StorageFailure, CorruptStorage) as failure:
            event = "committed offsets cannot be read"
            more = context.client.admit_line(event)
            if more is not None:
                log.warning(event, group=request.group, reason=str(failure), **more)
    if fetched is None:
        return _GroupAnswer(request.group, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _unanswered(request))
    if asked is None:
        return _GroupAnswer(request.group, ErrorCode.NONE, _named(context, fetched, by_id=by_id))
    assert request.topics is not None
    topics: Lines = []
    for key, indexes in request.topics:
        topic = find_topic(broker, key)
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else _NONE
        name = key if topic is None else topic.name
        if isinstance(name, str) and (not_allowed := denied(context, DESCRIBE_TOPIC, name)) is not None:
            topics.append((key, [(index, not_allowed) for index in indexes]))
            continue
        places = [(index, asked[key, index]) for index in indexes]
        topics.append((key, [(index, missing if place is None else fetched[place]) for index, place in places]))
    return _GroupAnswer(request.group, ErrorCode.NONE, topics)


def _unanswered(request: GroupRequest) -> Lines:
    """The lines of an answer with an error."""
    return [(name, [(index, _NONE) for index in indexes]) for name, indexes in request.topics or ()]


async def _partitions(broker: Broker, topics: Topics) -> dict[tuple[TopicKey, int], Partition | None]:
    """The requested partitions as the keys of offsets; None for a partition that does not exist."""
    found: dict[tuple[TopicKey, int], Partition | None] = {}
    for key, indexes in topics:
        topic = find_topic(broker, key)
        for index in indexes:
            exists = topic is not None and 0 <= index < topic.partitions
            found[key, index] = (topic.topic_id.hex, index) if topic is not None and exists else None
            if len(found) % LINES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
    return found


def _named(context: Context, fetched: Mapping[Partition, FetchedOffset], *, by_id: bool) -> Lines:
    """All offsets of a group by topic. Those of deleted topics that are not yet forgotten are left out, and of topics
    that the client may not describe.
    """
    topics: dict[str, tuple[TopicKey, list[tuple[int, FetchedOffset | ErrorCode]]]] = {}
    for (topic_id, index), offset in sorted(fetched.items(), key=lambda item: item[0]):
        topic = context.broker.cluster.topic_by_id(UUID(hex=topic_id))
        if topic is not None and may(context, DESCRIBE_TOPIC, topic.name):
            topics.setdefault(topic.name, (topic.topic_id if by_id else topic.name, []))[1].append((index, offset))
    return [topics[name] for name in sorted(topics)]


async def _write_topics(writer: Writer, version: int, answer: _GroupAnswer) -> None:
    # Version 1 has no other place for an error, and aiokafka does not look at the one that the next ones have: it would
    # take a partition without a line for one without an offset.
    error = answer.error
    topics = answer.topics if error is ErrorCode.NONE or version < _MANY_GROUPS_FROM else []
    writer.array_length(len(topics))
    written = 0
    for key, partitions in topics:
        writer.topic_key(key)
        writer.array_length(len(partitions))
        for index, offset in partitions:
            if isinstance(offset, ErrorCode):
                _write_partition(writer, version, index, _NONE, offset)
            else:
                _write_partition(writer, version, index, offset, error)
            written += 1
            if written % LINES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()


def _write_partition(writer: Writer, version: int, index: int, offset: FetchedOffset, error: ErrorCode) -> None:
    value = offset.value or _NO_OFFSET
    if offset.pending:
        value, error = _NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
    writer.int32(index)
    writer.int64(value.offset)
    if version >= 5:
        writer.int32(value.leader_epoch)
    writer.nullable_string(value.metadata)
    writer.int16(error)
    writer.end_of_fields()


API = Api(9, "OffsetFetch", SERVED, FLEXIBLE_FROM, decode, handle, (DESCRIBE_GROUP, DESCRIBE_TOPIC))
