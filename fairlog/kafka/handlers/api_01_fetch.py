"""Fetch: whole record batches, as the data logs have them. It waits a while for new ones.

    request ──▶ FetchSession: what the client reads ──▶ fairlog.reading.service.read ──▶ what is new to it ──▶ answer

`fairlog.reading` decides what is read, within which limits, and how long this waits. This module adds what Kafka's
protocol needs.

Behaviour
- In a topic of journal mode everything that can be read is committed (invariant 1): the high watermark is the last
  stable offset, both isolation levels get the same records, and the list of aborted transactions is empty.
- In a topic of marker mode `read_committed` gets batches up to the last stable offset, together with the list of
  transactions that were aborted there.
- A fetch offset in the middle of a batch gets the whole batch; the client skips what it does not want.
- Waits until `min_bytes` are there, `max_wait` (or `WAIT_MS_MAX`) is over, or the node stops. Errors do not wait.
- Answers that clients do not read from their sockets make other answers short, see `answer_budget`. So does a Fetch
  that holds some records and waits for `min_bytes`; its wait is then ended.
- Sessions (KIP-227) are served, see `fairlog.kafka.fetch_sessions`: epoch 0 asks for a session, -1 for none, and both
  close any session that they name. An incremental answer has the partitions with records, errors or offsets that the
  client does not know yet; a full one has all requested partitions, each once.
- A position beyond the end is OFFSET_OUT_OF_RANGE. On several machines this is told once it is certain that this node
  leads the partition; NOT_LEADER_OR_FOLLOWER if it may not lead it any more: another one may have written on.
- A partition that another broker leads is NOT_LEADER_OR_FOLLOWER, unless this node has a copy of it: that is read like
  any other (KIP-392), up to what it has. Beyond that the answer is OFFSET_NOT_AVAILABLE, for the leader may have more.
- A client above its quota gets an answer without partitions, with a throttle time, and is then not heard for as long
  (`fairlog/kafka/throttling.py`). A full fetch gets no session then.
- A client that names its rack is sent to a copy there that is in sync, if the leader is in another one.
- Other tasks run after each `STEP` partitions, across all topics: a client may ask for ten thousand.

Version notes
- 5 adds the log start offset; 7 sessions; 9 the leader epoch, which is checked; 11 racks and preferred replicas; 12 is
  flexible and adds tagged fields for diverging epochs (never used: a partition has one replica, which does not diverge
  from itself); 13 names topics by id; 15 moves the replica id to a tagged field; 16 can name new leaders in tagged
  fields (never done: clients ask Metadata); 17 and 18 add tagged fields of followers (a directory, a high watermark),
  which are skipped.
- zstd batches are also sent to clients below version 10; Kafka refuses this.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from datalog.interface import AbortedTransaction
from fairlog.broker import Broker
from fairlog.cluster.interface import Topic
from fairlog.kafka.answer_budget import AnswerRoom
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.checks import READ_TOPIC, denied
from fairlog.kafka.errors import FETCH_SESSION_REFUSALS, READ_PROBLEMS, ErrorCode
from fairlog.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    CachedPartition,
    FetchSession,
    SessionRefusal,
    is_full,
)
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.throttling import fetch_bytes_max, fetched
from fairlog.kafka.topic_lookup import find_topic, log_of
from fairlog.kafka.wire import Reader, TopicKey
from fairlog.reading.plan import LogRead, Problem, ReadPlan
from fairlog.reading.service import STEP, poll_deadline, read
from shard.owner_at_question import CERTAIN_S, OwnerAtQuestion

SERVED = Versions(4, 18)
FLEXIBLE_FROM = 12
_TOPIC_IDS_FROM = 13

_READ_COMMITTED = 1

_WITH_RECORDS_S = 0.1
"""How long an answer with records waits until it is certain that another position is beyond its log's end."""


class FetchPartition(NamedTuple):
    partition: int
    leader_epoch: int
    """-1 if the client does not know."""
    offset: int
    bytes_max: int


class FetchTopic(NamedTuple):
    key: TopicKey
    partitions: tuple[FetchPartition, ...]


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    topics: tuple[FetchTopic, ...]
    session_epoch: int = FINAL_EPOCH
    forgotten: tuple[tuple[TopicKey, tuple[int, ...]], ...] = ()
    rack: str = ""
    """That the client is in; empty if it has not said."""

    @property
    def committed_only(self) -> bool:
        return self.isolation_level == _READ_COMMITTED


@dataclass(slots=True)
class _Line(LogRead):
    """One partition's entry in the answer, and how far it has been read."""

    index: int = field(kw_only=True)
    refusal: ErrorCode = field(default=ErrorCode.NONE, kw_only=True)
    """Why the partition is not read, if this is decided here."""
    preferred: int = field(default=-1, kw_only=True)
    """The broker that the client should read it from; -1: this one."""
    if_beyond: ErrorCode = field(default=ErrorCode.OFFSET_OUT_OF_RANGE, kw_only=True)
    """The answer to a position beyond the end that is known here."""

    @property
    def is_beyond(self) -> bool:
        """Whether the position is beyond the end."""
        return self.problem is Problem.OUT_OF_RANGE and self.position > self.high_watermark

    @property
    def error(self) -> ErrorCode:
        if self.problem is None or self.problem is Problem.REFUSED:
            return self.refusal
        return self.if_beyond if self.is_beyond else READ_PROBLEMS[self.problem]


_Lines = dict[TopicKey, list[_Line]]


def decode(reader: Reader, version: int) -> FetchRequest:
    def partition() -> FetchPartition:
        index = reader.int32()
        leader_epoch = reader.int32() if version >= 9 else -1
        offset = reader.int64()
        if version >= 12:
            reader.int32()  # the last fetched epoch
        if version >= 5:
            reader.int64()  # a follower's log start offset
        entry = FetchPartition(index, leader_epoch, offset, reader.int32())
        reader.end_of_fields()
        return entry

    def topic_key() -> TopicKey:
        return reader.topic_key(by_id=version >= _TOPIC_IDS_FROM)

    def topic() -> FetchTopic:
        entry = FetchTopic(topic_key(), reader.array(partition))
        reader.end_of_fields()
        return entry

    def forgotten() -> tuple[TopicKey, tuple[int, ...]]:
        entry = topic_key(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    if version < 15:
        reader.int32()  # replica id
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.int32(), reader.int32(), reader.int32(), reader.int8()
    session_id, session_epoch = (reader.int32(), reader.int32()) if version >= 7 else (0, FINAL_EPOCH)
    topics = reader.array(topic)
    no_longer = reader.array(forgotten) if version >= 7 else ()
    rack = reader.string() if version >= 11 else ""
    reader.end_of_fields()
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, topics, session_epoch, no_longer, rack
    )


async def handle(context: Context, request: FetchRequest) -> Reply:
    deadline = poll_deadline(request.max_wait_ms)
    room = AnswerRoom(context.answers)
    return Deferred(functools.partial(_finish, context, request, deadline, room), room=room, keeps_request=True)


async def _finish(context: Context, request: FetchRequest, deadline: float, room: AnswerRoom) -> Answer:
    """Read the session's partitions, or wait for records, and answer."""
    session = await _session(context, request)
    if isinstance(session, SessionRefusal):
        return await encode(context, request, 0, {}, FETCH_SESSION_REFUSALS[session])
    turn = session.turn
    try:
        lines = await read(
            context.broker,
            session,
            functools.partial(
                _look_up,
                context,
                committed_only=request.committed_only,
                preferred=context.broker.preferred_replica(request.rack) if request.rack else -1,
            ),
            plan=ReadPlan(bytes_min=request.min_bytes, bytes_max=fetch_bytes_max(context, request.max_bytes)),
            room=room,
            long_poll=functools.partial(context.client.long_poll, deadline),
        )
        if lines is not None and context.broker.confirm is not None:
            await _doubt(context.broker, lines.values())
            lines = lines if session.is_current(turn) else None
        throttle_ms = 0 if lines is None or context.broker.quotas.consumers is None else _throttled(context, lines)
        if throttle_ms:  # as if nothing was read: the session's next answer begins anew
            return await encode(context, request, session.id, {}, ErrorCode.NONE, throttle_ms)
        found = session.why_over if lines is None else await _tell(context, request, session, lines)
        if isinstance(found, SessionRefusal):
            return await encode(context, request, session.id, {}, FETCH_SESSION_REFUSALS[found])
        return await encode(context, request, session.id, found, ErrorCode.NONE)
    finally:
        if not session.id:
            session.close()


async def _doubt(broker: Broker, lines: Collection[_Line]) -> None:
    """Make sure that this node leads what it has no records of: clients forget a position that is out of range."""
    beyond = [line for line in lines if line.is_beyond]
    if not beyond:
        return
    wait_s = _WITH_RECORDS_S if any(line.batches for line in lines) else CERTAIN_S
    if await OwnerAtQuestion(broker).doubt(trio.current_time() + wait_s) is not None:
        for line in beyond:
            line.if_beyond = ErrorCode.NOT_LEADER_OR_FOLLOWER


def _throttled(context: Context, lines: Mapping[CachedPartition, _Line]) -> int:
    """The throttle time, in ms; 0 if what was read may be answered."""
    return fetched(context, sum(len(batch) for line in lines.values() for batch in line.batches))


async def _session(context: Context, request: FetchRequest) -> FetchSession | SessionRefusal:
    """The session that serves the request, updated with the partitions that the request names; its turn has begun."""
    uses_topic_ids = context.version >= _TOPIC_IDS_FROM
    if is_full(request.session_epoch):
        context.sessions.close(request.session_id)
        session = FetchSession(
            uses_topic_ids=uses_topic_ids,
            committed_only=request.committed_only,
        )
        return await _put_all(session, request)
    session = context.sessions.claim(
        request.session_id,
        request.session_epoch,
        uses_topic_ids=uses_topic_ids,
        committed_only=request.committed_only,
    )
    if isinstance(session, SessionRefusal):
        return session
    try:
        over = await _put_all(session, request)
    except BaseException:
        context.sessions.close(request.session_id)  # it may have grown by more than is counted
        raise
    if isinstance(over, SessionRefusal):
        return over
    return session if context.sessions.keep(session, _now_ms()) else SessionRefusal.NOT_FOUND


async def _put_all(session: FetchSession, request: FetchRequest) -> FetchSession | SessionRefusal:
    """Update the session with the partitions that the request names."""
    turn, count = session.turn, 0
    for topic in request.topics:
        for asked in topic.partitions:
            session.put(
                topic.key,
                asked.partition,
                leader_epoch=asked.leader_epoch,
                offset=asked.offset,
                bytes_max=max(asked.bytes_max, 0),
            )
            count += 1
            if count % STEP == 0:
                await trio.lowlevel.checkpoint()
                if not session.is_current(turn):
                    return session.why_over
    for key, indices in request.forgotten:
        for index in indices:
            session.forget(key, index)
            count += 1
            if count % STEP == 0:
                await trio.lowlevel.checkpoint()
                if not session.is_current(turn):
                    return session.why_over
    return session


def _look_up(context: Context, asked: CachedPartition, *, committed_only: bool, preferred: int) -> _Line:
    """A partition's entry before anything is read. `preferred` is the broker to read from what is led here."""
    broker, key = context.broker, asked.topic
    topic = find_topic(broker, key)
    line = _Line(log_of(topic, asked.index), asked.offset, asked.bytes_max, committed_only, index=asked.index)
    if (refused := _why_not_read(context, key, topic)) is not None:
        line.refusal = refused
    elif line.log is None:
        has_name = topic is not None or isinstance(key, str)
        line.refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if has_name else ErrorCode.UNKNOWN_TOPIC_ID
    elif (partition := broker.readable.get(line.log)) is None:
        line.refusal = code_of_unled(broker)
    elif not broker.owns:
        # The leader may have more. Epochs are not compared: it has heard of them later than others, or earlier.
        line.if_beyond = ErrorCode.OFFSET_NOT_AVAILABLE
    elif asked.leader_epoch >= 0:
        if asked.leader_epoch < partition.leader_epoch:
            line.refusal = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.leader_epoch > partition.leader_epoch:
            line.refusal = ErrorCode.UNKNOWN_LEADER_EPOCH
    if line.refusal is not ErrorCode.NONE:
        line.fail(Problem.REFUSED)
    elif preferred != -1:
        line.preferred = preferred
        line.fail(Problem.REFUSED)
    return line


def _why_not_read(context: Context, key: TopicKey, topic: Topic | None) -> ErrorCode | None:
    if context.client.rights is None:
        return None
    name = key if topic is None else topic.name
    return denied(context, READ_TOPIC, name) if isinstance(name, str) else None


async def _tell(
    context: Context, request: FetchRequest, session: FetchSession, lines: Mapping[CachedPartition, _Line]
) -> _Lines | SessionRefusal:
    """End the session's turn. Returns the entries that say something new, or all of them, by topic."""
    turn, whole, goes_on = session.turn, is_full(request.session_epoch), request.session_epoch != FINAL_EPOCH
    told: _Lines = {}
    for at, (cached, line) in enumerate(lines.items(), 1):
        news = goes_on and session.note_answer(
            cached,
            high_watermark=line.high_watermark,
            last_stable=line.last_stable,
            log_start=line.log_start,
            failed=line.problem is not None,
            records=bool(line.batches),
            unread=line.full,
        )
        if whole or news:
            told.setdefault(cached.topic, []).append(line)
        if at % STEP == 0:
            await trio.lowlevel.checkpoint()
            if not session.is_current(turn):
                return session.why_over
    if goes_on:
        session.answered()
    if request.session_epoch == INITIAL_EPOCH:
        context.sessions.admit(session, _now_ms())
    return told


def _now_ms() -> int:
    return int(trio.current_time() * 1000)


async def encode(
    context: Context, request: FetchRequest, session_id: int, lines: _Lines, error: ErrorCode, throttle_ms: int = 0
) -> Answer:
    version, writer = context.version, context.writer()

    def aborted(transaction: AbortedTransaction) -> None:
        writer.int64(transaction.producer_id)
        writer.int64(transaction.first_offset)
        writer.end_of_fields()

    def partition(line: _Line) -> None:
        writer.int32(line.index)
        writer.int16(line.error)
        writer.int64(line.high_watermark)
        writer.int64(line.last_stable)
        if version >= 5:
            writer.int64(line.log_start)
        if request.committed_only:
            writer.array(line.aborted, aborted)
        else:
            writer.null_array()
        if version >= 11:
            writer.int32(line.preferred)
        writer.records(line.batches)
        writer.end_of_fields()

    writer.int32(throttle_ms)
    if version >= 7:
        writer.int16(error)
        writer.int32(session_id)
    writer.array_length(len(lines))
    count = 0
    for key, partitions in lines.items():
        writer.topic_key(key)
        writer.array_length(len(partitions))
        for line in partitions:
            partition(line)
            count += 1
            if count % STEP == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(1, "Fetch", SERVED, FLEXIBLE_FROM, decode, handle, (READ_TOPIC,))
