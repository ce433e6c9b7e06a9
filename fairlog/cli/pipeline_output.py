"""How `fairlog pipeline` shows how far it is: on a terminal a table that stands still, anywhere else a line for each
micro-batch. To standard error, as all progress.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from pyspark_fairlog.pipeline.progress import StepProgress
    from pyspark_fairlog.pipeline.running import Show

COLUMNS = ("step", "batch", "rows in", "in/s", "rows out", "out/s", "behind", "rows of state")


@contextmanager
def shown_progress() -> Generator[Show]:
    """The block is given what shows the steps' progress, as often as it likes."""
    if not sys.stderr.isatty():
        yield Lines().show
        return
    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
    with Live(_table(()), console=console, auto_refresh=False) as live:
        yield lambda steps: live.update(_table(steps), refresh=True)


class Lines:
    """A line for each micro-batch that was seen to be done; of several between two looks, for the last one."""

    def __init__(self) -> None:
        self._batches: dict[str, int | None] = {}

    def show(self, steps: Sequence[StepProgress]) -> None:
        for step in steps:
            if step.batch is not None and self._batches.get(step.name) != step.batch:
                self._batches[step.name] = step.batch
                sys.stderr.write(f"{line(step)}\n")
        sys.stderr.flush()


def line(step: StepProgress) -> str:
    """A step's progress in one line."""
    said = [
        f"{step.rows_in:,} rows in ({step.in_per_s:,.0f}/s)",
        f"{step.rows_out:,} out ({step.out_per_s:,.0f}/s)",
    ]
    if step.behind is not None:
        said.append(f"{step.behind:,} behind")
    if step.state_rows:
        said.append(f"{step.state_rows:,} rows of state")
    return f"{step.name}: batch {step.batch}, {', '.join(said)}"


def _table(steps: Sequence[StepProgress]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "step" else "right")
    for step in steps:
        table.add_row(
            step.name,
            "-" if step.batch is None else str(step.batch),
            f"{step.rows_in:,}",
            f"{step.in_per_s:,.0f}",
            f"{step.rows_out:,}",
            f"{step.out_per_s:,.0f}",
            "-" if step.behind is None else f"{step.behind:,}",
            f"{step.state_rows:,}",
        )
    return table
