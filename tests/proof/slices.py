"""The four trials of a proof, in slices: `python -m tests.proof.slices KIND --seed S --directory D`.

A slice is a process of its own, of a minute or so: a proof is many of them. What it has done goes into `counts.json` in
its directory, where it also leaves what can be used to look into a failure.

    simulation   runs of the simulation: machines that die and recover                        (tests/simulation)
    kills        a node under load, SIGKILLed at named points and at random moments           (tests/crash/harness.py)
    images       a recorded node, and the power cut at thirty moments of its life             (tests/crash/images.py)
    history      real clients, proxy and faults, and the checker's verdict on what they saw   (tests/history)

Exit status: 0 nothing found, 1 a promise is broken, 3 no verdict: the trial itself could not go on. A node that ends,
or refuses its disk, is a broken promise; one that is not ready in time, on a machine full of other work, is none yet,
nor are clients that do not begin in time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fairlog_types import CorruptStorage
from scripts.node_process import NodeDidNotStart, NodeNotReady
from tests.crash import images
from tests.crash.harness import JOURNALS, MARKERS, MIXED, CrashRun
from tests.history.brokers import Peer
from tests.history.checker import check
from tests.history.faults import Fault
from tests.history.history_file import read_history
from tests.history.report import as_text
from tests.history.workload import NotUnderWay, Workload
from tests.proof.amounts import Amount
from tests.proof.course import BROKEN, COUNTS, FOUND_NOTHING, NO_VERDICT
from tests.simulation.plan import draw
from tests.simulation.simulation import run

SIMULATION_RUNS = 50
KILLS = 28
HISTORY_S = 60.0


class PromiseBroken(AssertionError):
    """What a trial has found."""


def simulation(seed: str, _directory: Path) -> Counter[str]:
    """Some hundred recoveries."""
    counts: Counter[str] = Counter()
    for number in range(SIMULATION_RUNS):
        outcome = run(draw(f"{seed}.{number}"))
        of_run = Counter(outcome.counts)
        counts[Amount.RECOVERIES.value] += of_run["recoveries"]
        counts["simulated power cuts"] += of_run["power cut"]
        counts["simulated kills"] += of_run["kill"]
        counts["simulated requests"] += of_run["requests"]
        counts["simulated seconds"] += round(outcome.virtual_s)
        if outcome.violation is not None:
            _say("\n".join(outcome.transcript))
            raise PromiseBroken(f"{outcome.violation}\nagain: python -m tests.simulation --only {outcome.plan.seed}")
    return counts


def kills(seed: str, directory: Path) -> Counter[str]:
    """A run of the crash test, over partitions of any mode."""
    rng = random.Random(seed)
    crash_run = CrashRun(directory / "node", rng.getrandbits(32), rng.choice((JOURNALS, JOURNALS, MIXED, MARKERS)))
    try:
        crash_run.kill_times(KILLS)
    finally:
        _say(crash_run.report())
    return Counter({Amount.KILLS.value: crash_run.kills.total()})


def power_cuts(seed: str, directory: Path) -> Counter[str]:
    """One recording, cut at thirty moments."""
    counts = images.run(images.IMAGES_PER_RECORDING, seed, directory.resolve() / "node", keep_in=directory, say=_say)
    _say(", ".join(f"{count} {what}" for what, count in counts.items()))
    return Counter(
        {
            Amount.IMAGES.value: counts["images"],
            "images cut in a recovery": counts["of these cut in a recovery"],
            "answered commits asked for in images": counts["commits that had been answered"],
        }
    )


def history(seed: str, directory: Path) -> Counter[str]:
    """A minute of the workload in either mode, and the verdict."""
    rng = random.Random(seed)
    out = directory / "history.jsonl"
    workload = Workload(directory / "work", rng.choice((Peer.JOURNAL, Peer.MARKERS)), rng.getrandbits(31))
    workload.run(HISTORY_S, out)
    with out.open(encoding="utf-8") as lines:
        verdict = check(read_history(lines))
    _say(as_text(verdict))
    if not verdict.valid:
        raise PromiseBroken(", ".join(f"{found.count} × {kind.name}" for kind, found in verdict.violations.items()))
    beside = verdict.beside
    return Counter(
        {
            Amount.OPERATIONS.value: sum(verdict.operations.values()),
            Amount.KILLS.value: workload.counts[Fault.KILL_NODE],
            "SIGKILLs in histories": workload.counts[Fault.KILL_NODE],
            "records sent in histories": verdict.records_sent,
            "records read in histories": verdict.records_read,
            "records judged beside open transactions": beside.transactions.records + beside.plain.records,
        }
    )


SLICES: Mapping[str, Callable[[str, Path], Counter[str]]] = {
    "simulation": simulation,
    "kills": kills,
    "images": power_cuts,
    "history": history,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.slices", description="One slice of a proof.")
    parser.add_argument("kind", choices=list(SLICES))
    parser.add_argument("--seed", required=True, help="any word")
    parser.add_argument("--directory", type=Path, required=True, help="for what it writes; there is nothing in it")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    try:
        counts = SLICES[options.kind](options.seed, options.directory)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what came of the slice)
        traceback.print_exception(error)
        return verdict_on(error)
    (options.directory / COUNTS).write_text(json.dumps(counts), encoding="utf-8")
    return FOUND_NOTHING


def verdict_on(error: BaseException) -> int:
    """BROKEN or NO_VERDICT."""
    if any(isinstance(each, NodeNotReady | NotUnderWay) for each in _chain(error)):
        return NO_VERDICT
    return BROKEN if isinstance(error, AssertionError | CorruptStorage | NodeDidNotStart) else NO_VERDICT


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
