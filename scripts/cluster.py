"""A whole cluster on this machine, to try it out: `python3 scripts/cluster.py [--keep]`.

Starts three brokers of Apache Kafka (from Maven; Java 17 or newer is needed), three nodes of Fairlog whose journals are
kept there, and a client that commits transactions. Then the node that coordinates them is killed. It prints how long
the client waited, and exits non-zero if a plain consumer does not find exactly what was committed. `--keep` leaves
everything running until Ctrl-C.

This file needs only Python. The demonstration is in cluster_tour.py, which runs inside .venv.
"""

from __future__ import annotations

import argparse
import signal
import sys

import environment


def main() -> int:
    parser = argparse.ArgumentParser(description="Three nodes of Fairlog on three brokers of Kafka, and a failover.")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is stopped then, too
    environment.enter("quickstart")
    # Inside .venv from here on.
    from cluster_tour import tour

    return tour(keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
