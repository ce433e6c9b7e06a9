"""Runs scenarios: peers in turns, round by round. It writes results.json after each scenario.

For each case, for each round, every peer is measured once, and each round begins with another peer. All peers of a
scenario run meanwhile, in directories of their own, and only one of them has work; the CPU time of the others is
measured and reported. Dirty pages of one peer are written to the disk before the next one's turn. A peer that is not
available, or that fails, is named in the results, and the others continue.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from peers.catalogue import available
from peers.interface import Missing, Peer, Tuning
from rich.console import Console

from benchmarks import machine
from benchmarks.estimate import duration, estimate_s
from benchmarks.report import write_report
from benchmarks.results import PeerSetup, Remark, Results, ScenarioRun, results_from_json
from benchmarks.rows import Measurements, Row, rows_of
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario
from benchmarks.warming import warm_up

console = Console(highlight=False, soft_wrap=True)


def run(names: Sequence[str], peers: Sequence[str], out: Path, *, quick: bool, rounds: int) -> int:
    """Measure these scenarios on these peers and write everything into `out`.

    Returns 0 if everything could be measured; 1 if something failed, which the report then names. Raises OtherRun if
    `out` contains the results of another machine or of other versions.
    """
    out.mkdir(parents=True, exist_ok=True)
    mine = Results(machine.machine(out), machine.versions())
    results = _joined(mine, out)
    whole = True
    for name in names:
        scenario: Scenario = import_module(f"benchmarks.{name.replace('-', '_')}").SCENARIO
        # On the disk that `out` is on: /tmp may be memory, and then fsync costs nothing.
        with tempfile.TemporaryDirectory(dir=out, prefix="data-", ignore_cleanup_errors=True) as directory:
            measuring = Measuring(scenario, peers, Path(directory), quick=quick, rounds=rounds)
            console.print(f"{name}: begun at {time.strftime('%H:%M')}, takes some {duration(measuring.estimate_s())}")
            done, rows = measuring.run()
        console.print(f"{name}: took {duration(done.seconds)}")
        # Read again: hours may have gone, and another run may have written its scenario meanwhile.
        results = _joined(mine, out)
        results.put(done, rows)
        whole = whole and not any(remark.kind == "failed" for remark in done.remarks)
        _save(results, out)
    _report(results, out)
    return 0 if whole else 1


def report_again(out: Path) -> int:
    """Write the report of the results that are in `out`."""
    results = load(out)
    if results is None:
        console.print(f"there is no results.json in {out}: name a scenario to measure")
        return 2
    _report(results, out)
    return 0


def _report(results: Results, out: Path) -> None:
    write_report(results, out)
    console.print(f"written: {out / 'report.md'}, {out / 'report.html'} and the charts")


def _joined(mine: Results, out: Path) -> Results:
    """The results in `out`, or `mine` if there are none. Raises OtherRun if the two must not be mixed."""
    before = load(out)
    if before is None:
        return mine
    mine.must_be_like(before)
    return before


def _save(results: Results, out: Path) -> None:
    """Write results.json. A process that is killed meanwhile leaves the old file, which may contain hours of other
    scenarios.
    """
    new = out / "results.json.new"
    new.write_text(json.dumps(results.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(out / "results.json")


def load(out: Path) -> Results | None:
    path = out / "results.json"
    return results_from_json(json.loads(path.read_text())) if path.exists() else None


class Measuring:
    """One scenario's run on these peers, in an empty directory. `obtain` finds a peer by its name.

    `warm_up` runs on each broker before the first case, unless the scenario starts its brokers itself.
    """

    def __init__(
        self,
        scenario: Scenario,
        peers: Sequence[str],
        directory: Path,
        *,
        quick: bool,
        rounds: int,
        obtain: Callable[[str, Path, Tuning], Peer | Missing] = available,
        warm_up: Callable[[Bench, Peer], None] = warm_up,
    ) -> None:
        self._warm_up = warm_up
        self._obtain_peer = obtain
        self._scenario = scenario
        self._directory = directory
        self._quick = quick
        self._rounds = rounds
        self._bench = Bench(quick, rounds, directory)
        self._remarks: list[Remark] = []
        self._out: set[str] = set()
        self._used_idle_s: dict[str, float] = {}
        self._idle_s: dict[str, float] = {}
        self._setups: dict[str, PeerSetup] = {}
        self._peers: list[Peer] = []
        for name in peers:
            peer = self._obtain(name, directory / name)
            if isinstance(peer, Missing):
                self._remarks.append(Remark("missing", name, "", peer.reason))
                console.print(f"{scenario.name}: there is no {name} here: {peer.reason}")
            else:
                self._peers.append(peer)
                self._setups[name] = PeerSetup(peer.description, dict(peer.settings))

    def _obtain(self, name: str, directory: Path) -> Peer | Missing:
        return self._obtain_peer(name, directory, self._scenario.tuning)

    def estimate_s(self) -> float:
        """About how many seconds `run` will take."""
        cases = len(self._scenario.cases(self._quick))
        names = [peer.name for peer in self._peers]
        return estimate_s(self._scenario.name, names, cases=cases, rounds=self._rounds, quick=self._quick)

    def run(self) -> tuple[ScenarioRun, list[Row]]:
        commit, load_before, flush_us = machine.commit(), machine.load(), machine.flush_us(self._directory)
        began, started = time.gmtime(), time.monotonic()
        cases = self._scenario.cases(self._quick)
        rows: list[Row] = []
        try:
            if self._scenario.lifetime is Lifetime.SCENARIO:
                for peer in self._peers:
                    self._start(peer)
            for case in cases:
                rows += self._case(case)
        finally:
            self._bench.close_clients()
            for peer in self._peers:
                with suppress(TimeoutError):
                    peer.stop()
        done = ScenarioRun(
            name=self._scenario.name,
            question=self._scenario.question,
            quick=self._quick,
            rounds=self._rounds,
            begun=time.strftime("%Y-%m-%dT%H:%M:%SZ", began),
            commit=commit,
            seconds=round(time.monotonic() - started, 1),
            load_before=round(load_before, 2),
            flush_us=round(flush_us, 1),
            cases={case.name: case.parameters for case in cases},
            remarks=self._remarks,
            idle_cores={name: round(used / self._idle_s[name], 4) for name, used in self._used_idle_s.items()},
            setups=self._setups,
        )
        return done, rows

    def _start(self, peer: Peer) -> None:
        try:
            peer.start()
            self._warm_up(self._bench, peer)
        except Exception as error:  # noqa: BLE001  whatever it is, the other peers go on
            self._broke(peer, Case("starting"), error)

    def _case(self, case: Case) -> list[Row]:
        """All rounds of one case."""
        measured: dict[str, list[Measurements]] = {peer.name: [] for peer in self._peers}
        skipped: set[str] = set()
        for round_number in range(self._rounds):
            turn = round_number % max(1, len(self._peers))
            for peer in self._peers[turn:] + self._peers[:turn]:
                if peer.name in self._out | skipped:
                    continue
                try:
                    measured[peer.name].append(self._measure(peer, case, round_number))
                except NotMeasured as reason:
                    skipped.add(peer.name)
                    self._remarks.append(Remark("not measured", peer.name, case.name, str(reason)))
                except Exception as error:  # noqa: BLE001  whatever it is, the other peers go on
                    self._broke(peer, case, error)
        rows = [
            row for name, rounds in measured.items() for row in rows_of(self._scenario.name, name, case.name, rounds)
        ]
        console.print(_line_of(self._scenario.name, case, rows))
        return rows

    def _measure(self, peer: Peer, case: Case, round_number: int) -> Measurements:
        if self._scenario.lifetime is Lifetime.OWN:
            return self._measure_alone(peer.name, case, round_number)
        others = [other for other in self._peers if other is not peer and other.running]
        # No peer pays for dirty pages of another.
        os.sync()
        before = {other.name: other.cpu_s() for other in others}
        started = time.monotonic()
        one = self._scenario.measure(self._bench, peer, case, round_number)
        seconds = time.monotonic() - started
        for other in (other for other in others if other.running):
            self._used_idle_s[other.name] = self._used_idle_s.get(other.name, 0.0) + other.cpu_s() - before[other.name]
            self._idle_s[other.name] = self._idle_s.get(other.name, 0.0) + seconds
        return one

    def _measure_alone(self, name: str, case: Case, round_number: int) -> Measurements:
        """A peer in a directory of its own, which the scenario starts; removed afterwards."""
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        bench = Bench(self._quick, self._rounds, directory)
        peer = self._obtain(name, directory / name)
        assert not isinstance(peer, Missing), "it was there before"
        try:
            return self._scenario.measure(bench, peer, case, round_number)
        finally:
            bench.close_clients()
            peer.kill()
            shutil.rmtree(directory, ignore_errors=True)

    def _broke(self, peer: Peer, case: Case, error: Exception) -> None:
        """Exclude the peer from the rest of this scenario; the results say why."""
        self._out.add(peer.name)
        self._bench.close_clients(peer)
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        self._remarks.append(Remark("failed", peer.name, case.name, last))
        console.print(f"{self._scenario.name}: {peer.name} broke at {case.name}:\n{error}")
        traceback.print_exception(error)


def _line_of(scenario: str, case: Case, rows: Sequence[Row]) -> str:
    """The line on the terminal at the end of a case: the first metric of each peer, which need not be the same."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.peer, row)
    by_metric: dict[str, list[str]] = {}
    for name, row in first.items():
        by_metric.setdefault(row.metric, []).append(f"{name} {row.median:,.4g} {row.unit}")
    told = [f"{metric}: {', '.join(figures)}" for metric, figures in by_metric.items()] or ["nothing was measured"]
    return " · ".join([scenario, case.name, *told])
