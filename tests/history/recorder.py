"""A process' part of a history, written as it happens: one event, one `write`, before what it announces is done.

So whoever is killed leaves what he knew. The clock is CLOCK_MONOTONIC, which all processes of a machine share.
`joined` puts the parts together.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.history.history_file import FAULT, event_line


class Recorder:
    """Events of one process, appended to a file of its own."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()
        self._values = itertools.count()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def new_value(self) -> str:
        """One that no other record of the history has."""
        return f"{self.process}.{next(self._values)}"

    def invoke(self, kind: str, **details: Any) -> int:
        """Begin an operation; its number."""
        number = next(self._numbers)
        self._write(op=number, type="invoke", f=kind, **details)
        return number

    def commit(self, op: int, **details: Any) -> None:
        """The commit is asked for now."""
        self._write(op=op, type="commit", **details)

    def end(self, op: int, outcome: str, **details: Any) -> None:
        """The operation's outcome is known: "ok", "fail" or "info"."""
        self._write(op=op, type=outcome, **details)

    def whole(self, kind: str, **details: Any) -> None:
        """An operation that is over as soon as it is begun."""
        self.end(self.invoke(kind), "ok", **details)

    def fault(self, text: str) -> None:
        """A line for people: what was done."""
        self._write(f=FAULT, text=text)

    def _write(self, **event: Any) -> None:
        line = event_line({"time_us": time.monotonic_ns() // 1000, "process": self.process, **event})
        os.write(self._file, line.encode())


def joined(parts: Iterable[Path]) -> Iterator[str]:
    """The lines of all parts in the order of time. A torn line at the end of a part is left out."""
    lines: list[tuple[int, str]] = []
    for part in parts:
        text = part.read_text(encoding="utf-8")
        lines += [(json.loads(line)["time_us"], line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    lines.sort(key=lambda each: each[0])
    return (line for _time, line in lines)
