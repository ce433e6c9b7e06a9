"""One process of guided fuzzing: libFuzzer, by atheris, makes inputs that reach new lines of the project's code.

    python -m tests.fuzz.guided TARGET --corpus FOLDER --findings FOLDER --seconds N --seed S

It ends at the first finding, or when the time is over. `tests.fuzz.__main__` starts it, and reads what libFuzzer says.
Only the project's own modules are watched, not the tests and not libraries.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import atheris

SLOWER = 10
"""What watching costs, at most: by so much an input may take longer."""

_ROOM_BYTES = 1 << 30
"""For libFuzzer's own corpus and counters."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(arguments)
    with atheris.instrument_imports(
        include=["journal", "datalog", "coordinator", "copier", "fairlog", "pyspark_fairlog"]
    ):
        from tests.fuzz.catalogue import TARGETS
    from tests.fuzz.limits import SECONDS_MAX, Limits
    from tests.fuzz.target import INPUT_BYTES_MAX, digest

    target = TARGETS[options.target]
    options.corpus.mkdir(parents=True, exist_ok=True)
    findings = options.findings / target.name
    findings.mkdir(parents=True, exist_ok=True)
    for data in (*target.seeds(), *target.regressions()):
        if len(data) <= INPUT_BYTES_MAX:
            (options.corpus / digest(data)).write_bytes(data)
        target.run(data)
    limits = Limits(seconds_max=SLOWER * SECONDS_MAX, memory_bytes_max=target.memory_bytes_max + _ROOM_BYTES)

    def feed(data: bytes) -> None:
        try:
            with limits.watch():
                target.run(data)
        except BaseException:
            (findings / digest(data)).write_bytes(data)
            raise

    flags = {
        "max_total_time": options.seconds,
        "max_len": INPUT_BYTES_MAX,
        "len_control": 0,  # long inputs from the beginning: the seeds are
        "seed": options.seed,
        "timeout": 120,
        "rss_limit_mb": 0,
        "artifact_prefix": f"{findings}/.",
        "print_final_stats": 1,
    }
    # libFuzzer's own copy of a finding is a hidden file, which nobody takes for a second one.
    atheris.Setup([sys.argv[0], str(options.corpus), *(f"-{flag}={value}" for flag, value in flags.items())], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main(sys.argv[1:])
