"""The Spark scenario's own decisions; its jobs are Spark's and the brokers'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from benchmarks.client import ClientProcess
from benchmarks.marks import MARKS
from benchmarks.scenario import Bench, NotMeasured
from benchmarks.spark import HUNG, SCENARIO, SOURCE, Spark, formats, rows_read_share
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
    """Reads with one row too few, if `lost`."""

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.calls: list[tuple[str, Any]] = []

    def call(self, method: str, **arguments: Any) -> Any:
        self.calls.append((method, arguments.get("kind")))
        return (2.0, 400_000 - self.lost)


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


def test_source_measures_each_format_once_after_a_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate for each, and no figure of a read that has lost rows."""
    found = kafka_artifacts.Artifacts("java", kafka_artifacts.POM.parent, "4.2.0")
    monkeypatch.setattr(kafka_artifacts, "obtain_connector", lambda: found)
    case = next(each for each in SCENARIO.cases(quick=False) if each.name == SOURCE)
    jobs = FakeJobs()
    measured = Spark().measure(cast("Bench", FakeBench(jobs)), peer_named("journal"), case, 0)
    assert {name: each.value for name, each in measured.items() if each.unit == "rows/s"} == {
        'rate, format("fairlog")': 200_000.0,
        'rate, format("kafka")': 200_000.0,
    }
    assert [call for call in jobs.calls if call[0] == "read"] == [
        ("read", kind) for kind in ("fairlog", "fairlog", "kafka", "kafka")
    ]
    with pytest.raises(AssertionError, match="399,999 rows of 400,000"):
        Spark().measure(cast("Bench", FakeBench(FakeJobs(lost=1))), peer_named("journal"), case, 0)


def test_marks_look_at_cases_that_there_are() -> None:
    """A mark whose case is named otherwise would never be reached or missed."""
    cases = {case.name for case in SCENARIO.cases(quick=False)}
    assert {figure.case for mark in MARKS if mark.scenario == "spark" for figure in mark.figures} <= cases
