"""Groups to play with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.groups.stage import Stage


@pytest.fixture
def make_stage() -> Callable[..., Stage]:
    return Stage


@pytest.fixture
def stage() -> Stage:
    """A group that does not wait for company."""
    return Stage()
