"""How `consume` writes records to stdout as they come: JSON lines for programs, a table for people.

A table that goes on for ever cannot measure its columns first: on a terminal they have fixed places, and what is too
long is folded inside its own; anywhere else each record is one line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlog.cli.record_forms import ReadRecord, shown, shown_text, shown_time, to_json_line

_TIME_WIDTH = len("2026-01-01 00:00:00.000")
_PARTITION_WIDTH = len("partition")
_OFFSET_WIDTH = 10


class RecordOutput(Protocol):
    """Takes records in the order in which they are to be shown."""

    def write(self, records: Sequence[ReadRecord]) -> None:
        """Write them, and let them be seen at once."""
        ...


class JsonLines:
    """One JSON document a line (`record_forms`)."""

    def write(self, records: Sequence[ReadRecord]) -> None:
        sys.stdout.writelines(to_json_line(record) + "\n" for record in records)
        sys.stdout.flush()


class TextLines:
    """One record a line, for a pipe or a file that people will read."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topic_width = max(map(len, (*topics, "topic")))
        self._begun = False

    def write(self, records: Sequence[ReadRecord]) -> None:
        if not self._begun:
            self._line("topic", "partition", "offset", "time (UTC)", "key", "value", "headers")
            self._begun = True
        for record in records:
            headers = ", ".join(f"{shown_text(name)}={shown(value)}" for name, value in record.headers)
            where = record.topic, str(record.partition), str(record.offset), shown_time(record.timestamp_ms)
            self._line(*where, shown(record.key), shown(record.value), headers)
        sys.stdout.flush()

    def _line(self, topic: str, partition: str, offset: str, time: str, key: str, value: str, headers: str) -> None:
        place = f"{topic:<{self._topic_width}}  {partition:>{_PARTITION_WIDTH}}  {offset:>{_OFFSET_WIDTH}}"
        sys.stdout.write(f"{place}  {time:<{_TIME_WIDTH}}  {key}  {value}  {headers}".rstrip() + "\n")


class TerminalTable:
    """A table that grows; headers stand below their record's value."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topic_width = max(map(len, (*topics, "topic"))) if len(topics) > 1 else None
        self._begun = False
        self._console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)

    def write(self, records: Sequence[ReadRecord]) -> None:
        if not records:
            return
        table = Table(box=None, header_style="bold", pad_edge=False, expand=True, show_header=not self._begun)
        if self._topic_width is not None:
            table.add_column("topic", width=self._topic_width, overflow="fold")
        table.add_column("partition", width=_PARTITION_WIDTH, justify="right")
        table.add_column("offset", width=_OFFSET_WIDTH, justify="right")
        table.add_column("time (UTC)", width=_TIME_WIDTH)
        table.add_column("key", ratio=1, overflow="fold")
        table.add_column("value", ratio=3, overflow="fold")
        for record in records:
            table.add_row(*(() if self._topic_width is None else (record.topic,)), *_cells(record))
        self._begun = True
        self._console.print(table)


def _cells(record: ReadRecord) -> tuple[str | Text, ...]:
    value = Text(shown(record.value))
    for name, content in record.headers:
        value.append(f"\n{shown_text(name)}: {shown(content)}", style="dim")
    return (
        str(record.partition),
        str(record.offset),
        shown_time(record.timestamp_ms),
        shown(record.key),
        value,
    )
