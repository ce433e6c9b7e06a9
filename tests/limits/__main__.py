"""`python -m tests.limits [--only NAME …] [--small] [--directory DIRECTORY]`: each strain on a node of its own.

At full size all of them take half an hour and, one after the other, up to 8 GB below DIRECTORY. What is seen is printed
as a table in Markdown, line by line. Exit code 1 if a node grew beyond the strain's bound, failed, or did not end it as
it should.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.limits.catalogue import STRAINS, endure
from tests.limits.site import Delay, Seen
from tests.limits.strain import MIB, Strain

_HEAD = (
    "| strain | size | anonymous memory, MiB: before, peak, after | files: before, peak, after "
    "| bystander's round, ms: undisturbed | … during the strain | how it ended |\n|---|---|---|---|---|---|---|"
)


def _row(strain: Strain, seen: Seen, ended: str) -> str:
    memory = ", ".join(f"{each / MIB:.0f}" for each in (seen.memory_before, seen.memory_peak, seen.memory_after))
    files = f"{seen.files_before:,}, {seen.files_peak:,}, {seen.files_after:,}"
    cells = (strain.name, strain.size, memory, files, _delay(seen.undisturbed), _delay(seen.during), ended)
    return f"| {' | '.join(cells)} |"


def _delay(delay: Delay) -> str:
    """Of at least two hundred rounds the 99 % are said, of fewer the longest only."""
    if delay.rounds < 200:
        return f"{delay.median_s * 1e3:.0f}, longest of {delay.rounds} {delay.longest_s * 1e3:,.0f}"
    return f"{delay.median_s * 1e3:.0f}, 99 % {delay.p99_s * 1e3:.0f}, longest {delay.longest_s * 1e3:,.0f}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.limits", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in STRAINS])
    parser.add_argument("--small", action="store_true", help="as the test suite does it")
    parser.add_argument("--directory", type=Path, help="where the nodes' data goes; the system's choice otherwise")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the node first
    failed = False
    _say(_HEAD)
    for strain in STRAINS:
        if options.only and strain.name not in options.only:
            continue
        if (why_not := strain.needs()) is not None:
            _say(f"| {strain.name} | not done: {why_not} |")
            continue
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            result = endure(strain, Path(directory), small=options.small)
        _say(_row(strain, result.seen, result.ended))
        for each in result.wrong:
            failed = True
            sys.stderr.write(f"{strain.name}: {each}\n")
    return int(failed)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
