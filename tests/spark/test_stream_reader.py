"""The driver's side of a stream against a node that a test makes up: which cuts it asks for, and where it ends."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pyspark_fairlog import source
from pyspark_fairlog.losses import DataLost
from pyspark_fairlog.native import CutPartition, Native, NativeError, Partitions, Selection, TopicPattern, Topics
from pyspark_fairlog.options import read_options
from pyspark_fairlog.positions import Stored
from pyspark_fairlog.schema import SchemaRefused
from pyspark_fairlog.source import BatchReader, StreamReader, Task

SCHEMA = StructType([StructField("value", BinaryType())])


class FakeNode:
    """A node's answers: its history of cuts, of which the last is what can be read now.

    It stands for the node's promise that a limited cut is the latest one of the history with no more records than
    asked, or the first beyond the starts.
    """

    def __init__(self) -> None:
        self.history: list[dict[tuple[str, int], int]] = [{}]
        self.firsts: dict[tuple[str, int], int] = {}
        self.asked: list[str] = []
        self.ids: dict[str, str] = {}
        """Of topics; of one that has none here, the node does not say it."""
        self.before_limited: Callable[[], None] = lambda: None
        """What happens between two cuts."""
        self.down = 0
        """So many questions from now on find a broken connection."""

    def write(self, **records: int) -> None:
        """One transaction: `a0=3` is three records to partition 0 of `a`; 0 makes the partition."""
        cut = dict(self.history[-1])
        for name, count in records.items():
            at = (name[0], int(name[1:]))
            cut[at] = cut.get(at, 0) + count
        self.history.append(cut)

    def delete(self, topic: str) -> None:
        self.history = [{at: end for at, end in cut.items() if at[0] != topic} for cut in self.history]

    def connect(self, bootstrap: str, **_: object) -> Native:
        self.asked.append("connect")
        return cast(Native, self)

    def close(self) -> None: ...

    def topics(self) -> dict[str, int]:
        self.asked.append("topics")
        names = {topic for topic, _ in self.history[-1]}
        return {name: 1 + max(number for topic, number in self.history[-1] if topic == name) for name in names}

    def cut(
        self, selection: Selection, *, starts: Iterable[tuple[str, int, int]] | None = None, limit: int | None = None
    ) -> list[CutPartition]:
        self.asked.append("cut" if limit is None else f"cut {limit}")
        if limit is not None:
            self.before_limited()
        if self.down:
            self.down -= 1
            raise ConnectionError("the node has closed the connection")
        now = self.history[-1]
        match selection:
            case Topics(names):
                if missing := set(names) - {topic for topic, _ in now}:
                    raise NativeError("unknown-topic", f"there is no topic {missing.pop()!r}")
                chosen = [at for at in now if at[0] in names]
            case TopicPattern():
                chosen = list(now)
            case Partitions(partitions):
                if missing := {(topic, number) for topic, number in partitions} - now.keys():
                    raise NativeError("unknown-partition", f"there is no partition {missing.pop()!r}")
                chosen = list(partitions)
        begin = {(topic, number): offset for topic, number, offset in starts or ()}
        end = now if limit is None else self._limited(begin, limit)
        return [
            CutPartition(*at, self.firsts.get(at, 0), end[at], now[at], self.ids.get(at[0])) for at in sorted(chosen)
        ]

    def _limited(self, begin: Mapping[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
        best = None
        for cut in self.history:
            beyond = sum(max(0, cut.get(at, 0) - offset) for at, offset in begin.items())
            if beyond and (beyond <= limit or best is None):
                best = cut
        assert best is not None
        return {at: best.get(at, 0) for at in self.history[-1]}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    made = FakeNode()
    monkeypatch.setattr(source.Native, "connect", made.connect)
    monkeypatch.setattr(source, "RECONNECT_S", 0)
    return made


def stream(**options: str) -> StreamReader:
    selection = {} if "assign" in options or "subscribePattern" in options else {"subscribe": "a,b"}
    return StreamReader(read_options({"kafka.bootstrap.servers": "x"} | selection | options), SCHEMA)


def tasks(reader: StreamReader, start: Stored, end: Stored) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for task in reader.partitions(start, end):
        assert isinstance(task, Task)
        part = pickle.loads(pickle.dumps(task)).value
        found.append((str(part.partition), part.start, part.end))
    return found


def test_stream_from_the_latest_sees_only_what_comes_later(node: FakeNode) -> None:
    """The default of new streams."""
    node.write(a0=5, b0=2)
    reader = stream()
    start = reader.initialOffset()
    assert start == {"a": {"0": 5}, "b": {"0": 2}}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    node.write(a0=1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert tasks(reader, start, end) == [("a-0", 5, 6)]
    assert reader.reportLatestOffset() == end


@pytest.mark.parametrize("starting", ["latest", '{"a": {"0": 2}, "b": {"0": -1}}'])
def test_first_micro_batch_from_the_latest_is_empty_however_often_it_is_planned(node: FakeNode, starting: str) -> None:
    """Spark asks anew where a query begins when it plans the batch, when it runs it, and when it replays it."""
    node.write(a0=5, b0=2)
    first = stream(startingOffsets=starting)
    start = first.initialOffset()
    node.write(a0=1, b0=1)
    assert first.initialOffset() == start
    end = first.latestOffset(start, ReadAllAvailable())
    assert end == start
    assert tasks(first, first.initialOffset(), end) == []

    node.write(a0=1, b0=1)
    second = stream(startingOffsets=starting)
    assert tasks(second, second.initialOffset(), end) == []
    after = second.latestOffset(end, ReadAllAvailable())
    assert tasks(second, end, after) == [("a-0", start["a"]["0"], 7), ("b-0", 2, 4)]


def test_second_micro_batch_is_read_though_it_begins_where_the_replayed_first_one_does(node: FakeNode) -> None:
    """Nothing came between the crash and the restart, so the two starts look alike."""
    node.write(a0=5, b0=2)
    end = stream().initialOffset()
    again = stream()
    assert tasks(again, again.initialOffset(), end) == []
    node.write(a0=1)
    after = again.latestOffset(end, ReadAllAvailable())
    assert tasks(again, end, after) == [("a-0", 5, 6)]


def test_stream_with_a_limit_ends_each_micro_batch_at_a_cut(node: FakeNode) -> None:
    """A limit that falls into a transaction is rounded down to the cut before it, or up to the first."""
    for _ in range(4):
        node.write(a0=3, b0=2)
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="12")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(12)
    at, ends = reader.initialOffset(), []
    while (end := reader.latestOffset(at, limit)) != at:
        at = end
        ends.append(at)
    assert ends == [{"a": {"0": 6}, "b": {"0": 4}}, {"a": {"0": 12}, "b": {"0": 8}}]
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(1)) == {"a": {"0": 3}, "b": {"0": 2}}


def test_stream_told_to_read_all_ignores_the_limit(node: FakeNode) -> None:
    """Spark says so for `Trigger.Once`."""
    node.write(a0=30, b0=1)
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="12")
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"a": {"0": 30}, "b": {"0": 1}}
    assert "cut 12" not in node.asked


def test_available_now_ends_at_the_cut_taken_at_its_beginning(node: FakeNode) -> None:
    """Records, partitions and topics that come later are for the next run; a limit works within the target."""
    for _ in range(3):
        node.write(a0=2, b0=2)
    reader = stream(subscribePattern=".*", startingOffsets="earliest")
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    node.write(a0=2, b0=2, a1=4, c0=1)
    seen = []
    while (end := reader.latestOffset(at, ReadMaxRows(5))) != at:
        seen.append(end)
        at = end
    assert seen == [{"a": {"0": n}, "b": {"0": n}} for n in (2, 4, 6)]


def test_topic_that_comes_while_a_pattern_is_read_begins_at_its_first_record(node: FakeNode) -> None:
    """Also when the query began at the latest; nothing is missed."""
    node.write(a0=5)
    reader = stream(subscribePattern=".*")
    start = reader.initialOffset()
    node.write(c0=2, a1=1)
    assert reader.latestOffset(start, ReadAllAvailable()) == start, "the first micro-batch is empty"
    end = reader.latestOffset(start, ReadAllAvailable())
    assert tasks(reader, start, end) == [("a-1", 0, 1), ("c-0", 0, 2)]


def test_topic_deleted_under_a_stream_fails_it_or_is_left_out(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """`failOnDataLoss` says which; the sentence names the partition."""
    node.write(a0=5, b0=5)
    start = stream(startingOffsets="earliest").initialOffset()
    node.delete("b")
    with pytest.raises(DataLost, match="b-0 is not there any more"):
        stream().latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match="b-0 is not there any more"):
        stream().partitions(start, {"a": {"0": 5}, "b": {"0": 5}})
    lenient = stream(failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end == {"a": {"0": 5}}
    for planned in (end, {"a": {"0": 5}, "b": {"0": 5}}):
        caplog.clear()
        assert tasks(lenient, start, planned) == [("a-0", 0, 5)]
        assert "b-0 is not there any more" in caplog.text


def test_topic_made_anew_that_has_outgrown_the_query_is_noticed(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Its id is in the checkpoint. Whatever `failOnDataLoss` says, its records are not read as the other one's."""
    node.ids = {"a": "a1", "b": "b1"}
    node.write(a0=5, b0=5)
    at = stream(startingOffsets="earliest").initialOffset()
    at = stream().latestOffset(at, ReadAllAvailable())
    assert at == {"#version": 2, "#topicIds": {"a": "a1", "b": "b1"}, "a": {"0": 5}, "b": {"0": 5}}
    node.ids["b"] = "b2"
    node.write(b0=3)
    with pytest.raises(
        DataLost, match="b-0 is another one than the query had read, up to 5: its topic was deleted and"
    ):
        stream().latestOffset(at, ReadAllAvailable())
    lenient = stream(failOnDataLoss="false")
    end = lenient.latestOffset(at, ReadAllAvailable())
    assert tasks(lenient, at, end) == [("b-0", 0, 8)]
    assert "b-0 is another one than the query had read, up to 5" in caplog.text
    caplog.clear()
    node.ids["b"] = "b3"
    assert tasks(lenient, at, end) == []
    assert "b-0 is another one than" in caplog.text


def test_checkpoint_without_ids_is_gone_on_with_and_gets_them(node: FakeNode) -> None:
    """Of an earlier release. An empty micro-batch may be what notes them."""
    node.ids = {"a": "a1", "b": "b1"}
    node.write(a0=5, b0=5)
    before = {"a": {"0": 5}, "b": {"0": 5}}
    after = stream().latestOffset(before, ReadAllAvailable())
    assert after == {"#version": 2, "#topicIds": {"a": "a1", "b": "b1"}, **before}
    assert tasks(stream(), before, after) == []
    assert stream().latestOffset(after, ReadAllAvailable()) == after
    node.ids = {}
    assert stream().latestOffset(after, ReadAllAvailable()) == before, "the node is older than the checkpoint"


def test_topic_made_anew_that_tells_no_id_and_is_shorter_is_read_with_a_warning(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.write(a0=5, b0=5)
    reader = stream(startingOffsets="earliest", failOnDataLoss="false")
    reader.initialOffset()
    at = {"a": {"0": 5}, "b": {"0": 5}}
    node.delete("b")
    node.write(b0=2)
    assert tasks(reader, at, reader.latestOffset(at, ReadAllAvailable())) == [("b-0", 0, 2)]
    assert "b-0 is another one than the query had read, up to 5" in caplog.text


def test_topic_made_anew_under_an_available_now_run_is_for_the_next_one(node: FakeNode) -> None:
    """The run's target was the other one's."""
    node.ids = {"a": "a1", "b": "b1"}
    node.write(a0=5, b0=5)
    reader = stream(startingOffsets="earliest", failOnDataLoss="false")
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    node.ids["b"] = "b2"
    assert reader.latestOffset(at, ReadAllAvailable()) == {
        "#version": 2, "#topicIds": {"a": "a1"}, "a": {"0": 5},
    }  # fmt: skip


@pytest.mark.parametrize("what", ["deleted", "made anew"])
def test_topic_that_goes_between_the_two_cuts_of_a_limited_batch_is_planned_anew(node: FakeNode, what: str) -> None:
    """Else the end of one topic would be taken for another's, or the query fail though it may go on."""
    node.ids = {"a": "a1", "b": "b1"}
    for _ in range(3):
        node.write(a0=2, b0=2)
    reader = stream(startingOffsets="earliest", failOnDataLoss="false")
    at = reader.initialOffset()

    def go() -> None:
        node.before_limited = lambda: None
        if what == "deleted":
            node.delete("b")
        else:
            node.ids["b"] = "b2"

    node.before_limited = go
    end = reader.latestOffset(at, ReadMaxRows(4))
    assert end["#topicIds"] == ({"a": "a1"} if what == "deleted" else {"a": "a1", "b": "b2"})
    assert end["a"] == {"0": 4 if what == "deleted" else 2}


def test_offsets_below_the_log_fail_a_stream_or_are_skipped(node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Retention was faster than the query."""
    node.write(a0=5, b0=5)
    start = stream(startingOffsets="earliest").initialOffset()
    node.firsts["a", 0] = 3
    with pytest.raises(DataLost, match="0 to 2 of a-0 are deleted"):
        stream().latestOffset(start, ReadAllAvailable())
    lenient = stream(failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert tasks(lenient, start, end) == [("a-0", 3, 5), ("b-0", 0, 5)]
    assert "0 to 2 of a-0 are deleted" in caplog.text


def test_topic_that_never_was_refuses_a_new_query(node: FakeNode) -> None:
    """It is a slip of the pen, whatever `failOnDataLoss` says."""
    node.write(a0=5)
    with pytest.raises(NativeError, match="there is no topic 'b'"):
        stream(failOnDataLoss="false").initialOffset()
    with pytest.raises(NativeError, match="there is no topic 'b'"):
        BatchReader(read_options({"kafka.bootstrap.servers": "x", "subscribe": "b"}), SCHEMA).partitions()


def test_node_that_is_away_for_a_while_is_waited_for(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of the node ends no query. One that takes connections and breaks them is left alone in between."""
    pauses: list[float] = []
    monkeypatch.setattr(source.time, "sleep", pauses.append)
    monkeypatch.setattr(source, "RECONNECT_S", 0.25)
    node.write(a0=5, b0=0)
    reader = stream(startingOffsets="earliest")
    start = reader.initialOffset()
    node.down = 3
    assert reader.latestOffset(start, ReadAllAvailable()) == {"a": {"0": 5}, "b": {"0": 0}}
    assert node.asked.count("connect") == 4
    assert pauses == [0.25] * 3


def test_node_that_stays_away_ends_the_query(node: FakeNode) -> None:
    """After the time that a consumer waits for records."""
    node.write(a0=5, b0=0)
    reader = stream(**{"kafkaConsumer.pollTimeoutMs": "1"})
    node.down = 10**9
    with pytest.raises(ConnectionError):
        reader.initialOffset()


def test_reader_can_be_sent_to_executors(node: FakeNode) -> None:
    """Spark pickles it with the function that reads."""
    reader = pickle.loads(pickle.dumps(stream()))
    assert isinstance(reader, StreamReader)


def test_batch_is_planned_at_one_cut(node: FakeNode) -> None:
    """Both ends by default, or what the options say; an empty range has no task."""
    node.write(a0=5, a1=5, b0=0)
    asked = {"kafka.bootstrap.servers": "x", "subscribe": "a,b"}
    found = [task.value for task in BatchReader(read_options(asked), SCHEMA).partitions()]
    assert [(str(part.partition), part.start, part.end) for part in found] == [("a-0", 0, 5), ("a-1", 0, 5)]
    bounds = {
        "startingOffsets": '{"a": {"0": 2, "1": 4}, "b": {"0": -2}}',
        "endingOffsets": '{"a": {"0": 4, "1": 3}, "b": {"0": -1}}',
    }
    found = [task.value for task in BatchReader(read_options(asked | bounds), SCHEMA).partitions()]
    assert [(str(part.partition), part.start, part.end) for part in found] == [("a-0", 2, 4)]


def test_schema_of_fewer_columns_is_taken_and_another_refused() -> None:
    """A query may ask for what it needs; a wrong name or type is named."""
    options = read_options({"kafka.bootstrap.servers": "x", "subscribe": "a"})
    StreamReader(options, StructType([StructField("offset", LongType()), StructField("key", BinaryType())]))
    with pytest.raises(SchemaRefused, match="'value' of a topic is binary, and the schema says string"):
        StreamReader(options, StructType([StructField("value", StringType())]))
    with pytest.raises(SchemaRefused, match="no column 'price'"):
        StreamReader(options, StructType([StructField("price", StringType())]))
    with pytest.raises(SchemaRefused, match="includeHeaders"):
        StreamReader(options, StructType([StructField("headers", StringType())]))
