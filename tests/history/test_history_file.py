"""The format: what docs/formats/history.md says is read so, and whatever else is refused with its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.history.__main__ import main
from tests.history.checker import check
from tests.history.history_file import read_history
from tests.history.operations import BadHistory, Isolation, Kind, Outcome, Poll, Send

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "history-1.jsonl"
HEAD = '{"history": 1, "mode": "journal"}'


def line(**changes: Any) -> str:
    event = {"time_us": 1, "process": "p", "op": 0, "type": "invoke", "f": "send", "micro": [["send", "t/0", "v"]]}
    return json.dumps({key: value for key, value in (event | changes).items() if value is not None})


def test_history_golden_file_is_read_as_the_page_says() -> None:
    """The example of the page: its operations, their outcomes, and that it is clean."""
    page = (ROOT / "docs" / "formats" / "history.md").read_text(encoding="utf-8")
    text = GOLDEN.read_text(encoding="utf-8")
    assert f"```\n{text}```" in page, "the page shows another example than the golden file"
    history = read_history(text.splitlines())
    assert check(history).valid
    by_kind = {operation.kind: operation for operation in history.operations}
    assert set(by_kind) == set(Kind)
    transaction = by_kind[Kind.TXN]
    assert (transaction.line, transaction.outcome, transaction.group) == (7, Outcome.OK, "g")
    assert (transaction.start_us, transaction.commit_us, transaction.end_us) == (120, 150, 170)
    assert transaction.micro == [Poll("in/0", [(0, "plain.0")]), Send("out/0", "p.0", None)]
    assert by_kind[Kind.ASSIGN].positions == {"in/0": 0}
    assert by_kind[Kind.END].ends == {"in/0": 1, "out/0": 1}
    assert by_kind[Kind.FINAL].ends == {"in/0": 1, "out/0": 1}
    assert by_kind[Kind.FINAL].isolation is Isolation.PLAIN


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([], 1),
        (['{"history": 2, "mode": "journal"}'], 1),
        (['{"history": 1, "mode": "other"}'], 1),
        (["[]"], 1),
        (['{"history": 1, "mode": "journal", "shards": 7}'], 1),
        (['{"history": 1, "mode": "journal", "shards": {"in/0": "0"}}'], 1),
        ([HEAD, line(f="assign", micro=None, positions=7)], 2),
        ([HEAD, "{"], 2),
        ([HEAD, "7"], 2),
        ([HEAD, line(process=None)], 2),
        ([HEAD, line(time_us="1")], 2),
        ([HEAD, line(op=True)], 2),
        ([HEAD, line(f="other")], 2),
        ([HEAD, line(type="other")], 2),
        ([HEAD, line(micro=[["send", "t/0"]])], 2),
        ([HEAD, line(micro=[["poll", "t/0", [[0]]]])], 2),
        ([HEAD, line(micro=7)], 2),
        ([HEAD, line(type="ok")], 2),
        ([HEAD, line(), line()], 3),
        ([HEAD, line(), line(type="ok"), line(type="ok")], 4),
        ([HEAD, line(), line(type="ok", time_us=0)], 3),
        ([HEAD, line(f="txn"), line(type="ok")], 3),
        ([HEAD, line(isolation="other")], 2),
        ([HEAD, line(ends={"t/0": None})], 2),
        ([HEAD, line(f="txn"), line(type="commit", prepared=1)], 3),
    ],
)
def test_history_that_is_none_is_refused_with_its_line(lines: list[str], number: int) -> None:
    """Whatever is not as the page says: BadHistory, and where."""
    with pytest.raises(BadHistory, match=f"line {number}: "):
        read_history(lines)


def test_history_value_sent_twice_is_refused() -> None:
    """Values are how records are known again: none is sent twice."""
    history = read_history([HEAD, line(), line(op=1)])
    with pytest.raises(BadHistory, match=r"line 3: 'v' was sent in line 2 already"):
        check(history)


def test_history_commit_that_is_asked_for_again_counts_from_the_first() -> None:
    """An instance that takes over asks again for what the one before may have asked for."""
    commits = [line(type="commit", time_us=us, prepared=True) for us in (2, 3)]
    operation = read_history([HEAD, line(f="txn"), *commits, line(type="ok", time_us=4)]).operations[0]
    assert (operation.commit_us, operation.end_us, operation.prepared) == (2, 4, True)


def test_history_faults_are_passed_over() -> None:
    """What was done to the node is for people."""
    assert read_history([HEAD, '{"f": "fault", "text": "SIGKILL"}', line()]).operations[0].line == 3


def test_check_command_answers_by_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 for a clean history, 1 for a violation, 2 for what is no history; text and JSON."""
    assert main(["check", str(GOLDEN)]) == 0
    assert "no violation" in capsys.readouterr().out
    phantom = tmp_path / "phantom.jsonl"
    read = line(f="poll", type="ok", micro=[["poll", "t/0", [[0, "v"]]]])
    phantom.write_text("\n".join([HEAD, line(f="poll", micro=None), read]) + "\n")
    assert main(["check", "--json", str(phantom)]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["valid"] is False
    assert verdict["anomalies"]["phantom"]["count"] == 1
    phantom.write_text("{}\n")
    assert main(["check", str(phantom)]) == 2
    assert "not a history of version 1" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "missing")]) == 2


def test_check_command_needs_a_file_alone() -> None:
    """Neither what is installed can be imported here, nor the node: the checker is Python, and knows a history."""
    node = ("fairlog", "fairlog_types", "coordinator", "copier", "datalog", "journal")
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({node}))\n"
        f"from tests.history.__main__ import main\nsys.exit(main(['check', {str(GOLDEN)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "no violation" in done.stdout
