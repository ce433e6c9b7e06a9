"""The sink of `format("fairlog")`: all tasks of a batch write, and one commit publishes what they wrote, exactly once.

    tasks      write_lane (writing.py): a lane for each attempt, flushed and left open
    driver     commit: names the lanes that have won; the node makes them visible as one, and remembers the batch

Spark makes the writer anew for each micro-batch and again for its commit, in another process. So nothing is kept here:
what a commit needs comes with the tasks' messages, and whether a batch was committed before is for the node to know. A
commit that is repeated, after a lost answer or in a replay after a crash of the driver, is answered "already
committed". That it is the same batch, and was not planned anew from an older copy of the checkpoint, the node tells by
when it was planned, which the checkpoint's offset log knows (`Plan`).

A stream's sink has one name for its life, `transactionalId` or `spark-<query id>`. A batch write is a sink of its own
with one batch, which is forgotten when it is committed: who runs it again writes again, as with any format. Inside of
`foreachBatch` a batch write may say which micro-batch it is (`batchId`), and is one of a stream's sink then.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_fairlog.native import NOT_THERE, Native, NativeError, Offsets
from pyspark_fairlog.offset_log import OffsetLogRefused, is_local, parse_ends, parse_planned_ms, read_plan
from pyspark_fairlog.persistence import PATIENCE_S, WORK_S, persistently
from pyspark_fairlog.rows import columns
from pyspark_fairlog.sink_options import SinkOptions, parse
from pyspark_fairlog.writing import BatchIdentity, LaneWritten, SinkError, said, write_lane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of a streaming query's tasks."""

EFFECT_UNKNOWN = "effect-unknown"
UNKNOWN_SINK = "unknown-sink"
"""What the node says of a sink that nobody has joined."""

ASK_AGAIN = "start the query again: it asks again, and nothing is lost or written twice"
PASSED_BY = (
    "Spark runs a query with a continuous trigger past a sink in Python, and would note its rows as written; "
    "give it the trigger processingTime or availableNow"
)
DELETE = (
    "delete from its checkpoint's directory `offsets` the newest files whose second line is empty, each with its .crc; "
    "if none is left there, it begins anew, at its startingOffsets"
)
LOOK_FIRST = "look whether its rows are in the topic before the job is run again: that would write them again"

ABORT_S = 5.0
"""So long an abort is tried: it is advice, and whoever waits for it waits for an error's message."""

_log = logging.getLogger(__name__)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `writeStream`. Raises OptionRefused and RowsRefused when it is made.

    Behind a continuous trigger Spark makes it, and asks for the commit of each epoch, but never calls `write`. Nobody
    says which trigger it is: an epoch is known by its messages, and is never noted as done.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:  # noqa: ARG002
        # `overwrite` is the output mode complete: as with the connector, each batch appends the whole result.
        self._options = parse(options, streaming=True)
        self._columns = columns(schema, self._options.topic)

    def write(self, iterator: Iterator[Any]) -> LaneWritten:
        """In a task: write its rows into a lane. Raises SinkError."""
        return write_lane(_micro_batch(self._options), self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver: publish what the tasks wrote, and the source's offsets with it. Raises SinkError."""
        lanes = _lanes(messages)
        silent = len(messages) - len(lanes)
        if silent or not lanes:
            heard = f"batch {batchId} has nothing of {silent} of its {len(messages)} tasks"
            raise SinkError(f"{heard}: {PASSED_BY}, and first {DELETE}")
        assert lanes[0].identity.batch == batchId
        commit_lanes(lanes, self._options, plan_of(lanes[0].identity, self._options))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """In the driver: give up what the tasks wrote. Never raises: Spark has an error to tell already."""
        lanes = _lanes(messages)
        if lanes:
            give_up(lanes[0].identity, self._options)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `write`. Raises OptionRefused, RowsRefused and SinkError when it is made.

    It is made once for a job, and sent to the tasks and to the commit; so the sink's name is drawn here.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("the save mode overwrite is not served: a topic keeps its records; use append")
        self._options = parse(options, streaming=False)
        self._columns = columns(schema, self._options.topic)
        job = str(uuid.uuid4())
        name = f"{self._options.transactional_id or 'spark'}-{job}"
        self._identity = BatchIdentity(name, job, job, 0) if self._options.batch is None else None

    def write(self, iterator: Iterator[Any]) -> LaneWritten:
        """In a task: write its rows into a lane. Raises SinkError."""
        identity = self._identity or _micro_batch(self._options)
        return write_lane(identity, self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: publish what the tasks wrote. Raises SinkError."""
        lanes = _lanes(messages)
        if self._identity is None:
            if lanes:
                commit_lanes(lanes, self._options, plan_of(lanes[0].identity, self._options))
        elif any(lane.records for lane in lanes):
            commit_lanes(lanes, self._options, Plan(), unknown=LOOK_FIRST)
            _forget(self._identity, self._options, PATIENCE_S)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: give up what the tasks wrote. Never raises: Spark has an error to tell already."""
        lanes = _lanes(messages)
        if self._identity is not None:
            give_up(self._identity, self._options)
            _forget(self._identity, self._options, ABORT_S)
        elif lanes:
            give_up(lanes[0].identity, self._options)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the checkpoint says of a micro-batch, as far as it is known."""

    planned_ms: int | None = None
    """When Spark has planned it."""
    offsets: Offsets | None = None
    """Where its sources end, for the option commitGroup; None without it."""


def plan_of(identity: BatchIdentity, options: SinkOptions) -> Plan:
    """The micro-batch's plan. Raises SinkError if it is not known, and commitGroup needs it.

    Without that option only a checkpoint in the local file system is looked into: another one may take long to answer,
    or never, and the commit waits.
    """
    group, checkpoint = options.commit_group, options.checkpoint
    if checkpoint is None or (group is None and not is_local(checkpoint)):
        return Plan()
    try:
        text = read_plan(checkpoint, identity.query, identity.batch)
        ends = parse_ends(text) if group is not None else ()
    except OffsetLogRefused as error:
        if group is None:
            return Plan()
        raise SinkError(f"the offsets of {identity} for the group {group!r} are not known: {error}") from error
    return Plan(parse_planned_ms(text), Offsets(group, ends) if group is not None and ends else None)


def commit_lanes(lanes: Sequence[LaneWritten], options: SinkOptions, plan: Plan, *, unknown: str = ASK_AGAIN) -> None:
    """Have the node publish these lanes of one batch as one; done already is as good. Raises SinkError.

    Offsets in topics that are not there are left out: a topic may be deleted behind the plan of a batch, which stays
    as it is in each replay. `unknown` is what to do if it cannot be learned whether the batch is committed.
    """
    identity, offsets = lanes[0].identity, plan.offsets
    assert all(lane.identity == identity for lane in lanes), "all messages are of one batch"
    winners = [(lane.partition, lane.attempt, lane.records) for lane in lanes if lane.records]
    try:
        persistently(
            lambda native: native.commit(
                sink=identity.sink,
                query=identity.query,
                run=identity.run,
                batch=identity.batch,
                winners=winners,
                offsets=offsets,
                planned_ms=plan.planned_ms,
            ),
            options.bootstrap,
            options.security,
            work_s=WORK_S,
        )
    except (NativeError, ConnectionError) as error:
        if offsets is not None and isinstance(error, NativeError) and error.kind in NOT_THERE:
            there = _there(offsets, options)
            if there != offsets:
                _log.warning("the group %r is committed without what is not there: %s", offsets.group, error)
                return commit_lanes(lanes, options, replace(plan, offsets=there), unknown=unknown)
        if isinstance(error, NativeError) and error.kind != EFFECT_UNKNOWN:
            raise SinkError(f"{identity} is not committed: {said(error)}") from error
        raise SinkError(
            f"whether {identity} is committed is not known, and could not be learned: {error}; {unknown}"
        ) from error


def _there(offsets: Offsets, options: SinkOptions) -> Offsets | None:
    """The offsets in partitions that the node has; None if there are none. All, if the node does not say which."""
    try:
        topics = persistently(lambda native: native.topics(), options.bootstrap, options.security)
    except (NativeError, ConnectionError):
        return offsets
    left = tuple(each for each in offsets.partitions if each[1] < topics.get(each[0], 0))
    return Offsets(offsets.group, left) if left else None


def give_up(identity: BatchIdentity, options: SinkOptions) -> None:
    """Tell the node to discard the batch's lanes. Where that fails, a newer run or a time-out does it."""
    try:
        with Native.connect(options.bootstrap, timeout_s=ABORT_S, security=options.security) as native:
            native.abort(sink=identity.sink, query=identity.query, run=identity.run, batch=identity.batch)
    except (NativeError, ConnectionError) as error:
        _log.warning("%s could not be aborted: %s", identity, error)


def _forget(identity: BatchIdentity, options: SinkOptions, patience_s: float) -> None:
    """Let the node forget the sink of a batch write, which is committed or given up."""
    try:
        persistently(
            lambda native: native.forget(identity.sink), options.bootstrap, options.security, patience_s=patience_s
        )
    except (NativeError, ConnectionError) as error:
        if isinstance(error, NativeError) and error.kind == UNKNOWN_SINK:
            return  # no task had a row, or all failed before they joined
        _log.warning("the node keeps the sink %r of a batch write: %s", identity.sink, error)


def _lanes(messages: Sequence[WriterCommitMessage | None]) -> list[LaneWritten]:
    """Of a task that has failed Spark has a None, which an abort may meet. Tasks without rows have a lane, too, and a
    data frame without partitions has one task; but of an epoch of continuous processing each partition has a None.
    """
    return [message for message in messages if isinstance(message, LaneWritten)]


def _micro_batch(options: SinkOptions) -> BatchIdentity:
    """The micro-batch that this task belongs to, as Spark tells its tasks. Raises SinkError."""
    context = TaskContext.get()
    assert context is not None
    query, run, batch = (context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID))
    if query is None or run is None or batch is None:
        raise SinkError(
            "this is no micro-batch of a streaming query, Spark tells its tasks no query, run and batch; "
            "leave out the option batchId"
        )
    if options.batch not in (None, int(batch)):
        raise SinkError(f"the option batchId is {options.batch}, and Spark runs the micro-batch {batch}")
    return BatchIdentity(options.transactional_id or f"spark-{query}", query, run, int(batch))
