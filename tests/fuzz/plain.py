"""One process of plain fuzzing: seeds and regressions first, then what `tests.fuzz.mutating` makes of them.

    python -m tests.fuzz.plain --seed S [--inputs N | --seconds N] TARGET…

Says for each target, as a line of JSON, how many inputs it has had. At a finding it keeps the input in `--findings`,
says so, and ends: memory and time are those of a process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.limits import SECONDS_MAX, Limits
from tests.fuzz.mutating import mutations
from tests.fuzz.target import INPUT_BYTES_MAX, Target, digest


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.plain", description=__doc__)
    parser.add_argument("targets", nargs="+", choices=TARGETS, metavar="TARGET")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--inputs", type=int, help="so many made ones for each target")
    parser.add_argument("--seconds", type=float, help="as many as are done in so much time, instead")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--more", type=Path, nargs="*", default=(), help="folders of further seeds")
    options = parser.parse_args(arguments)
    for name in options.targets:
        target = TARGETS[name]
        more = [path.read_bytes() for folder in options.more for path in sorted(folder.glob("*"))]
        known = [*target.seeds(), *target.regressions(), *more]
        for data in known[:1]:
            target.run(data)  # imports and caches are nobody's memory
        made = mutations(known, Random(f"{options.seed}.{name}"), bytes_max=INPUT_BYTES_MAX)
        made = islice(made, options.inputs or 0) if options.seconds is None else _for_seconds(made, options.seconds)
        started = time.monotonic()
        count = _feed(target, chain(known, made), options.findings)
        told = {
            "target": name,
            "inputs": abs(count),
            "seconds": round(time.monotonic() - started, 1),
            "found": count < 0,
        }
        print(json.dumps(told), flush=True)
        if count < 0:
            return 1
    return 0


def _feed(target: Target, inputs: Iterable[bytes], findings: Path) -> int:
    """How many inputs were run; negative if the last one was a finding."""
    limits = Limits(seconds_max=SECONDS_MAX, memory_bytes_max=target.memory_bytes_max)
    count = 0
    for data in inputs:
        count += 1
        try:
            with limits.watch():
                target.run(data)
        except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
            folder = findings / target.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / digest(data)).write_bytes(data)
            traceback.print_exc()
            print(f"{target.name}: a finding, kept as {folder / digest(data)}", file=sys.stderr, flush=True)
            return -count
    return count


def _for_seconds(inputs: Iterator[bytes], seconds: float) -> Iterator[bytes]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield next(inputs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
