"""`fairlog inspect FILE`: shows the content of a journal's segment, the data logs, or another of a node's files.

Lines are printed as they are made, so that `| head` is quick. Damage is shown where it is; the exit code is then 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fairlog.cli.errors import ClientError

EXAMPLES = """
\b
Examples:
  fairlog inspect fairlog-data/shards/0/journals/local/t-…-0/00000000000000000000.journal
  fairlog inspect fairlog-data/shards/0/journals/group/3/00000000000000000000.journal --from 4096 --count 20
  fairlog inspect fairlog-data/shards/0/datalog/data.mdb --records --json | jq 'select(.what == "record")'
  fairlog inspect fairlog-data/cluster/data.mdb
  fairlog inspect fairlog-data/metadata/data.mdb          # of a node of several machines
"""


def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A segment (*.journal, *.new), a data.mdb or a stream-mark.")
    ],
    records: Annotated[bool, typer.Option("--records", help="Also show the records inside batches.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    start: Annotated[
        int,
        typer.Option(
            "--from", min=0, metavar="POSITION", help="Begin at this journal position; in data logs: at this offset."
        ),
    ] = 0,
    count: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="COUNT",
            help="Show at most this number of frames; in data logs: of batches of each log.",
            show_default="all",
        ),
    ] = None,
) -> None:
    """Show the content of a file in readable form. The file is not changed, and a node may be using it.

    Exit code 0: everything could be read. A torn tail is no damage: a crash or a running node leaves it. 1: damage.
    """
    from fairlog.inspection.files import NotInspectable, inspect_file
    from fairlog.inspection.lines import as_json, as_text
    from fairlog.inspection.segments import Selection
    from fairlog_types import StorageFailure

    written = as_json if json else as_text
    damaged = False
    try:
        for line in inspect_file(file, Selection(start, count, records)):
            sys.stdout.write(written(line) + "\n")
            damaged = damaged or line.damage is not None
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ClientError(f"cannot read {file}: {error.strerror or error}") from error
    except (NotInspectable, StorageFailure) as error:
        raise ClientError(str(error)) from error
    if damaged:
        raise typer.Exit(1)
