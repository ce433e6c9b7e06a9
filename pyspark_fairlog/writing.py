"""What a Spark task does to write its partition of a batch: one lane of the sink, filled by one producer.

    join ──▶ transactional id ──▶ init, begin, produce …, flush ──▶ message to the driver: (partition, attempt, records)

The producer is an ordinary transactional one of confluent-kafka, which never commits: whether its records are published
is decided by the driver, which names this attempt among the winners or does not. So the producer is let go of with its
transaction open (`Producer.close` would abort it). It is made when the first row comes: a task without rows asks the
node for nothing.

When the batch is committed already (a replay), the task writes nothing, but reads its input to the end: stateful
operators above it save their state when their last row is taken.

An attempt is named by Spark's task attempt id, which is never given twice in a run. The attempt's number is: it begins
at 0 again when a whole stage is tried again.

Two things about librdkafka's start, tried with 2.16. The first metadata answer closes the bootstrap connection, and
`init_transactions`, called before the next one is open, finds no broker and looks again after 500 ms; asking for
metadata twice waits for it. And `reconnect.backoff.ms` delays that connection, too: 10 instead of 100 saves 40 ms. So
making a producer costs 20 ms instead of 60 or 510.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from fairlog_client_security import for_librdkafka
from pyspark_fairlog.native import NativeError
from pyspark_fairlog.persistence import WORK_S, persistently
from pyspark_fairlog.rows import Columns, Record, RowsRefused, records
from pyspark_fairlog.sink_options import SinkOptions

SETTINGS = {
    "partitioner": "murmur2_random",  # as in Java's clients: the same key goes to the same partition
    "transaction.timeout.ms": "900000",  # the longest that Kafka's and our brokers allow by default
    "queue.buffering.max.kbytes": "131072",  # of 1 GiB: a worker has many tasks beside it
    "reconnect.backoff.ms": "10",
    "log.connection.close": "false",
}
"""The producer's, unless the query sets them."""

METADATA_S = 30.0
INIT_S = 60.0
ABORT_S = 5.0

FLUSH_LOOK_S = 1.0
"""How often it is looked whether a record was refused while others are flushed."""

FULL_POLL_S = 0.01
"""How long a full queue is given to drain before the next try."""


MORE_TIME = (
    "if the batch took longer than the option kafka.transaction.timeout.ms allows (15 minutes, and no more than "
    "the node's transactions.max_timeout_ms), give it more time, or less to do"
)

ADVICE = {
    "another-query": "the option transactionalId names the sink",
    "set-back": (
        "start the query from its newest checkpoint; if there is none, it has to begin as a new query, with a new "
        "checkpoint and another transactionalId"
    ),
    "lane-aborted": MORE_TIME,
    "unknown-lane": MORE_TIME,
}
"""What a user of the sink can do about a refusal, where the node's sentence cannot know it."""

FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
"""What a lane's producer hears when the lane has ended. The client speaks of a newer instance, which there is not."""

TAKEN_BACK = (
    f"; the node has taken the task's lane back: {MORE_TIME}; otherwise the node was restarted, or a later run of the "
    "query has taken over"
)

PURGED = (
    "; the client has given up the transaction, and its log, of the task, says why (TXNERR): may the user write to the "
    "topic, with an ACL for WRITE?"
)
"""When a partition cannot be added to a transaction, librdkafka drops the records, and says of them only that."""

TOO_LARGE = "; the option kafka.message.max.bytes, and the topic's max.message.bytes, say how large one may be"


class SinkError(Exception):
    """The batch cannot be written or committed; the sentence says why, and what to do."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch is written: the sink, Spark's query, its run, and the batch's number."""

    sink: str
    query: str
    run: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of the sink {self.sink!r}"


@dataclass(frozen=True, slots=True)
class LaneWritten(WriterCommitMessage):
    """A task's message to the driver: what it has written, and for which batch."""

    identity: BatchIdentity
    partition: int
    attempt: int
    records: int


def write_lane(identity: BatchIdentity, options: SinkOptions, columns: Columns, batches: Iterator[Any]) -> LaneWritten:
    """Write the rows of this task in a lane of its own, which is left to the driver's commit.

    Runs in a Spark task; `batches` are `pyarrow.RecordBatch`es. Returns what the driver has to name. Raises SinkError;
    what was written is given up then.
    """
    context = TaskContext.get()
    assert context is not None, "lanes are written by Spark's tasks"
    partition, attempt = context.partitionId(), context.taskAttemptId()
    written = 0
    lane: _Lane | None = None
    try:
        for batch in batches:
            if lane is None and batch.num_rows:
                transactional_id = _join(identity, options, partition, attempt)
                if transactional_id is None:
                    for _ in batches:
                        pass
                    return LaneWritten(identity, partition, attempt, 0)
                lane = _Lane(transactional_id, options, columns.topic)
            if lane is not None:
                lane.write(records(batch, columns))
                written += batch.num_rows
        if lane is not None:
            lane.flush()
    except (KafkaException, RowsRefused, NativeError, ConnectionError, _Undelivered) as error:
        if lane is not None:
            lane.abort()
        raise SinkError(f"task {attempt} cannot write partition {partition} of {identity}: {said(error)}") from error
    except BaseException:
        if lane is not None:
            lane.abort()
        raise
    return LaneWritten(identity, partition, attempt, written)


def _join(identity: BatchIdentity, options: SinkOptions, partition: int, attempt: int) -> str | None:
    """The transactional id to write under; None: the batch is committed already."""
    return persistently(
        lambda native: native.join(
            sink=identity.sink,
            query=identity.query,
            run=identity.run,
            batch=identity.batch,
            partition=partition,
            attempt=attempt,
        ),
        options.bootstrap,
        options.security,
        work_s=WORK_S,  # "committed" is answered when the batch can be read
    )


class _Undelivered(Exception):
    """A record has not arrived."""


class _Lane:
    """The producer of a lane, in its transaction."""

    def __init__(self, transactional_id: str, options: SinkOptions, topic: str | None) -> None:
        failures: list[KafkaError] = []

        def note(error: KafkaError, message: object) -> None:  # noqa: ARG001
            failures.append(error)

        decided: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap,
            "transactional.id": transactional_id,
            "delivery.report.only.error": True,  # no call into Python for what has arrived
            "on_delivery": note,
        }
        self._failures = failures
        self._producer = Producer({**SETTINGS, **for_librdkafka(options.producer), **decided})
        for _ in range(2):  # see the module's head
            self._producer.list_topics(*([topic] if topic else []), timeout=METADATA_S)
        self._producer.init_transactions(INIT_S)
        self._producer.begin_transaction()

    def write(self, rows: Iterator[Record]) -> None:
        """Hand the rows to the producer; waits while its queue is full. Raises KafkaException, _Undelivered."""
        produce = self._producer.produce
        for row in rows:
            try:
                produce(*row)
            except BufferError:
                self._produce_patiently(row)
            except KafkaException as error:
                raise _Undelivered(
                    f"a record of {_size(row)} bytes for the topic {row[0]!r} is refused: {said(error)}"
                    f"{TOO_LARGE if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE else ''}"
                ) from error
        self._serve(self._producer.poll, 0)

    def _produce_patiently(self, row: Record) -> None:
        while True:
            self._serve(self._producer.poll, FULL_POLL_S)
            with contextlib.suppress(BufferError):
                return self._producer.produce(*row)

    def flush(self) -> None:
        """Return when the node holds all that was written. Raises KafkaException, _Undelivered.

        At the first record that is refused: when the transaction is lost, librdkafka keeps the others back for minutes.
        """
        while self._serve(self._producer.flush, FLUSH_LOOK_S):
            pass

    def abort(self) -> None:
        """Give up what was written, as far as the node can be told so. The driver's run or a time-out does the rest."""
        with contextlib.suppress(KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(ABORT_S)

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Have the client report on records, and answer what it answers. Raises KafkaException, _Undelivered."""
        try:
            left = call(timeout_s)
        except SystemError as error:
            # The client raises a fatal error amid its reports; if one more comes behind it, Python finds a callback
            # that ended well with an exception set, and says that instead.
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from None
            raise
        if self._failures:
            raise _Undelivered(f"a record was not delivered: {_said(self._failures[0])}")
        return left


def _size(row: Record) -> int:
    return sum(len(each) for each in row[1:3] if each is not None)


def said(error: Exception) -> str:
    """What is wrong, for people."""
    if isinstance(error, NativeError) and error.kind in ADVICE:
        return f"{error}; {ADVICE[error.kind]}"
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return _said(error.args[0])
    return str(error)


def _said(error: KafkaError) -> str:
    more = TAKEN_BACK if error.code() in FENCED else PURGED if error.code() == KafkaError._PURGE_QUEUE else ""
    return f"{error.str()}{more}"
