"""Run the simulation: `python -m tests.simulation --runs N --seed S`.

Each run is drawn from its own seed, `S.0`, `S.1`, …; a violation is printed with it, shrunk, and told as a transcript.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

from tests.simulation.mutations import MUTATIONS, OF_REPLICAS, OF_THE_GRID, OVER_SHARDS, plant
from tests.simulation.plan import Plan, draw, draw_grid, draw_replicas, draw_shards
from tests.simulation.planting import staged
from tests.simulation.shrinking import RUNS_MAX, shrink
from tests.simulation.simulation import Outcome, run
from tests.simulation.truth import CHANGES
from tests.simulation.world import Violation

CHANGES_EACH = 40
"""With `--changes` each run goes on until it has had so many owners: to begin and to end it takes longer."""
_SAID_EVERY = 100
"""Changes of owner: a line says how far it is."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many")
    parser.add_argument("--hours", type=float, help="as many as fit into so much time, instead")
    parser.add_argument("--changes", type=int, help="as many as make so many changes of owner")
    parser.add_argument("--seed", default="0", help="any word")
    parser.add_argument("--only", metavar="SEED", help="one run, of this seed, with its transcript")
    parser.add_argument("--plan", metavar="JSON", help="one run, of a plan that shrinking has printed")
    parser.add_argument("--shrink-runs", type=int, default=RUNS_MAX, help="so many runs to make a failing one smaller")
    parser.add_argument("--no-faults", action="store_true", help="no crash, and nothing that fails")
    parser.add_argument("--staged", action="store_true", help="copy every transaction in stages, as if it were large")
    parser.add_argument(
        "--shards", action="store_true", help="several processes with a shard each, of a seed of its own"
    )
    parser.add_argument("--replicas", action="store_true", help="several nodes with a copy of one shard each")
    parser.add_argument("--grid", action="store_true", help="several nodes with a copy of each of several shards")
    parser.add_argument("--mutations", action="store_true", help="plant each bug, and say which seed has found it")
    parser.add_argument("--mutation", metavar="NAME", help="plant this one")
    options = parser.parse_args(arguments)
    if options.mutations:
        return _check_mutations(options)
    with plant(options.mutation) if options.mutation else nullcontext(), staged() if options.staged else nullcontext():
        if options.only is not None or options.plan is not None:
            plan = _draw(options, options.only) if options.only else Plan.from_json(options.plan)
            outcome = run(plan)
            _say("\n".join(outcome.transcript))
            _say(f"{plan.to_json()}\n{outcome.digest}: {outcome.violation or 'nothing found'}")
            return int(outcome.violation is not None)
        return _run_many(options)


def _draw(options: argparse.Namespace, seed: str) -> Plan:
    drawn = draw
    for wanted, of_that in (
        (options.shards, draw_shards),
        (options.replicas, draw_replicas),
        (options.grid, draw_grid),
    ):
        drawn = of_that if wanted else drawn
    plan = drawn(seed, faults=not options.no_faults)
    return plan if options.changes is None else replace(plan, changes=CHANGES_EACH)


def _run_many(options: argparse.Namespace) -> int:
    seed = options.seed
    totals: Counter[str] = Counter()
    started = time.monotonic()
    virtual_s = 0.0
    number = 0
    while _goes_on(options, number, time.monotonic() - started, totals[CHANGES]):
        outcome = run(_draw(options, f"{seed}.{number}"))
        number += 1
        before = totals[CHANGES]
        totals.update(outcome.counts)
        if totals[CHANGES] // _SAID_EVERY > before // _SAID_EVERY:
            _say(f"{totals[CHANGES]:,} {CHANGES} in {number} runs and {time.monotonic() - started:.0f} s")
        virtual_s += outcome.virtual_s
        if outcome.violation is not None:
            _tell(outcome, options.shrink_runs)
            return 1
    seconds = time.monotonic() - started
    _say(f"{number} runs of seed {seed!r} in {seconds:.1f} s, {virtual_s:.1f} s by their own clocks: nothing found")
    _say(", ".join(f"{count:,} {name}" for name, count in sorted(totals.items())))
    return 0


def _goes_on(options: argparse.Namespace, runs: int, seconds: float, changes: int) -> bool:
    if options.changes is not None:
        return changes < options.changes
    return runs < options.runs if options.hours is None else seconds < options.hours * 3600


def _tell(outcome: Outcome, shrink_runs: int) -> None:
    _say(f"seed {outcome.plan.seed}: {outcome.violation}\nshrinking …")
    smaller = shrink(outcome, runs_max=shrink_runs)
    _say("\n".join(smaller.transcript))
    _say(f"run it again: python -m tests.simulation --only {outcome.plan.seed}")
    _say(f"shrunk:       python -m tests.simulation --plan '{smaller.plan.to_json()}'")


def _check_mutations(options: argparse.Namespace) -> int:
    """For each planted bug the first seed that finds it."""
    missed, runs = 0, options.runs
    _say("| planted bug | what the code does then | found by seed | as |\n|---|---|---|---|")
    table = OVER_SHARDS if options.shards else OF_REPLICAS if options.replicas else MUTATIONS
    for mutation in OF_THE_GRID if options.grid else table:
        found: Outcome | None = None
        with mutation.plant():
            for number in range(runs):
                outcome = run(_draw(options, f"{options.seed}.{number}"))
                if outcome.violation is not None:
                    _assert_fits(mutation.name, outcome.violation)
                    found = outcome
                    break
        if found is None:
            missed += 1
            _say(f"| {mutation.name} | {mutation.what} | none of {runs} | |")
        else:
            said = " ".join(str(found.violation).split()).replace("|", "\\|")
            _say(f"| {mutation.name} | {mutation.what} | {found.plan.seed} | {said[:160]} |")
    return int(missed > 0)


def _assert_fits(name: str, violation: Violation) -> None:
    """A planted bug that the code it is planted into cannot call any more would be found by every seed."""
    misfit = isinstance(violation.__cause__, TypeError | AttributeError | NameError)
    assert not misfit, f"the planted bug {name} does not fit the code: {violation}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings are iterated in an order of their own in each process, unless it is fixed at its start.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environment)
    sys.exit(main(sys.argv[1:]))
