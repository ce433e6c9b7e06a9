"""Fixtures of the retention tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datalog.environment import LmdbDataLogs
from journal import failpoints


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LmdbDataLogs]:
    """Empty data logs."""
    logs = LmdbDataLogs.open(tmp_path / "data", map_bytes=1 << 30, sync=False)
    yield logs
    logs.close()


@pytest.fixture
def arm() -> Iterator[Callable[[str], None]]:
    """Arm one failpoint by its specification, `<name>:fail:<nth>`; disarmed after the test."""
    yield lambda specification: failpoints.arm({"FAIRLOG_FAILPOINT": specification})
    failpoints.arm({})
