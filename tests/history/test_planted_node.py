"""Bugs in a node that a client of raw requests finds, and no stock client: so these clients are worth their time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history import anomalies
from tests.history.anomalies import AnomalyKind
from tests.history.brokers import Peer
from tests.history.checker import Verdict, check
from tests.history.history_file import read_history
from tests.history.layout import Role
from tests.history.workload import run

FORGETS = ("open-transaction-aborted-at-the-start",)
BEGINS_ANEW = (*FORGETS, "told-client-begins-anew")
SECONDS = 5.0
SEEDS = range(2, 22, 2)
"""Most of them are enough alone."""
STOCK = (Role.WRITER, Role.WRITER, Role.WRITER)


def planted(bugs: tuple[str, ...], clients: tuple[Role, ...], peer: Peer, seed: int, out: Path) -> Verdict:
    run(peer, SECONDS, seed, out, slots=(*clients, Role.READER), planted=bugs)
    with out.open(encoding="utf-8") as lines:
        return check(read_history(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bugs", "role", "kind", "peer"),
    [
        (BEGINS_ANEW, Role.GOES_ON, anomalies.LOST_WRITE, Peer.JOURNAL),
        (FORGETS, Role.RESUMER, anomalies.REFUSED_COMMIT, Peer.MARKERS),
    ],
)
def test_planted_bug_is_found_by_the_client_that_is_made_for_it(
    bugs: tuple[str, ...], role: Role, kind: AnomalyKind, peer: Peer, tmp_path: Path
) -> None:
    """Half of a transaction is committed after a start that aborted it; what was prepared cannot be committed."""
    verdicts = (planted(bugs, (role,) * 6, peer, seed, tmp_path / f"{seed}.jsonl") for seed in SEEDS)
    assert any(kind in verdict.violations for verdict in verdicts)


@pytest.mark.slow
def test_planted_bugs_are_not_found_by_stock_clients(tmp_path: Path) -> None:
    """A stock client aborts when it is told to, and prepares nothing: its history is clean, with both bugs."""
    verdict = planted(BEGINS_ANEW, STOCK, Peer.JOURNAL, SEEDS[0], tmp_path / "history.jsonl")
    assert verdict.valid
    assert verdict.operations["txn", "ok"]
