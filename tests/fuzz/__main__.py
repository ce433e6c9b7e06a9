"""Fuzz the readers: `python -m tests.fuzz [TARGET…] --seconds N --seed S`.

With atheris by coverage, without it by chance; it is installed by

    .venv/bin/python -m pip install --no-deps --require-hashes -r requirements-fuzz.lock

Each target has a process of its own. The corpus that grows is kept in `--corpus`, and is where the next run begins. A
finding is kept in `--findings`, and is to be moved to `tests/fuzz/regressions/TARGET/` when it is mended.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.catalogue import TARGETS

CORPUS = Path(".fuzz/corpus")
FINDINGS = Path(".fuzz/findings")

_STOP_S = 300
"""What a process may take beyond its time, for imports and its last input, on a busy machine."""

_RUNS = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_EDGES = re.compile(rb"cov: (\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one target."""

    inputs: int
    edges: int | None
    """Branches of the project's code that were reached; None if nobody watched."""
    seconds: float
    failed: bool
    said: bytes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="by chance, though atheris is there")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--findings", type=Path, default=FINDINGS)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(TARGETS)}")
    guided = not options.plain and find_spec("atheris") is not None
    print(f"{'by coverage' if guided else 'by chance'}, {options.seconds} s each, seed {options.seed}", flush=True)
    print("| target | reads | inputs | edges | seconds |\n|---|---|---:|---:|---:|", flush=True)
    found: list[tuple[str, Run]] = []
    for name in options.targets or TARGETS:
        run = _guided(name, options) if guided else _plain(name, options)
        edges = "" if run.edges is None else f"{run.edges:,}"
        verdict = " **a finding** |" if run.failed else ""
        print(f"| {name} | {TARGETS[name].what} | {run.inputs:,} | {edges} | {run.seconds:.0f} |{verdict}", flush=True)
        if run.failed:
            found.append((name, run))
    for name, run in found:
        print(f"\n{name}: kept in {options.findings / name}\n{run.said.decode(errors='replace')[-4000:]}", flush=True)
    return 1 if found else 0


def _guided(name: str, options: argparse.Namespace) -> Run:
    command = ["tests.fuzz.guided", name, "--corpus", str(options.corpus / name)]
    command += ["--findings", str(options.findings), "--seconds", str(options.seconds), "--seed", str(options.seed)]
    status, said, seconds = _run(command, options.seconds)
    runs, edges = _RUNS.search(said), _EDGES.findall(said)
    return Run(int(runs[1]) if runs else 0, int(edges[-1]) if edges else 0, seconds, status != 0, said)


def _plain(name: str, options: argparse.Namespace) -> Run:
    command = ["tests.fuzz.plain", name, "--seconds", str(options.seconds), "--seed", str(options.seed)]
    command += ["--findings", str(options.findings), "--more", str(options.corpus / name)]
    status, said, seconds = _run(command, options.seconds)
    told = next((json.loads(line) for line in said.splitlines() if line.startswith(b'{"target"')), {"inputs": 0})
    return Run(told["inputs"], None, seconds, status != 0, said)


def _run(command: list[str], seconds: int) -> tuple[int, bytes, float]:
    """Exit status, all that was said, and seconds. A process that does not end is killed, and has failed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + _STOP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return -1, (late.stdout or b"") + b"\nit did not end", time.monotonic() - started
    return done.returncode, done.stdout, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
