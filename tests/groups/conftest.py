"""Groups to play with, and their committed offsets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.groups.desk import Desk, open_desk_over
from tests.groups.stage import Stage
from tests.shard import runs


@pytest.fixture
def make_stage() -> Callable[..., Stage]:
    return Stage


@pytest.fixture
def stage() -> Stage:
    """A group that does not wait for company."""
    return Stage()


@pytest.fixture
def open_desk(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Desk]]:
    """Open committed offsets over a directory, by default one and the same; each time in the next leader epoch."""
    epochs = count(1)

    @asynccontextmanager
    async def open_one(
        directory: Path | None = None, *, clock: runs.Clock | None = None, **settings: Any
    ) -> AsyncGenerator[Desk, None]:
        async with (
            runs.open_run(directory or tmp_path / "run", leader_epoch=next(epochs), clock=clock) as run,
            open_desk_over(run, **settings) as desk,
        ):
            yield desk

    return open_one
