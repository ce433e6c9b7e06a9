"""A task of the source: the records of one range of offsets, as Arrow batches.

    fetch ──▶ librdkafka's queue ──consume()──▶ messages ──a column at a time──▶ Arrow batch ──▶ the JVM

How it works. A consumer of its own is assigned the partition at the range's start, and is closed at its end; both take
a few milliseconds, so none is kept. Messages are taken by waiting for one and then taking whatever has come with it:
waiting for a full batch would wait in vain at the end of a partition with gaps. Each column is built by one pass of C
code over the messages (`map` with an unbound method is five times as fast as with `operator.methodcaller`); a column
that is the same for all rows is repeated; offsets without gaps are counted and not asked for.

The range ends exactly at its end. In most topics offsets are dense, so the last record has the offset before it. With
gaps (compacted topics, topics of marker mode) it ends at the first record at or beyond it, or where librdkafka says
that the partition ends (`enable.partition.eof`), unless that is before the end that was planned: a node of several that
does not know that another one leads the partition now may say so. Isolation is `read_committed`, which only means
something in marker mode.

The memory of a task is bounded by librdkafka's queue (`kafka.queued.max.messages.kbytes`, 64 MB) and one batch, which
is no more than that. A task fetches hardly more than its range.

When records are gone or the topic is, librdkafka can only guess; the node is asked, and what it says goes the way of
all losses (`losses.py`).
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from fairlog_client_security import for_librdkafka
from pyspark_fairlog.losses import report
from pyspark_fairlog.native import NOT_NOW, NOT_THERE, CutPartition, Native, NativeError, Partitions
from pyspark_fairlog.options import OptionRefused, ReadOptions
from pyspark_fairlog.planning import Range
from pyspark_fairlog.schema import arrow_schema

pa: Any = pyarrow  # it has no types

ROWS_MAX = 8192
"""Of an Arrow batch. Spark's own limit is 10,000 (`spark.sql.execution.arrow.maxRecordsPerBatch`)."""

QUEUED_MESSAGES_MAX = 100_000
"""librdkafka's own `queued.min.messages`: it fetches ahead until so many wait."""

MILLISECONDS_MAX = ((1 << 63) - 1) // 1000
"""The latest time that Spark has, in the year 294247. Producers write what they like, nanoseconds for instance."""

WAIT_S = 0.5
"""For one record, before the clock is looked at."""

QUIET_S = 2.0
"""Without records before the node is asked whether they are still there: librdkafka says nothing of a deleted topic."""

UNREADABLE = (SystemError, UnicodeDecodeError)
"""What confluent_kafka (2.16) raises of a record with a header whose name is no UTF-8: the one out of the other."""

GROUP = "fairlog-spark"
"""librdkafka asks for a group id, also of consumers that join none."""

Messages = Sequence[Message]

_log = logging.getLogger(__name__)


def read_range(options: ReadOptions, columns: Sequence[str], part: Range) -> Iterator[Any]:
    """The records of `part` as `pyarrow.RecordBatch`es with these columns, in the order of their offsets.

    Raises DataLost if records are gone and `failOnDataLoss` is true; TimeoutError if none came for
    `kafkaConsumer.pollTimeoutMs`; PermissionError if the user may not read the topic; OptionRefused for a setting that
    librdkafka does not have.
    """
    schema = arrow_schema(columns)
    builders = [_COLUMNS[name] for name in columns]
    for messages in _messages(options, part):
        rows = Rows(messages)
        yield pa.RecordBatch.from_arrays([build(rows) for build in builders], schema=schema)


def _messages(options: ReadOptions, part: Range) -> Iterator[list[Message]]:
    """The records of `part`, in lists that are not empty."""
    consumer = _consumer(options, part)
    try:
        at, trouble = part.start, None
        _seek(consumer, part, at)
        heard = asked = time.monotonic()
        while at < part.end:
            taken = consumer.consume(1, WAIT_S)
            if taken and at + 1 < part.end:
                taken += consumer.consume(min(ROWS_MAX, part.end - at) - 1, 0)
            errors: list[KafkaError] = []
            if any(map(Message.error, taken)):
                # A partition's end is told as an error, with the offset of the record that would come next.
                errors = [error for message in taken if (error := message.error()) is not None]
                ends = [_offset(message) for message in taken if _code(message) == KafkaError._PARTITION_EOF]
                taken = [message for message in taken if message.error() is None]
                at = max([at, *ends])
            if taken:
                at = max(at, _offset(taken[-1]) + 1)
                if at > part.end:
                    taken = [message for message in taken if _offset(message) < part.end]
                if taken:
                    yield taken
                heard = asked = time.monotonic()  # not before: the query may work on its rows for as long as it likes
            trouble = next((error for error in errors if error.code() != KafkaError._PARTITION_EOF), trouble)
            if any(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED for error in errors):
                raise PermissionError(
                    f"the user may not read {part.partition.topic}: give it an ACL for READ on the topic"
                )
            given_up = any(error.code() == KafkaError._AUTO_OFFSET_RESET for error in errors)
            if given_up or time.monotonic() > asked + QUIET_S:
                asked = time.monotonic()
                there = _next_there(options, part, at)
                if given_up or there != at:
                    _seek(consumer, part, there)
                at = there
            if time.monotonic() > heard + options.patience_ms / 1000:
                raise TimeoutError(_nothing_came(options, part, at, trouble))
    finally:
        consumer.close()


def _consumer(options: ReadOptions, part: Range) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "client.id": GROUP,
        "fetch.wait.max.ms": 10,  # what is asked for is there; only at a partition's end does a fetch wait
        "fetch.queue.backoff.ms": 1,  # with a full queue look again soon: it is emptied in large gulps
        "queued.min.messages": min(QUEUED_MESSAGES_MAX, part.size),
        "reconnect.backoff.max.ms": 1000,  # a node that is restarted is back within seconds
        **for_librdkafka(options.client),
        "group.id": GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }
    try:
        return Consumer(settings)
    except KafkaException as error:
        raise OptionRefused(
            f"librdkafka refuses a setting given as an option kafka.*: {error.args[0].str()}"
        ) from error


def _seek(consumer: Consumer, part: Range, offset: int) -> None:
    consumer.assign([TopicPartition(part.partition.topic, part.partition.number, offset)])


def _next_there(options: ReadOptions, part: Range, at: int) -> int:
    """Where to go on if the records from `at` on do not come: where the node, when asked, says that there are any.

    It is `part.end` if there are none any more, and `at` if nothing is wrong with them, or nobody can tell just now.
    Raises DataLost, NativeError.
    """
    try:
        found = _ask(options, part)
    except ConnectionError:
        return at
    except NativeError as refusal:
        if refusal.kind in NOT_NOW:
            return at
        if refusal.kind not in NOT_THERE:
            raise
        loss, there = f"{part.partition} was deleted while it was read, at {at}", part.end
    else:
        if found.high < part.end:
            loss = f"{part.partition} was made anew while it was read: it ends at {found.high}, below {part.end}"
            there = part.end
        elif at < found.first:
            there = min(found.first, part.end)
            loss = f"the records {at} to {there - 1} of {part.partition} were deleted before they were read"
        else:
            return at
    report([loss], fail=options.fail_on_data_loss)
    return there


def _ask(options: ReadOptions, part: Range) -> CutPartition:
    with Native.connect(options.bootstrap, security=options.security) as native:
        return native.cut(Partitions((part.partition,)))[0]


def _nothing_came(options: ReadOptions, part: Range, at: int, trouble: KafkaError | None) -> str:
    said = f"; the last that librdkafka said was: {trouble.str()}" if trouble is not None else ""
    return (
        f"no record of {part.partition} came from {options.bootstrap} for {options.patience_ms} ms, at offset {at} of "
        f"{part.start} to {part.end}{said}. Is the node up? The option kafkaConsumer.pollTimeoutMs says how long to "
        "wait"
    )


# --- columns ------------------------------------------------------------------------------------


class Rows:
    """Messages of one partition that become a batch. Timestamps are asked for once, for two columns."""

    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    @cached_property
    def stamps(self) -> list[tuple[int, int]]:
        """(type, milliseconds) of each."""
        return list(map(Message.timestamp, self.messages))

    def keys(self) -> Any:
        return pa.array(list(map(Message.key, self.messages)), pa.binary())

    def values(self) -> Any:
        return pa.array(list(map(Message.value, self.messages)), pa.binary())

    def topics(self) -> Any:
        return pa.repeat(pa.scalar(self.messages[0].topic(), pa.string()), len(self.messages))

    def partitions(self) -> Any:
        return pa.repeat(pa.scalar(self.messages[0].partition(), pa.int32()), len(self.messages))

    def offsets(self) -> Any:
        first, last = _offset(self.messages[0]), _offset(self.messages[-1])
        dense = last - first + 1 == len(self.messages)
        return _int64(range(first, last + 1) if dense else map(_offset, self.messages))

    def timestamps(self) -> Any:
        """Milliseconds become microseconds, and null where Spark has no such time."""
        milliseconds = _int64(map(itemgetter(1), self.stamps))
        try:
            return _times(milliseconds)
        except pa.ArrowInvalid:  # one such record must not end every query of its topic
            fitting = [stamp if abs(stamp) <= MILLISECONDS_MAX else None for _, stamp in self.stamps]
            return _times(pa.array(fitting, pa.int64()))

    def timestamp_types(self) -> Any:
        """0 the producer's, 1 the node's, −1 none: Kafka's numbers, which librdkafka's exceed by one."""
        kinds = list(map(itemgetter(0), self.stamps))
        if kinds.count(kinds[0]) == len(kinds):
            return pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
        return pa.array([kind - 1 for kind in kinds], pa.int32())

    def headers(self) -> Any:
        """A list of (key, value)s for each record; null for one without headers, as in the connector."""
        kind = arrow_schema(["headers"]).field(0).type
        found = map(_headers, self.messages)
        return pa.array([each and [{"key": key, "value": value} for key, value in each] for each in found], kind)


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    """Null where the client cannot read them: one such record must not end every query of its topic.

    It is asked only once: a second time it hands out the list that it could not make, and Python crashes at that.
    """
    try:
        return cast("list[tuple[str, bytes | None]] | None", message.headers())
    except UNREADABLE:
        _log.warning(
            "the record at offset %d of %s-%d has a header whose name is no UTF-8, which the client cannot read: its "
            "headers are given as null",
            *(message.offset(), message.topic(), message.partition()),
        )
        return None


def _code(message: Message) -> int | None:
    error = message.error()
    return None if error is None else error.code()


def _int64(numbers: Iterable[int]) -> Any:
    values = array("q", numbers)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _times(milliseconds: Any) -> Any:
    """Raises ArrowInvalid if one is beyond `MILLISECONDS_MAX`."""
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


_COLUMNS: dict[str, Callable[[Rows], Any]] = {
    "key": Rows.keys,
    "value": Rows.values,
    "topic": Rows.topics,
    "partition": Rows.partitions,
    "offset": Rows.offsets,
    "timestamp": Rows.timestamps,
    "timestampType": Rows.timestamp_types,
    "headers": Rows.headers,
}
