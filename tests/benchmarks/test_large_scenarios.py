"""scale, soak and recovery, each with a case so small that it takes seconds: real nodes, real kills."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from benchmarks import recovery, scale, soak
from benchmarks.recovery import Recovery, Watch, case_of
from benchmarks.rows import Measurements
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario
from peers import cache
from peers.catalogue import available
from peers.interface import Missing, Peer

PEERS = ("journal", "markers")

SCALE = Case("all of them", {"ids": 50, "partitions": 20, "producers": 2, "open": 5})
RECOVERY = case_of(20, 1_000_000)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., Measurements]]:
    """Measures a case once on a new peer, as the runner does, and rests for shorter."""
    for module, rest in ((scale, "SETTLE_S"), (soak, "SETTLED_S"), (recovery, "LOAD_S")):
        monkeypatch.setattr(module, rest, 0.1)
    monkeypatch.setattr(cache, "DIRECTORY", tmp_path / "cache")
    bench = Bench(True, 1, tmp_path)
    started: list[Peer] = []

    def measure(scenario: Scenario, name: str, case: Case) -> Measurements:
        peer = available(name, tmp_path / name, scenario.tuning)
        assert not isinstance(peer, Missing)
        started.append(peer)
        if scenario.lifetime is Lifetime.SCENARIO:
            peer.start()
        return scenario.measure(bench, peer, case, 0)

    yield measure
    bench.close_clients()
    for peer in started:
        peer.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_scale_says_what_an_id_takes(measured: Callable[..., Measurements], name: str) -> None:
    """Ids, partitions, producers and open transactions are made, and what they take is measured."""
    found = measured(scale.Scale(), name, SCALE)
    assert found["transaction"].value > 0
    assert {"memory per id, first half", "memory per id, second half"} <= found.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("case", [Case("deletion", {"kept_bytes": 4_000_000}), Case("compaction", {"keys": 1000})])
def test_soak_passes_ten_times_what_is_kept(measured: Callable[..., Measurements], name: str, case: Case) -> None:
    """Each tenth has a rate and a size; and the record beside it was never stuck."""
    found = measured(soak.SCENARIO, name, case)
    assert all(found[f"{what}, tenth {number}"].value > 0 for what in ("rate", "disk") for number in range(1, 11))
    assert found["record beside it"].value < 5000


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_recovery_finds_everything_that_was_answered(measured: Callable[..., Measurements], name: str) -> None:
    """The node that was killed answers again, and then all is visible: none of it was lost."""
    found = measured(Recovery("recovery", [RECOVERY], [RECOVERY]), name, RECOVERY)
    assert 0 < found["first answer"].value <= found["all visible"].value
    assert found["transactions before the kill"].value >= recovery.PRODUCERS


@pytest.mark.slow
def test_recovery_watch_without_an_answered_transaction_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that was answered and is not there fails the round: it is not measured as recovered."""
    monkeypatch.setattr(recovery, "VISIBLE_S_MAX", 0.5)
    peer = available("journal", tmp_path / "journal")
    assert not isinstance(peer, Missing)
    peer.start()
    try:
        peer.create_topics(["load"], recovery.PARTITIONS)
        with pytest.raises(TimeoutError, match="answered as committed"):
            Watch(peer.address, peer.transactional_isolation).until_seen("load", [[0]])
    finally:
        peer.stop()


@pytest.mark.parametrize("scenario", [soak.SCENARIO, recovery.SCENARIO], ids=lambda scenario: scenario.name)
def test_scenario_about_storage_does_not_measure_the_mock(scenario: Scenario, tmp_path: Path) -> None:
    """What stores nothing is left out, and it is said why."""
    mock = available("mock", tmp_path)
    assert not isinstance(mock, Missing)
    with pytest.raises(NotMeasured, match="stores nothing"):
        scenario.measure(Bench(True, 1, tmp_path), mock, scenario.cases(True)[0], 0)


def test_scale_has_the_sizes_of_the_question() -> None:
    """Each dimension at all its sizes, and all of them together at the largest."""
    cases = scale.SCENARIO.cases(quick=False)
    sizes = {name: {case.parameters[name] for case in cases} for name in ("ids", "partitions", "producers", "open")}
    assert sizes == {
        "ids": {10, 1000, 100_000},
        "partitions": {10, 1000},
        "producers": {1, 4, 16, 64},
        "open": {0, 1000},
    }
    assert dict(cases[-1].parameters) == {name: max(of) for name, of in sizes.items()}
