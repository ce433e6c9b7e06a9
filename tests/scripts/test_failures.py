"""scripts/failures.py, on reports as pytest writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import failures

TESTS = """
import pytest

def test_green():
    assert True is not False

def test_red():
    cost, price = 17, 18
    assert cost == price

@pytest.fixture
def broken():
    raise OSError("no room")

def test_needs_it(broken): ...
"""


def report(directory: Path, tests: str) -> Path:
    """What pytest reports of a file of these tests."""
    directory.mkdir()
    file, written = directory / "test_some.py", directory / "part.xml"
    file.write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={written}", str(file)]
    subprocess.run(command, cwd=directory, capture_output=True, check=False)
    return written


def test_each_failure_of_each_part_is_told(tmp_path: Path) -> None:
    other = "def test_other(): raise KeyError(5)"
    told = failures.tell([report(tmp_path / "one", TESTS), report(tmp_path / "two", other)])
    for name in ("failure: test_some::test_red", "error: test_some::test_needs_it", "failure: test_some::test_other"):
        assert name in told
    for why in ("assert 17 == 18", "OSError: no room", "KeyError: 5"):
        assert why in told
    assert "test_green" not in told


def test_nothing_is_told_of_what_is_green(tmp_path: Path) -> None:
    assert failures.tell([report(tmp_path / "one", "def test_green(): ...")]) == ""


def test_part_without_a_report_is_named(tmp_path: Path) -> None:
    assert "spark: was cut short" in failures.tell([tmp_path / "spark.xml"])


def test_long_failure_is_told_from_its_end(tmp_path: Path) -> None:
    """Where the assertion stands."""
    long = "def test_long():\n" + "    pass\n" * 200 + "    raise KeyError('last')"
    told = failures.tell([report(tmp_path / "one", long)]).splitlines()
    assert len(told) <= failures.LINES + 2
    assert any("KeyError: 'last'" in line for line in told)
