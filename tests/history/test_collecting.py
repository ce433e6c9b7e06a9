"""Histories of many seeds: what is there is kept, what is missing is recorded, and what is found ends the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.history.collecting import Found, collect, history_of, verdict_of
from tests.history.comparison import as_sums

CLEAN = Path(__file__).parent.parent / "golden" / "history-1.jsonl"
PHANTOM = """{"history": 1, "mode": "journal"}
{"time_us": 1, "process": "r", "op": 0, "type": "invoke", "f": "poll"}
{"time_us": 2, "process": "r", "op": 0, "type": "ok", "micro": [["poll", "t/0", [[0, "nobody's"]]]]}
"""


class Recorded:
    """Seeds that were recorded; `ends` is raised in place of one of them."""

    def __init__(self, ends: tuple[int, BaseException] | None = None) -> None:
        self.seeds: list[int] = []
        self._ends = ends

    def __call__(self, seed: int, out: Path, directory: Path) -> None:
        directory.mkdir()
        if self._ends is not None and seed == self._ends[0]:
            raise self._ends[1]
        self.seeds.append(seed)
        shutil.copy(CLEAN, out)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs put what is not their history."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def test_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, scratch: Path) -> None:
    """The seed that was under way begins anew; what was whole is not touched; nothing else is left."""
    here = tmp_path / "here"
    stopped = Recorded((3, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        collect(range(1, 5), here, stopped, lambda _said: None)
    assert stopped.seeds == [1, 2]
    assert list(scratch.iterdir()) == []
    going_on = Recorded()
    collect(range(1, 5), here, going_on, lambda _said: None)
    assert going_on.seeds == [3, 4]
    assert sorted(here.iterdir()) == [history_of(seed, here) for seed in range(1, 5)]
    assert "| histories | 4 |" in as_sums([verdict_of(path) for path in here.iterdir()])


def test_run_ends_at_a_violation_and_keeps_what_it_left(tmp_path: Path, scratch: Path) -> None:
    """The history is kept, too: it is the proof."""
    here = tmp_path / "here"

    def record(_seed: int, out: Path, directory: Path) -> None:
        directory.mkdir()
        out.write_text(PHANTOM)

    with pytest.raises(Found, match="violations"):
        collect(range(1, 5), here, record, lambda _said: None)
    assert list(here.iterdir()) == [history_of(1, here)]
    assert "| phantom | 1, **forbidden** |" in as_sums([verdict_of(history_of(1, here))])
    assert len(list(scratch.iterdir())) == 1


def test_run_that_fails_keeps_what_it_left(tmp_path: Path, scratch: Path) -> None:
    """No history comes of it, so the seed begins anew when the run goes on."""
    said: list[str] = []
    with pytest.raises(AssertionError):
        collect([7], tmp_path / "here", Recorded((7, AssertionError("the node ended by itself"))), said.append)
    (left,) = scratch.iterdir()
    assert said == [f"seed 7: what the run left is in {left}"]
    assert not history_of(7, tmp_path / "here").exists()
