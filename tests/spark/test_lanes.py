"""A task's side of the sink, over a real node and without Spark: lanes that win, lose, fail, and come too late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_fairlog import writing
from pyspark_fairlog.native import Native
from pyspark_fairlog.persistence import WORK_S
from pyspark_fairlog.rows import Columns
from pyspark_fairlog.sink import Plan, commit_lanes
from pyspark_fairlog.sink_options import SinkOptions
from pyspark_fairlog.writing import BatchIdentity, LaneWritten, SinkError, write_lane
from scripts.node_process import NodeProcess
from tests.spark.counting import TOPIC, create_topic, numbers

pytestmark = pytest.mark.slow

BATCH = BatchIdentity("totals", "query", "run-1", 0)
VALUES = Columns(TOPIC, key=False, partition=False, headers=False)
TIMED_OUT_S = 60.0


class Task:
    """What a Spark task says of itself."""

    def __init__(self, partition: int, attempt: int) -> None:
        self._partition, self._attempt = partition, attempt

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._attempt


@pytest.fixture
def node(fresh_node: Callable[..., NodeProcess]) -> NodeProcess:
    fresh = fresh_node()
    create_topic(fresh.address)
    return fresh


@pytest.fixture
def write(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaneWritten]:
    def write_as(
        numbers: Iterator[range] | list[range],
        *,
        partition: int = 0,
        attempt: int = 0,
        batch: BatchIdentity = BATCH,
        **settings: str,
    ) -> LaneWritten:
        class Context:
            @staticmethod
            def get() -> Task:
                return Task(partition, attempt)

        monkeypatch.setattr(writing, "TaskContext", Context)
        batches = (pa.record_batch({"value": pa.array([str(each) for each in some])}) for some in numbers)
        return write_lane(batch, SinkOptions(node.address, producer=settings), VALUES, batches)

    return write_as


def commit(node: NodeProcess, *lanes: LaneWritten) -> None:
    commit_lanes(lanes, SinkOptions(node.address), Plan())


def open_lanes(node: NodeProcess) -> tuple[str, ...]:
    with Native.connect(node.address) as native:
        return native.sinks()[0].open_lanes


def test_attempt_that_is_not_named_is_not_seen(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    """Two attempts of a partition, as speculation makes them, both of which have written everything."""
    write([range(100)], attempt=1)
    second = write([range(100)], attempt=2)
    other = write([range(100, 150), range(150, 200)], partition=1, attempt=3)
    assert not numbers(node.address)
    commit(node, second, other)
    assert numbers(node.address, least=200) == list(range(200))
    assert not open_lanes(node)


def test_commit_that_is_repeated_changes_nothing(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    lane = write([range(100)])
    commit(node, lane)
    commit(node, lane)
    assert numbers(node.address, least=100) == list(range(100))


def test_replay_waits_while_the_node_copies_the_batch(
    write: Callable[..., LaneWritten], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is told that its batch is committed when that can be read."""
    waited: list[float] = []

    def committed(*_: object, work_s: float = 0.0) -> None:
        waited.append(work_s)

    monkeypatch.setattr(writing, "persistently", committed)
    assert write([range(100)]).records == 0
    assert waited == [WORK_S]


def test_replay_of_a_committed_batch_writes_nothing_and_reads_its_input_to_the_end(
    node: NodeProcess, write: Callable[..., LaneWritten]
) -> None:
    """Stateful operators above the sink save their state when their last row is taken."""
    commit(node, write([range(100)]))
    taken: list[range] = []

    def rows() -> Iterator[range]:
        for each in (range(50), range(50, 100)):
            yield each
            taken.append(each)

    replayed = write(rows(), attempt=7, batch=replace(BATCH, run="run-2"))
    assert replayed.records == 0
    assert taken == [range(50), range(50, 100)]
    commit(node, replayed)
    assert numbers(node.address, least=100) == list(range(100))


def test_task_without_rows_joins_nothing(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    empty = write([range(0)])
    assert empty.records == 0
    with Native.connect(node.address) as native:
        assert not native.sinks()
    commit(node, empty)
    with Native.connect(node.address) as native:
        assert [(each.sink, each.query, each.batch) for each in native.sinks()] == [("totals", "query", 0)]


def test_task_that_fails_gives_up_its_lane(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    """The lane's transaction has ended, so it holds nothing until the driver or a time-out notices."""

    def rows() -> Iterator[range]:
        yield range(100)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(rows())
    lost = LaneWritten(BATCH, 0, 0, 100)
    with pytest.raises(SinkError, match=r"batch 0 of the sink 'totals' is not committed"):
        commit(node, lost)
    commit(node, write([range(100)], attempt=1))
    assert numbers(node.address, least=100) == list(range(100))


def test_run_that_was_replaced_can_neither_write_nor_commit(
    node: NodeProcess, write: Callable[..., LaneWritten]
) -> None:
    """It had rows with the node, and writes more when another run has joined."""
    newer = replace(BATCH, run="run-2")

    def rows() -> Iterator[range]:
        yield range(50)
        with Native.connect(node.address) as native:
            native.join(sink="totals", query="query", run="run-2", batch=0, partition=0, attempt=9)
        yield range(50, 100)

    finished = write([range(200, 300)], partition=1, attempt=1)
    with pytest.raises(SinkError, match=r"task 0 cannot write partition 0 of batch 0 of the sink 'totals'"):
        write(rows())
    with pytest.raises(SinkError, match="old-run"):
        commit(node, finished)
    with pytest.raises(SinkError, match="old-run"):
        write([range(100)], attempt=2)
    commit(node, write([range(100)], attempt=10, batch=newer))
    assert numbers(node.address, least=100) == list(range(100))


def wait_for_time_out(node: NodeProcess) -> None:
    """Of the only lane of a sink that has no batch yet, which is forgotten with it."""
    deadline = time.monotonic() + TIMED_OUT_S
    with Native.connect(node.address) as native:
        while native.sinks():
            assert time.monotonic() < deadline, f"{native.sinks()} after {TIMED_OUT_S:.0f} s"
            time.sleep(0.02)


TOLD = r"batch 0 of the sink 'totals'.*kafka\.transaction\.timeout\.ms"
TIMING_OUT = {"transaction.timeout.ms": "1000"}


def test_lane_that_times_out_while_it_is_written_says_how_long_it_may_take(
    node: NodeProcess, write: Callable[..., LaneWritten]
) -> None:
    """Its producer hears of a newer instance, which is no help to who has one query and no other."""

    def rows() -> Iterator[range]:
        yield range(50)
        wait_for_time_out(node)
        yield range(50, 100)

    with pytest.raises(SinkError, match=TOLD):
        write(rows(), **TIMING_OUT)
    commit(node, write([range(100)], attempt=1))
    assert numbers(node.address, least=100) == list(range(100))


def test_lane_that_times_out_before_it_is_committed_says_how_long_it_may_take(
    node: NodeProcess, write: Callable[..., LaneWritten]
) -> None:
    """The node has let go of it, and would not know it from one that never was."""
    lane = write([range(100)], **TIMING_OUT)
    wait_for_time_out(node)
    with pytest.raises(SinkError, match=TOLD):
        commit(node, lane)
    commit(node, write([range(100)], attempt=1))
    assert numbers(node.address, least=100) == list(range(100))


def test_lane_that_told_a_wrong_count_is_refused(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    """A record that was lost or doubled on its way would be noticed here."""
    lane = write([range(100)])
    with pytest.raises(SinkError, match="wrong-count"):
        commit(node, replace(lane, records=101))
    assert not numbers(node.address)


def test_another_query_is_refused_with_both_names(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    commit(node, write([range(100)]))
    with pytest.raises(SinkError, match=r"'totals'.*'query'.*'other'.*fairlog sink forget.*transactionalId"):
        write([range(100)], batch=replace(BATCH, query="other"))


def test_node_that_was_restarted_refuses_the_lanes_of_before(
    node: NodeProcess, write: Callable[..., LaneWritten]
) -> None:
    lane = write([range(100)])
    node.kill()
    node.start()
    with pytest.raises(SinkError, match="unknown-lane"):
        commit(node, lane)
    commit(node, write([range(100)], attempt=1))
    assert numbers(node.address, least=100) == list(range(100))


def test_fence_survives_a_kill_of_the_node(node: NodeProcess, write: Callable[..., LaneWritten]) -> None:
    lane = write([range(100)])
    commit(node, lane)
    node.kill()
    node.start()
    commit(node, lane)
    assert write([range(100)], attempt=1).records == 0
    assert numbers(node.address, least=100) == list(range(100))


def test_flush_ends_at_the_first_record_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it are kept back by librdkafka until they time out, which is minutes later."""

    class Refusing:
        """A producer whose second record is refused, and whose third one never leaves its queue."""

        def __init__(self, settings: dict[str, Any]) -> None:
            self._report, self._looks = settings["on_delivery"], 0

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *_, **__: None

        def flush(self, timeout: float = -1) -> int:
            assert 0 < timeout < 10, "it would come back too late, or never"
            self._looks += 1
            assert self._looks < 5, "it is waited for in vain"
            if self._looks == 2:
                self._report(KafkaError(KafkaError.INVALID_TXN_STATE), None)
            return 1

    monkeypatch.setattr(writing, "Producer", Refusing)
    lane = writing._Lane("id", SinkOptions("nowhere"), TOPIC)
    with pytest.raises(writing._Undelivered, match="was not delivered"):
        lane.flush()


@pytest.mark.parametrize("serve", [lambda lane: lane.flush(), lambda lane: lane.write([])], ids=["flush", "poll"])
def test_fatal_error_amid_reports_is_what_the_task_fails_with(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[[Any], None]
) -> None:
    """The client sets it and reports on another record, and Python says that the report's callback was at fault."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True))

    class Fenced:
        def __init__(self, settings: object) -> None:
            pass

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *_, **__: None

        def flush(self, timeout: float) -> int:
            raise SystemError("<method 'append' of 'list' objects> returned a result with an exception set") from fenced

        poll = flush

    monkeypatch.setattr(writing, "Producer", Fenced)
    with pytest.raises(KafkaException, match="fenced by a newer instance"):
        serve(writing._Lane("id", SinkOptions("nowhere"), TOPIC))


def test_queue_that_is_full_is_waited_for(node: NodeProcess) -> None:
    """Of a producer whose queue takes ten records, all arrive."""
    options = SinkOptions(node.address, producer={"queue.buffering.max.messages": "10"})
    with Native.connect(node.address) as native:
        name = native.join(sink="totals", query="query", run="run", batch=0, partition=0, attempt=0)
        assert name is not None
        lane = writing._Lane(name, options, TOPIC)
        lane.write((TOPIC, b"%d" % each, None, -1) for each in range(1000))
        lane.flush()
        native.commit(sink="totals", query="query", run="run", batch=0, winners=[(0, 0, 1000)])
    assert numbers(node.address, least=1000) == list(range(1000))
