"""Fixtures of the data log tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datalog.environment import LmdbDataLogs

for suite in ("behaviour", "removal_behaviour", "search_behaviour", "transactions_behaviour", "staging_behaviour"):
    pytest.register_assert_rewrite(f"tests.datalog.{suite}")

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
