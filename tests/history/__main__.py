"""Record what clients see while a node is tortured, and look for anomalies in the record.

    python -m tests.history run --mode journal --seconds 60 --seed 1 --out history.jsonl
    python -m tests.history check history.jsonl

Exit status: 0 if there is no violation, 1 if there is, 2 if the file is not a history.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.history import report
from tests.history.checker import EXAMPLES, check
from tests.history.history_file import read_history
from tests.history.operations import BadHistory, Mode


def main(arguments: list[str] | None = None) -> int:
    """Run a command; answers the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="look for anomalies in a recorded history")
    checking.add_argument("file", type=Path, help="a history (docs/formats/history.md)")
    running = commands.add_parser("run", help="torture a node, record a history and check it")
    running.add_argument(
        "--mode", type=Mode, choices=list(Mode), required=True, metavar="|".join(each.value for each in Mode)
    )
    running.add_argument("--seconds", type=float, default=30.0)
    running.add_argument("--seed", type=int, default=1, help="decides what is done; it stands in the history")
    running.add_argument("--out", dest="file", type=Path, required=True, help="where the history goes")
    for command in (checking, running):
        command.add_argument("--json", action="store_true", help="the verdict as JSON")
        command.add_argument("--examples", type=int, default=EXAMPLES, help="of each anomaly show so many")
        command.add_argument(
            "--latency-ratio",
            type=float,
            help="records beside an open transaction may take so many times as long to be seen as others",
        )
    options = parser.parse_args(arguments)
    if options.command == "run":
        from tests.history.workload import run  # it needs a node and real clients; checking needs neither

        run(options.mode, options.seconds, options.seed, options.file)
    return _check(options)


def _check(options: argparse.Namespace) -> int:
    try:
        with options.file.open(encoding="utf-8") as lines:
            verdict = check(read_history(lines), latency_ratio_max=options.latency_ratio, examples=options.examples)
    except (BadHistory, OSError, UnicodeDecodeError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    sys.stdout.write(report.as_json(verdict) if options.json else report.as_text(verdict))
    return 0 if verdict.valid else 1


if __name__ == "__main__":
    sys.exit(main())
