"""What CI may skip: `tests/lacking.py` judges every skip of the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import golang
from scripts.node_process import ROOT
from tests import lacking

NEEDS_A_COMPILER = "tests/history/test_wall_clock.py"


def skipped(reason: str) -> pytest.TestReport:
    return pytest.TestReport("t", ("t", 1, "t"), {}, "skipped", ("t", 1, f"Skipped: {reason}"), "setup")


@pytest.mark.parametrize("reason", [golang.MISSING, lacking.NOT_PERMITTED + "io_uring", lacking.TAKES_LONG + "a day"])
def test_skip_for_what_no_installation_mends_is_one_on_ci(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is as it is, and some tests take too long for each change."""
    monkeypatch.setenv("CI", "true")
    report = skipped(reason)
    lacking.judge(report)
    assert report.skipped


def test_skip_for_what_can_be_installed_is_a_failure_on_ci_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is a skip, whatever its reason."""
    monkeypatch.delenv("CI", raising=False)
    report = skipped("no cc")
    lacking.judge(report)
    assert report.skipped
    monkeypatch.setenv("CI", "true")
    lacking.judge(report)
    assert report.failed
    assert "no cc" in str(report.longrepr)


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "code"), [({}, 0), ({"CI": "true"}, 1)])
def test_run_that_skips_what_ci_can_do_fails_there(ci: dict[str, str], code: int, tmp_path: Path) -> None:
    """A whole run, without a compiler on the path: its exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ci | {"PATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NEEDS_A_COMPILER]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert "there is no cc on the path" in done.stdout


@pytest.mark.parametrize(
    ("said", "is_refusal"),
    [
        ("mount: /mnt: permission denied.", True),
        ("mount: must be superuser to use mount.", True),
        ("mount --make-shared /run/netns failed: Operation not permitted", True),
        ("mount: /mnt: wrong fs type, bad option, bad superblock", False),
        ("", False),
    ],
)
def test_refusal_of_the_system_is_told_from_a_mistake_of_ours(said: str, is_refusal: bool) -> None:
    """A test that cannot run because its own command is wrong must not be skipped for ever."""
    reason = lacking.refused("mounting", said)
    assert (reason is not None) is is_refusal
    assert reason is None or reason.startswith(lacking.NOT_PERMITTED)
