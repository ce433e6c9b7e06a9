"""`tls` against a real node with an authorizer, with tiny amounts: each listener lets in who comes there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import runner, tls
from benchmarks.scenario import Bench, Case, NotMeasured
from peers import certificates
from peers.catalogue import available
from peers.interface import Missing

PEER = "journal-acls"


@pytest.mark.slow
def test_each_half_of_each_case_is_measured(tmp_path: Path) -> None:
    """With TLS the client is a user with ACLs, who is looked up. No path of this machine is in the results."""
    measuring = runner.Measuring(
        tls.SCENARIO, [PEER], tmp_path, quick=True, rounds=1, warm_up=lambda _bench, _peer: None
    )
    run, rows = measuring.run()
    assert not run.remarks
    found = {(row.case, row.metric): row.median for row in rows}
    for case in tls.SCENARIO.cases(quick=True):
        rate = "transactions" if case.name == tls.TRANSACTIONS else "rate"
        for half in tls.HALVES:
            assert found[case.name, f"{rate}, {half}"] > 0
            assert found[case.name, f"broker CPU, {half}"] >= 0
        assert found[case.name, "loss"] < 100
    told = json.dumps([setup.settings for setup in run.setups.values()])
    assert "FAIRLOG_AUTHORIZER_ENABLE" in told
    assert str(tmp_path) not in told


def test_peer_without_tls_is_not_measured(tmp_path: Path) -> None:
    peer = available("journal", tmp_path / "journal")
    assert not isinstance(peer, Missing)
    with pytest.raises(NotMeasured, match="journal-tls"):
        tls.SCENARIO.measure(Bench(True, 1, tmp_path), peer, Case(tls.TRANSACTIONS), 0)


def test_without_openssl_a_secured_peer_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates.shutil, "which", lambda _name: None)
    peer = available("journal-tls", tmp_path / "journal-tls")
    assert isinstance(peer, Missing)
    assert "openssl" in peer.reason
