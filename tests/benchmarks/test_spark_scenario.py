"""The Spark scenario's own decisions; its jobs are Spark's and the brokers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from benchmarks.client import ClientProcess
from benchmarks.marks import MARKS
from benchmarks.rows import Measured
from benchmarks.scenario import Bench, NotMeasured
from benchmarks.spark import (
    HUNG,
    LEFT_OUT,
    MICRO_BATCH,
    MICRO_BATCHES,
    SCENARIO,
    SINK,
    SOURCE,
    SOURCE_READS,
    Spark,
    formats,
    rows_read_share,
)
from benchmarks.spark_sinks import NOTHING, TIMED, times_ms
from peers import kafka_artifacts
from peers.interface import Peer


def peer_named(name: str, *, durable: bool = True) -> Peer:
    return cast("Peer", SimpleNamespace(name=name, durable=durable, cpu_s=lambda: 0.0, create_topics=lambda *_: None))


class FakeBench:
    """Hands out one client for everything, and has seen no peer before."""

    def __init__(self, client: object) -> None:
        self._client = client

    def client(self, *_: object, **__: object) -> ClientProcess:
        return cast("ClientProcess", self._client)

    def first_time(self, *_: object) -> bool:
        return True

    def amount(self, full: int) -> int:
        return full


class FakeJobs:
    """Everything takes two seconds or so many ms. So many rows are missing, or written twice."""

    def __init__(self, lost: int = 0, doubled: int = 0) -> None:
        self.lost, self.doubled = lost, doubled
        self.calls: list[tuple[str, Any]] = []

    def call(self, method: str, **arguments: Any) -> Any:
        self.calls.append((method, arguments.get("kind")))
        match method:
            case "write":
                return 2.0, arguments["rows"] + self.doubled - self.lost
            case "micro_batches":
                count = arguments["count"]
                return list(range(count)), [7.0] * count if arguments["kind"] == TIMED else []
            case "commits":
                return [(1.0, 3.0)] * arguments["count"]
            case _:
                return (2.0, 400_000 - self.lost)


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Measured]]:
    """One round of a case on a peer, with the connector's jars there."""
    found = kafka_artifacts.Artifacts("java", kafka_artifacts.POM.parent, "4.2.0")
    monkeypatch.setattr(kafka_artifacts, "obtain_connector", lambda: found)

    def measured(jobs: FakeJobs, name: str, *, peer: str = "journal") -> dict[str, Measured]:
        case = next(each for each in SCENARIO.cases(quick=False) if each.name == name)
        return dict(Spark().measure(cast("Bench", FakeBench(jobs)), peer_named(peer), case, 0))

    return measured


def test_formats_take_turns_on_the_journal_mode_and_the_connector_is_alone_elsewhere() -> None:
    """Who is first in one round is second in the next."""
    assert formats(peer_named("journal"), 0) == ["fairlog", "kafka"]
    assert formats(peer_named("journal"), 1) == ["kafka", "fairlog"]
    assert formats(peer_named("kafka"), 0) == formats(peer_named("markers"), 1) == ["kafka"]


def test_share_read_is_of_what_was_written_meanwhile() -> None:
    """What else the stream has read does not make it more than all."""
    assert rows_read_share(200, 50) == 25.0
    assert rows_read_share(200, 201) == 100.0
    with pytest.raises(ValueError, match="nothing was written"):
        rows_read_share(0, 0)


@pytest.mark.parametrize(
    ("name", "durable", "case"), [("mock", False, SOURCE), ("kafka-fsync", True, HUNG), ("markers", True, SOURCE)]
)
def test_peer_that_says_nothing_new_is_not_measured(name: str, durable: bool, case: str) -> None:
    """The report names it, with the reason."""
    chosen = next(each for each in SCENARIO.cases(quick=True) if each.name == case)
    with pytest.raises(NotMeasured):
        SCENARIO.measure(cast("Bench", FakeBench(FakeJobs())), peer_named(name, durable=durable), chosen, 0)


def test_source_reads_the_formats_in_turns_after_a_first_time(measure: Callable[..., dict[str, Measured]]) -> None:
    """A rate for each, and one for the connector without isolation; no figure of a read that has lost rows."""
    jobs = FakeJobs()
    measured = measure(jobs, SOURCE)
    assert {name: each.value for name, each in measured.items() if each.unit == "rows/s"} == {
        'rate, format("fairlog")': 200_000.0,
        'rate, format("kafka")': 200_000.0,
        'rate, format("kafka"), read_uncommitted': 200_000.0,
    }
    assert [call for call in jobs.calls if call[0] == "read"] == [
        ("read", kind) for kind in (*("fairlog", "kafka") * (1 + SOURCE_READS), "kafka")
    ]
    with pytest.raises(AssertionError, match="399,999 rows of 400,000"):
        measure(FakeJobs(lost=1), SOURCE)


@pytest.mark.parametrize(("peer", "lost", "doubled"), [("journal", 1, 0), ("journal", 0, 1), ("kafka", 1, 0)])
def test_sink_that_loses_rows_has_no_figure_nor_has_ours_that_doubles_them(
    measure: Callable[..., dict[str, Measured]], peer: str, lost: int, doubled: int
) -> None:
    """The connector's may: it is at-least-once."""
    with pytest.raises(AssertionError, match="records of 200,000 rows"):
        measure(FakeJobs(lost, doubled), SINK, peer=peer)
    assert measure(FakeJobs(doubled=1), SINK, peer="kafka")['rate, format("kafka")'].value == 100_000.0


def test_micro_batches_leave_out_the_first_and_time_our_commit_in_spark(
    measure: Callable[..., dict[str, Measured]],
) -> None:
    """The first batches are slower, and no figure. Our sink is the one that notes its commits."""
    jobs = FakeJobs()
    measured = measure(jobs, MICRO_BATCH)
    assert [kind for method, kind in jobs.calls if method == "micro_batches"] == [TIMED, "kafka", NOTHING]
    middle = (MICRO_BATCHES + LEFT_OUT) // 2
    for sink in ('format("fairlog")', 'format("kafka")', "a sink in Python that writes nothing"):
        assert abs(measured[f"addBatch, {sink}"].value - middle) <= 1
    assert measured["commit in the driver"].value == 7.0
    assert measured["group commit"].value == 3.0


def test_micro_batches_of_the_connector_alone_have_no_commit(measure: Callable[..., dict[str, Measured]]) -> None:
    """On Kafka there is nothing of ours."""
    assert list(measure(FakeJobs(), MICRO_BATCH, peer="kafka")) == ['addBatch, format("kafka")']


def test_marks_have_their_figures_in_a_round(measure: Callable[..., dict[str, Measured]]) -> None:
    """A mark that names a figure otherwise than the scenario would never be reached or missed."""
    for mark in MARKS:
        for figure in mark.figures if mark.scenario == "spark" else ():
            if figure.case != HUNG:
                assert figure.metric in measure(FakeJobs(), figure.case, peer=figure.peer), mark.text


def test_times_of_commits_are_read_in_their_order(tmp_path: Path) -> None:
    """As they were noted; a stream that has committed nothing has none."""
    assert times_ms(tmp_path / "none") == []
    (tmp_path / "times").write_text("3.5\n1.25\n")
    assert times_ms(tmp_path / "times") == [3.5, 1.25]


def test_marks_look_at_cases_that_there_are() -> None:
    """A mark whose case is named otherwise would never be reached or missed."""
    cases = {case.name for case in SCENARIO.cases(quick=False)}
    assert {figure.case for mark in MARKS if mark.scenario == "spark" for figure in mark.figures} <= cases
