"""A real run, tiny: nodes and the mock are started, measured through confluent-kafka, and reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import java_latency, runner, txn_latency
from benchmarks.marks import MARKS, verdict
from benchmarks.results import Results
from peers import kafka_artifacts
from peers.java_programs import JavaProgram

from tests.engines.jvm import CLIENTS_4

PEERS = ("journal", "markers", "mock")
SCENARIOS = ("txn-latency", "txn-throughput", "visible")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that went well."""
    directory = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patches:
        if CLIENTS_4.at_hand() is None:
            patches.setattr(JavaProgram, "obtain", nothing_is_downloaded)
        assert runner.run(SCENARIOS, PEERS, directory, quick=True, rounds=1) == 0
    return directory


def nothing_is_downloaded(program: JavaProgram) -> Path:
    raise kafka_artifacts.Unavailable(f"this test does not download {program}")


@pytest.fixture(scope="module")
def results(out: Path) -> Results:
    found = runner.load(out)
    assert found is not None
    return found


def test_quick_run_measures_every_case_on_every_peer(results: Results) -> None:
    """Each case of each scenario has rows of every peer, but for what a peer cannot do, which is said."""
    for name, run in results.scenarios.items():
        unable = {(remark.case, remark.peer) for remark in run.remarks if remark.kind == "not measured"}
        expected = {(case, peer) for case in run.cases for peer in PEERS} - unable
        assert {(row.case, row.peer) for row in results.of(name)} == expected


def test_quick_run_latencies_are_plausible(results: Results) -> None:
    """A commit takes no longer than its transaction; both are answered at once, and took some CPU time."""
    for peer in PEERS:
        whole = results.find("txn-latency", peer, "10 × 2", "transaction")
        commit = results.find("txn-latency", peer, "10 × 2", "commit alone")
        assert whole is not None
        assert commit is not None
        assert 0 < commit.median <= whole.median < 1000
    cpu = results.find("txn-latency", "journal", "10 × 2", "broker CPU")
    assert cpu is not None
    assert 0 < cpu.median < 1000


def test_quick_run_measures_a_java_client_in_both_versions(results: Results) -> None:
    """Each version has its figures, and the commit takes no longer than its transaction."""
    CLIENTS_4.require()
    for version in java_latency.VERSIONS:
        whole, commit = (
            results.find("txn-latency", "journal", txn_latency.JAVA.name, f"Java {metric}, version {version}")
            for metric in ("transaction", "commit alone")
        )
        assert whole is not None
        assert commit is not None
        assert 0 < commit.median <= whole.median < 1000


def test_quick_run_has_the_figures_of_its_marks(results: Results) -> None:
    """Marks of these scenarios that need no other peer have a value: they name metrics as the scenarios do."""
    for mark in MARKS:
        if mark.scenario in SCENARIOS and {figure.peer for figure in mark.figures} <= set(PEERS):
            assert verdict(mark, results).value is not None, mark.text


def test_quick_run_sees_records_after_they_were_produced(results: Results) -> None:
    """The two processes' clocks are one: no record is seen before it was produced."""
    seen = [row for row in results.of("visible") if row.metric == "produced to seen"]
    assert len(seen) == 2 * len(set(PEERS) - {"mock"})
    assert all(0 < row.median < 5000 for row in seen)


def test_quick_run_report_names_every_scenario_and_no_place(out: Path, results: Results) -> None:
    """The report has a section for each scenario, and may be published: no path of this machine is in it."""
    page = (out / "report.md").read_text()
    assert [f"## {name}" in page for name in SCENARIOS] == [True] * 3
    for document in (page, (out / "report.html").read_text(), (out / "results.json").read_text()):
        assert str(out.parent) not in document
        assert not re.search(r"/(?:home|root|tmp|work)/", document)
    assert json.loads((out / "results.json").read_text())["rows"]
    assert results.quick


def test_quick_run_leaves_no_data_behind(out: Path) -> None:
    """Only the results stay: the brokers' data is gone."""
    assert {path.suffix for path in out.iterdir()} == {".json", ".md", ".html", ".png"}
