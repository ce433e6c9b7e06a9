"""Record what clients see while a node is tortured, and look for anomalies in the record.

    python -m tests.history run --peer journal --seconds 60 --seed 1 --out history.jsonl
    python -m tests.history check history.jsonl
    python -m tests.history compare journal.jsonl markers.jsonl kafka.jsonl
    python -m tests.history collect --peer cluster --seconds 200 --gap 2 --seeds 1 20 --out DIRECTORY
    python -m tests.history sum DIRECTORY/*.jsonl

Exit status: 0 if there is no violation, 1 if there is, 2 if the file is not a history, or the broker cannot be had, 130
if it was stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.history import report
from tests.history.checker import EXAMPLES, Verdict, check
from tests.history.collecting import Found, collect, history_of, verdict_of
from tests.history.comparison import as_markdown, as_sums
from tests.history.history_file import read_history
from tests.history.operations import BadHistory

ROLES = ("goes-on", "resumer")
"""Of `tests.history.layout.Role`: clients that no stock client stands for."""
PEERS = ("journal", "markers", "kafka", "cluster")
"""`tests.history.brokers.Peer`."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; answers the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description="Record histories, and judge them.")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="look for anomalies in a recorded history")
    checking.add_argument("file", type=Path, help="a history (docs/formats/history.md)")
    comparing = commands.add_parser("compare", help="lay histories side by side, as a table of markdown")
    comparing.add_argument("files", type=Path, nargs="+", help="histories, one for each column")
    summing = commands.add_parser("sum", help="what was done in all these histories together, and what was found")
    summing.add_argument("files", type=Path, nargs="+", help="histories")
    running = commands.add_parser("run", help="torture a broker, record a history and check it")
    running.add_argument("--seed", type=int, default=1, help="decides what is done; it stands in the history")
    running.add_argument("--out", dest="file", type=Path, required=True, help="where the history goes")
    collecting = commands.add_parser(
        "collect", help="a history for each seed, and their sum; begun again, it goes on with those that are missing"
    )
    collecting.add_argument("--seeds", type=int, nargs=2, required=True, metavar=("FIRST", "LAST"))
    collecting.add_argument("--out", dest="directory", type=Path, required=True, help="where the histories go")
    for command in (running, collecting):
        command.add_argument(
            "--peer", choices=PEERS, required=True, help="a node with topics of either mode, Kafka, or nodes"
        )
        command.add_argument("--seconds", type=float, default=30.0)
        command.add_argument("--many", choices=ROLES, help="a run that is about these: eight of them, and the readers")
        command.add_argument("--gap", type=float, help="seconds between two faults, on average")
        command.add_argument("--processes", type=int, default=1, help="of the node: a shard each")
    for command in (checking, running):
        command.add_argument("--json", action="store_true", help="the verdict as JSON")
        command.add_argument("--examples", type=int, default=EXAMPLES, help="of each anomaly show so many")
    options = parser.parse_args(arguments)
    match options.command:
        case "check":
            return _check(options)
        case "compare":
            return _together(options.files, as_markdown)
        case "sum":
            return _together(options.files, as_sums)
        case _:
            return _torture(options)


def _torture(options: argparse.Namespace) -> int:
    # This needs a node and real clients; checking needs neither.
    from tests.history.brokers import Unavailable

    # What was started is ended also if this is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options.networked = options.peer == "cluster" and _has_own_network()
        return _run(options) if options.command == "run" else _collect(options)
    except Unavailable as why:
        print(f"{options.peer} cannot be had: {why}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)  # noqa: T201
        return 130


def _run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="fairlog-history-") as directory:
        _record(options, options.seed, options.file, Path(directory))
    return _check(options)


def _collect(options: argparse.Namespace) -> int:
    from tests.history.workload import WorkloadFailed

    first, last = options.seeds
    seeds = range(first, last + 1)
    failure: Exception | None = None
    try:
        collect(seeds, options.directory, partial(_record, options), lambda said: print(said, flush=True))  # noqa: T201
    except (Found, WorkloadFailed) as found:
        print(found, file=sys.stderr)  # noqa: T201
        failure = found
    files = [path for seed in seeds if (path := history_of(seed, options.directory)).exists()]
    return _together(files, as_sums) or (0 if failure is None else 1)


def _record(options: argparse.Namespace, seed: int, out: Path, directory: Path) -> None:
    from tests.history.brokers import Peer
    from tests.history.faults import GAP_S
    from tests.history.layout import SLOTS, SLOTS_OF_A_CLUSTER, Role, many
    from tests.history.workload import Workload

    of_all = SLOTS_OF_A_CLUSTER if options.peer == "cluster" else SLOTS
    Workload(
        directory,
        Peer(options.peer),
        seed,
        slots=of_all if options.many is None else many(Role(options.many)),
        gap_s=options.gap or GAP_S,
        processes=options.processes,
        networked=options.networked,
    ).run(options.seconds, out)


def _has_own_network() -> bool:
    """Whether this program is in a network of its own; it begins anew in one if it is not."""
    from tests.history.cluster import run_in_own_network

    try:
        run_in_own_network([sys.executable, "-m", "tests.history", *sys.argv[1:]])
    except OSError as refused:
        print(f"nothing is cut, for there is no network of one's own: {refused}", file=sys.stderr)  # noqa: T201
        return False
    return True


def _together(files: Sequence[Path], shown: Callable[[Sequence[Verdict]], str]) -> int:
    verdicts: list[Verdict] = []
    for path in files:
        try:
            verdicts.append(verdict_of(path))
        except (BadHistory, OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)  # noqa: T201
            return 2
    sys.stdout.write(shown(verdicts))
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
