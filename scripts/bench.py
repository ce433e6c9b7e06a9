"""The benchmark: `python3 scripts/bench.py [SCENARIO …] [--peers NAME,…] [--out DIR] [--quick] [--rounds N]`.

    txn-latency      a transaction, from begin to the commit's answer, by records and partitions; broker CPU;
                     one of the cases also by a Java client, in both versions of the protocol
    txn-throughput   full speed with a commit every 10, 100, 1000 ms, against the same without transactions
    visible          from produce() to a consumer's poll(): plain records and committed transactions
    hung             the same while a transaction is left open on the partition
    aborts           bytes fetched per record delivered when 0, 10, 50, 90 % of the transactions abort
    produce, fetch   plain writing and catching up, by record and request size
    scale            latency and memory by transactional ids, partitions, producers and open transactions
    soak             fill and expire until ten times what is retained has passed
    recovery         from SIGKILL under load to the first answer, and until everything is visible
    recovery-full    the same with up to a million transactions and 5 GB of journals; runs only if it is named
    offsets          transactions that also commit consumer offsets
    processes        transactions and plain records on 1, 2 and 4 processes; runs only if it is named, with
                     --peers journal,journal-2,journal-4
    cluster          transactions, a failover and plain records on three nodes, and on Kafka's brokers alone; runs only
                     if it is named, with --peers cluster,kafka-3
    streams          what each stream costs a node with 1 to 64 shards; runs only if it is named, with
                     --peers shards-1,shards-8,shards-32,shards-64
    spark            Spark's jobs by format("fairlog") and by the Kafka connector; runs only if it is named: it
                     installs Spark, and needs Java 17
    tls              writing, reading and transactions with and without TLS, and what asking an authorizer costs; runs
                     only if it is named, with --peers journal-tls,journal-acls,kafka-tls
    report           measures nothing: writes the report of the results in DIR again
    make-finished    measures nothing: makes `--count N` finished transactions for each peer, for recovery to begin with

Without a SCENARIO, all run but those that run only if they are named. The peers take turns within each round, so that
a noisy machine is equally noisy for all of them. The results are written to DIR: results.json, report.md, report.html
and the charts; results of other scenarios in DIR are kept. The measured disk is the one that contains DIR. Files that
are made only once (Kafka's jars, finished transactions) stay in bench-cache, or in the directory named by the
environment variable BENCH_CACHE. This is not a test: people judge the figures, on a machine that they know. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import environment
from peers.interface import ALL_NAMES, NAMES

SCENARIOS = (
    "txn-latency", "txn-throughput", "visible", "hung", "aborts", "produce", "fetch", "scale", "soak", "recovery",
    "offsets",
)  # fmt: skip
ONLY_NAMED = ("recovery-full", "processes", "cluster", "streams", "spark", "tls")
REPORT, MAKE_FINISHED = ALONE = ("report", "make-finished")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="what to measure")
    parser.add_argument("--peers", default=",".join(NAMES), help="which brokers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=environment.ROOT / "bench-out", help="default: bench-out")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: for trying it out, not for quoting")
    parser.add_argument("--rounds", type=int, default=5, help="how often each peer has its turn (default 5)")
    parser.add_argument("--count", type=int, default=1_000_000, help="make-finished: how many (default %(default)s)")
    arguments = parser.parse_args()
    scenarios: list[str] = arguments.scenarios
    peers: list[str] = [name for name in arguments.peers.split(",") if name]
    for given, known in (
        (scenarios, (*SCENARIOS, *ONLY_NAMED, *ALONE)),
        (peers, ALL_NAMES),
    ):
        if strange := [name for name in given if name not in known]:
            parser.error(f"there is no {', '.join(strange)}; there are {', '.join(known)}")
    if len(scenarios) > 1 and (alone := [name for name in scenarios if name in ALONE]):
        parser.error(f"{alone[0]} stands alone")
    environment.enter("spark" if "spark" in scenarios else "bench")
    # Inside .venv from here on. What ends this in order ends the brokers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from benchmarks import finished, runner
    from benchmarks.results import OtherRun

    try:
        if scenarios == [REPORT]:
            return runner.report_again(arguments.out)
        if scenarios == [MAKE_FINISHED]:
            return finished.make(peers, arguments.count)
        rounds = max(1, arguments.rounds)
        return runner.run(scenarios or SCENARIOS, peers, arguments.out, quick=arguments.quick, rounds=rounds)
    except OtherRun as refusal:
        sys.exit(f"{arguments.out}: {refusal}. Give another directory with --out.")


if __name__ == "__main__":
    sys.exit(main())
