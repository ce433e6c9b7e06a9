"""The order of the tests: what takes longest comes first, lest one process be left with it when the others are done."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST_FIRST = ("crash", "spark", "history", "simulation")
"""Folders whose files take minutes. The others follow as they were collected."""

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
