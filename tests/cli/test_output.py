"""Tables for people, and what must not get out of their cells."""

from __future__ import annotations

import pytest

from fairlog.cli.output import say, show_fields, show_table

EVIL = "\x1b]0;owned\x07\x1b[2Jg\nfake  Empty\r"
SHOWN = r"\x1b]0;owned\x07\x1b[2Jg\nfake  Empty\r"


def test_table_escapes_what_would_leave_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """A group may be called anything; it gets one row, and does not steer the terminal."""
    show_table(("group", "members"), [(EVIL, 3), ("grün", None)], empty="no groups")
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [[*SHOWN.split(), "3"], ["grün", "-"]]
    assert head.split() == ["group", "members"]


def test_fields_escape_what_would_leave_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As in tables."""
    show_fields({"group": EVIL, "members": 3})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=1)[1].strip() == SHOWN
    assert second.split() == ["members", "3"]


def test_sentence_with_a_path_that_is_no_text_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a directory whose name is no UTF-8, and of a file that a changed manifest names."""
    say("/backups/gr\udcfcn is missing: naïve \ud800")
    assert capsys.readouterr().out == "/backups/gr\\udcfcn is missing: naïve \\ud800\n"
