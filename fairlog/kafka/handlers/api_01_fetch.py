"""Fetch: whole record batches from the data logs, waiting a while for new ones.

Behaviour
- In a topic of the journal mode everything that can be read is committed (invariant 1): the high watermark is the last
  stable offset, both isolation levels get the same records, and the list of aborted transactions is empty.
- In one of the marker mode `read_committed` gets batches up to the last stable offset, and with them the list of
  transactions that were aborted there, from the same cut (`ReadResult.aborted`). Each stands there once, though the
  answer may be put together from several reads: librdkafka would apply a repetition to what the producer writes next.
- An offset up to the end of what is placed in the journal is in range, and there is nothing there yet if it is after
  what can be read: after an answer to acks=1 the copy may be a millisecond away. The high watermark and the last stable
  offset that are answered are those of that end, too, so that no one takes what is already copied for all there is
  (invariant 13). Who has something to read does not wait for the copy of the rest.
- A fetch offset in the middle of a batch gets the whole batch; the client skips what it does not want.
- Waits until `min_bytes` are there, `max_wait` (or `WAIT_MS_MAX`) is over, or the node stops. A consumer at the end of
  its partitions costs no worker thread: offsets are compared with the leaders' first, and one thread call
  reads all partitions. A reader of committed records is not woken by what it may not read yet.
- Limits are per partition and in all, by whole batches; the first batch is sent whatever its size (KIP-74).
  Answers that clients do not read off make other answers short, see `answer_budget`; so does a wait for `min_bytes`
  with some of them in hand, and it is then ended.
- Errors do not wait.
- Others have their turns after each `_STEP` partitions, whatever the topics: a client may ask for ten thousand.
- Sessions (KIP-227) are served, see `fairlog.kafka.fetch_sessions`: epoch 0 asks for one, -1 for none, and both close
  the one that they name, whatever it is. An incremental answer has the partitions with records, errors or offsets that
  the client was not told yet; a full one has all that were asked for, each once.

Version notes
- 5 adds the log start offset; 7 sessions; 9 the leader epoch, which is checked; 11 racks and preferred
  replicas (never one); 12 is flexible and adds tagged fields for diverging epochs (never: one node does not
  diverge from itself); 13 names topics by id; 15 moves the replica id to a tagged field; 16 can name new
  leaders in tagged fields (never given); 17 and 18 add tagged fields of followers (a directory, a high watermark),
  which are skipped.
- zstd batches are sent to clients below version 10, too, which Kafka refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from datalog.batch import BadBatch, parse_stored_header
from datalog.interface import AbortedTransaction, LogMissing, OffsetOutOfRange, ReadAnswer, ReadRequest
from fairlog.broker import Broker
from fairlog.kafka.answer_budget import AnswerRoom
from fairlog.kafka.api import Answer, Api, Context, Deferred, Reply, Versions
from fairlog.kafka.errors import FETCH_SESSION_REFUSALS, ErrorCode
from fairlog.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    CachedPartition,
    FetchSession,
    SessionRefusal,
    is_full,
)
from fairlog.kafka.topic_lookup import find_topic, log_of
from fairlog.kafka.wire import Reader, TopicKey
from fairlog_types import CorruptStorage, LogId, Offset
from partition.answers import Watcher

SERVED = Versions(4, 18)
FLEXIBLE_FROM = 12
_TOPIC_IDS_FROM = 13

ANSWER_BYTES_MAX = 57_671_680
"""Records in one answer, whatever the client asks. Kafka's `fetch.max.bytes` of the broker."""

WAIT_MS_MAX = 5 * 60 * 1000
"""However long the client says, which may be 24 days. While a Fetch waits, nothing is sent on its connection; a client
whose machine is gone is noticed when the answer is sent to it, at the latest. Clients wait half a second by default."""

_READ_COMMITTED = 1

_STEP = 256
"""Partitions: a millisecond's work, or less, each time that they are gone over."""


@dataclass(frozen=True, slots=True)
class FetchPartition:
    index: int
    leader_epoch: int
    """-1 if the client does not know."""
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class FetchTopic:
    key: TopicKey
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    topics: tuple[FetchTopic, ...]
    session_epoch: int = FINAL_EPOCH
    forgotten: tuple[tuple[TopicKey, tuple[int, ...]], ...] = ()

    @property
    def committed_only(self) -> bool:
        return self.isolation_level == _READ_COMMITTED


@dataclass(slots=True)
class _Partition:
    """One partition's line of the answer, and how far reading it has come."""

    index: int
    log: LogId | None
    position: int
    """The next offset to read."""
    bytes_left: int
    committed_only: bool
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    batches: list[bytes] = field(default_factory=list[bytes])
    aborted: dict[AbortedTransaction, None] = field(default_factory=dict[AbortedTransaction, None])
    """A set in the order in which they ended."""
    full: bool = False
    """Nothing more goes into this answer."""

    @property
    def readable_end(self) -> int:
        return self.last_stable if self.committed_only else self.high_watermark


_Lines = dict[TopicKey, list[_Partition]]


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
    if version >= 11:
        reader.string()  # rack
    reader.end_of_fields()
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, topics, session_epoch, no_longer
    )


async def handle(context: Context, request: FetchRequest) -> Reply:
    deadline = trio.current_time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
    room = AnswerRoom(context.answers)
    return Deferred(functools.partial(_finish, context, request, deadline, room), room=room, keeps_request=True)


async def _finish(context: Context, request: FetchRequest, deadline: float, room: AnswerRoom) -> Answer:
    session = await _session(context, request)
    if isinstance(session, SessionRefusal):
        return await encode(context, request, 0, {}, FETCH_SESSION_REFUSALS[session])
    try:
        found = await _fetch(context, request, session, deadline, room)
        if isinstance(found, SessionRefusal):
            return await encode(context, request, session.id, {}, FETCH_SESSION_REFUSALS[found])
        return await encode(context, request, session.id, found, ErrorCode.NONE)
    finally:
        if not session.id:
            session.close()


async def _session(context: Context, request: FetchRequest) -> FetchSession | SessionRefusal:
    """The session that the request is served from, with all that it says of partitions; its turn has begun."""
    uses_topic_ids = context.version >= _TOPIC_IDS_FROM
    if is_full(request.session_epoch):
        context.sessions.close(request.session_id)
        session = FetchSession(
            uses_topic_ids=uses_topic_ids,
            committed_only=request.committed_only,
            unwatch=functools.partial(_unwatch, context.broker),
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
    """Let the session have what the request says of partitions."""
    turn, count = session.turn, 0
    for topic in request.topics:
        for asked in topic.partitions:
            session.put(
                topic.key,
                asked.index,
                leader_epoch=asked.leader_epoch,
                offset=asked.offset,
                bytes_max=max(asked.bytes_max, 0),
            )
            count += 1
            if count % _STEP == 0:
                await trio.lowlevel.checkpoint()
                if not session.is_current(turn):
                    return session.why_over
    for key, indices in request.forgotten:
        for index in indices:
            session.forget(key, index)
            count += 1
            if count % _STEP == 0:
                await trio.lowlevel.checkpoint()
                if not session.is_current(turn):
                    return session.why_over
    return session


async def _fetch(
    context: Context, request: FetchRequest, session: FetchSession, deadline: float, room: AnswerRoom
) -> _Lines | SessionRefusal:
    """Read what there is in the session's partitions, or wait for it; the lines that the answer has to have."""
    broker, turn = context.broker, session.turn
    lines: dict[CachedPartition, _Partition] = {}
    bytes_max = min(max(request.max_bytes, 0), ANSWER_BYTES_MAX)
    fetched, full, failed, waited_out = 0, 0, False, False
    while True:
        looked_at: list[_Partition] = []
        behind: list[tuple[CachedPartition, _Partition]] = []
        for at, cached in enumerate(session.take(), 1):
            line = lines.get(cached)
            if line is None:
                line = lines[cached] = _look_up(context, cached, committed_only=request.committed_only)
            elif line.full:
                continue
            looked_at.append(line)
            if not line.full and _is_behind(broker, line):
                behind.append((cached, line))
            else:
                _watch(broker, session, cached, line)
            if at % _STEP == 0:
                await trio.lowlevel.checkpoint()
                if not session.is_current(turn):
                    return session.why_over
        if behind:
            wanted = min(max(bytes_max - fetched, 0), sum(line.bytes_left for _, line in behind))
            granted = await room.take(wanted)
            limit = bytes_max if granted == wanted else fetched + granted
            fetched += await _read(broker, [line for _, line in behind], limit, fetched)
            room.keep(fetched)
            for at, (cached, line) in enumerate(behind, 1):
                if not session.is_current(turn):
                    return session.why_over
                if not line.full:
                    _is_behind(broker, line)
                _watch(broker, session, cached, line)
                if at % _STEP == 0:
                    await trio.lowlevel.checkpoint()
        full += sum(line.full for line in looked_at)
        failed = failed or any(line.error is not ErrorCode.NONE for line in looked_at)
        if not session.is_current(turn):
            return session.why_over
        if failed or full == session.size or fetched >= min(request.min_bytes, bytes_max) or waited_out:
            break
        if not session.pending:
            moved = trio.Event()
            session.waiter = moved.set
            with context.client.long_poll(deadline) as waiting:
                room.waits(waiting.cancel)
                await moved.wait()
            waited_out = waiting.cancelled_caught
        if not session.is_current(turn):
            return session.why_over
    await _tell_ends(broker, lines.values())
    if not session.is_current(turn):
        return session.why_over
    return await _tell(context, request, session, lines)


async def _tell_ends(broker: Broker, lines: Iterable[_Partition]) -> None:
    """Let the lines speak of all that is placed."""
    for at, partition in enumerate(lines, 1):
        led = None if partition.log is None else broker.partitions.get(partition.log)
        if led is not None and partition.error is ErrorCode.NONE:
            placed = led.placed_end
            partition.high_watermark = max(partition.high_watermark, placed.next_offset)
            partition.last_stable = max(partition.last_stable, placed.last_stable_offset)
        if at % _STEP == 0:
            await trio.lowlevel.checkpoint()


def _look_up(context: Context, asked: CachedPartition, *, committed_only: bool) -> _Partition:
    """A partition's line, as it is before anything was read."""
    cluster, key = context.broker.cluster, asked.topic
    topic = find_topic(context.broker, key)
    line = _Partition(asked.index, log_of(topic, asked.index), asked.offset, asked.bytes_max, committed_only)
    if line.log is None:
        has_name = topic is not None or isinstance(key, str)
        line.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if has_name else ErrorCode.UNKNOWN_TOPIC_ID
    elif 0 <= asked.leader_epoch < cluster.starts:
        line.error = ErrorCode.FENCED_LEADER_EPOCH
    elif asked.leader_epoch > cluster.starts:
        line.error = ErrorCode.UNKNOWN_LEADER_EPOCH
    line.full = line.error is not ErrorCode.NONE
    return line


def _unwatch(broker: Broker, log: LogId, watcher: Watcher) -> None:
    led = broker.partitions.get(log)
    if led is not None:
        led.visibility.unwatch(watcher)


def _watch(broker: Broker, session: FetchSession, cached: CachedPartition, line: _Partition) -> None:
    """Hear of what comes behind this line, unless it is full: then it is looked at in the session's next turn."""
    if line.full:
        return
    assert line.log is not None, "partitions without a log are full"
    led = broker.partitions.get(line.log)
    if led is not None and led.visibility.watch(
        cached, beyond=Offset(line.position), committed_only=line.committed_only
    ):
        cached.watched = line.log
    else:
        session.pending[cached] = None


async def _tell(
    context: Context, request: FetchRequest, session: FetchSession, lines: Mapping[CachedPartition, _Partition]
) -> _Lines | SessionRefusal:
    """End the session's turn: the lines that say something new, or all of them, by topic."""
    turn, whole = session.turn, is_full(request.session_epoch)
    told: _Lines = {}
    for at, (cached, line) in enumerate(lines.items(), 1):
        news = session.note_answer(
            cached,
            high_watermark=line.high_watermark,
            last_stable=line.last_stable,
            log_start=line.log_start,
            failed=line.error is not ErrorCode.NONE,
            records=bool(line.batches),
            unread=line.full,
        )
        if news or whole:
            told.setdefault(cached.topic, []).append(line)
        if at % _STEP == 0:
            await trio.lowlevel.checkpoint()
            if not session.is_current(turn):
                return session.why_over
    session.answered()
    if request.session_epoch == INITIAL_EPOCH:
        context.sessions.admit(session, _now_ms())
    return told


def _now_ms() -> int:
    return int(trio.current_time() * 1000)


async def _read(broker: Broker, behind: Sequence[_Partition], bytes_max: int, fetched: int) -> int:
    """Read what is new in these partitions; the bytes that were added."""
    requests = [
        ReadRequest(partition.log, Offset(partition.position), partition.bytes_left, partition.committed_only)
        for partition in behind
        if partition.log is not None
    ]
    read = functools.partial(broker.data_logs.read, requests, bytes_max=max(bytes_max - fetched, 0))
    answers: list[ReadAnswer] = await trio.to_thread.run_sync(read)
    added = 0
    for at, (partition, answer) in enumerate(zip(behind, answers, strict=True), 1):
        added += _take(partition, answer, room=bytes_max - fetched - added, first=fetched + added == 0)
        if at % _STEP == 0:
            await trio.lowlevel.checkpoint()
    return added


def _is_behind(broker: Broker, partition: _Partition) -> bool:
    """Whether there may be something to read; brings the line's offsets up to date.

    At a position after the readable end and up to the end of what is placed there is nothing yet. What is beyond
    that, and before the start, is asked of the data logs, which say that it is out of range.
    """
    assert partition.log is not None, "partitions without a log are full"
    led = broker.partitions.get(partition.log)
    if led is None:
        partition.error, partition.full = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True
        return False
    high_watermark, last_stable = led.visibility.high_watermark, led.visibility.last_stable_offset
    partition.high_watermark = max(partition.high_watermark, high_watermark)
    partition.last_stable = max(partition.last_stable, last_stable)
    partition.log_start = led.visibility.log_start
    end = last_stable if partition.committed_only else high_watermark
    if partition.position <= end:
        return partition.position < end
    return partition.position > led.placed_end.next_offset


def _take(partition: _Partition, answer: ReadAnswer, *, room: int, first: bool) -> int:
    """Put what was read into the line; answers the bytes taken. Raises CorruptStorage if no batch was read."""
    if isinstance(answer, LogMissing):
        partition.error, partition.full = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True
        return 0
    partition.high_watermark, partition.log_start = answer.next_offset, answer.log_start_offset
    if isinstance(answer, OffsetOutOfRange):
        partition.error, partition.full = ErrorCode.OFFSET_OUT_OF_RANGE, True
        return 0
    partition.last_stable = answer.last_stable_offset
    size = sum(map(len, answer.batches))
    # The data logs send at least one batch per call; only the answer's very first may break the limits.
    if not answer.batches or (size > min(room, partition.bytes_left) and not first):
        partition.full = partition.position < partition.readable_end
        return 0
    partition.batches += answer.batches
    partition.aborted.update(dict.fromkeys(answer.aborted))
    partition.bytes_left -= size
    try:
        partition.position = parse_stored_header(answer.batches[-1]).last_offset + 1
    except BadBatch as error:
        damage = f"data log {partition.log}: the batch at or behind offset {partition.position} is none: {error}"
        raise CorruptStorage(damage) from error
    partition.full = partition.bytes_left <= 0 or partition.position < partition.readable_end
    return size


async def encode(context: Context, request: FetchRequest, session_id: int, lines: _Lines, error: ErrorCode) -> Answer:
    version, writer = context.version, context.writer()

    def aborted(transaction: AbortedTransaction) -> None:
        writer.int64(transaction.producer_id)
        writer.int64(transaction.first_offset)
        writer.end_of_fields()

    def partition(line: _Partition) -> None:
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
            writer.int32(-1)  # preferred read replica
        writer.records(line.batches)
        writer.end_of_fields()

    writer.int32(0)  # throttle time
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
            if count % _STEP == 0:
                await trio.lowlevel.checkpoint()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


API = Api(1, "Fetch", SERVED, FLEXIBLE_FROM, decode, handle)
