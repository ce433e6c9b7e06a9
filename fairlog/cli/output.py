"""How commands show what they found: rich tables for people, one JSON document for programs. Only to stdout.

Names in tables are what clients have chosen. As with records, what would move the cursor, begin a line or change
colours is escaped: whoever may name a group does not own the screen of who lists them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from fairlog.cli.record_forms import shown_text


def show_json(document: object) -> None:
    """Write one JSON document and a line feed."""
    json.dump(document, sys.stdout, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False)
    sys.stdout.write("\n")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Write a table; numbers stand right. Without rows, the sentence `empty`."""
    shown = [list(row) for row in rows]
    if not shown:
        say(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int) for row in shown)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*map(_cell, row))
    _console().print(table)


def show_fields(fields: Mapping[str, object]) -> None:
    """Write names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, _cell(value))
    _console().print(table)


def say(sentence: str) -> None:
    """Write one sentence for people. What is no text in it, as in a path that is no UTF-8, is escaped."""
    sys.stdout.write(sentence.encode(errors="backslashreplace").decode() + "\n")


def time_text(unix_ms: int | None) -> str | None:
    """A time in ms since 1970 as people read it, in UTC."""
    return None if unix_ms is None else f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cell(value: object) -> str:
    return "-" if value is None else shown_text(str(value))


def _console() -> Console:
    # Names may hold what rich takes for markup, and a pipe is not 80 columns wide.
    width = None if sys.stdout.isatty() else 10_000
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=width)
