"""A shard without a coordinator over a directory of its own, and failpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from journal import failpoints
from tests.shard import runs


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[runs.Run]]:
    """Open leaders over a directory, by default one and the same; each time in the next leader epoch."""
    epochs = count(1)

    def open_one(directory: Path | None = None, **settings: Any) -> AbstractAsyncContextManager[runs.Run]:
        return runs.open_run(directory or tmp_path / "run", leader_epoch=next(epochs), **settings)

    return open_one


@pytest.fixture
def arm() -> Iterator[Callable[[str], None]]:
    """Arm one failpoint by its specification, `<name>:fail:<nth>`; disarmed after the test."""
    yield lambda specification: failpoints.arm({"FAIRLOG_FAILPOINT": specification})
    failpoints.arm({})
