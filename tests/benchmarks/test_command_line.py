"""The benchmark's command line: what may be asked for together, and what stands alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import bench
import environment
import pytest
from benchmarks import finished


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the program with these arguments, as if this environment was the one that it makes for itself."""
    monkeypatch.setattr(environment, "ensure", lambda _purpose: Path(sys.executable))
    monkeypatch.setattr(environment, "ENVIRONMENT", Path(sys.prefix))
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
        return bench.main()

    return run


@pytest.mark.parametrize("alone", bench.ALONE)
def test_command_that_measures_nothing_stands_alone(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], alone: str
) -> None:
    """Beside a scenario it is refused, before anything is measured."""
    with pytest.raises(SystemExit):
        command("visible", alone)
    assert f"{alone} stands alone" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "count"), [((), 1_000_000), (("--count", "50"), 50)])
def test_make_finished_makes_as_many_as_said_for_these_peers(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, more: Sequence[str], count: int
) -> None:
    """Without a count, the million of recovery-full."""
    asked: list[tuple[list[str], int]] = []
    monkeypatch.setattr(finished, "make", lambda names, count: asked.append((names, count)) or 0)
    assert command("make-finished", "--peers", "journal,kafka", *more) == 0
    assert asked == [(["journal", "kafka"], count)]
