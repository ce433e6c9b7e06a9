"""Real clients against a tortured node, briefly: no violation in either mode, and something was really done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.anomalies import HELD, PLAIN_EARLY_READ
from tests.history.brokers import Peer
from tests.history.checker import check
from tests.history.faults import Fault
from tests.history.history_file import read_history
from tests.history.layout import Role
from tests.history.operations import History, Kind, Outcome
from tests.history.report import as_text
from tests.history.workload import run

SECONDS = 7.0
SEED = 3
PROCESSES = 3
SECONDS_OF_PROCESSES = 25.0
"""A fault every 0.7 seconds on average, and the first of each kind within the first ten of them; the rest of the run is
for commits that are still to be left open, and for starts."""
TRANSACTIONS_MIN = 10
"""Of a slow machine; a quick one does hundreds."""
EACH_MIN = 3
"""Of each client of raw requests."""


@pytest.mark.slow
@pytest.mark.parametrize("peer", [Peer.JOURNAL, Peer.MARKERS])
def test_workload_under_faults_shows_no_violation(peer: Peer, tmp_path: Path) -> None:
    """Kills, stops, zombies, a clock that jumps, cut connections, late requests, repeated ones: no promise broken.

    That commits wait for a transaction that is left open is found where it is allowed, so it would be elsewhere.
    """
    out = tmp_path / "history.jsonl"
    run(peer, SECONDS, SEED, out)
    with out.open(encoding="utf-8") as lines:
        history = read_history(lines)
    verdict = check(history)
    print(as_text(verdict))  # noqa: T201 - `pytest -rP` shows what was done
    assert verdict.valid, as_text(verdict)
    assert verdict.has_finals
    assert verdict.operations["txn", "ok"] >= TRANSACTIONS_MIN
    assert verdict.operations["end", "ok"] >= TRANSACTIONS_MIN
    assert min(committed(history, Role.GOES_ON), committed(history, Role.RESUMER)) >= EACH_MIN
    assert "SIGKILL of the node" in str(verdict.about["faults"])
    assert peer is Peer.MARKERS or PLAIN_EARLY_READ not in verdict.found
    assert verdict.beside.transactions.judged
    assert (HELD in verdict.found) == (peer is Peer.MARKERS)


@pytest.mark.slow
def test_workload_under_faults_on_several_processes_shows_no_violation(tmp_path: Path) -> None:
    """Transactions over the shards of three processes, which are killed and stopped, each alone and all together.

    Nothing is broken that holds in one shard, but that a transaction is there at one instant.
    """
    out = tmp_path / "history.jsonl"
    run(Peer.JOURNAL, SECONDS_OF_PROCESSES, SEED, out, processes=PROCESSES)
    with out.open(encoding="utf-8") as lines:
        history = read_history(lines)
    verdict = check(history)
    print(as_text(verdict))  # noqa: T201 - `pytest -rP` shows what was done
    assert verdict.valid, as_text(verdict)
    assert verdict.has_finals
    assert set(history.shards.values()) == set(range(PROCESSES))
    assert over_shards(history) >= TRANSACTIONS_MIN
    assert min(committed(history, Role.GOES_ON), committed(history, Role.RESUMER)) >= EACH_MIN
    done = str(verdict.about["faults"])
    assert all(fault.value in done for fault in (Fault.KILL_NODE, Fault.KILL_PROCESS, Fault.STOP_PROCESS)), done


def over_shards(history: History) -> int:
    """How many committed transactions wrote to partitions of several shards."""
    ok = (each for each in history.operations if each.kind is Kind.TXN and each.outcome is Outcome.OK)
    return sum(len({history.shards[send.partition] for send in each.sends()}) > 1 for each in ok)


def committed(history: History, role: Role) -> int:
    """How many transactions of such clients."""
    ok = (each for each in history.operations if each.kind is Kind.TXN and each.outcome is Outcome.OK)
    return sum(each.process.startswith(role.value) for each in ok)
