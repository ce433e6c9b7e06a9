"""Histories of three nodes on three brokers of Kafka (`tests/history/cluster.py`): a short one, and one with a bug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.history.anomalies import LOST_WRITE
from tests.history.brokers import Peer
from tests.history.collecting import verdict_of
from tests.history.faults import CUTS, Fault
from tests.history.layout import Role
from tests.history.report import as_text
from tests.history.workload import WorkloadFailed, run
from tests.lacking import refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("artifacts")]

SECONDS = 20.0
GAP_S = 1.2
"""So that most kinds of faults have come once."""
RUN_S = 800.0
TRANSACTIONS_MIN = 10
"""Of a slow machine; a quick one does hundreds."""
PLANTED_S = 15.0
SEEDS = range(1, 6)
SLOTS = (Role.WRITER, Role.WRITER, Role.WRITER, Role.PLAIN, Role.PLAIN, Role.READER)


def test_cluster_under_faults_shows_no_violation(tmp_path: Path) -> None:
    """Nodes and brokers are killed, paused and cut off; also consumers that read from copies see what is promised."""
    out = tmp_path / "history.jsonl"
    command = [sys.executable, "-m", "tests.history", "run", "--peer", "cluster", "--out", str(out)]
    options = ["--seconds", str(SECONDS), "--gap", str(GAP_S), "--seed", "3"]
    ran = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        shown, said = ran.communicate(timeout=RUN_S)
    finally:
        ran.terminate()  # it ends what it has started
        ran.wait()
    assert ran.returncode == 0, shown + said
    print(shown)  # noqa: T201 - `pytest -rP` shows what was done
    verdict = verdict_of(out)
    assert verdict.has_finals
    assert verdict.operations["txn", "ok"] >= TRANSACTIONS_MIN
    assert verdict.operations["end", "ok"] >= TRANSACTIONS_MIN
    assert verdict.records_from_copies
    assert verdict.about["owners"]
    done = str(verdict.about["faults"])
    assert Fault.KILL_NODE.value in done
    if "nothing is cut" in said:
        pytest.skip(refused("a network of one's own", said) or said)
    assert any(fault.value in done for fault in CUTS), done


def test_owner_that_takes_what_has_landed_for_accepted_is_found(tmp_path: Path) -> None:
    """It is paused, and answers what it had under way when another node owns the shard: a planted bug."""
    for seed in SEEDS:
        out = tmp_path / f"{seed}.jsonl"
        try:
            run(Peer.CLUSTER, PLANTED_S, seed, out, slots=SLOTS, planted=["answered-before-the-position-was-compared"])
        except WorkloadFailed as failed:
            if "but the stream goes on at" in str(failed):
                continue  # the node has found first that its files lack what it has passed over, and has ended
            raise
        verdict = verdict_of(out)
        print(as_text(verdict))  # noqa: T201
        if LOST_WRITE in verdict.violations:
            return
    pytest.fail("no seed has found it")
