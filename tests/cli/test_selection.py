"""Where `consume` begins and ends."""

from __future__ import annotations

import pytest

from fairlog.cli.errors import ClientError
from fairlog.cli.selection import Range, Selection, Start, begin_at

HELD = {0: Range(5, 15), 1: Range(0, 0)}


def select(start: Start | int, partitions: frozenset[int] | None = None) -> dict[int, Range]:
    return begin_at(Selection(("t",), partitions, start, None, until_end=False), "t", HELD)


def test_selection_by_name_is_the_start_or_the_end() -> None:
    """Of every partition, as it is."""
    assert select(Start.EARLIEST) == HELD
    assert select(Start.LATEST) == {0: Range(15, 15), 1: Range(0, 0)}


def test_selection_from_the_end_goes_back_to_the_start_at_most() -> None:
    """A partition with fewer records gives what it has."""
    assert select(-3) == {0: Range(12, 15), 1: Range(0, 0)}
    assert select(-300) == HELD


def test_selection_of_an_offset_begins_there() -> None:
    """Both ends of what a partition holds are offsets to begin at."""
    for offset in (5, 10, 15):
        assert select(offset, frozenset({0})) == {0: Range(offset, 15)}


def test_selection_of_what_is_not_there_is_refused() -> None:
    """An offset that retention has taken is not silently another one."""
    with pytest.raises(ClientError, match="partition 0 of t goes from offset 5 to 15, not to 4"):
        select(4, frozenset({0}))
    with pytest.raises(ClientError, match="topic t has no partition 2; it has 2, from 0"):
        select(Start.EARLIEST, frozenset({2}))
