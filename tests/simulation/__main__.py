"""Run the simulation: `python -m tests.simulation --runs N --seed S`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.plan import draw
from tests.simulation.simulation import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--no-faults", action="store_true")
    parser.add_argument("--transcript", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    totals: dict[str, int] = {}
    for number in range(options.runs):
        seed = f"{options.seed}.{number}"
        outcome = run(draw(seed, faults=not options.no_faults))
        for name, count in outcome.counts.items():
            totals[name] = totals.get(name, 0) + count
        if options.transcript:
            print("\n".join(outcome.transcript))
        print(
            f"{seed}: {outcome.digest} {outcome.seconds:.2f} s, {outcome.virtual_s:.2f} virtual s, {outcome.violation or 'ok'}"
        )
    print(totals, f"{time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings are iterated in an order of their own in each process, unless it is fixed at its start.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
