"""Fixtures of the data log tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from datalog.environment import LmdbDataLogs

# A shared machine stalls now and then; a promise about time is not what these properties make.
settings.register_profile("datalog", deadline=None)
settings.load_profile("datalog")

pytest.register_assert_rewrite("tests.datalog.behaviour")

OpenLmdb = Callable[[], LmdbDataLogs]


@pytest.fixture
def open_lmdb(tmp_path: Path) -> Iterator[OpenLmdb]:
    """Opens the environment of this test; the one opened before is closed first."""
    opened: list[LmdbDataLogs] = []

    def open_again() -> LmdbDataLogs:
        if opened:
            opened.pop().close()
        opened.append(LmdbDataLogs.open(tmp_path / "data", map_bytes=1 << 30, sync=False))
        return opened[-1]

    yield open_again
    if opened:
        opened.pop().close()
