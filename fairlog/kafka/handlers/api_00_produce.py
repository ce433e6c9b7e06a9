"""Produce: record batches for the partitions that this node leads.

Behaviour
- One batch per partition, of message format 2, stored unchanged: header and CRC are checked, records are not decoded.
  If the topic's message.timestamp.type is LogAppendTime, the batch is stamped with its time of arrival, which is also
  in the answer.
- A topic that does not exist is created, if the node is configured so.
- acks=all: answered when the batch is on disk; if the copier is outrun, once it is copied, or a second later. It can be
  read soon after; whoever asks for the log's end waits for that (`shard.ends`), and a Fetch waits for it as long as it
  may, so a client finds its own write. acks=1: answered when the batch is in the journal; on a replicated log as with
  acks=all, since before that it is in memory alone. acks=0: never; a refusal closes the connection, as in Kafka, so
  that the client notices. If the wait for room or for the disk takes longer than the request's time-out and longer than
  20 seconds, the answer is REQUEST_TIMED_OUT: the effect is unknown. The time-out is meant for waiting on other
  replicas, and there are none, so a short one does not cut off the wait for the node's own disk.
- Inside a transaction, journal mode: answered when it is in the journal, whatever acks says; the commit makes it
  durable. The batch's offset is not known until then. `unknown_base_offset` is answered instead, unless the topic's
  fairlog.transactional.offsets is lowest: then the answer is the smallest offset that the batch can still get.
- Inside a transaction, marker mode: the batch has its offset, which is in the answer. acks=all waits for the disk, as a
  replicated write does in Kafka.
- In a compacted topic the records are checked. If single records are the reason for a refusal, the answer names them,
  at most 1,000 in total; the whole batch is refused, as in Kafka.
- A client above its quota is answered all the same, with a throttle time, and then not heard for as long
  (`fairlog/kafka/throttling.py`).
- Several requests of one connection wait for the disk at the same time: their batches are in the journals in the order
  of arrival, and share a flush.
- If an idempotent producer repeats a batch, the answer is the original's result.
- Transaction version 2 (KIP-890, from 12 on): the request adds the partition to the transaction, and begins the
  transaction if necessary. The epoch says which transaction is meant: a late batch cannot get into the next one. If
  another broker coordinates the transactional id, that one is asked to add it (`shard.adding`).
- With several brokers: a partition that another one leads is NOT_LEADER_OR_FOLLOWER. If another broker coordinates the
  transactional id, the partition alone decides, by the transaction that it has open; after a restart it waits until
  the coordinator has said which. If it has none, the client is told to abort (`must_abort.py`), whatever the reason is:
  the coordinator knows it.
- With several machines: while the engine is away, NOT_ENOUGH_REPLICAS at once, and nothing is appended.

Version notes
- 4 allows KafkaStorageException; 5 adds the log start offset; 7 allows zstd (passed through in any version); 8 adds
  error messages, and names the records that caused a batch to be refused (KIP-467); 9 is flexible; 10 can name a new
  leader in tagged fields (never done: clients ask Metadata); 11 knows TRANSACTION_ABORTABLE, which is then the answer
  to a batch outside its transaction; 13 names topics by their ids.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio

from coordinator.answers import Refusal
from coordinator.messages import Stopped
from coordinator.states import IdState
from datalog.batch import (
    BadBatch,
    BatchHeader,
    Compression,
    check_produced_untrusted,
    parse_batch_header_untrusted,
    stamped,
)
from datalog.keyed import RECORDS_TOLD_MAX, NotKeyed, why_not_keyed_untrusted
from fairlog.broker import Broker
from fairlog.cluster.interface import Topic
from fairlog.kafka.api import Answer, Api, Client, Context, Deferred, HangUp, Reply, Versions
from fairlog.kafka.checks import CREATE_IN_CLUSTER, CREATE_TOPIC, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, denied
from fairlog.kafka.errors import APPEND_REFUSALS, BAD_BATCHES, ErrorCode, code_of_refusal
from fairlog.kafka.must_abort import PRODUCE, must_abort_code
from fairlog.kafka.ownership import code_of_unled, is_still_owned
from fairlog.kafka.throttling import produced
from fairlog.kafka.topic_lookup import find_or_create, find_topic, log_of
from fairlog.kafka.wire import Reader, TopicKey, Writer
from fairlog.topic_configs import answers_lowest_offsets, is_compacted, message_bytes_max, stamps_append_time
from fairlog_types import Offset, ProducerId, StorageFailure, TxId
from partition.answers import Appended, Buffer, DuplicateOf, RefusedAppend
from partition.partition import Partition
from shard.ends import OWN_WAIT_S

log = structlog.get_logger()

SERVED = Versions(3, 13)
FLEXIBLE_FROM = 9
_KNOWS_ABORTABLE_FROM = 11
_ADDS_FROM = 12
_TOPIC_IDS_FROM = 13

_NO_OFFSET = -1

PACE_S = 1.0
"""What is on disk is answered after that, however far behind the copier is: who hears nothing writes it again."""

_LOOKED_INTO_AT_ONCE_BYTES = 2048
"""A few hundred records at most."""


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: tuple[tuple[TopicKey, tuple[tuple[int, memoryview | None], ...]], ...]
    """(name or id, ((partition, records), …)); None is the id that no topic has"""


@dataclass(slots=True)
class _Result:
    """One partition's line of the answer."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    base_offset: int = _NO_OFFSET
    append_time_ms: int = -1
    """The timestamp, if the node assigns it."""
    log_start: int = -1
    message: str | None = None
    to_blame: NotKeyed | None = None
    """The single records that caused the error, if any."""
    settled: Callable[[], Awaitable[None]] | None = None
    """Returns once everything that must be on disk before the answer is sent is there. Raises StorageFailure."""
    paced: Callable[[], Awaitable[None]] | None = None
    """Returns once the producer may go on, as far as the copier is concerned."""
    is_refused: bool = False
    """Whether the partition has refused the batch. Another owner might not: it may know of more epochs, sequences and
    transactions."""

    def fail(self, error: ErrorCode, message: str | None = None) -> _Result:
        self.error, self.message = error, message
        self.base_offset = self.append_time_ms = self.log_start = -1
        return self


_Results = list[tuple[TopicKey, list[_Result]]]


def decode(reader: Reader, version: int) -> ProduceRequest:
    def partition() -> tuple[int, memoryview | None]:
        entry = reader.int32(), reader.nullable_records()
        reader.end_of_fields()
        return entry

    def topic() -> tuple[TopicKey, tuple[tuple[int, memoryview | None], ...]]:
        entry = reader.topic_key(by_id=version >= _TOPIC_IDS_FROM), reader.array(partition)
        reader.end_of_fields()
        return entry

    request = ProduceRequest(reader.nullable_string(), reader.int16(), reader.int32(), reader.array(topic))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ProduceRequest) -> Reply:
    deadline = trio.current_time() + max(request.timeout_ms / 1000, OWN_WAIT_S)
    throttle_ms = 0 if context.broker.quotas.producers is None else produced(context)
    adds = request.transactional_id is not None and context.version >= _ADDS_FROM
    came_in: TxId | ErrorCode | None = None
    refused: ErrorCode | None = None
    if request.transactional_id is not None:
        refused = denied(context, WRITE_TRANSACTIONAL_ID, request.transactional_id)
    if request.transactional_id is not None and not adds and refused is None:
        came_in = await _open_as_it_comes(context.broker, request.transactional_id, request, deadline)
    results: _Results = []
    for key, partitions in request.topics:
        if request.acks not in (-1, 0, 1):
            bad_acks = [_Result(partition).fail(ErrorCode.INVALID_REQUIRED_ACKS) for partition, _ in partitions]
            results.append((key, bad_acks))
            continue
        topic = refused or await _topic(context, key)
        lines = [await _append(context, request, came_in, topic, *entry, deadline, adds=adds) for entry in partitions]
        results.append((key, lines))
    if context.broker.confirm is not None:
        await _doubt(context.broker, results)
    if request.acks == 0:
        _hang_up_on_errors(results)
        return None
    waiting = [result for _, lines in results for result in lines if result.settled is not None]
    if not waiting:
        return encode(context.writer(), context.version, results, throttle_ms)
    return Deferred(functools.partial(_finish, context, results, waiting, deadline, throttle_ms))


async def _topic(context: Context, key: TopicKey) -> Topic | ErrorCode:
    if isinstance(key, str):
        return denied(context, WRITE_TOPIC, key) or await find_or_create(context, key, may_create=True)
    topic = find_topic(context.broker, key)
    return ErrorCode.UNKNOWN_TOPIC_ID if topic is None else denied(context, WRITE_TOPIC, topic.name) or topic


async def _append(
    context: Context,
    request: ProduceRequest,
    came_in: TxId | ErrorCode | None,
    topic: Topic | ErrorCode,
    partition: int,
    records: memoryview | None,
    deadline: float,
    *,
    adds: bool,
) -> _Result:
    result = _Result(partition)
    if isinstance(topic, ErrorCode):
        return result.fail(topic)
    log_id = log_of(topic, partition)
    if log_id is None:
        return result.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if isinstance(came_in, ErrorCode):
        return result.fail(came_in, "the transaction's coordinator has not said yet what goes on after a restart")
    broker = context.broker
    led = broker.partitions.get(log_id)
    if led is None:
        return result.fail(code_of_unled(broker), RefusedAppend.UNKNOWN_LOG.value)
    if broker.appends_wait():
        return result.fail(ErrorCode.NOT_ENOUGH_REPLICAS, "the replicated log does not answer, so nothing was appended")
    data: Buffer = records if records is not None else memoryview(b"")
    try:
        header = check_produced_untrusted(data, bytes_max=message_bytes_max(topic, broker.settings))
    except BadBatch as bad:
        return result.fail(BAD_BATCHES[bad.reason], str(bad))
    if header.transactional != (request.transactional_id is not None) or (
        header.transactional and header.producer_id < 0
    ):
        return result.fail(
            ErrorCode.INVALID_RECORD, "a batch is transactional if, and only if, the request names a transactional id"
        )
    if is_compacted(topic):
        problem = await _why_not_keyed(broker, data, header)
        if problem is not None:
            result.to_blame = problem
            return result.fail(ErrorCode.INVALID_RECORD, problem.reason)
    stamps = stamps_append_time(topic)
    if stamps:
        data = stamped(data, time.time_ns() // 1_000_000)
        header = parse_batch_header_untrusted(data)
    if adds and request.transactional_id is not None:
        try:
            refusal = await broker.add_to_transaction(
                request.transactional_id,
                header.producer_id,
                header.producer_epoch,
                log_id,
                deadline_s=deadline,
            )
        except trio.TooSlowError:
            return result.fail(ErrorCode.REQUEST_TIMED_OUT, "the transaction's coordinator has not answered in time")
        if refusal is not None:
            return result.fail(_code_of_refused_add(context, refusal), refusal.value)
        came_in = broker.partitions.open_transaction_of(header.producer_id)  # the epoch says which transaction is meant
    outcome: Appended | DuplicateOf | RefusedAppend | None = None
    try:
        if led.has_place(len(data)):  # as for nearly every batch: spares it a scope
            outcome = led.append_at_once(data, header, came_in)
        else:
            with trio.move_on_at(deadline):
                outcome = await led.append(data, header, came_in)
    except StorageFailure as failure:
        return result.fail(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
    if outcome is None:
        return result.fail(ErrorCode.REQUEST_TIMED_OUT, "the journal, or the copy after it, had no room in time")
    if outcome is RefusedAppend.NOT_IN_TRANSACTION:
        outcome = _why_not_in_transaction(broker, request.transactional_id, header)
    if isinstance(outcome, RefusedAppend):
        result.is_refused = True
        code = APPEND_REFUSALS[outcome]
        if outcome is RefusedAppend.MUST_ABORT:
            code = must_abort_code(PRODUCE, context.client)
        elif outcome is RefusedAppend.NOT_IN_TRANSACTION and context.version >= _KNOWS_ABORTABLE_FROM:
            code = ErrorCode.TRANSACTION_ABORTABLE
        return result.fail(code, outcome.value)
    if stamps and isinstance(outcome, Appended):
        result.append_time_ms = header.max_timestamp
    return _accepted(context, result, topic, led, header, outcome, request.acks)


async def _doubt(broker: Broker, results: _Results) -> None:
    """Make sure that this node leads what it has refused. All refusals of a request share one question."""
    refused = [result for _, lines in results for result in lines if result.is_refused]
    if refused and not await is_still_owned(broker):
        for result in refused:
            result.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node may lead the partition by now")


async def _open_as_it_comes(
    broker: Broker, transactional_id: str, request: ProduceRequest, deadline: float
) -> TxId | ErrorCode | None:
    """The transaction to which the request belongs: looked up once, since each partition's append may wait.

    After a restart only the coordinator knows what it has open here. If that is another broker's, it is waited for,
    unless this broker stops.
    """
    elsewhere = not broker.coordinates(transactional_id)
    producer_id = _producer_id_untrusted(request) if elsewhere else broker.coordinator.producer_id_of(transactional_id)
    if producer_id is None:
        return None
    opened = broker.partitions.open_transaction_of(producer_id)
    if opened is not None or not elsewhere or broker.other_coordinators is None:
        return opened
    with trio.move_on_at(deadline), suppress(Stopped):
        await broker.other_coordinators.hear(transactional_id)
        return broker.partitions.open_transaction_of(producer_id)
    return ErrorCode.REQUEST_TIMED_OUT


def _producer_id_untrusted(request: ProduceRequest) -> ProducerId | None:
    """Whose batches these are, by the first of them. One of another producer is in no transaction that is open."""
    batches = (records for _, partitions in request.topics for _, records in partitions if records is not None)
    try:
        return parse_batch_header_untrusted(next(batches, b"")).producer_id
    except BadBatch:
        return None


def _code_of_refused_add(context: Context, refusal: Refusal) -> ErrorCode:
    match refusal:
        case Refusal.MUST_ABORT:
            return must_abort_code(PRODUCE, context.client)
        case Refusal.UNKNOWN_LOG:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case Refusal.CONCURRENT:  # the last one is being decided, or waits in its group: as Kafka has it, ask again
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code_of_refusal(refusal, knows_producer_fenced=False)


def _accepted(
    context: Context,
    result: _Result,
    topic: Topic,
    partition: Partition,
    header: BatchHeader,
    outcome: Appended | DuplicateOf,
    acks: int,
) -> _Result:
    result.log_start = partition.visibility.log_start
    base_offset = outcome.base_offset
    if base_offset is None and answers_lowest_offsets(topic, context.broker.settings):
        base_offset = partition.lowest_offset(header)
    if base_offset is None:
        base_offset = unknown_base_offset(context.client, header.record_count)
    result.base_offset = base_offset
    if acks == 1 and not partition.is_replicated:
        return result
    if outcome.durable_at is not None:
        result.settled = functools.partial(partition.durable, outcome.durable_at)
        if outcome.base_offset is not None:
            end = Offset(outcome.base_offset + header.record_count)
            result.paced = functools.partial(partition.keep_pace, end, header.size_bytes)
    return result


async def _why_not_keyed(broker: Broker, data: memoryview, header: BatchHeader) -> NotKeyed | None:
    """Why a compacted topic refuses the batch. Large batches are checked in a thread: a record takes 2 µs."""
    if len(data) <= _LOOKED_INTO_AT_ONCE_BYTES and header.compression is Compression.NONE:
        return why_not_keyed_untrusted(data)
    return await trio.to_thread.run_sync(why_not_keyed_untrusted, data, limiter=broker.looking_into)


def _why_not_in_transaction(broker: Broker, transactional_id: str | None, header: BatchHeader) -> RefusedAppend:
    """Why the partition has no open transaction: a newer instance has fenced the client, or the broker has aborted.

    The partition itself may know neither, if no producer has written to it since.
    """
    current = broker.coordinator.epoch_of(header.producer_id)
    if current is not None and header.producer_epoch < current:
        return RefusedAppend.FENCED
    description = None if transactional_id is None else broker.coordinator.describe(transactional_id)
    if description is not None and description.state == IdState.MUST_ABORT.name:
        return RefusedAppend.MUST_ABORT
    if description is None and transactional_id is not None and not broker.coordinates(transactional_id):
        return RefusedAppend.MUST_ABORT
    return RefusedAppend.NOT_IN_TRANSACTION


def unknown_base_offset(client: Client, record_count: int) -> int:
    """The base offset that makes the client report "no offset" for every record of a transactional batch.

    Java, kafka-python and franz-go know -1 as "none". librdkafka and aiokafka add the record's index to whatever they
    get, so -1 would become None, 0, 1, …: plausible but wrong. With -count every offset is negative, which librdkafka's
    bindings show as none. librdkafka's bindings change the software's name but keep "rdkafka" in it or in its version;
    clients without a name (aiokafka, Java before 2.4) do not know ApiVersions 3 and are better served with offsets that
    are obviously wrong.
    """
    name, version = client.software_name, client.software_version
    adds_index = not name or "rdkafka" in name or "rdkafka" in version
    return -record_count if adds_index else _NO_OFFSET


async def _finish(
    context: Context, results: _Results, waiting: Sequence[_Result], deadline: float, throttle_ms: int
) -> Answer:
    with trio.move_on_at(deadline) as timeout:
        for result in waiting:
            assert result.settled is not None, "only results that wait are waited for"
            try:
                await result.settled()
            except StorageFailure as failure:
                # The batch is in the journal, and may come back with it: KAFKA_STORAGE_ERROR would deny that.
                result.fail(ErrorCode.REQUEST_TIMED_OUT, str(failure))
            result.settled = None
    if timeout.cancelled_caught:
        for result in waiting:
            if result.settled is not None:
                result.fail(ErrorCode.REQUEST_TIMED_OUT, "the batch is written, but not on disk yet")
        return encode(context.writer(), context.version, results, throttle_ms)
    with trio.move_on_after(PACE_S):
        for result in waiting:
            if result.paced is not None and result.error is ErrorCode.NONE:
                await result.paced()
    return encode(context.writer(), context.version, results, throttle_ms)


def _hang_up_on_errors(results: _Results) -> None:
    for name, lines in results:
        for result in lines:
            if result.error is not ErrorCode.NONE:
                what = f"Produce with acks=0 to {name}-{result.partition}: {result.error.name}"
                raise HangUp(f"{what} ({result.message})" if result.message else what)


def encode(writer: Writer, version: int, results: _Results, throttle_ms: int) -> Answer:
    left = RECORDS_TOLD_MAX

    def record_errors(result: _Result) -> None:
        nonlocal left
        records = () if result.to_blame is None else result.to_blame.records[:left]
        left -= len(records)
        writer.array_length(len(records))
        for index in records:
            writer.int32(index)
            writer.message(result.message)
            writer.end_of_fields()

    def partition(result: _Result) -> None:
        writer.int32(result.partition)
        writer.int16(result.error)
        writer.int64(result.base_offset)
        writer.int64(result.append_time_ms)
        if version >= 5:
            writer.int64(result.log_start)
        if version >= 8:
            record_errors(result)
            writer.message(result.message)
        writer.end_of_fields()

    def topic(entry: tuple[TopicKey, list[_Result]]) -> None:
        key, lines = entry
        writer.topic_key(key)
        writer.array(lines, partition)
        writer.end_of_fields()

    writer.array(results, topic)
    writer.int32(throttle_ms)
    writer.end_of_fields()
    return writer.parts()


API = Api(
    0,
    "Produce",
    SERVED,
    FLEXIBLE_FROM,
    decode,
    handle,
    (WRITE_TOPIC, CREATE_TOPIC, CREATE_IN_CLUSTER, WRITE_TRANSACTIONAL_ID),
    overlaps=True,
)
