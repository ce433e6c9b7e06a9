"""The benchmark: `python3 scripts/bench.py [--quick] [--only SCENARIO] [--rounds N]`.

    txn-latency   transactions of 10 x 1 KB to 2 partitions, one producer, fsync on; the same client and the same
                  transactions against librdkafka's own in-memory mock cluster, in turns, as the client's floor
    produce       plain produce in requests of 1 MB and of 16 KB: MB/s, broker CPU-s per GB, bytes written per byte
    memory        resident memory with 1,000 partitions, then with 10,000 transactional ids that each committed once
    restart       from SIGKILL to ready, with 1 GB of journals to read again, and with none
    retention     a soak: 20 times what is kept is produced, deleted and compacted; rate, file size and waits per pass

Scenarios run in rounds, and what is compared takes turns within a round, so that a noisy machine is noisy for
both. Every figure is a median over the rounds with its spread. A table is printed, and everything goes to
bench-out/<time>.json. Nothing here is a test: figures are for people to judge, on a machine they know.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import environment

SCENARIOS = ("txn-latency", "produce", "memory", "restart", "retention")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a Fairlog node on this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: for trying it out, not for quoting")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="this scenario; may be given again")
    parser.add_argument("--rounds", type=int, default=5, help="how often each measurement is taken (default 5)")
    arguments = parser.parse_args()
    python = environment.ensure("quickstart")
    if Path(sys.prefix) != environment.ENVIRONMENT:
        sys.stdout.flush()
        os.execv(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]])
    # Inside .venv from here on.
    from benchmarks.report import run

    return run(arguments.only or SCENARIOS, quick=arguments.quick, rounds=max(1, arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
