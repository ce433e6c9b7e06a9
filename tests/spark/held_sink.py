"""The data source `fairlog-held`: the sink as it is, which stops or fails at a named point when a test says so.

    .option("hold", "POINT BATCH DIRECTORY")     the first to come there says so, and waits until it may go on
    .option("fail", "POINT BATCH DIRECTORY")     the first to come there fails

The points: `mid-write` (a task has handed its first rows to the producer), `written` (a task's lane is flushed),
`before-commit` and `after-commit` (in the driver). The directory is how the test and Spark's processes see each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from pyspark_fairlog.sink import BATCH_ID, StreamWriter

WAIT_S = 300.0
POLL_S = 0.02


class HeldSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "fairlog-held"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return HeldWriter(dict(self.options), schema, overwrite)


class HeldWriter(StreamWriter):
    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        super().__init__({k: v for k, v in options.items() if k not in ("hold", "fail")}, schema, overwrite)
        self._told = {kind: options[kind].split(" ", 2) for kind in ("hold", "fail") if kind in options}

    def write(self, iterator: Iterator[Any]) -> Any:
        batch = int(TaskContext.get().getLocalProperty(BATCH_ID))

        def watched() -> Iterator[Any]:
            for each in iterator:
                yield each
                self._pass("mid-write", batch)

        message = super().write(watched())
        self._pass("written", batch)
        return message

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._pass("before-commit", batchId)
        super().commit(messages, batchId)
        self._pass("after-commit", batchId)

    def _pass(self, point: str, batch: int) -> None:
        for kind, (at, number, directory) in self._told.items():
            if at == point and int(number) == batch and _is_first(Path(directory)):
                if kind == "fail":
                    raise RuntimeError(f"failed at {point} as the test wished")
                wait_for(Path(directory, "go"), WAIT_S)


def _is_first(directory: Path) -> bool:
    try:
        Path(directory, "reached").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(path: Path, timeout_s: float) -> None:
    """Return when the file is there."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not there after {timeout_s:.0f} s"
        time.sleep(POLL_S)
