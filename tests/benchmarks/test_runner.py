"""The runner: who is measured when, and what becomes of peers that are missing, cannot, or break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from benchmarks import runner
from benchmarks.results import Remark, ScenarioRun
from benchmarks.rows import Measurements, Row, counted
from benchmarks.runner import Measuring
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario
from peers.interface import Isolation, Missing, Peer, PeerDidNotStart, Tuning

TUNING = Tuning(retention_check_ms=500)


class FakePeer:
    """Does nothing, but says in `log` what was asked of it. One second of CPU passes with each look at it."""

    durable = True
    transactional_isolation: Isolation = "read_committed"
    address = "127.0.0.1:1"

    def __init__(self, name: str, directory: Path, log: list[str], *, starts: bool = True) -> None:
        self.name = name
        self.description = f"a fake {name}"
        self.settings: Mapping[str, str] = {}
        self.directory = self.data = directory
        self.storage = ""
        self.running = False
        self._log = log
        self._starts = starts
        self._cpu_s = 0.0

    def start(self, timeout_s: float = 0.0) -> None:
        if not self._starts:
            raise PeerDidNotStart("it said:\nno memory")
        self.running = True
        self._log.append(f"start {self.name}")

    def stop(self) -> None:
        if self.running:
            self._log.append(f"stop {self.name}")
        self.running = False

    def kill(self) -> None:
        self.stop()

    def spawn(self) -> None:
        self.start()

    def cpu_s(self) -> float:
        self._cpu_s += 1.0
        return self._cpu_s

    def memory_bytes(self) -> int:
        return 1

    written_bytes = disk_bytes = memory_bytes

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        raise AssertionError("no scenario here makes topics")


class Asking:
    """A scenario of two cases that notes who was measured; `answer` says what comes out of it."""

    name = "asking"
    question = "Who is asked when?"
    tuning = TUNING

    def __init__(self, log: list[str], lifetime: Lifetime = Lifetime.SCENARIO) -> None:
        self.lifetime = lifetime
        self.answer: Callable[[Peer, Case, int], float] = lambda peer, case, round_number: float(round_number)
        self._log = log

    def cases(self, quick: bool) -> Sequence[Case]:
        return [Case("first")] if quick else [Case("first"), Case("second", {"size": 2})]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:
        self._log.append(f"{case.name} {round_number} {peer.name}")
        return {"answer": counted("s", self.answer(peer, case, round_number))}


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def measuring(tmp_path: Path, log: list[str]) -> Callable[..., Measuring]:
    """A run of a scenario over fake peers; a peer called `none` is missing, one called `dead` does not start."""

    def make(scenario: Asking, *names: str, quick: bool = False, rounds: int = 3) -> Measuring:
        def obtain(name: str, directory: Path, tuning: Tuning) -> Peer | Missing:
            assert tuning is TUNING
            if name == "none":
                return Missing(name, "it is nowhere to be had")
            return FakePeer(name, directory, log, starts=name != "dead")

        def warm_up(_bench: Bench, peer: Peer) -> None:
            log.append(f"warm {peer.name}")

        return Measuring(scenario, names, tmp_path, quick=quick, rounds=rounds, obtain=obtain, warm_up=warm_up)

    return make


def test_runner_takes_peers_in_turns(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """Within a case, every round measures every peer once, and each round begins with another."""
    _, rows = measuring(Asking(log), "a", "b", quick=True).run()
    measured = [line for line in log if line.startswith("first")]
    assert measured == ["first 0 a", "first 0 b", "first 1 b", "first 1 a", "first 2 a", "first 2 b"]
    assert [(row.peer, row.values) for row in rows] == [("a", (0.0, 1.0, 2.0)), ("b", (0.0, 1.0, 2.0))]


def test_runner_starts_peers_once_and_stops_them(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """Peers are warmed up, are there for all cases of a scenario, and none is left running."""
    measuring(Asking(log), "a", "b").run()
    assert log[:4] == ["start a", "warm a", "start b", "warm b"]
    assert log[-2:] == ["stop a", "stop b"]
    assert sum(line.startswith("st") for line in log) == 4


def test_runner_gives_a_scenario_of_its_own_lifetime_fresh_peers(
    measuring: Callable[..., Measuring], log: list[str], tmp_path: Path
) -> None:
    """Each measurement gets a peer that is not started, over a directory of its own that is gone afterwards."""
    scenario = Asking(log, Lifetime.OWN)
    seen: list[Path] = []

    def answer(peer: Peer, _case: Case, _round: int) -> float:
        assert not peer.running
        peer.directory.mkdir()
        seen.append(peer.directory)
        return 1.0

    scenario.answer = answer
    done, _ = measuring(scenario, "a", quick=True).run()
    assert len(set(seen)) == 3
    assert not any(path.exists() for path in seen)
    assert not done.remarks


def test_runner_names_the_missing_peer_and_goes_on(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """A peer that cannot be had is in the results, with the reason; the others are measured."""
    done, rows = measuring(Asking(log), "none", "a").run()
    assert done.remarks == [Remark("missing", "none", "", "it is nowhere to be had")]
    assert {row.peer for row in rows} == {"a"}


def test_runner_skips_what_a_peer_cannot_do(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """A case that a peer cannot do is asked for once, and said; its other cases are measured."""
    scenario = Asking(log)

    def answer(peer: Peer, case: Case, round_number: int) -> float:
        if (peer.name, case.name) == ("a", "first"):
            raise NotMeasured("it cannot count")
        return 1.0

    scenario.answer = answer
    done, rows = measuring(scenario, "a", "b").run()
    assert done.remarks == [Remark("not measured", "a", "first", "it cannot count")]
    assert [(row.case, row.peer) for row in rows] == [("first", "b"), ("second", "a"), ("second", "b")]
    assert [line for line in log if line.startswith("first") and line.endswith("a")] == ["first 0 a"]


def test_runner_keeps_the_rounds_before_a_peer_broke(
    measuring: Callable[..., Measuring], log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer that breaks is out for the rest; what was measured before stays, and the failure is in the results."""
    scenario = Asking(log)

    def answer(peer: Peer, case: Case, round_number: int) -> float:
        if peer.name == "a" and round_number == 1:
            raise RuntimeError("first line\nthe last line")
        return 1.0

    scenario.answer = answer
    done, rows = measuring(scenario, "a", "b").run()
    assert done.remarks == [Remark("failed", "a", "first", "the last line")]
    assert [(row.case, row.peer, row.rounds) for row in rows] == [
        ("first", "a", 1),
        ("first", "b", 3),
        ("second", "b", 3),
    ]
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("capsys")
def test_runner_goes_on_without_a_peer_that_does_not_start(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """A broker that does not come up is named, and is not measured."""
    done, rows = measuring(Asking(log), "dead", "a").run()
    assert done.remarks == [Remark("failed", "dead", "starting", "no memory")]
    assert {row.peer for row in rows} == {"a"}


def test_runner_measures_what_idle_brokers_take(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """The results say how much of a core each broker used while others were measured."""
    done, _ = measuring(Asking(log), "a", "b", quick=True).run()
    assert done.idle_cores.keys() == {"a", "b"}
    assert all(cores > 0 for cores in done.idle_cores.values())


def test_runner_says_how_the_scenario_was_run(measuring: Callable[..., Measuring], log: list[str]) -> None:
    """Question, cases with their parameters, rounds and whether it was quick are kept with the rows."""
    done, _ = measuring(Asking(log), "a").run()
    assert (done.name, done.question, done.rounds, done.quick) == ("asking", "Who is asked when?", 3, False)
    assert done.cases == {"first": {}, "second": {"size": 2}}
    assert done.setups["a"].description == "a fake a"


class FakeMeasuring:
    """In place of Measuring: its scenario took as many seconds as it has rounds."""

    def __init__(self, scenario: Scenario, peers: Sequence[str], _directory: Path, *, quick: bool, rounds: int) -> None:
        self._scenario = scenario
        self._peers = peers
        self._quick = quick
        self._rounds = rounds

    def estimate_s(self) -> float:
        return 480.0

    def run(self) -> tuple[ScenarioRun, list[Row]]:
        name = self._scenario.name
        rows = [Row(name, peer, "c", "m", "ms", (1.0,) * self._rounds) for peer in self._peers]
        run = ScenarioRun(
            name, self._scenario.question, self._quick, self._rounds, "2026-01-31T12:00:00Z", "abc1234",
            float(self._rounds), 0.0, 100.0, {"c": {}},
        )  # fmt: skip
        return run, rows


@pytest.fixture
def instantly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs measure nothing, and draw no charts."""
    monkeypatch.setattr(runner, "Measuring", FakeMeasuring)
    monkeypatch.setattr(runner, "write_report", lambda _results, _out: None)


@pytest.mark.usefixtures("instantly")
def test_runner_joins_scenarios_of_separate_runs_in_one_directory(tmp_path: Path) -> None:
    """Each run adds its scenario with its own rounds and peers; one that is run again replaces its own rows only."""
    assert runner.run(["visible"], ["journal", "markers"], tmp_path, quick=False, rounds=5) == 0
    assert runner.run(["hung"], ["journal"], tmp_path, quick=False, rounds=3) == 0
    assert runner.run(["visible"], ["journal"], tmp_path, quick=True, rounds=1) == 0
    results = runner.load(tmp_path)
    assert results is not None
    assert {name: (run.rounds, run.quick) for name, run in results.scenarios.items()} == {
        "visible": (1, True),
        "hung": (3, False),
    }
    assert [(row.scenario, row.peer, row.rounds) for row in results.rows] == [
        ("hung", "journal", 3),
        ("visible", "journal", 1),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.usefixtures("instantly")
def test_runner_says_how_long_a_scenario_will_take_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits for it knows for how long."""
    runner.run(["visible"], ["journal"], tmp_path, quick=False, rounds=5)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("visible: begun at")
    assert first.endswith("takes some 8 min")
    assert second == "visible: took 5 s"
