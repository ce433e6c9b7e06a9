"""How far a long command is: a bar on stderr, for people at a terminal only. Stdout is for what was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


@contextmanager
def progress(doing: str, total: int | None, *, hidden: bool = False) -> Generator[Advance]:
    """Show `doing` and how much of `total` (None: nobody knows) is done; the block is given what adds to it.

    Nothing is shown if `hidden`, or if stderr is no terminal; nothing of it is left when the block ends.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing, total=total)
        yield lambda count: shown.advance(task, count)
