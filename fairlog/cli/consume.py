"""`fairlog consume`: show records, from a node or straight from a data directory, as a table or as JSON lines.

There are three sources (`read_node`: assigned, or in a group; `read_directory`) and three forms of output
(`record_output`); this module reads the options and joins a source and an output.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from fairlog.cli.bootstrap import Bootstrap
from fairlog.cli.selection import Selection, Start

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from fairlog.cli.record_forms import ReadRecord
    from fairlog.cli.record_output import RecordOutput

EXAMPLES = """
\b
Examples:
  fairlog consume orders                                  # what comes from now on
  fairlog consume orders billing --from-beginning
  fairlog consume orders --until-end --json > orders.jsonl
  fairlog consume orders --partition 0 --offset -10       # the last ten, and what comes
  fairlog consume orders --group billing --count 100
  fairlog consume orders --until-end --data-dir data      # without asking the node
  fairlog consume orders --isolation read_uncommitted     # and what a topic with markers has of open and aborted ones
"""


class Isolation(Enum):
    """As consumers call it."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Reading(Protocol):
    """A source of records."""

    @property
    def total(self) -> int | None:
        """How many records are there to be read when it begins, if that is known."""
        ...

    def chunks(self, stop: threading.Event) -> Iterable[list[ReadRecord]]:
        """Records as they come; when the next chunk is asked for, the last one has been shown."""
        ...


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics to read.", show_default=False)],
    bootstrap: Bootstrap,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Read a node's data directory on this machine and ask no broker; the node may run."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Read as a member of this consumer group, and commit offsets.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, metavar="NUMBER", help="Only this partition; may be repeated.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(metavar="OFFSET", help="Begin at this offset; a negative offset counts from the end."),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="Begin at the first record. In a group: only if it has no offset yet."),
    ] = False,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Stop after this number of records.")
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="Stop at the current ends of the topics. Reading then begins at the first record by default.",
        ),
    ] = False,
    isolation: Annotated[
        Isolation,
        typer.Option(help="Show committed records only, or all records that a topic with markers contains."),
    ] = Isolation.READ_COMMITTED,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Show records of topics as they arrive, until Ctrl-C or where the options say."""
    _refuse_what_excludes_another(data_dir, group, partition, offset, from_beginning)
    start: Start | int = Start.EARLIEST if from_beginning or until_end else Start.LATEST
    selection = Selection(
        tuple(dict.fromkeys(topics)),
        None if partition is None else frozenset(partition),
        start if offset is None else offset,
        count,
        until_end,
        isolation is Isolation.READ_COMMITTED,
    )
    opened: AbstractContextManager[Reading]
    if data_dir is not None:
        from fairlog.cli.read_directory import open_directory

        opened = open_directory(data_dir, selection)
    else:
        from fairlog.cli.read_node import open_node

        opened = open_node(bootstrap, selection, group)
    with opened as reading:
        _show(reading, _output(json, selection.topics), count, until_end)


def _show(reading: Reading, output: RecordOutput, count: int | None, until_end: bool) -> None:
    from fairlog.cli.interrupts import told_to_stop
    from fairlog.cli.progress import progress

    total = reading.total if until_end else None
    if count is not None:
        total = count if total is None else min(count, total)
    with told_to_stop() as stop, progress("records", total, hidden=sys.stdout.isatty()) as advance:
        for chunk in reading.chunks(stop):
            if chunk:
                output.write(chunk)
                advance(len(chunk))


def _output(json: bool, topics: tuple[str, ...]) -> RecordOutput:
    from fairlog.cli.record_output import JsonLines, TerminalTable, TextLines

    if json:
        return JsonLines()
    return TerminalTable(topics) if sys.stdout.isatty() else TextLines(topics)


def _refuse_what_excludes_another(
    data_dir: Path | None,
    group: str | None,
    partition: list[int] | None,
    offset: int | None,
    from_beginning: bool,
) -> None:
    excluding = [
        ("--data-dir", data_dir is not None, "--group", group is not None),
        ("--group", group is not None, "--partition", bool(partition)),
        ("--group", group is not None, "--offset", offset is not None),
        ("--offset", offset is not None, "--from-beginning", from_beginning),
    ]
    for one, one_given, other, other_given in excluding:
        if one_given and other_given:
            raise typer.BadParameter(f"{one} and {other} cannot be used together", param_hint=one)
