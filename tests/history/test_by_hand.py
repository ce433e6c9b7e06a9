"""Known weaknesses of transactions, request by request: a node has none of them, whatever the mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.by_hand import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("peer", ["journal", "markers"])
@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("renumbered", "produce 'new' as number 0: error code 45"),
        ("late-end", "EndTxn(abort): error code 0"),
    ],
)
def test_known_weakness_of_transactions_is_not_there(
    what: str, answer: str, peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client is told the truth, and the checker finds nothing (invariants 5 and 10; decisions 15 and 16)."""
    status = main([what, "--peer", peer, "--out", str(tmp_path / "history.jsonl")])
    told = capsys.readouterr().out
    assert answer in told
    assert status == 0, told
