"""Histories side by side: a column for each, a line for what any of them shows."""

from __future__ import annotations

from pathlib import Path

from tests.history.checker import check
from tests.history.comparison import as_markdown
from tests.history.history_file import read_history

HEAD = '{"history": 1, "mode": "%s", "seed": 7, "broker": "%s", "faults": "1 × SIGKILL, and a restart, 12 × late"}'
ABORTED_AND_SEEN = """
{"time_us": 1, "process": "p", "op": 0, "type": "invoke", "f": "txn", "group": "g", "micro": [["send", "t/0", "a"]]}
{"time_us": 2, "process": "p", "op": 0, "type": "fail"}
{"time_us": 3, "process": "r", "op": 0, "type": "invoke", "f": "poll", "isolation": "plain"}
{"time_us": 4, "process": "r", "op": 0, "type": "ok", "micro": [["poll", "t/0", [[0, "a"]]]]}
"""


def test_comparison_says_of_each_anomaly_where_it_is_forbidden_and_where_allowed() -> None:
    """What a plain reader sees of an aborted transaction is allowed with markers, and forbidden with journals."""
    histories = [
        (HEAD % ("journal", "Fairlog"), ABORTED_AND_SEEN),
        (HEAD % ("markers", "Apache Kafka 4"), ABORTED_AND_SEEN),
        (HEAD % ("markers", "quiet"), ""),
    ]
    verdicts = [check(read_history([head, *text.splitlines()])) for head, text in histories]
    lines = as_markdown(verdicts).splitlines()
    assert lines[0] == "|  | Fairlog, seed 7 | Apache Kafka 4, seed 7 | quiet, seed 7 |"
    assert "| violations | 1 | 0 | 0 |" in lines
    assert "| SIGKILL, and a restart | 1 | 1 | 1 |" in lines
    assert "| late | 12 | 12 | 12 |" in lines
    assert "| transactions: ok, failed, unknown | 0, 1, 0 | 0, 1, 0 | 0, 0, 0 |" in lines
    assert "| plain-aborted-read | 1, **forbidden** | 1, allowed | – |" in lines


def test_comparison_of_a_file_that_says_nothing_of_itself_is_by_its_mode() -> None:
    """Histories from before there was another broker have no name for it."""
    golden = Path(__file__).parent.parent / "golden" / "history-1.jsonl"
    with golden.open(encoding="utf-8") as lines:
        assert as_markdown([check(read_history(lines))]).splitlines()[0] == "|  | journal mode, seed 7 |"
