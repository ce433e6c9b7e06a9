"""A task's reading, without Spark: ranges of a real node's partitions become Arrow batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_fairlog import reading
from pyspark_fairlog.losses import DataLost
from pyspark_fairlog.native import CutPartition, NativeError
from pyspark_fairlog.options import OptionRefused, Partition, ReadOptions, read_options
from pyspark_fairlog.planning import Range
from pyspark_fairlog.reading import read_range
from pyspark_fairlog.schema import DDL, arrow_schema
from scripts.node_process import NodeProcess
from tests.clients.raw_client import RawClient, batch_with_header
from tests.spark import topics

ALL = tuple(DDL)


def options(address: str, **more: str) -> ReadOptions:
    told = {name.replace("__", "."): value for name, value in more.items()}
    return read_options({"kafka.bootstrap.servers": address, "subscribe": "unused"} | told)


def part(topic: str, start: int, end: int, partition: int = 0) -> Range:
    return Range(Partition(topic, partition), start, end)


def rows(batches: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(told: ReadOptions, whole: Range) -> list[int]:
    return [row["offset"] for row in rows(read_range(told, ["offset"], whole))]


def test_records_come_with_all_their_columns(node: NodeProcess) -> None:
    """Nulls, empty bytes, headers (also repeated ones, and null) and the producer's timestamps."""
    name = topics.make(node.address, "columns", 2)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    topics.produce(node.address, name, [b"v"], partition=1, key=b"k", headers=headers, timestamp=1_700_000_000_123)
    topics.produce(node.address, name, [None, b""], partition=1, timestamp=5)
    batches = list(read_range(options(node.address), ALL, part(name, 0, 3, 1)))
    assert all(batch.schema.equals(arrow_schema(ALL)) for batch in batches)
    first, second, third = (row for batch in batches for row in batch.to_pylist())
    assert first["headers"] == [{"key": key, "value": value} for key, value in headers]
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", b"v", name, 1)
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert first["timestampType"] == 0
    assert (second["key"], second["value"], second["headers"], second["offset"]) == (None, None, None, 1)
    assert (third["value"], third["offset"], third["timestamp"].timestamp()) == (b"", 2, 0.005)


def test_timestamps_of_the_node_are_told_apart(node: NodeProcess) -> None:
    """`message.timestamp.type=LogAppendTime` is type 1, as in Kafka."""
    name = topics.make(node.address, "stamped", message__timestamp__type="LogAppendTime")
    topics.produce(node.address, name, [b"v"], timestamp=5)
    (row,) = rows(read_range(options(node.address), ALL, part(name, 0, 1)))
    assert row["timestampType"] == 1
    assert row["timestamp"].timestamp() > 1_700_000_000


def test_time_that_spark_does_not_have_is_null() -> None:
    """Nanoseconds that a producer has given for milliseconds must not end every query of the topic, for good."""
    written = reading.Rows([])
    written.stamps = [(1, 5), (1, 1_700_000_000_123_456_789), (1, -(1 << 63)), (1, reading.MILLISECONDS_MAX)]
    found = written.timestamps()
    assert found.type == pa.timestamp("us", tz="UTC")
    assert found.cast(pa.int64()).to_pylist() == [5_000, None, None, reading.MILLISECONDS_MAX * 1000]


def test_headers_that_the_client_cannot_read_are_null_and_told(
    node: NodeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that is no UTF-8 must not end every query of the topic; the records beside it have theirs."""
    name = topics.make(node.address, "no-utf-8")
    with RawClient(node.address) as client:
        for offset, header in enumerate((b"name", b"na\xffe", b"name")):
            assert client.produce(name, 0, batch_with_header(b"v", header)) == (0, offset)
    found = rows(read_range(options(node.address), ["headers", "value"], part(name, 0, 3)))
    read = [{"key": "name", "value": b"1"}]
    assert found == [{"headers": each, "value": b"v"} for each in (read, None, read)]
    (told,) = caplog.messages
    assert "offset 1 of no-utf-8-0" in told


def test_range_is_read_exactly(node: NodeProcess) -> None:
    """From its start up to its end, wherever batches begin and end on the node, in more than one Arrow batch."""
    name = topics.make(node.address, "ranges")
    count = 3 * reading.ROWS_MAX
    topics.produce(node.address, name, [b"%d" % at for at in range(count)])
    told = options(node.address)
    for start, end in ((0, count), (1, 2), (17, count - 17), (count - 1, count)):
        assert offsets(told, part(name, start, end)) == list(range(start, end))
    batches = list(read_range(told, ["value"], part(name, 0, count)))
    assert max(batch.num_rows for batch in batches) <= reading.ROWS_MAX
    assert rows(iter(batches)) == [{"value": b"%d" % at} for at in range(count)]


def test_range_with_gaps_ends_at_its_end(node: NodeProcess) -> None:
    """In marker mode there are markers and aborted records between; also at the very end, and beyond it."""
    name = topics.make(node.address, "gaps", **topics.MARKERS)
    producer = topics.transactional(node.address)
    topics.transact(producer, {name: [b"a", b"b"]})  # 0, 1, and the marker 2
    topics.transact(producer, {name: [b"x"]}, commit=False)  # 3, 4
    topics.transact(producer, {name: [b"c"]})  # 5, 6
    told = options(node.address)
    until = time.monotonic() + reading.WAIT_S
    assert offsets(told, part(name, 0, 7)) == [0, 1, 5]
    assert time.monotonic() < until, "the end of the partition was waited for in vain"
    assert offsets(told, part(name, 2, 7)) == [5]
    assert offsets(told, part(name, 0, 3)) == [0, 1]
    assert offsets(told, part(name, 2, 5)) == []
    assert offsets(told, part(name, 6, 7)) == []


def test_generator_that_is_left_closes_its_consumer(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query with a LIMIT takes a batch and goes."""
    name = topics.make(node.address, "left")
    topics.produce(node.address, name, [b"v"] * 10)
    closed: list[bool] = []

    class Watched(reading.Consumer):
        def close(self) -> None:
            closed.append(True)
            super().close()

    monkeypatch.setattr(reading, "Consumer", Watched)
    batches = read_range(options(node.address), ["value"], part(name, 0, 10))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_setting_that_librdkafka_does_not_have_is_refused(node: NodeProcess) -> None:
    """librdkafka names it."""
    with pytest.raises(OptionRefused, match=r"no\.such\.setting"):
        list(read_range(options(node.address, kafka__no__such__setting="1"), ALL, part("t", 0, 1)))


def test_records_that_do_not_come_end_in_a_sentence(node: NodeProcess) -> None:
    """It names the partition, the node, the offset and the option."""
    name = topics.make(node.address, "silent")
    topics.produce(node.address, name, [b"v"] * 3)
    told = options(node.address, kafkaConsumer__pollTimeoutMs="300")
    with pytest.raises(TimeoutError, match=rf"no record of {name}-0 .* at offset 3 of 1 to 9.*pollTimeoutMs"):
        list(read_range(told, ["value"], part(name, 1, 9)))


class Told:
    """What the node says about a partition when it is asked, in place of the native protocol."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: CutPartition | NativeError | None = None
        monkeypatch.setattr(reading, "_ask", self._ask)

    def _ask(self, *_: object) -> CutPartition:
        if isinstance(self.answer, NativeError):
            raise self.answer
        assert self.answer is not None, "the node was asked"
        return self.answer


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_records_deleted_before_they_are_read_fail_the_task_or_are_skipped(
    node: NodeProcess, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention overtook the query between plan and task."""
    name = topics.make(node.address, "overtaken")
    for at in range(10):  # batches of one record, of which five can go
        topics.produce(node.address, name, [b"%d" % at])
    topics.delete_records(node.address, name, {0: 5})
    told.answer = CutPartition(name, 0, 5, 10, 10)
    with pytest.raises(DataLost, match=f"the records 2 to 4 of {name}-0 were deleted"):
        offsets(options(node.address), part(name, 2, 8))
    lenient = options(node.address, failOnDataLoss="false")
    assert offsets(lenient, part(name, 2, 8)) == [5, 6, 7]
    assert offsets(lenient, part(name, 2, 4)) == []
    assert "the records 2 to 4" in caplog.text


@pytest.mark.usefixtures("told")
def test_time_in_which_rows_are_worked_on_is_not_counted_as_silence(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow query is no silent node: nobody is asked whether the records are there, and the task goes on."""
    now_s = 0.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(reading, "ROWS_MAX", 10)
    name = topics.make(node.address, "slow")
    topics.produce(node.address, name, [b"v"] * 30)
    found: list[int] = []
    for batch in read_range(options(node.address), ["offset"], part(name, 0, 30)):
        found += batch.column(0).to_pylist()
        now_s += 1000
    assert found == list(range(30))


def test_topic_deleted_before_it_is_read_fails_the_task_or_is_left_out(
    node: NodeProcess, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node says that it is gone; a client alone cannot know."""
    monkeypatch.setattr(reading, "QUIET_S", 0)
    told.answer = NativeError("unknown-topic", "there is no topic 'gone'")
    with pytest.raises(DataLost, match="gone-0 was deleted while it was read, at 2"):
        offsets(options(node.address), part("gone", 2, 8))
    assert offsets(options(node.address, failOnDataLoss="false"), part("gone", 2, 8)) == []


@pytest.mark.parametrize("kind", ["not-copied", "not-coordinator"])
def test_shard_without_an_owner_is_waited_for(
    node: NodeProcess, told: Told, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As a node that is away: it says nothing of the records."""
    monkeypatch.setattr(reading, "QUIET_S", 0)
    told.answer = NativeError(kind, "a shard has no owner at the moment: ask again")
    name = topics.make(node.address, f"between-{kind}")
    silent = options(node.address, kafkaConsumer__pollTimeoutMs="500")
    with pytest.raises(TimeoutError, match=f"no record of {name}-0 came"):
        offsets(silent, part(name, 0, 1))


def test_topic_made_anew_before_it_is_read_fails_the_task_or_is_left_out(node: NodeProcess, told: Told) -> None:
    """It ends below the range."""
    name = topics.make(node.address, "anew")
    told.answer = CutPartition(name, 0, 0, 0, 0)
    with pytest.raises(DataLost, match="made anew while it was read: it ends at 0, below 8"):
        offsets(options(node.address), part(name, 2, 8))
    assert offsets(options(node.address, failOnDataLoss="false"), part(name, 2, 8)) == []


def test_node_that_is_restarted_while_it_is_read_is_waited_for(fresh_node: Callable[..., NodeProcess]) -> None:
    """The task goes on where it was: no record is missed or read twice."""
    node = fresh_node()
    name = topics.make(node.address, "restarted")
    count = 40_000
    topics.produce(node.address, name, [b"x" * 1000] * count)
    small = options(
        node.address, **{"kafka__queued.max.messages.kbytes": "1024", "kafka__fetch.message.max.bytes": "65536"}
    )
    batches = read_range(small, ["offset"], part(name, 0, count))
    found = [row["offset"] for row in next(batches).to_pylist()]
    node.kill()
    starting = threading.Thread(target=node.start)
    starting.start()
    found += [row["offset"] for row in rows(batches)]
    starting.join()
    assert found == list(range(count))


def test_schema_of_a_batch_has_the_columns_asked_for(node: NodeProcess) -> None:
    """A query that names fewer columns gets no others, in its order."""
    assert arrow_schema(["offset", "key"]).names == ["offset", "key"]
    assert arrow_schema(["timestamp"]).field(0).type == pa.timestamp("us", tz="UTC")
