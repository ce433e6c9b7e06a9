"""Topics as a source of Spark: a batch read is one cut of the node, a stream goes from cut to cut.

    driver    cut ──▶ offsets ──▶ ranges of offsets ──▶ tasks        (this module; decisions in `planning.py`)
    executor  a range ──▶ a consumer ──▶ Arrow batches               (`reading.py`)

How it works. A batch read asks the node for a cut when it is planned, and ends there. A stream's offsets are cuts: each
`latestOffset` is what can be read now, or, under `maxOffsetsPerTrigger`, a cut that the node finds for so many records;
an available-now run takes its target when it begins, and never passes it. So no micro-batch holds half a transaction.
What a stream has come to stands in Spark's checkpoint alone (`positions.py`): offsets, in the form that Spark's Kafka
connector has, and the ids of their topics, which tell a topic from one that is made anew under its name.

Spark notes where a micro-batch ends, and of the first one not where it began: it asks for that whenever it plans or
replays it. So the first micro-batch of a query that begins at the latest records is an empty one, whose end is where
the query begins; in a replay, when the latest records are others, it is empty again.

The driver's process for a stream lives as long as its query, and so does its connection to the node. It asks each 10 ms
when there is nothing to do, which is Spark's pace. A node that is restarted is waited for, as long as a consumer waits
for records.

What it does not do: commit anything to the node. A sink can do so together with its output (`commitGroup`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fairlog_client_security import ClientSecurity
from pyspark_fairlog import planning
from pyspark_fairlog.losses import report
from pyspark_fairlog.native import NOT_NOW, NOT_THERE, Native, NativeError, Partitions, TopicPattern, Topics
from pyspark_fairlog.native import Selection as Selected
from pyspark_fairlog.options import (
    Assign,
    Offsets,
    Partition,
    ReadOptions,
    Selection,
    Subscribe,
    SubscribePattern,
    begins_at_latest,
    offsets_to,
)
from pyspark_fairlog.planning import Cut, Planned, Range
from pyspark_fairlog.positions import Position, Stored, position_from, position_to, topic_ids
from pyspark_fairlog.schema import columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RECONNECT_S = 0.2
"""Before a question is asked again, and before each attempt to reach a node that was there before: it may take
connections and break them."""

SELECT_TRIES = 5
"""So often a selection is made anew whose topics are deleted while they are asked for."""

T = TypeVar("T")


class TopicsChanged(Exception):
    """Between two cuts for one micro-batch a topic was deleted, or made anew."""


class Task(InputPartition):
    """A range for one task. Pickled; it holds plain values only."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)


class Node:
    """The driver's connection to a node, made when it is first needed, and made anew when it breaks."""

    def __init__(self, bootstrap: str, patience_ms: int, security: ClientSecurity = ClientSecurity()) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._patience_s = patience_ms / 1000
        self._native: Native | None = None

    def ask(self, question: Callable[[Native], T]) -> T:
        """Ask, and ask again over a new connection if it breaks: questions change nothing.

        So while nobody can answer for the moment (NOT_NOW); the node has waited itself, each time.

        Raises ConnectionError if the node cannot be reached at first, or does not come back in time; NativeError.
        """
        if self._native is None:
            self._native = Native.connect(self._bootstrap, security=self._security)
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return question(self._native)
            except NativeError as error:
                if error.kind not in NOT_NOW or time.monotonic() > until:
                    raise
                time.sleep(RECONNECT_S)
                continue
            except ConnectionError:
                self._native.close()
                if time.monotonic() > until:
                    raise
            self._reconnect(until)

    def _reconnect(self, until: float) -> None:
        while True:
            time.sleep(RECONNECT_S)
            try:
                self._native = Native.connect(self._bootstrap, security=self._security)
            except ConnectionError:
                if time.monotonic() > until:
                    raise
            else:
                return

    def close(self) -> None:
        if self._native is not None:
            self._native.close()
            self._native = None

    def selected(self, selection: Selection) -> Cut:
        """A cut through all that the query selects, which must be there.

        Raises NativeError, naming the topic that is not.
        """
        return planning.cut_of(self.ask(lambda native: native.cut(_native_selection(selection))))

    def existing(self, selection: Selection) -> Cut:
        """A cut through what is there of that which the query selects."""
        for tries_left in reversed(range(SELECT_TRIES)):
            try:
                return self.selected(selection)
            except NativeError as error:
                if error.kind not in NOT_THERE or tries_left == 0:
                    raise
            present = _present(selection, self.ask(lambda native: native.topics()))
            if present is None:
                return {}
            selection = present
        raise AssertionError("the last try returns or raises")

    def limited(self, begin: Mapping[Partition, int], cut: Cut, limit: int) -> Offsets:
        """The ends of a cut with at most `limit` records beyond `begin`, or of the first one beyond it.

        Raises TopicsChanged if the partitions are not all those of `cut` any more.
        """
        starts = [(partition.topic, partition.number, offset) for partition, offset in begin.items()]
        partitions = Partitions(tuple((partition.topic, partition.number) for partition in begin))
        try:
            found = self.ask(lambda native: native.cut(partitions, starts=starts, limit=limit))
        except NativeError as error:
            if error.kind in NOT_THERE:
                raise TopicsChanged(error.sentence) from error
            raise
        limited = planning.cut_of(found)
        before = Position({}, topic_ids(cut.values()))
        if any(before.is_of_another(each) for each in found):
            raise TopicsChanged("a topic was made anew")
        return planning.ends(limited)


class _Reader:
    """What batches and streams have in common: the columns, and how a task reads its range."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns(schema, headers=options.headers)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of a task's range as Arrow batches. Runs on an executor."""
        if not isinstance(partition, Task):
            return iter(())  # Spark's stand-in where there is nothing to read
        from pyspark_fairlog.reading import read_range

        return read_range(self._options, self._columns, cast("Range", partition.value))

    def _tasks(self, planned: Planned) -> list[InputPartition]:
        report(planned.losses, fail=self._options.fail_on_data_loss)
        return [Task(part) for part in planning.split(planned.ranges, self._options.partitions_min)]


class BatchReader(_Reader, DataSourceReader):
    """Reads what its options name, up to a cut that is taken when the read is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._starting, self._ending = options.batch_starting(), options.batch_ending()

    def partitions(self) -> list[InputPartition]:
        """A task per partition, or more.

        Raises OptionRefused, NativeError (a topic that is not there), ConnectionError, DataLost.
        """
        node = Node(self._options.bootstrap, self._options.patience_ms, self._options.security)
        try:
            cut = node.selected(self._options.selection)
        finally:
            node.close()
        start = planning.resolve("startingOffsets", self._starting, cut)
        end = planning.resolve("endingOffsets", self._ending, cut)
        # An end below the start is no topic made anew here, but an empty range.
        end = {partition: max(offset, start[partition]) for partition, offset in end.items()}
        return self._tasks(planning.to_read(Position(start), Position(end), cut))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Goes from cut to cut. One lives in the driver's process of a query; others, that only read, on executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._starting = options.stream_starting()
        self._is_from_latest = begins_at_latest(self._starting)
        self._node = Node(options.bootstrap, options.patience_ms, options.security)
        self._target: Position | None = None
        self._latest: Offsets | None = None
        self._initial: Position | None = None
        self._has_planned = False
        """Whether this process was asked for the end of a micro-batch: one that is replayed has its end."""
        self._has_replayed_first = False

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 (Spark's name, as those below)
        """Where a new query begins, at any time the same. Raises OptionRefused, NativeError, ConnectionError."""
        if self._initial is None:
            cut = self._node.selected(self._options.selection)
            offsets = planning.resolve("startingOffsets", self._starting, cut)
            self._initial = Position(offsets, topic_ids(cut.values()))
        return position_to(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.limit is None else ReadMaxRows(self._options.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the cut that the run ends at."""
        cut = self._node.existing(self._options.selection)
        self._target = Position(planning.highs(cut), topic_ids(cut.values()))

    def latestOffset(self, start: Stored, limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """The end of the next micro-batch: a cut. It is `start` if there is nothing to read.

        Raises DataLost, ConnectionError, NativeError.
        """
        is_first = not self._has_planned and not self._has_replayed_first and self._is_initial(start)
        self._has_planned = True
        if is_first and self._is_from_latest:
            return dict(start)
        for tries_left in reversed(range(SELECT_TRIES)):
            try:
                return position_to(self._end_behind(position_from(start), limit))
            except TopicsChanged:
                if tries_left == 0:
                    raise
        raise AssertionError("the last try returns or raises")

    def _end_behind(self, start: Position, limit: ReadLimit) -> Position:
        """The end of the next micro-batch. Raises TopicsChanged, and what `latestOffset` does."""
        cut = self._node.existing(self._options.selection)
        self._latest = planning.highs(cut)
        going_on = planning.going_on(start, cut)
        if self._options.fail_on_data_loss:
            report(going_on.losses, fail=True)  # a warning comes once, when the batch is planned
        ranges = going_on.ranges
        if self._target is not None:
            ranges = planning.within(ranges, self._target.still_there(cut))
        if isinstance(limit, ReadMaxRows) and sum(part.size for part in ranges) > limit.max_rows:
            limited = self._node.limited({part.partition: part.start for part in ranges}, cut, limit.max_rows)
            ranges = planning.within(ranges, limited)
        return Position({part.partition: part.end for part in ranges}, topic_ids(cut.values()))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """What could be read when the last micro-batch was made up, for the query's progress."""
        return None if self._latest is None else offsets_to(self._latest)

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        """A task per partition with news, or more. Raises DataLost, ConnectionError, NativeError."""
        until = position_from(end)
        if self._is_from_latest and not self._has_planned and self._is_initial(start):
            self._has_replayed_first = True
            return []
        cut: Cut = self._node.existing(Assign(tuple(sorted(until.offsets)))) if until.offsets else {}
        return self._tasks(planning.to_read(position_from(start), until, cut))

    def stop(self) -> None:
        self._node.close()

    def _is_initial(self, start: Stored) -> bool:
        """Whether it is where the query begins. Spark asks for that only until the first micro-batch is done."""
        return self._initial is not None and position_from(start) == self._initial


def _native_selection(selection: Selection) -> Selected:
    match selection:
        case Subscribe(topics):
            return Topics(topics)
        case SubscribePattern(pattern):
            return TopicPattern(pattern)
        case Assign(partitions):
            return Partitions(tuple((partition.topic, partition.number) for partition in partitions))


def _present(selection: Selection, topics: Mapping[str, int]) -> Selection | None:
    """What is there of the selection; None if nothing is."""
    match selection:
        case Subscribe(names):
            names = tuple(name for name in names if name in topics)
            return Subscribe(names) if names else None
        case Assign(partitions):
            partitions = tuple(each for each in partitions if each.number < topics.get(each.topic, 0))
            return Assign(partitions) if partitions else None
        case SubscribePattern():
            return selection
