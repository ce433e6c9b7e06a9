"""The quick start: `python3 scripts/quickstart.py [--keep]`.

Creates .venv, installs Fairlog and one stock Kafka client (confluent-kafka), starts a node, and shows its main job: a
plain consumer tails two topics while transactions commit, one aborts and one hangs. Exits non-zero if what the consumer
saw is not what was committed. `--keep` leaves the node running.

This file needs only Python. The demonstration is in quickstart_tour.py, which runs inside .venv.
"""

from __future__ import annotations

import argparse
import sys

import environment


def main() -> int:
    parser = argparse.ArgumentParser(description="Fairlog's quick start: see one node do the main job.")
    parser.add_argument("--keep", action="store_true", help="leave the node running, and its data in place")
    arguments = parser.parse_args()
    environment.enter("quickstart")
    # Inside .venv from here on.
    from quickstart_tour import tour

    return tour(keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
