"""The driver's side of the sink: what a commit names, what an abort does, and what a refusal says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_fairlog import sink
from pyspark_fairlog.native import Committed, Native, NativeError, Offsets
from pyspark_fairlog.persistence import WORK_S
from pyspark_fairlog.sink import BatchWriter, StreamWriter
from pyspark_fairlog.writing import BatchIdentity, LaneWritten, SinkError

OPTIONS = {"kafka.bootstrap.servers": "here:1", "topic": "t"}
VALUES = StructType([StructField("value", StringType())])
BATCH = BatchIdentity("totals", "query", "run", 7)
LANES = [LaneWritten(BATCH, 0, 11, 5), LaneWritten(BATCH, 1, 12, 0), LaneWritten(BATCH, 2, 17, 3)]


class RecordingNode:
    """Notes what it is asked; refuses the operations that it was told to refuse."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuse: dict[str, Exception] = {}
        self.there = {"orders": 1}
        self.work_s: list[float] = []
        """How long each question was to be asked of a node that is at work on it."""

    def __enter__(self) -> RecordingNode:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def _note(self, operation: str, told: dict[str, Any]) -> None:
        self.asked.append((operation, told))
        if operation in self.refuse:
            raise self.refuse[operation]

    def topics(self) -> dict[str, int]:
        self.asked.append(("topics", {}))
        return self.there

    def commit(self, **told: Any) -> Committed:
        self._note("commit", told)
        offsets: Offsets | None = told["offsets"]
        for topic, partition, _ in offsets.partitions if offsets is not None else ():
            if partition >= self.there.get(topic, 0):
                raise NativeError("unknown-topic", f"there is no topic {topic!r}")
        return Committed(already=False, placements=())

    def abort(self, **told: Any) -> None:
        self._note("abort", told)

    def forget(self, name: str) -> None:
        self._note("forget", {"sink": name})


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> RecordingNode:
    recording = RecordingNode()

    def ask_once(ask: Callable[[Native], object], *_: object, work_s: float = 0.0, **__: object) -> object:
        recording.work_s.append(work_s)
        return ask(cast("Native", recording))

    monkeypatch.setattr(sink, "persistently", ask_once)
    monkeypatch.setattr(Native, "connect", lambda *_, **__: recording)
    return recording


def stream_writer(**options: str) -> StreamWriter:
    return StreamWriter(OPTIONS | options, VALUES, False)


def batch_lanes(writer: BatchWriter, records: int) -> list[LaneWritten]:
    assert writer._identity is not None
    return [LaneWritten(writer._identity, 0, 1, records)]


def test_commit_names_the_lanes_that_have_rows(node: RecordingNode) -> None:
    """A task without rows has joined nothing."""
    stream_writer().commit(LANES, 7)
    assert node.asked == [
        (
            "commit",
            {
                "sink": "totals",
                "query": "query",
                "run": "run",
                "batch": 7,
                "winners": [(0, 11, 5), (2, 17, 3)],
                "offsets": None,
                "planned_ms": None,
            },
        )
    ]


def test_commit_is_waited_for_while_the_node_copies_the_batch_and_nothing_else_is(node: RecordingNode) -> None:
    """The answer comes when the rows can be read."""
    writer = BatchWriter(OPTIONS, VALUES, False)
    writer.commit(batch_lanes(writer, 5))
    assert [operation for operation, _ in node.asked] == ["commit", "forget"]
    assert node.work_s == [WORK_S, 0.0]


def test_commit_of_a_batch_without_rows_still_moves_the_fence(node: RecordingNode) -> None:
    """So that a deleted checkpoint is noticed, and the group's offsets go on."""
    stream_writer().commit([LANES[1]], 7)
    assert [(operation, told["winners"]) for operation, told in node.asked] == [("commit", [])]


def test_abort_without_any_message_asks_for_nothing(node: RecordingNode) -> None:
    """Of tasks that have failed Spark says nothing, not even which query it is."""
    stream_writer().abort([None], 7)
    assert not node.asked


@pytest.mark.parametrize(
    ("messages", "silent"), [([], 0), ([None], 1), ([None, None], 2), ([LANES[0], None, LANES[2]], 1)]
)
def test_commit_with_a_task_that_has_not_even_an_empty_lane_is_refused(
    node: RecordingNode, messages: list[LaneWritten | None], silent: int
) -> None:
    """Spark has not called `write`, so its rows are nowhere."""
    said = rf"batch 7 has nothing of {silent} of its {len(messages)} tasks: .*continuous trigger"
    with pytest.raises(SinkError, match=rf"{said}.* first delete .*`offsets`"):
        stream_writer().commit(messages, 7)
    assert not node.asked


def test_commit_takes_the_planned_offsets_along(node: RecordingNode, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"query"}')
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"orders":{"0":42}}')
    stream_writer(commitGroup="readers", checkpointLocation=str(tmp_path)).commit(LANES, 7)
    assert node.asked[0][1]["offsets"] == Offsets("readers", (("orders", 0, 42),))


def test_batch_write_that_is_a_micro_batch_takes_the_planned_offsets_along(node: RecordingNode, tmp_path: Path) -> None:
    """Inside of foreachBatch Spark has noted them, too."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"query"}')
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"orders":{"0":42}}')
    given = {"transactionalId": "totals", "batchId": "7", "commitGroup": "g", "checkpointLocation": str(tmp_path)}
    BatchWriter(OPTIONS | given, VALUES, False).commit(LANES)
    assert node.asked[0][1]["offsets"] == Offsets("g", (("orders", 0, 42),))


def test_offsets_in_topics_that_were_deleted_are_left_out_of_the_commit(node: RecordingNode, tmp_path: Path) -> None:
    """The plan of a batch is the same in each replay: a refusal would be for ever."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"query"}')
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"gone":{"0":4},"orders":{"0":42,"1":3}}')
    writer = stream_writer(commitGroup="readers", checkpointLocation=str(tmp_path))
    writer.commit(LANES, 7)
    assert [name for name, _ in node.asked] == ["commit", "topics", "commit"]
    assert node.asked[-1][1]["offsets"] == Offsets("readers", (("orders", 0, 42),))
    node.there = {}
    writer.commit(LANES, 7)
    assert node.asked[-1][1]["offsets"] is None
    assert node.asked[-1][1]["winners"] == [(0, 11, 5), (2, 17, 3)]


@pytest.mark.parametrize("options", [{}, {"commitGroup": "readers"}], ids=["alone", "with a group"])
def test_commit_tells_when_the_batch_was_planned(node: RecordingNode, tmp_path: Path, options: dict[str, str]) -> None:
    """So that one planned anew is not taken for a replay; with and without sources that read topics."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"query"}')
    (tmp_path / "offsets" / "7").write_text('v1\n{"batchTimestampMs":1763632800000}\n{"orders":{"0":42}}')
    stream_writer(checkpointLocation=str(tmp_path), **options).commit(LANES, 7)
    assert node.asked[0][1]["planned_ms"] == 1_763_632_800_000


@pytest.mark.parametrize("checkpoint", ["{}", "hdfs://nowhere/c"], ids=["not there", "of another file system"])
def test_commit_does_without_a_plan_that_is_not_known(node: RecordingNode, tmp_path: Path, checkpoint: str) -> None:
    """Nothing else needs the checkpoint; and one that is far away would be waited for in each commit."""
    stream_writer(checkpointLocation=checkpoint.format(tmp_path / "none")).commit(LANES, 7)
    assert node.asked[0][1]["planned_ms"] is None


def test_commit_of_a_batch_that_was_planned_anew_says_what_to_do(node: RecordingNode) -> None:
    node.refuse["commit"] = NativeError("set-back", "the checkpoint is an older copy")
    with pytest.raises(SinkError, match=r"batch 7.*is not committed: .*an older copy.*set-back.*newest checkpoint"):
        stream_writer().commit(LANES, 7)


def test_commit_whose_offsets_are_not_known_is_refused(node: RecordingNode, tmp_path: Path) -> None:
    """Rather than published without them: the next batch would not make good for it."""
    with pytest.raises(SinkError, match=r"batch 7 of the sink 'totals'.*'readers'.*metadata"):
        stream_writer(commitGroup="readers", checkpointLocation=str(tmp_path)).commit(LANES, 7)
    assert not node.asked


def test_commit_that_is_refused_says_the_nodes_sentence(node: RecordingNode) -> None:
    node.refuse["commit"] = NativeError("another-query", "the sink belongs to another query")
    with pytest.raises(
        SinkError, match=r"batch 7 of the sink 'totals' is not committed: the sink belongs.*another-query"
    ):
        stream_writer().commit(LANES, 7)


@pytest.mark.parametrize("kind", ["lane-aborted", "unknown-lane"])
def test_commit_of_a_lane_that_is_gone_says_how_long_a_batch_may_take(node: RecordingNode, kind: str) -> None:
    """A batch that takes longer than that would time out in each replay, for ever."""
    node.refuse["commit"] = NativeError(kind, "it was aborted, or has timed out")
    with pytest.raises(SinkError, match=r"kafka\.transaction\.timeout\.ms.*transactions\.max_timeout_ms"):
        stream_writer().commit(LANES, 7)


@pytest.mark.parametrize("error", [ConnectionError("gone"), NativeError("effect-unknown", "the disk refused")])
def test_commit_whose_effect_is_unknown_says_so_and_what_to_do(node: RecordingNode, error: Exception) -> None:
    node.refuse["commit"] = error
    with pytest.raises(SinkError, match=r"is not known.*start the query again"):
        stream_writer().commit(LANES, 7)


def test_batch_write_whose_effect_is_unknown_is_not_said_to_be_safe_to_repeat(node: RecordingNode) -> None:
    """It would be another sink, which knows nothing of the first one."""
    node.refuse["commit"] = ConnectionError("gone")
    writer = BatchWriter(OPTIONS, VALUES, False)
    with pytest.raises(SinkError, match=r"is not known.*look whether its rows are in the topic before"):
        writer.commit(batch_lanes(writer, 5))


@pytest.mark.parametrize("error", [None, ConnectionError("gone"), NativeError("committed", "it is committed")])
def test_abort_is_advice_and_raises_nothing(node: RecordingNode, error: Exception | None) -> None:
    if error is not None:
        node.refuse["abort"] = error
    stream_writer().abort([None, LANES[0]], 7)
    assert node.asked == [("abort", {"sink": "totals", "query": "query", "run": "run", "batch": 7})]


def test_batch_write_is_a_sink_of_its_own_that_is_forgotten(node: RecordingNode) -> None:
    writer = BatchWriter(OPTIONS | {"transactionalId": "load"}, VALUES, False)
    sent = pickle.loads(pickle.dumps(writer))  # to the tasks and to the commit, which see the same sink
    sent.commit(batch_lanes(writer, 5))
    assert [operation for operation, _ in node.asked] == ["commit", "forget"]
    told = node.asked[0][1]
    assert told["sink"].startswith("load-")
    assert told["batch"] == 0
    assert node.asked[1][1] == {"sink": told["sink"]}
    unnamed = BatchWriter(OPTIONS, VALUES, False)._identity
    assert unnamed is not None
    assert unnamed.sink.startswith("spark-")


def test_batch_write_without_rows_asks_for_nothing(node: RecordingNode) -> None:
    writer = BatchWriter(OPTIONS, VALUES, False)
    writer.commit(batch_lanes(writer, 0))
    assert not node.asked


def test_batch_write_that_cannot_be_forgotten_is_committed_all_the_same(node: RecordingNode) -> None:
    node.refuse["forget"] = ConnectionError("gone")
    writer = BatchWriter(OPTIONS, VALUES, False)
    writer.commit(batch_lanes(writer, 5))


def test_batch_write_that_fails_is_aborted_and_forgotten(node: RecordingNode) -> None:
    node.refuse = {"forget": NativeError("unknown-sink", "")}  # no task has joined
    BatchWriter(OPTIONS, VALUES, False).abort([None])
    assert [operation for operation, _ in node.asked] == ["abort", "forget"]


def test_batch_write_inside_of_foreach_batch_is_one_of_the_stream(node: RecordingNode) -> None:
    """Its sink is kept, for the replay."""
    writer = BatchWriter(OPTIONS | {"transactionalId": "totals", "batchId": "7"}, VALUES, False)
    writer.commit(LANES)
    writer.abort(LANES)
    assert [(operation, told["sink"], told["batch"]) for operation, told in node.asked] == [
        ("commit", "totals", 7),
        ("abort", "totals", 7),
    ]


def test_batch_write_that_would_overwrite_is_refused() -> None:
    with pytest.raises(SinkError, match="append"):
        BatchWriter(OPTIONS, VALUES, True)
