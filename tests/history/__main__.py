"""Record what clients see while a node is tortured, and look for anomalies in the record.

    python -m tests.history run --peer journal --seconds 60 --seed 1 --out history.jsonl
    python -m tests.history check history.jsonl
    python -m tests.history compare journal.jsonl markers.jsonl kafka.jsonl

Exit status: 0 if there is no violation, 1 if there is, 2 if the file is not a history.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.history import comparison, report
from tests.history.checker import EXAMPLES, Verdict, check
from tests.history.history_file import read_history
from tests.history.operations import BadHistory

ROLES = ("goes-on", "resumer")
"""Of `tests.history.layout.Role`: clients that no stock client stands for."""
PEERS = ("journal", "markers", "kafka")
"""`tests.history.brokers.Peer`."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; answers the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description="Record histories, and judge them.")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="look for anomalies in a recorded history")
    checking.add_argument("file", type=Path, help="a history (docs/formats/history.md)")
    comparing = commands.add_parser("compare", help="lay histories side by side, as a table of markdown")
    comparing.add_argument("files", type=Path, nargs="+", help="histories, one for each column")
    running = commands.add_parser("run", help="torture a broker, record a history and check it")
    running.add_argument("--peer", choices=PEERS, required=True, help="a node with topics of either mode, or Kafka")
    running.add_argument("--seconds", type=float, default=30.0)
    running.add_argument("--seed", type=int, default=1, help="decides what is done; it stands in the history")
    running.add_argument("--out", dest="file", type=Path, required=True, help="where the history goes")
    running.add_argument("--many", choices=ROLES, help="a run that is about these: eight of them, and the readers")
    running.add_argument("--gap", type=float, help="seconds between two faults, on average")
    running.add_argument("--processes", type=int, default=1, help="of the node: a shard each")
    for command in (checking, running):
        command.add_argument("--json", action="store_true", help="the verdict as JSON")
        command.add_argument("--examples", type=int, default=EXAMPLES, help="of each anomaly show so many")
    options = parser.parse_args(arguments)
    if options.command == "run":
        # They need a node and real clients; checking needs neither.
        from tests.history.brokers import Peer, Unavailable
        from tests.history.faults import GAP_S
        from tests.history.layout import SLOTS, Role, many
        from tests.history.workload import run

        try:
            slots = SLOTS if options.many is None else many(Role(options.many))
            gap_s = options.gap or GAP_S
            run(
                Peer(options.peer),
                options.seconds,
                options.seed,
                options.file,
                slots=slots,
                gap_s=gap_s,
                processes=options.processes,
            )
        except Unavailable as why:
            print(f"{options.peer} cannot be had: {why}", file=sys.stderr)  # noqa: T201
            return 2
    return _compare(options.files) if options.command == "compare" else _check(options)


def _compare(files: Sequence[Path]) -> int:
    verdicts: list[Verdict] = []
    for path in files:
        try:
            with path.open(encoding="utf-8") as lines:
                verdicts.append(check(read_history(lines)))
        except (BadHistory, OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)  # noqa: T201
            return 2
    sys.stdout.write(comparison.as_markdown(verdicts))
    return 0 if all(verdict.valid for verdict in verdicts) else 1


def _check(options: argparse.Namespace) -> int:
    try:
        with options.file.open(encoding="utf-8") as lines:
            verdict = check(read_history(lines), examples=options.examples)
    except (BadHistory, OSError, UnicodeDecodeError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    sys.stdout.write(report.as_json(verdict) if options.json else report.as_text(verdict))
    return 0 if verdict.valid else 1


if __name__ == "__main__":
    sys.exit(main())
