"""Torture a node for an hour, in four ways, and write down what came of it: `python -m tests.proof --hours 1 --seed S`.

    simulation   10,000 recoveries of simulated machines
    kills           500 SIGKILLs of a real node, with those that histories add
    images          300 images of power cuts
    history     200,000 operations of real clients, judged by the history checker

All in slices of a minute or so, two side by side, until these amounts are reached or the time is over; slices that
run then are waited for. Seeds follow from the one that is given. The table is printed, and written beside what is kept
of failures.

Exit status: 0 all amounts reached and nothing found; 1 a promise is broken, at the first of which all ends; 2 nothing
found, but amounts missed or slices without a verdict.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.proof.amounts import Progress
from tests.proof.course import ROOT, Course

REACHED, BROKEN, MISSED = 0, 1, 2


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="Torture a node, in four ways.")
    parser.add_argument("--hours", type=float, default=1.0, help="at most; no slice is begun later")
    parser.add_argument("--seed", default=None, help="any word; without it a fresh one, which is printed")
    parser.add_argument("--jobs", type=int, default=2, help="slices side by side")
    parser.add_argument("--directory", type=Path, default=None, help="for the table, and what is kept of failures")
    options = parser.parse_args(arguments)
    seed = options.seed or f"{time.time_ns() // 10**9:x}"
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"proof-{seed}-"))
    progress = Progress(seed)
    head = f"`python -m tests.proof --hours {options.hours:g} --seed {seed} --jobs {options.jobs}`, commit {_commit()}"
    _say(f"{head}, in {directory}")
    started = time.monotonic()
    trio.run(Course(progress, directory.resolve(), options.jobs, _say).run, options.hours * 3600)
    text = "\n".join([f"{head}: {time.monotonic() - started:,.0f} s.\n", *progress.table(), ""])
    (directory / "table.md").write_text(text, encoding="utf-8")
    _say(text)
    if progress.broken:
        return BROKEN
    return REACHED if progress.complete and not progress.undecided else MISSED


def _commit() -> str:
    """Of the code that runs; a seed means the same only there."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return said or "unknown"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
