"""What hung and aborted transactions cost others: the scenarios run against a real node, with tiny amounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import aborts, hung, offsets
from benchmarks.scenario import Bench, Case, NotMeasured
from peers.catalogue import available
from peers.interface import Missing, Peer

pytestmark = pytest.mark.slow

HUNG_S = 6.0
"""So long that a machine which has other work to do is not taken for the transaction that hangs."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(quick=True, rounds=1, directory=tmp_path_factory.mktemp("bench"))
    yield found
    found.close_clients()


def started(name: str, directory: Path) -> Peer:
    peer = available(name, directory / name)
    assert not isinstance(peer, Missing)
    peer.start()
    return peer


@pytest.fixture(scope="module")
def journal(bench: Bench) -> Iterator[Peer]:
    peer = started("journal", bench.directory)
    yield peer
    bench.close_clients(peer)
    peer.stop()


@pytest.fixture(scope="module")
def markers(bench: Bench) -> Iterator[Peer]:
    peer = started("markers", bench.directory)
    yield peer
    bench.close_clients(peer)
    peer.stop()


def fetched_per_record(bench: Bench, peer: Peer, percent: int) -> float:
    case = next(case for case in aborts.SCENARIO.cases(True) if case.parameters["percent_aborted"] == percent)
    return aborts.SCENARIO.measure(bench, peer, case, 0)["fetched per record"].value


def test_aborted_records_in_journal_mode_are_never_fetched(bench: Bench, journal: Peer) -> None:
    """The bytes of a delivered record are the same, however many transactions abort: hardly more than its own."""
    without, half = fetched_per_record(bench, journal, 0), fetched_per_record(bench, journal, 50)
    assert aborts.RECORD_BYTES < without < 1.05 * aborts.RECORD_BYTES
    assert half == pytest.approx(without, rel=0.01)


def test_aborted_records_in_marker_mode_are_fetched_and_thrown_away(bench: Bench, markers: Peer) -> None:
    """With every second transaction aborted, a delivered record costs the bytes of two: the benchmark sees it."""
    without, half = fetched_per_record(bench, markers, 0), fetched_per_record(bench, markers, 50)
    assert half == pytest.approx(2 * without, rel=0.01)


def test_open_transaction_in_journal_mode_stalls_nobody(bench: Bench, journal: Peer) -> None:
    """All that others write is seen, and none of it has to wait until the transaction that hangs has ended."""
    measured = hung.SCENARIO.measure(bench, journal, Case(hung.CASE, {"hung_s": HUNG_S}), 0)
    assert measured["longest stall"].value < HUNG_S / 2
    assert measured["plain record, beside it"].value < HUNG_S * 1000 / 10
    assert measured["transaction, beside it"].value < HUNG_S * 1000 / 10


def test_open_transaction_in_marker_mode_stalls_readers_of_committed_records(bench: Bench, markers: Peer) -> None:
    """They see nothing of what others write until the transaction that hangs has ended."""
    measured = hung.SCENARIO.measure(bench, markers, Case(hung.CASE, {"hung_s": HUNG_S}), 0)
    assert measured["longest stall"].value >= HUNG_S
    assert measured["plain record, beside it / undisturbed"].value > 2


def test_offsets_in_a_transaction_are_committed_by_the_mock_too(bench: Bench) -> None:
    """The client's floor is known for transactions with offsets as for those without."""
    mock = started("mock", bench.directory)
    try:
        measured = offsets.SCENARIO.measure(bench, mock, offsets.SCENARIO.cases(True)[0], 0)
        assert 0 < measured["the call that sends them"].value < measured["with offsets"].value
        with pytest.raises(NotMeasured, match="before their transaction has committed"):
            hung.SCENARIO.measure(bench, mock, hung.SCENARIO.cases(True)[0], 0)
    finally:
        bench.close_clients(mock)
        mock.stop()
